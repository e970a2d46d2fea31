//! Requests that share an engine: each owns its answer, and leaves nothing behind.

mod support;

use std::sync::mpsc;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    Answer, EndReason, Ended, Engine, EngineConfig, LoadOptions, PrefixCounts, Request, RequestError,
    RequestEvent, RowPolicy, Service, ServiceCounts, ServiceLimits, StopReason, SubmitError, Verdict,
};
use support::*;

const CHUNK_TOKENS: usize = 16;

fn service(name: &str, parallel_max: usize, queue_max: usize) -> Service {
    let load = LoadOptions { context_tokens: Some(512), ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: CHUNK_TOKENS };
    let engine = Engine::load(&f32_model(name), &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max, queue_max }).expect("a thread")
}

/// A prompt of `len` tokens that no other `seed` gives.
fn prompt(service: &Service, seed: usize, len: usize) -> Vec<u32> {
    let vocabulary = service.model().spec.vocabulary;
    (0..len).map(|i| ((seed * 131 + i * i * 7 + i) % vocabulary) as u32).collect()
}

fn request(prompt: Vec<u32>, tokens_max: usize) -> Request {
    let sampling = Sampling { temperature: 1.0, seed: prompt.len() as u64, ..Sampling::default() };
    Request {
        prompt,
        sampling,
        tokens_max: Some(tokens_max),
        message_ends: Vec::new(),
        policy: Box::new(StopTokens(Vec::new())),
    }
}

/// All that came, checked for order: admitted, reading, tokens, one end.
fn heard(answer: &mut Answer) -> (Vec<u32>, Ended) {
    let (mut admitted, mut read, mut tokens) = (false, 0, Vec::new());
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Admitted { .. } => {
                assert!(!std::mem::replace(&mut admitted, true), "admitted twice")
            }
            RequestEvent::Read { tokens: to } => {
                assert!(admitted && tokens.is_empty() && to > read, "read {to} after {read}");
                read = to;
            }
            RequestEvent::Token(sampled) => tokens.push(sampled.token),
            RequestEvent::Ended(ended) => {
                assert_eq!(ended.read_tokens, read);
                assert_eq!(ended.generated_tokens, tokens.len());
                assert_eq!(answer.next_blocking(), None, "an event after the end");
                return (tokens, ended);
            }
        }
    }
}

const IDLE: ServiceCounts =
    ServiceCounts { queued: 0, running: 0, prefix: PrefixCounts { points: 0, bytes: 0 }, alive: true };

/// Stops at each token until the test lets it go on: the test decides what the engine is in the middle of.
struct Gate {
    reached: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl RowPolicy for Gate {
    fn advance(&mut self, _token: u32) -> Verdict {
        let _ = self.reached.send(());
        // The test is done with it when its end is gone.
        let _ = self.go_on.recv();
        Verdict::GoOn
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

/// A request whose engine stands still after each of its tokens, with the ends to see and to release it by.
fn gated(prompt: Vec<u32>, tokens_max: usize) -> (Request, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (reached, on_reached) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let gate = Gate { reached, go_on };
    (Request { policy: Box::new(gate), ..request(prompt, tokens_max) }, on_reached, let_go)
}

#[test]
fn answers_beside_others_are_the_answers_alone() {
    for name in F32_MODELS {
        let alone = service(name, 1, 8);
        let beside = service(name, 8, 8);
        let lengths = [1, 3, CHUNK_TOKENS, CHUNK_TOKENS + 1, 40, 70, 7, 33];
        let expected: Vec<_> = lengths
            .iter()
            .map(|&len| heard(&mut alone.submit(request(prompt(&alone, len, len), 12)).expect("taken")))
            .collect();
        let mut answers: Vec<_> = lengths
            .iter()
            .map(|&len| beside.submit(request(prompt(&beside, len, len), 12)).expect("taken"))
            .collect();
        for ((answer, (tokens, ended)), len) in answers.iter_mut().zip(&expected).zip(lengths) {
            let (beside_tokens, beside_ended) = heard(answer);
            assert_eq!(&beside_tokens, tokens, "{name}: a prompt of {len} tokens");
            assert_eq!(beside_tokens.len(), 12);
            assert_eq!(beside_ended.reason, ended.reason);
            assert_eq!(beside_ended.prompt_tokens, len);
        }
        assert_eq!(beside.counts(), IDLE, "{name}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_it_waits() {
    let service = service("llama-tiny", 1, 1);
    let vocabulary = service.model().spec.vocabulary;
    let refused = |request: Request| match service.submit(request) {
        Err(SubmitError::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(request(vec![], 1)), RequestError::EmptyPrompt);
    let too_long = RequestError::PromptTooLong { prompt_tokens: 512, context_tokens: 512 };
    assert_eq!(refused(request(vec![1; 512], 1)), too_long);
    let outside = RequestError::TokenOutOfRange { token: vocabulary as u32, at: 1, vocabulary };
    assert_eq!(refused(request(vec![1, vocabulary as u32], 1)), outside);
    let sampling = Sampling { temperature: f32::NAN, ..Sampling::default() };
    assert!(matches!(refused(Request { sampling, ..request(vec![1], 1) }), RequestError::Sampling(_)));
    // Answers were cut where the context ended, without a word.
    let both = RequestError::AnswerTooLong { prompt_tokens: 511, tokens_max: 9, context_tokens: 512 };
    assert_eq!(refused(request(vec![1; 511], 9)), both);
    assert!(both.to_string().contains("together 520, where the context holds 512"), "{both}");
    assert_eq!(service.counts(), IDLE);
    let (tokens, ended) = heard(&mut service.submit(request(vec![1; 511], 1)).expect("taken"));
    assert_eq!((tokens.len(), ended.reason), (1, EndReason::Length), "all that was asked for");
    let all = Request { tokens_max: None, ..request(vec![1; 511], 0) };
    let (tokens, ended) = heard(&mut service.submit(all).expect("taken"));
    assert_eq!((tokens.len(), ended.reason), (1, EndReason::Length), "the context ends it");
    let (tokens, ended) = heard(&mut service.submit(request(vec![1], 0)).expect("taken"));
    assert_eq!((tokens.len(), ended.reason), (0, EndReason::Length));
}

/// Prompts were cut from the front where they were longer than the window: system prompt and tools first, with a confident
/// answer to what was left.
#[test]
fn what_a_window_does_not_hold_is_refused_with_both_numbers() {
    for name in ["llama-tiny", "q35-tiny"] {
        let service = service(name, 1, 8);
        for len in [511, 512, 513, 5000] {
            for tokens_max in [None, Some(1), Some(100_000)] {
                let request = Request { tokens_max, ..request(prompt(&service, 3, len), 0) };
                let refused = match service.submit(request) {
                    Ok(mut answer) => {
                        let (tokens, ended) = heard(&mut answer);
                        assert_eq!(
                            (tokens.len(), ended.reason),
                            (1, EndReason::Length),
                            "{len}, {tokens_max:?}"
                        );
                        assert_eq!((ended.prompt_tokens, ended.read_tokens), (len, len), "all of it");
                        None
                    }
                    Err(SubmitError::Request(error)) => Some(error),
                    Err(error) => panic!("{error}"),
                };
                let wanted = match (len, tokens_max) {
                    (511, Some(100_000)) => Some(RequestError::AnswerTooLong {
                        prompt_tokens: len,
                        tokens_max: 100_000,
                        context_tokens: 512,
                    }),
                    (511, _) => None,
                    _ => Some(RequestError::PromptTooLong { prompt_tokens: len, context_tokens: 512 }),
                };
                assert_eq!(refused, wanted, "{len}, {tokens_max:?}");
                if let Some(error) = refused {
                    let text = error.to_string();
                    assert!(text.contains(&len.to_string()) && text.contains("512"), "{text}");
                }
            }
        }
        assert_eq!(service.counts(), IDLE, "{name}");
    }
}

/// Stops after two tokens, or at the first one.
struct StopAfter {
    left: usize,
    reason: StopReason,
}

impl RowPolicy for StopAfter {
    fn advance(&mut self, token: u32) -> Verdict {
        self.left -= 1;
        match (self.left, self.reason) {
            (0, StopReason::Token(_)) => Verdict::Stop(StopReason::Token(token)),
            (0, reason) => Verdict::Stop(reason),
            _ => Verdict::GoOn,
        }
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

#[test]
fn a_policy_ends_its_own_request() {
    let service = service("q2-tiny", 2, 8);
    let mut other = service.submit(request(vec![9, 8, 7], 30)).expect("taken");
    let policy = Box::new(StopAfter { left: 2, reason: StopReason::Sequence(3) });
    let mut stopped = service.submit(Request { policy, ..request(vec![1, 2], 30) }).expect("taken");
    let policy = Box::new(StopAfter { left: 2, reason: StopReason::Token(0) });
    let mut at_token = service.submit(Request { policy, ..request(vec![1, 2], 30) }).expect("taken");
    let (tokens, ended) = heard(&mut stopped);
    assert_eq!((tokens.len(), ended.reason), (2, EndReason::Stop(StopReason::Sequence(3))));
    let (tokens, ended) = heard(&mut at_token);
    assert_eq!(tokens.len(), 1, "a stop token is no part of the answer");
    assert!(matches!(ended.reason, EndReason::Stop(StopReason::Token(_))));
    assert_eq!(heard(&mut other).0.len(), 30);
}

#[test]
fn who_leaves_is_cancelled_wherever_it_is() {
    let service = service("q35-tiny", 2, 8);
    let alone = heard(&mut service.submit(request(vec![5, 6, 7], 20)).expect("taken")).0;
    // The gated request holds the engine still while the others leave: queued, half read, and writing.
    let (holding, reached, let_go) = gated(vec![1, 2, 3], 3);
    let mut holding = service.submit(holding).expect("taken");
    reached.recv().expect("its first token");
    let reading = service.submit(request(prompt(&service, 1, 10 * CHUNK_TOKENS), 20)).expect("taken");
    let queued = service.submit(request(vec![4, 4], 20)).expect("taken");
    let mut follower = service.submit(request(vec![5, 6, 7], 20)).expect("taken");
    assert_eq!(service.counts().queued, 3);
    let_go.send(()).expect("the engine waits");
    reached.recv().expect("its second token, while the other is half read");
    assert_eq!(service.counts(), ServiceCounts { queued: 2, running: 2, ..IDLE });
    drop((queued, reading));
    drop(let_go);
    assert_eq!(heard(&mut follower).0, alone, "nothing of those who left is in the next answer");
    assert_eq!(heard(&mut holding).0.len(), 3);
    let mut writing = service.submit(request(vec![1], 400)).expect("taken");
    while !matches!(writing.next_blocking(), Some(RequestEvent::Token(_))) {}
    drop(writing);
    assert_eq!(heard(&mut service.submit(request(vec![5, 6, 7], 20)).expect("taken")).0, alone);
    assert_eq!(service.counts(), IDLE);
}

#[test]
fn a_cancelled_request_hears_its_end() {
    let service = service("llama-tiny", 1, 8);
    let (holding, reached, let_go) = gated(vec![1, 2], 100);
    let mut writing = service.submit(holding).expect("taken");
    reached.recv().expect("its first token");
    let mut queued = service.submit(request(vec![3; 7], 5)).expect("taken");
    queued.cancel();
    writing.cancel();
    drop(let_go);
    let (tokens, ended) = heard(&mut writing);
    assert_eq!((tokens.len(), ended.reason), (1, EndReason::Cancelled));
    let (tokens, ended) = heard(&mut queued);
    assert_eq!((tokens.len(), ended.prompt_tokens, ended.reason), (0, 7, EndReason::Cancelled));
    assert_eq!(service.counts(), IDLE);
}

#[test]
fn a_full_queue_takes_nobody() {
    let service = service("llama-tiny", 1, 2);
    let (holding, reached, let_go) = gated(vec![1], 2);
    let mut holding = service.submit(holding).expect("taken");
    reached.recv().expect("its first token");
    let waiting: Vec<_> =
        (0..2).map(|_| service.submit(request(vec![2], 1)).expect("a place in the queue")).collect();
    assert!(matches!(
        service.submit(request(vec![3], 1)).map(drop),
        Err(SubmitError::QueueFull { queue_max: 2 })
    ));
    drop(let_go);
    heard(&mut holding);
    for mut answer in waiting {
        assert_eq!(heard(&mut answer).0.len(), 1);
    }
    heard(&mut service.submit(request(vec![3], 1)).expect("room again"));
}

#[test]
fn a_service_that_goes_ends_everybody() {
    let service = service("llama-tiny", 1, 8);
    let (holding, reached, let_go) = gated(vec![1], 100);
    let mut running = service.submit(holding).expect("taken");
    reached.recv().expect("its first token");
    let mut waiting = service.submit(request(vec![2], 100)).expect("taken");
    let dropping = std::thread::spawn(move || drop(service));
    drop(let_go);
    // The engine may write some more tokens before it sees that nobody can ask any more.
    let (tokens, ended) = heard(&mut running);
    assert!(!tokens.is_empty());
    let whole = matches!(ended.reason, EndReason::Length) && tokens.len() == 100;
    assert!(whole || ended.reason == EndReason::Cancelled, "{:?}", ended.reason);
    let (_, ended) = heard(&mut waiting);
    assert!(matches!(ended.reason, EndReason::Cancelled | EndReason::Length));
    dropping.join().expect("it ends");
}

/// Breaks the engine's thread, as a broken invariant of ours would.
struct Broken;

impl RowPolicy for Broken {
    fn advance(&mut self, _token: u32) -> Verdict {
        panic!("broken on purpose");
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

#[test]
fn an_engine_that_breaks_down_still_gives_every_request_its_end() {
    let service = service("llama-tiny", 2, 8);
    let (holding, reached, let_go) = gated(vec![1, 2, 3], 50);
    let mut other = service.submit(holding).expect("taken");
    reached.recv().expect("its first token");
    let broken = Request { policy: Box::new(Broken), ..request(vec![1], 5) };
    let mut broken = service.submit(broken).expect("taken");
    drop(let_go);
    let (tokens, ended) = heard(&mut broken);
    assert_eq!((tokens.len(), &ended.reason), (0, &EndReason::Failed(RequestError::EngineGone)));
    let (tokens, ended) = heard(&mut other);
    assert!(!tokens.is_empty() && ended.prompt_tokens == 3);
    assert_eq!(ended.reason, EndReason::Failed(RequestError::EngineGone));
    while service.counts().alive {
        std::thread::yield_now();
    }
    assert!(matches!(service.submit(request(vec![1], 1)).map(drop), Err(SubmitError::Stopped)));
}
