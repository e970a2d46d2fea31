//! What a request wants of its tokens, asked of the running service: forced tokens, masks, penalties, log probabilities,
//! and numbers out of bounds.

mod support;

use std::collections::VecDeque;
use std::path::Path;

use engine::policy::{StopTokens, TokenMask};
use engine::sampler::{Dry, SampleError, Sampled, Sampling};
use engine::{
    Answer, EndReason, Ended, Engine, EngineConfig, LoadOptions, Request, RequestError, RequestEvent,
    RowPolicy, Service, ServiceLimits, StepError, StopReason, SubmitError, Verdict,
};
use gguf::ModelFile;
use support::*;

fn service_of(path: &Path) -> Service {
    let load = LoadOptions { context_tokens: Some(512), ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 16 };
    let engine = Engine::load(path, &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max: 4, queue_max: 8 }).expect("a thread")
}

fn service() -> Service {
    service_of(&f32_model("llama-tiny"))
}

fn drawn() -> Sampling {
    Sampling { temperature: 1.0, seed: 11, ..Sampling::default() }
}

fn request(prompt: &[u32], tokens_max: usize, sampling: Sampling) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling,
        tokens_max: Some(tokens_max),
        message_ends: Vec::new(),
        policy: Box::new(StopTokens(Vec::new())),
    }
}

fn heard(answer: &mut Answer) -> (Vec<Sampled>, Ended) {
    let mut tokens = Vec::new();
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
            RequestEvent::Token(sampled) => tokens.push(sampled),
            RequestEvent::Ended(ended) => {
                assert_eq!(ended.generated_tokens, tokens.len());
                return (tokens, ended);
            }
        }
    }
}

fn answered(service: &Service, request: Request) -> (Vec<Sampled>, Ended) {
    heard(&mut service.submit(request).expect("taken"))
}

fn ids(tokens: &[Sampled]) -> Vec<u32> {
    tokens.iter().map(|sampled| sampled.token).collect()
}

/// Says these verdicts one after the other, the first before the answer, and masks rows.
#[derive(Default)]
struct Script {
    verdicts: VecDeque<Verdict>,
    mask: Option<TokenMask>,
}

impl Script {
    fn of(verdicts: impl IntoIterator<Item = Verdict>) -> Box<Script> {
        Box::new(Script { verdicts: verdicts.into_iter().collect(), mask: None })
    }

    fn masked(mask: TokenMask) -> Box<Script> {
        Box::new(Script { mask: Some(mask), ..Script::default() })
    }
}

impl RowPolicy for Script {
    fn start(&mut self) -> Verdict {
        self.verdicts.pop_front().unwrap_or(Verdict::GoOn)
    }

    fn mask(&self) -> Option<&TokenMask> {
        self.mask.as_ref()
    }

    fn advance(&mut self, _token: u32) -> Verdict {
        self.verdicts.pop_front().unwrap_or(Verdict::GoOn)
    }

    fn roll_back(&mut self, _tokens: usize) {
        unreachable!("nothing is drafted");
    }
}

#[test]
fn forced_tokens_are_told_and_counted_and_the_answer_goes_on_from_them() {
    let service = service();
    let vocabulary = service.model().spec.vocabulary;
    let sampling = Sampling { log_probabilities: Some(vocabulary), ..drawn() };
    let forced = Request {
        policy: Script::of([Verdict::Force(vec![5, 6, 7])]),
        ..request(&[1, 2], 8, sampling.clone())
    };
    let (tokens, ended) = answered(&service, forced);
    assert_eq!(ended.reason, EndReason::Length);
    assert_eq!(ids(&tokens[..3]), [5, 6, 7]);
    // As if they had been read: the same numbers at the same places.
    assert_eq!(tokens[3..], answered(&service, request(&[1, 2, 5, 6, 7], 5, sampling.clone())).0);
    // The model is asked for its opinion on a forced token too.
    for (i, prompt) in [&[1, 2][..], &[1, 2, 5], &[1, 2, 5, 6]].into_iter().enumerate() {
        let free = answered(&service, request(prompt, 1, sampling.clone())).0.remove(0);
        let (free, told) = (free.log_probabilities.unwrap(), tokens[i].log_probabilities.clone().unwrap());
        assert_eq!(told.top, free.top);
        let of_token = free.top.iter().find(|top| top.0 == tokens[i].token).unwrap();
        assert_eq!(told.token, of_token.1);
    }
}

#[test]
fn what_is_forced_ends_with_the_limit_and_is_replaced_by_what_is_forced_later() {
    let service = service();
    let forced = |verdicts: Vec<Verdict>, tokens_max| {
        let request = Request { policy: Script::of(verdicts), ..request(&[1, 2], tokens_max, drawn()) };
        let (tokens, ended) = answered(&service, request);
        (ids(&tokens), ended.reason)
    };
    let long = || Verdict::Force((10..30).collect());
    assert_eq!(forced(vec![long()], 3), (vec![10, 11, 12], EndReason::Length));
    assert_eq!(forced(vec![long()], 0), (vec![], EndReason::Length));
    assert_eq!(
        forced(vec![long(), Verdict::GoOn, Verdict::Force(vec![9, 8])], 4),
        (vec![10, 11, 9, 8], EndReason::Length)
    );
    let stop = |reason| Verdict::Stop(reason);
    // The token that completes a stop string is told, a stop token is not; what was to be forced is forgotten.
    let sequence = StopReason::Sequence(1);
    assert_eq!(forced(vec![long(), stop(sequence)], 9), (vec![10], EndReason::Stop(sequence)));
    let token = StopReason::Token(10);
    assert_eq!(forced(vec![long(), stop(token)], 9), (vec![], EndReason::Stop(token)));
    assert_eq!(forced(vec![stop(sequence)], 9), (vec![], EndReason::Stop(sequence)));
}

/// A forced token that the model does not have failed all sequences of the next window, and broke the engine down where
/// log probabilities were wanted.
#[test]
fn a_forced_token_that_the_model_does_not_have_fails_its_own_request() {
    let service = service();
    let vocabulary = service.model().spec.vocabulary;
    let alone = answered(&service, request(&[3, 4], 60, drawn()));
    for log_probabilities in [None, Some(1)] {
        let mut other = service.submit(request(&[3, 4], 60, drawn())).expect("taken");
        let absent = Request {
            policy: Script::of([Verdict::Force(vec![5, vocabulary as u32, 6])]),
            ..request(&[1, 2], 8, Sampling { log_probabilities, ..drawn() })
        };
        let (tokens, ended) = answered(&service, absent);
        let error = StepError::TokenOutOfRange { token: vocabulary as u32, vocabulary };
        assert_eq!((ids(&tokens), ended.reason), (vec![5], EndReason::Failed(RequestError::Step(error))));
        let (tokens, ended) = heard(&mut other);
        assert_eq!((tokens, ended.reason), (alone.0.clone(), alone.1.reason.clone()));
    }
}

#[test]
fn a_mask_is_kept_to_and_an_empty_one_ends_its_own_request() {
    let service = service();
    let vocabulary = service.model().spec.vocabulary;
    let mut mask = TokenMask::none(vocabulary);
    [3, 77, 200].into_iter().for_each(|token| mask.insert(token));
    let alone = answered(&service, request(&[3, 4], 40, drawn())).0;
    for sampling in [Sampling::default(), drawn()] {
        let mut other = service.submit(request(&[3, 4], 40, drawn())).expect("taken");
        let masked =
            Request { policy: Script::masked(mask.clone()), ..request(&[1, 2], 20, sampling.clone()) };
        let (tokens, ended) = answered(&service, masked);
        assert_eq!((tokens.len(), ended.reason), (20, EndReason::Length));
        assert!(tokens.iter().all(|sampled| mask.contains(sampled.token)), "{:?}", ids(&tokens));
        let none = TokenMask::none(vocabulary);
        let none = Request { policy: Script::masked(none), ..request(&[1, 2], 20, sampling) };
        let (tokens, ended) = answered(&service, none);
        let error = RequestError::Sample(SampleError::NothingAllowed);
        assert_eq!((tokens.len(), ended.reason), (0, EndReason::Failed(error)));
        assert_eq!(heard(&mut other).0, alone);
    }
}

#[test]
fn penalties_look_back_as_far_as_their_window() {
    let service = service();
    let penalised = |penalty_last_n| {
        let sampling = Sampling { presence_penalty: 100.0, penalty_last_n, ..Sampling::default() };
        let mut tokens = vec![7, 8, 9];
        tokens.extend(ids(&answered(&service, request(&tokens, 60, sampling)).0));
        tokens
    };
    let nearest = |tokens: &[u32]| {
        let same = (0..tokens.len()).flat_map(|a| (3.max(a + 1)..tokens.len()).map(move |b| (a, b)));
        same.filter(|&(a, b)| tokens[a] == tokens[b]).map(|(a, b)| b - a).min()
    };
    assert_eq!(nearest(&penalised(usize::MAX)), None, "a token of prompt or answer came again");
    let few = penalised(4);
    assert!(nearest(&few).is_some_and(|distance| distance > 4), "{few:?}");
}

#[test]
fn a_bias_forces_and_forbids() {
    let service = service();
    let biased = |logit_bias| {
        let sampling = Sampling { logit_bias, ..Sampling::default() };
        ids(&answered(&service, request(&[1, 2], 5, sampling)).0)
    };
    let free = biased(vec![]);
    assert_eq!(biased(vec![(200, f32::MAX)]), [200; 5]);
    let without = biased(free.iter().map(|&token| (token, -1e30)).collect());
    assert!(without.iter().all(|token| !free.contains(token)), "{without:?} of {free:?}");
}

#[test]
fn log_probabilities_are_a_distribution() {
    let service = service();
    let vocabulary = service.model().spec.vocabulary;
    let sampling =
        Sampling { log_probabilities: Some(vocabulary), logit_bias: vec![(9, 50.0)], top_k: 3, ..drawn() };
    for sampled in answered(&service, request(&[1, 2], 6, sampling)).0 {
        let told = sampled.log_probabilities.expect("wanted");
        assert_eq!(told.top.len(), vocabulary);
        assert!(told.top.is_sorted_by(|a, b| (a.1, b.0) >= (b.1, a.0)), "the likeliest first");
        let sum: f64 = told.top.iter().map(|top| f64::from(top.1).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert!(told.top.contains(&(sampled.token, told.token)));
    }
}

#[test]
fn a_damaged_row_fails_who_reads_it_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let source = f32_model("llama-tiny");
    let info = ModelFile::open(&source).unwrap().tensor("token_embd.weight").unwrap().clone();
    let healthy = service();
    let width = healthy.model().spec.width;
    let mut bytes = std::fs::read(&source).unwrap();
    let at = info.offset as usize + 4 * 3 * width;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    let damaged = service_of(&path);
    // The healthy ones never come upon the damaged row of token 3.
    let sampling = Sampling { logit_bias: vec![(3, f32::MIN)], log_probabilities: Some(3), ..drawn() };
    let prompts: [&[u32]; 4] = [&[1, 2], &[4, 3, 5], &[9, 9, 9], &[7; 40]];
    let mut answers =
        prompts.map(|prompt| damaged.submit(request(prompt, 20, sampling.clone())).expect("taken"));
    for (i, (answer, prompt)) in answers.iter_mut().zip(prompts).enumerate() {
        let (tokens, ended) = heard(answer);
        if i == 1 {
            let EndReason::Failed(RequestError::Step(StepError::NotFinite { tensor, .. })) = &ended.reason
            else {
                panic!("{:?}", ended.reason)
            };
            assert_eq!((tensor.as_deref(), tokens.len()), (Some("token_embd.weight"), 0));
        } else {
            let (wanted, wanted_end) = answered(&healthy, request(prompt, 20, sampling.clone()));
            assert_eq!((tokens, ended.reason), (wanted, wanted_end.reason), "request {i}");
        }
    }
    // A forced token is read like any other.
    let policy = Script::of([Verdict::Force(vec![8, 3, 4])]);
    let (tokens, ended) = answered(&damaged, Request { policy, ..request(&[1], 9, sampling) });
    assert_eq!(ids(&tokens), [8, 3]);
    assert!(matches!(ended.reason, EndReason::Failed(RequestError::Step(StepError::NotFinite { .. }))));
}

/// What a change of the neutral sampling gives.
fn changed(change: impl FnOnce(&mut Sampling)) -> Sampling {
    let mut sampling = drawn();
    change(&mut sampling);
    sampling
}

fn dry(change: impl FnOnce(&mut Dry)) -> Sampling {
    let mut dry = Dry::default();
    change(&mut dry);
    Sampling { dry: Some(dry), ..drawn() }
}

/// Sets a field to a number.
type Field = fn(f32) -> Sampling;

/// Every number of a sampling with its bounds.
const FIELDS: [(Field, f32, f32); 9] = [
    (|v| changed(|s| s.temperature = v), 0.0, 100.0),
    (|v| changed(|s| s.top_p = v), 0.0, 1.0),
    (|v| changed(|s| s.min_p = v), 0.0, 1.0),
    (|v| changed(|s| s.typical_p = v), 0.0, 1.0),
    (|v| changed(|s| s.repetition_penalty = v), 0.01, 100.0),
    (|v| changed(|s| s.presence_penalty = v), -100.0, 100.0),
    (|v| changed(|s| s.frequency_penalty = v), -100.0, 100.0),
    (|v| dry(|d| d.multiplier = v), 0.0, 100.0),
    (|v| dry(|d| d.base = v), 1.0, 100.0),
];

#[test]
fn every_number_is_held_to_its_bounds_and_answered_at_them() {
    let service = service();
    for (i, (with, min, max)) in FIELDS.into_iter().enumerate() {
        for bound in [min, max] {
            let (tokens, ended) = answered(&service, request(&[1, 2, 1, 2, 1], 6, with(bound)));
            assert_eq!((tokens.len(), ended.reason), (6, EndReason::Length), "field {i} at {bound}");
        }
        let outside = [min.next_down(), max.next_up(), f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30];
        for value in outside {
            let refused = service.submit(request(&[1], 1, with(value))).map(drop);
            assert!(
                matches!(refused, Err(SubmitError::Request(RequestError::Sampling(_)))),
                "field {i} at {value}: {refused:?}"
            );
        }
    }
    let vocabulary = service.model().spec.vocabulary;
    let counts: [fn(usize) -> Sampling; 4] = [
        |n| changed(|s| s.top_k = n),
        |n| changed(|s| (s.penalty_last_n, s.frequency_penalty) = (n, 1.0)),
        |n| dry(|d| d.last_n = n),
        |n| dry(|d| d.allowed_length = n),
    ];
    for (i, with) in counts.into_iter().enumerate() {
        for n in [0, 1, vocabulary, vocabulary + 1, usize::MAX] {
            let (tokens, ended) = answered(&service, request(&[1, 2, 1, 2, 1], 6, with(n)));
            assert_eq!((tokens.len(), ended.reason), (6, EndReason::Length), "count {i} at {n}");
        }
    }
    for seed in [0, u64::MAX] {
        let all = Request { tokens_max: None, ..request(&[1], 0, changed(|s| s.seed = seed)) };
        let (tokens, _) = answered(&service, all);
        assert_eq!(tokens.len(), 511, "as many as the context holds");
    }
}
