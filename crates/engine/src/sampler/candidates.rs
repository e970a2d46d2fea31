//! What is left to choose from, and the steps that leave less of it.

use kernels::math;

/// A token and its score in one number: less is better, and among equal scores the lower id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate(u64);

impl Candidate {
    /// `score` is finite.
    pub fn new(score: f32, token: u32) -> Candidate {
        // Adding makes -0 the same as 0.
        let bits = (score + 0.0).to_bits();
        let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Candidate(u64::from(!ascending) << 32 | u64::from(token))
    }

    pub fn token(&self) -> u32 {
        self.0 as u32
    }

    pub fn score(&self) -> f32 {
        let ascending = !((self.0 >> 32) as u32);
        f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
    }
}

/// Probabilities are counted in this fraction of the likeliest one: the sum over 2^24 tokens fits 64 bits.
const WEIGHT_ONE: f64 = (1u64 << 39) as f64;

/// Logits relative to the best are counted in 2^-20, so that their weighted sum is exact.
const LOGIT_ONE: f64 = (1u64 << 20) as f64;

/// Prefixes that reach a sum are looked for in pieces; the first has this many candidates.
const FIRST_PIECE: usize = 256;

/// Keeps the `k` best; 0 keeps all.
pub fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if (1..candidates.len()).contains(&k) {
        candidates.select_nth_unstable(k - 1);
        candidates.truncate(k);
    }
}

/// Keeps the fewest candidates that together are likelier than `p`, those first whose information -ln(probability) is
/// nearest to the expected one (Meister et al. 2022, "Locally typical sampling"). 1 keeps all.
///
/// With x the logit relative to the best and Z the sum of e^x, the information is ln Z - x and its expectation is
/// ln Z - mean(x): the distance needs no logarithm.
pub fn typical(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(best) = best_score(candidates).filter(|_| p < 1.0) else { return };
    let mut total = 0;
    let mut sum = 0i128;
    for candidate in &*candidates {
        let w = weight(candidate, best, 1.0);
        if w > 0 {
            total += w;
            sum += i128::from(w) * i128::from((relative(candidate, best) * LOGIT_ONE).round() as i64);
        }
    }
    let mean = sum as f64 / total as f64 / LOGIT_ONE;
    // Bits of numbers from 0 up are in the order of the numbers.
    let mut by_distance: Vec<(u64, Candidate)> =
        candidates.iter().map(|c| ((relative(c, best) - mean).abs().to_bits(), *c)).collect();
    let kept = shortest_prefix(
        &mut by_distance,
        |(_, candidate)| weight(candidate, best, 1.0),
        |reached| reached as f64 > f64::from(p) * total as f64,
    );
    candidates.clear();
    candidates.extend(by_distance[..kept].iter().map(|&(_, candidate)| candidate));
}

/// Keeps the fewest of the likeliest that together reach the probability `p`; 1 keeps all, 0 one.
pub fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(best) = best_score(candidates).filter(|_| p < 1.0) else { return };
    let total: u64 = candidates.iter().map(|c| weight(c, best, 1.0)).sum();
    let kept = shortest_prefix(
        candidates,
        |candidate| weight(candidate, best, 1.0),
        |reached| reached as f64 >= f64::from(p) * total as f64,
    );
    candidates.truncate(kept);
}

/// Keeps what is at least `p` times as likely as the likeliest; 0 keeps all.
pub fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(best) = best_score(candidates).filter(|_| p > 0.0) else { return };
    candidates.retain(|c| weight(c, best, 1.0) as f64 >= f64::from(p) * WEIGHT_ONE);
}

/// Draws one by `random` bits; none only if there is none.
pub fn draw(candidates: &mut [Candidate], temperature: f32, random: u64) -> Option<u32> {
    let best = best_score(candidates)?;
    if !candidates.is_sorted_by_key(Candidate::token) {
        candidates.sort_unstable_by_key(Candidate::token);
    }
    let total: u64 = candidates.iter().map(|c| weight(c, best, temperature)).sum();
    let target = ((u128::from(random) * u128::from(total)) >> 64) as u64;
    let mut reached = 0;
    let drawn = candidates.iter().find(|c| {
        reached += weight(c, best, temperature);
        reached > target
    });
    Some(drawn.expect("the target is below the total").token())
}

fn best_score(candidates: &[Candidate]) -> Option<f32> {
    candidates.iter().min().map(Candidate::score)
}

fn relative(candidate: &Candidate, best: f32) -> f64 {
    f64::from(candidate.score()) - f64::from(best)
}

/// Probability relative to that of the best, in units of 1 / [`WEIGHT_ONE`].
fn weight(candidate: &Candidate, best: f32, temperature: f32) -> u64 {
    let x = (relative(candidate, best) / f64::from(temperature)) as f32;
    (f64::from(math::exp(x)) * WEIGHT_ONE).round() as u64
}

/// Sorts the first items as far as their summed weight is not `enough`; returns how many that takes, all if it never is.
fn shortest_prefix<T: Ord>(
    items: &mut [T],
    weight: impl Fn(&T) -> u64,
    enough: impl Fn(u64) -> bool,
) -> usize {
    let mut sorted = 0;
    let mut reached = 0;
    while sorted < items.len() {
        let rest = &mut items[sorted..];
        let piece = (3 * sorted).max(FIRST_PIECE).min(rest.len());
        if piece < rest.len() {
            rest.select_nth_unstable(piece - 1);
        }
        rest[..piece].sort_unstable();
        for item in &rest[..piece] {
            sorted += 1;
            reached += weight(item);
            if enough(reached) {
                return sorted;
            }
        }
    }
    sorted
}
