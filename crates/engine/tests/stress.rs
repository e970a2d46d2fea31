//! Many requests that come, leave and are cancelled at any moment: each answer is its own, each has one end, and nothing
//! of them stays.

mod support;

use std::sync::{Arc, mpsc};

use engine::policy::StopTokens;
use engine::sampler::{Sampled, Sampling};
use engine::{
    Answer, EndReason, Ended, Engine, EngineConfig, LoadOptions, PrefixCounts, Request, RequestError,
    RequestEvent, RowPolicy, Service, ServiceCounts, ServiceLimits, StepError, SubmitError, Verdict,
};
use support::sequences::Random;
use support::*;
use sys::arena::lease_bytes;

const IDLE: ServiceCounts =
    ServiceCounts { queued: 0, running: 0, prefix: PrefixCounts { points: 0, bytes: 0 }, alive: true };

fn service(name: &str, limits: ServiceLimits) -> Service {
    let load = LoadOptions { context_tokens: Some(512), ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 16 };
    let engine = Engine::load(&f32_model(name), &config).expect("a model");
    Service::start(engine, limits).expect("a thread")
}

/// Request number `marker`: its prompt, its sampling and its length are those of no other.
fn request(service: &Service, marker: usize) -> Request {
    request_of(service.model().spec.vocabulary, marker)
}

fn request_of(vocabulary: usize, marker: usize) -> Request {
    let prompt = (0..1 + marker * 7 % 40).map(|i| ((marker * 131 + i * i * 7 + i) % vocabulary) as u32);
    let sampling = Sampling {
        temperature: if marker.is_multiple_of(3) { 0.0 } else { 1.0 },
        seed: marker as u64,
        log_probabilities: Some(2),
        repetition_penalty: 1.1,
        ..Sampling::default()
    };
    let policy = Box::new(StopTokens(vec![(marker % vocabulary) as u32]));
    Request {
        prompt: prompt.collect(),
        sampling,
        tokens_max: Some(marker % 7),
        message_ends: Vec::new(),
        policy,
    }
}

/// All events up to the end, which is the last one.
fn heard(answer: &mut Answer) -> (Vec<Sampled>, Ended) {
    let mut tokens = Vec::new();
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
            RequestEvent::Token(sampled) => tokens.push(sampled),
            RequestEvent::Ended(ended) => {
                assert_eq!(answer.next_blocking(), None, "an event after the end");
                assert_eq!(ended.generated_tokens, tokens.len());
                return (tokens, ended);
            }
        }
    }
}

const MARKERS: usize = 30;

/// Answers of requests that were alone.
type Alone = Vec<(Vec<Sampled>, EndReason)>;

/// Compares an answer with the one alone; one that was cancelled is the beginning of it.
fn check(marker: usize, alone: &Alone, answer: &mut Answer, cancelled: bool) {
    let (tokens, ended) = heard(answer);
    let (wanted, reason) = &alone[marker];
    if cancelled && ended.reason == EndReason::Cancelled {
        assert_eq!(tokens, wanted[..tokens.len()], "request {marker}, cancelled");
    } else {
        assert_eq!((&tokens, &ended.reason), (wanted, reason), "request {marker}");
    }
}

/// One caller that submits, waits, cancels and leaves by chance; how often the queue was full.
fn caller(service: &Service, alone: &Alone, seed: u64, rounds: usize) -> usize {
    let mut random = Random::new(seed);
    let mut open: Vec<(usize, Answer, bool)> = Vec::new();
    let mut refused = 0;
    for _ in 0..rounds {
        match random.below(8) {
            0..4 => {
                let marker = random.below(MARKERS);
                match service.submit(request(service, marker)) {
                    Ok(answer) => open.push((marker, answer, false)),
                    Err(SubmitError::QueueFull { .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            action if !open.is_empty() => {
                let at = random.below(open.len());
                match action {
                    4 => drop(open.swap_remove(at)),
                    5 => {
                        open[at].1.cancel();
                        open[at].2 = true;
                    }
                    _ => {
                        let (marker, mut answer, cancelled) = open.swap_remove(at);
                        check(marker, alone, &mut answer, cancelled);
                    }
                }
            }
            _ => {}
        }
    }
    for (marker, mut answer, cancelled) in open {
        check(marker, alone, &mut answer, cancelled);
    }
    refused
}

#[test]
fn ten_thousand_rounds_of_coming_and_going_leave_nothing() {
    for (name, rounds) in [("llama-tiny", 1500), ("q35moe-tiny", 1000)] {
        let lone = service(name, ServiceLimits { parallel_max: 1, queue_max: 0 });
        let alone = (0..MARKERS).map(|marker| {
            let (tokens, ended) = heard(&mut lone.submit(request(&lone, marker)).expect("taken"));
            (tokens, ended.reason)
        });
        let alone = Arc::new(alone.collect::<Alone>());
        let service = Arc::new(service(name, ServiceLimits { parallel_max: 3, queue_max: 5 }));
        let callers: Vec<_> = (0..4)
            .map(|seed| {
                let (service, alone) = (service.clone(), alone.clone());
                std::thread::spawn(move || caller(&service, &alone, seed, rounds))
            })
            .collect();
        let refused: usize = callers.into_iter().map(|caller| caller.join().expect("a caller")).sum();
        assert!(refused > 0, "{name}: the queue was never full");
        // Who left before this one came is gone when it ends.
        check(5, &alone, &mut service.submit(request(&service, 5)).expect("room"), false);
        assert_eq!(service.counts(), IDLE, "{name}");
        let kv = service.model().kv.counters();
        assert_eq!((kv.leased, kv.committed), (0, 0), "{name}: cells of nobody");
    }
}

/// A request on its way from the queue to a place was counted in both, and one that left the queue heard its end before
/// its place was free: who kept to the limits was refused at times.
#[test]
fn as_many_as_there_are_places_are_never_refused() {
    let service = Arc::new(service("llama-tiny", ServiceLimits { parallel_max: 2, queue_max: 1 }));
    let callers: Vec<_> = (0..3)
        .map(|seed| {
            let service = service.clone();
            std::thread::spawn(move || {
                let mut random = Random::new(seed);
                for round in 0..2000 {
                    let mut answer = service
                        .submit(request(&service, random.below(2)))
                        .unwrap_or_else(|error| panic!("round {round}: {error}"));
                    if random.chance(50) {
                        answer.cancel();
                    }
                    heard(&mut answer);
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().expect("a caller"));
    assert_eq!(service.counts(), IDLE);
}

/// Holds the engine still after its first token until the other end of the channel is gone.
struct Gate(mpsc::Sender<()>, mpsc::Receiver<()>);

impl RowPolicy for Gate {
    fn advance(&mut self, _token: u32) -> Verdict {
        let _ = self.0.send(());
        let _ = self.1.recv();
        Verdict::GoOn
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

/// The sequence that did not fit kept the cells it had got until the step was over, so that those after it, for which
/// these would have been enough, failed as well.
#[test]
fn only_the_request_that_does_not_fit_fails() {
    let load = LoadOptions { context_tokens: Some(1000), sequences: Some(1), ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 1000 };
    let start =
        |engine| Service::start(engine, ServiceLimits { parallel_max: 4, queue_max: 4 }).expect("a thread");
    let mut engine = Engine::load(&f32_model("llama-tiny"), &config).expect("a model");
    let of = |prompt: Vec<u32>, tokens_max| Request {
        prompt,
        tokens_max: Some(tokens_max),
        ..request_of(1000, 1)
    };
    // Cells of nobody fill the pool but for three blocks.
    let model = engine.model().clone();
    let blocks = || {
        let counters = model.kv.counters();
        (counters.budget - counters.leased) / lease_bytes(model.layout.block_bytes)
    };
    let mut others = Vec::new();
    while blocks() > 3 {
        let mut state = model.new_state().expect("memory");
        engine.read(&mut state, &[1]).expect("room");
        others.push(state);
    }
    let alone = start(Engine::load(&f32_model("llama-tiny"), &config).expect("a model"));
    let service = start(engine);
    let (reached, on_reached) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel::<()>();
    let gate = Request { policy: Box::new(Gate(reached, go_on)), ..of(vec![9, 8], 30) };
    let mut gated = service.submit(gate).expect("taken");
    on_reached.recv().expect("its first token");
    // They come to the same window: three blocks are wanted here, of two, and one there.
    let mut long = service.submit(of((0..700).collect(), 30)).expect("taken");
    let mut short = service.submit(of(vec![5, 6, 7], 300)).expect("taken");
    drop(let_go);
    let (tokens, ended) = heard(&mut long);
    let error = EndReason::Failed(RequestError::Step(StepError::OutOfMemory {
        what: "keys and values",
        bytes: model.layout.block_bytes,
        left_bytes: Some(model.kv.counters().budget % lease_bytes(model.layout.block_bytes)),
    }));
    assert_eq!((tokens.len(), ended.read_tokens, ended.reason), (0, 0, error));
    for (answer, prompt, tokens_max) in [(&mut gated, vec![9, 8], 30), (&mut short, vec![5, 6, 7], 300)] {
        let wanted = heard(&mut alone.submit(of(prompt, tokens_max)).expect("taken"));
        let (tokens, ended) = heard(answer);
        assert_eq!((tokens, ended.reason), (wanted.0, EndReason::Length));
    }
    // Room again for what fits.
    drop(others);
    assert_eq!(heard(&mut service.submit(of((0..700).collect(), 3)).expect("taken")).0.len(), 3);
    assert_eq!((service.counts(), model.kv.counters().committed), (IDLE, 0));
}
