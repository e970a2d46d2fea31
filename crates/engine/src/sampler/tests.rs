use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn sampler(sampling: Sampling, vocabulary: usize) -> Sampler {
    Sampler::new(sampling.validate(vocabulary).unwrap())
}

fn seen(logits: &[f32], sampling: Sampling) -> Vec<u32> {
    let mut sampler = sampler(sampling, logits.len());
    let tokens: BTreeSet<u32> =
        (0..500).map(|position| sampler.sample(logits, &[], position, None).unwrap().token).collect();
    tokens.into_iter().collect()
}

fn drawn() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

#[test]
fn greedy_takes_the_lower_of_equals() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
    let mut greedy = sampler(Sampling::default(), 3);
    assert_eq!(greedy.sample(&[1.0, 3.0, 3.0], &[], 0, None).unwrap().token, 1);
    assert_eq!(greedy.sample(&[-0.0, 0.0, -1.0], &[], 0, None).unwrap().token, 0);
}

#[test]
fn cut_offs_keep_the_likeliest() {
    let logits = [0.0, 1.0, 2.0, 1.5];
    assert_eq!(seen(&logits, drawn()), [0, 1, 2, 3]);
    assert_eq!(seen(&logits, Sampling { top_k: 2, ..drawn() }), [2, 3]);
    assert_eq!(seen(&logits, Sampling { top_k: 4000, ..drawn() }), [0, 1, 2, 3]);
    assert_eq!(seen(&logits, Sampling { top_p: 0.4, ..drawn() }), [2]);
    assert_eq!(seen(&logits, Sampling { top_p: 0.0, ..drawn() }), [2]);
    assert_eq!(seen(&logits, Sampling { min_p: 0.3, ..drawn() }), [1, 2, 3]);
    assert_eq!(seen(&logits, Sampling { min_p: 1.0, ..drawn() }), [2]);
    assert_eq!(seen(&[1.0; 4], Sampling { top_k: 2, ..drawn() }), [0, 1]);
    // Cut-offs see probabilities before temperature.
    assert_eq!(seen(&logits, Sampling { min_p: 0.3, temperature: 100.0, ..drawn() }), [1, 2, 3]);
}

#[test]
fn frequencies_follow_the_probabilities() {
    let logits: [f32; 5] = [0.0, 1.0, 2.0, -40.0, 1.5];
    for temperature in [0.5f32, 1.0, 3.0] {
        let mut sampler = sampler(Sampling { temperature, seed: 7, ..drawn() }, 5);
        let mut counts = [0usize; 5];
        for position in 0..20_000 {
            counts[sampler.sample(&logits, &[], position, None).unwrap().token as usize] += 1;
        }
        let weights = logits.map(|l| (f64::from(l) / f64::from(temperature)).exp());
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            assert!((*count as f64 / 20_000.0 - weight / total).abs() < 0.015, "{temperature} {counts:?}");
        }
    }
}

#[test]
fn a_place_gives_the_same_token_whatever_was_drawn_before() {
    let logits = [0.0; 100];
    let mut first = sampler(Sampling { seed: 3, ..drawn() }, 100);
    let mut second = first.clone();
    for position in 0..50 {
        first.sample(&logits, &[], position, None).unwrap();
    }
    assert_eq!(first.sample(&logits, &[], 77, None), second.sample(&logits, &[], 77, None));
    let mut other = sampler(Sampling { seed: 4, ..drawn() }, 100);
    let tokens = |sampler: &mut Sampler| -> Vec<u32> {
        (0..50).map(|p| sampler.sample(&logits, &[], p, None).unwrap().token).collect()
    };
    assert_ne!(tokens(&mut first), tokens(&mut other));
}

#[test]
fn scores_that_are_no_numbers_are_errors() {
    for found in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for sampling in [Sampling::default(), drawn()] {
            let mut sampler = sampler(sampling, 3);
            match sampler.sample(&[0.0, found, 1.0], &[], 0, None) {
                Err(SampleError::NotFinite { token: 1, found: told }) => {
                    assert_eq!(told.to_bits(), found.to_bits())
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_mask_leaves_only_its_tokens() {
    let logits = [5.0, 1.0, 2.0];
    let mut mask = TokenMask::none(3);
    let mut greedy = sampler(Sampling { log_probabilities: Some(1), ..Sampling::default() }, 3);
    assert_eq!(greedy.sample(&logits, &[], 0, Some(&mask)), Err(SampleError::NothingAllowed));
    mask.insert(2);
    let sampled = greedy.sample(&logits, &[], 0, Some(&mask)).unwrap();
    assert_eq!(sampled.token, 2);
    // The model's own opinion is told all the same.
    assert_eq!(sampled.log_probabilities.unwrap().top[0].0, 0);
}

#[test]
fn extreme_numbers_still_give_a_token() {
    let logits = [f32::MAX, f32::MIN, 0.0, 1e-40];
    let sampling = Sampling {
        temperature: 1e-38,
        repetition_penalty: 0.01,
        frequency_penalty: -100.0,
        logit_bias: vec![(0, f32::MAX), (1, f32::MIN)],
        dry: Some(Dry { multiplier: 100.0, base: 100.0, allowed_length: 0, ..Dry::default() }),
        ..drawn()
    };
    let history = [0, 1, 2, 3].repeat(200);
    for sampling in [
        sampling.clone(),
        Sampling { temperature: 100.0, typical_p: 0.0, ..sampling.clone() },
        Sampling { top_p: 0.0, min_p: 1.0, ..sampling },
    ] {
        assert!(sampler(sampling, 4).sample(&logits, &history, 0, None).is_ok());
    }
}

#[test]
fn every_number_is_checked() {
    let check = |sampling: Sampling, expected: &str| {
        assert_eq!(sampling.validate(10).unwrap_err().to_string(), expected);
    };
    let s = Sampling::default;
    check(Sampling { temperature: -1.0, ..s() }, "`temperature` is -1: a number from 0 to 100 is needed");
    check(
        Sampling { temperature: 999_999.0, ..s() },
        "`temperature` is 999999: a number from 0 to 100 is needed",
    );
    check(
        Sampling { temperature: f32::NAN, ..s() },
        "`temperature` is NaN: a number from 0 to 100 is needed",
    );
    check(Sampling { top_p: -1.0, ..s() }, "`top_p` is -1: a number from 0 to 1 is needed");
    check(Sampling { top_p: f32::INFINITY, ..s() }, "`top_p` is inf: a number from 0 to 1 is needed");
    check(Sampling { min_p: 1.5, ..s() }, "`min_p` is 1.5: a number from 0 to 1 is needed");
    check(Sampling { typical_p: f32::NAN, ..s() }, "`typical_p` is NaN: a number from 0 to 1 is needed");
    check(
        Sampling { repetition_penalty: 0.0, ..s() },
        "`repetition_penalty` is 0: a number from 0.01 to 100 is needed",
    );
    check(
        Sampling { presence_penalty: 101.0, ..s() },
        "`presence_penalty` is 101: a number from -100 to 100 is needed",
    );
    check(
        Sampling { frequency_penalty: f32::NEG_INFINITY, ..s() },
        "`frequency_penalty` is -inf: a number from -100 to 100 is needed",
    );
    let dry = |dry| Sampling { dry: Some(dry), ..s() };
    check(
        dry(Dry { multiplier: -0.1, ..Dry::default() }),
        "`dry_multiplier` is -0.1: a number from 0 to 100 is needed",
    );
    check(dry(Dry { base: 0.5, ..Dry::default() }), "`dry_base` is 0.5: a number from 1 to 100 is needed");
    check(
        dry(Dry { sequence_breakers: vec![9, 10], ..Dry::default() }),
        "`dry_sequence_breakers` names token 10: a token below 10 is needed",
    );
    check(
        Sampling { logit_bias: vec![(10, 1e30)], ..s() },
        "`logit_bias` names token 10: a token below 10 is needed",
    );
    check(
        Sampling { logit_bias: vec![(1, f32::NAN)], ..s() },
        "`logit_bias` of token 1 is NaN: a finite number is needed",
    );
    check(
        Sampling { log_probabilities: Some(11), ..s() },
        "`log_probabilities` is 11: at most 10 is possible",
    );
    assert!(s().validate(10).is_ok());
    assert!(s().validate((1 << 24) + 1).is_err());
}

/// Logits that often are equal or far apart.
fn logits(most: usize) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![(-3i8..4).prop_map(f32::from), -12f32..12.0, -1e3f32..1e3];
    prop::collection::vec(logit, 1..most)
}

fn candidates(logits: &[f32]) -> Vec<Candidate> {
    logits.iter().zip(0..).map(|(&logit, token)| Candidate::new(logit, token)).collect()
}

/// Ids in order of score, then of id, and the probability of each id.
fn naive(logits: &[f32]) -> (Vec<usize>, Vec<f64>) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let best = f64::from(logits[order[0]]);
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    (order, weights.iter().map(|w| w / total).collect())
}

fn tokens(candidates: &[Candidate]) -> BTreeSet<usize> {
    candidates.iter().map(|c| c.token() as usize).collect()
}

/// What a cut-off keeps is what the definition keeps with a probability within rounding of the one asked for.
fn near(kept: &[Candidate], p: f32, keeps: impl Fn(f64) -> BTreeSet<usize>) -> Result<(), TestCaseError> {
    let kept = tokens(kept);
    let (low, high) = (keeps(f64::from(p) - 1e-5), keeps(f64::from(p) + 1e-5));
    let fewest = if low.len() < high.len() { (&low, &high) } else { (&high, &low) };
    prop_assert!(fewest.0.is_subset(&kept) && kept.is_subset(fewest.1), "{low:?} {kept:?} {high:?}");
    Ok(())
}

proptest! {
    #[test]
    fn candidates_keep_score_and_token(score in -1e38f32..1e38, token in any::<u32>()) {
        let candidate = Candidate::new(score, token);
        prop_assert_eq!((candidate.score(), candidate.token()), (score, token));
    }

    #[test]
    fn top_k_is_the_beginning_of_the_order(logits in logits(600), k in 0usize..700) {
        let mut kept = candidates(&logits);
        top_k(&mut kept, k);
        let (order, _) = naive(&logits);
        let wanted = if k == 0 { order.len() } else { k.min(order.len()) };
        prop_assert_eq!(tokens(&kept), order[..wanted].iter().copied().collect());
    }

    #[test]
    fn top_p_is_the_definition(logits in logits(1500), p in 0f32..1.0) {
        let mut kept = candidates(&logits);
        top_p(&mut kept, p);
        let (order, probabilities) = naive(&logits);
        near(&kept, p, |p| {
            let mut reached = 0.0;
            let last = order.iter().position(|&i| { reached += probabilities[i]; reached >= p });
            order[..last.map_or(order.len(), |last| last + 1)].iter().copied().collect()
        })?;
    }

    #[test]
    fn min_p_is_the_definition(logits in logits(300), p in 0f32..1.0) {
        let mut kept = candidates(&logits);
        min_p(&mut kept, p);
        let (order, probabilities) = naive(&logits);
        near(&kept, p, |p| {
            order.iter().copied().filter(|&i| probabilities[i] / probabilities[order[0]] >= p).collect()
        })?;
    }

    #[test]
    fn typical_is_the_definition(logits in prop::collection::vec(-8f32..8.0, 1..1200), p in 0f32..1.0) {
        let mut kept = candidates(&logits);
        typical(&mut kept, p);
        let (_, probabilities) = naive(&logits);
        let entropy: f64 = probabilities.iter().map(|p| -p * p.ln()).sum();
        let distance = |i: usize| (-probabilities[i].ln() - entropy).abs();
        // Distances within rounding of each other may change places: compare the mass, and that what is kept is near.
        let kept = tokens(&kept);
        let mass: f64 = kept.iter().map(|&i| probabilities[i]).sum();
        let farthest = kept.iter().map(|&i| distance(i)).fold(0.0, f64::max);
        prop_assert!(mass > f64::from(p) - 1e-5);
        for i in (0..logits.len()).filter(|i| !kept.contains(i)) {
            prop_assert!(distance(i) >= farthest - 1e-4);
        }
        let last = kept.iter().copied().max_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap();
        if kept.len() > 1 {
            let likeliest_at_the_border = kept.iter().filter(|&&i| distance(i) > farthest - 1e-4)
                .map(|&i| probabilities[i]).fold(probabilities[last], f64::max);
            prop_assert!(mass - likeliest_at_the_border <= f64::from(p) + 1e-5);
        }
    }

    #[test]
    fn the_order_of_candidates_changes_nothing(
        (logits, shuffled) in logits(900).prop_flat_map(|logits| {
            let shuffled = Just(candidates(&logits)).prop_shuffle();
            (Just(logits), shuffled)
        }),
        top_k in 0usize..900, top_p in 0f32..1.1, min_p in 0f32..0.3, typical_p in 0.3f32..1.3,
        seed in any::<u64>(), temperature in 0f32..3.0,
    ) {
        let sampling = Sampling {
            top_k, top_p: top_p.min(1.0), min_p, typical_p: typical_p.min(1.0), seed, temperature,
            ..Sampling::default()
        }.validate(logits.len()).unwrap();
        let mut in_order = candidates(&logits);
        let mut shuffled = shuffled;
        for position in 0..4 {
            prop_assert_eq!(
                choose(&mut in_order, &sampling, position),
                choose(&mut shuffled, &sampling, position)
            );
        }
    }

    #[test]
    fn penalties_are_the_definition(
        logits in prop::collection::vec(-9f32..9.0, 8),
        history in prop::collection::vec(0u32..8, 0..40),
        repetition in 0.5f32..2.0, presence in -2f32..2.0, frequency in -2f32..2.0,
        last_n in 0usize..50, bias in -5f32..5.0,
    ) {
        let sampling = Sampling {
            repetition_penalty: repetition, presence_penalty: presence, frequency_penalty: frequency,
            penalty_last_n: last_n, logit_bias: vec![(3, bias), (3, 1.0)], ..Sampling::default()
        }.validate(8).unwrap();
        let mut scores = logits.clone();
        let mut penalties = Penalties::default();
        for _ in 0..2 {
            // The second time finds what the first left behind, if anything.
            scores = logits.clone();
            penalties.apply(&sampling, &history, &mut scores);
        }
        let window = &history[history.len() - last_n.min(history.len())..];
        for (token, &logit) in logits.iter().enumerate() {
            let count = window.iter().filter(|&&t| t as usize == token).count() as f64;
            let mut wanted = f64::from(logit);
            if token == 3 {
                wanted += f64::from(bias) + 1.0;
            }
            if count > 0.0 {
                wanted = if wanted > 0.0 { wanted / f64::from(repetition) } else { wanted * f64::from(repetition) };
                wanted -= count * f64::from(frequency) + f64::from(presence);
            }
            prop_assert!((f64::from(scores[token]) - wanted).abs() < 1e-3, "{token}: {} {wanted}", scores[token]);
        }
    }

    #[test]
    fn dry_is_the_definition(
        history in prop::collection::vec(0u32..3, 0..60),
        allowed_length in 0usize..5, last_n in 0usize..70, breaker in prop::option::of(0u32..4),
    ) {
        let dry = Dry {
            multiplier: 0.5, base: 1.25, allowed_length, last_n,
            sequence_breakers: breaker.into_iter().collect(),
        };
        let sampling = Sampling { dry: Some(dry), ..Sampling::default() }.validate(4).unwrap();
        let mut scores = vec![1.0; 4];
        Penalties::default().apply(&sampling, &history, &mut scores);
        let window = &history[history.len() - last_n.min(history.len())..];
        let since_breaker = window.iter().rev().take_while(|&&t| Some(t) != breaker).count();
        for token in 0..4u32 {
            // The longest end of the window that somewhere before was followed by the token.
            let longest = (0..window.len()).filter(|&at| window[at] == token).map(|at| {
                let ends = window[..at].iter().rev().zip(window.iter().rev());
                (at > 0).then(|| ends.take_while(|(a, b)| a == b).count().min(since_breaker))
            }).max().flatten();
            let wanted = match longest {
                Some(n) if n >= allowed_length => 1.0 - 0.5 * 1.25f64.powi((n - allowed_length) as i32),
                _ => 1.0,
            };
            let found = f64::from(scores[token as usize]);
            prop_assert!((found - wanted).abs() < 1e-4 * wanted.abs().max(1.0), "{token}: {found} {wanted}");
        }
    }

    #[test]
    fn log_probabilities_are_of_the_unchanged_logits(
        logits in logits(400), n in 0usize..20, history in prop::collection::vec(0u32..1, 0..5),
    ) {
        let n = n.min(logits.len());
        let sampling = Sampling {
            log_probabilities: Some(n), repetition_penalty: 2.0, logit_bias: vec![(0, 5.0)], top_k: 3, ..drawn()
        };
        let sampled = sampler(sampling, logits.len()).sample(&logits, &history, 1, None).unwrap();
        let (order, _) = naive(&logits);
        let best = f64::from(logits[order[0]]);
        let log_sum = best + logits.iter().map(|&l| (f64::from(l) - best).exp()).sum::<f64>().ln();
        let of = |i: usize| f64::from(logits[i]) - log_sum;
        let told = sampled.log_probabilities.unwrap();
        let close = |found: f32, wanted: f64| (f64::from(found) - wanted).abs() < 1e-5 * wanted.abs().max(1.0);
        prop_assert!(close(told.token, of(sampled.token as usize)));
        prop_assert_eq!(told.top.len(), n);
        for (&(token, found), &wanted) in told.top.iter().zip(&order) {
            prop_assert_eq!(token as usize, wanted);
            prop_assert!(close(found, of(wanted)));
        }
    }
}
