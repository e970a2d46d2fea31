//! Contexts of 262,144 tokens, on the tiny model of the mission's architecture: read to the end in the memory that is planned
//! for them, and two of them at once answered as each is alone.

mod support;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    Answer, EndReason, Ended, Engine, EngineConfig, KvType, LoadOptions, Request, RequestEvent, Service,
    ServiceLimits,
};
use support::sequences::Random;
use support::*;
use sys::arena::lease_bytes;
use sys::memory::resident;

const CONTEXT_TOKENS: usize = 262_144;
/// Beside which there is room for an answer of 2,048.
const PROMPT_TOKENS: usize = 260_088;
const ANSWER_TOKENS: usize = 2048;
/// Tokens of it that a warm round must not read.
const REUSED_MIN: usize = 260_081;
/// Rows of a window, and what the allocator rounds.
const MARGIN_BYTES: u64 = 64 << 20;

fn service(kv: KvType, parallel_max: usize, prefix_bytes: usize) -> Service {
    let load = LoadOptions {
        kv,
        context_tokens: Some(CONTEXT_TOKENS),
        sequences: Some(parallel_max),
        prefix_bytes,
        ..LoadOptions::default()
    };
    let config = EngineConfig { load, threads: 2, isa: None, chunk_tokens: 512 };
    let engine = Engine::load(&f32_model("q4e-tiny"), &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max, queue_max: 4 }).expect("a thread")
}

fn text(service: &Service, seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(service.model().spec.vocabulary) as u32).collect()
}

fn submit(service: &Service, prompt: &[u32], tokens_max: usize) -> Answer {
    let sampling = Sampling { temperature: 1.0, seed: 5, log_probabilities: Some(2), ..Sampling::default() };
    let policy = Box::new(StopTokens(Vec::new()));
    let (prompt, tokens_max) = (prompt.to_vec(), Some(tokens_max));
    service.submit(Request { prompt, sampling, tokens_max, message_ends: vec![], policy }).expect("taken")
}

/// Tokens with the bits of their log probabilities.
type Bits = Vec<(u32, u32)>;

fn heard(mut answer: Answer) -> (Bits, Ended) {
    let mut tokens = Vec::new();
    loop {
        match answer.next_blocking().expect("an end") {
            RequestEvent::Token(sampled) => {
                let found = sampled.log_probabilities.expect("they were wanted");
                tokens.push((sampled.token, found.token.to_bits()));
            }
            RequestEvent::Ended(ended) => {
                assert_eq!(ended.reason, EndReason::Length);
                return (tokens, ended);
            }
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
        }
    }
}

#[test]
#[ignore = "half an hour; run by cargo xtask qualify"]
fn two_long_prompts_at_once_are_answered_as_alone() {
    let lone = service(KvType::F16, 1, 0);
    let prompts = [1, 2].map(|seed| text(&lone, seed, PROMPT_TOKENS));
    let alone = prompts.each_ref().map(|prompt| heard(submit(&lone, prompt, ANSWER_TOKENS)).0);
    assert_ne!(alone[0], alone[1]);
    drop(lone);
    let both = service(KvType::F16, 2, 1 << 30);
    let (mut equal, mut reused_least) = (0, usize::MAX);
    for round in 0..4 {
        let answers = prompts.each_ref().map(|prompt| submit(&both, prompt, ANSWER_TOKENS));
        for (answer, alone) in answers.into_iter().zip(&alone) {
            let (found, ended) = heard(answer);
            equal += usize::from(found == *alone);
            match round {
                0 => assert_eq!(ended.reused_tokens, 0),
                _ => reused_least = reused_least.min(ended.reused_tokens),
            }
        }
    }
    println!(
        "\nfigures: two prompts of {PROMPT_TOKENS} with {ANSWER_TOKENS} tokens at once: {equal} of 8 equal to alone; warm \
         rounds reuse {reused_least} or more"
    );
    assert_eq!(equal, 8);
    assert!(reused_least >= REUSED_MIN, "{reused_least} tokens reused");
}

#[test]
#[ignore = "half an hour; run by cargo xtask qualify"]
fn whole_contexts_are_read_in_planned_memory() {
    let mut figures = Vec::new();
    for kv in KvType::ALL {
        let before = resident().expect("Linux tells").anonymous;
        let service = service(kv, 1, 0);
        let (layout, pool) = (service.model().layout.clone(), service.model().kv.clone());
        let prompt = text(&service, 3, CONTEXT_TOKENS - 1);
        let mut answer = submit(&service, &prompt, 1);
        let mut most = 0;
        let ended = loop {
            match answer.next_blocking().expect("an end") {
                RequestEvent::Read { .. } => {
                    most = most.max(resident().expect("Linux tells").anonymous);
                    let counters = pool.counters();
                    assert!(counters.committed <= counters.budget, "{}: {counters:?}", kv.name());
                }
                RequestEvent::Ended(ended) => break ended,
                _ => {}
            }
        };
        assert_eq!((ended.reason, ended.read_tokens), (EndReason::Length, CONTEXT_TOKENS - 1));
        let planned = layout.blocks(CONTEXT_TOKENS) * lease_bytes(layout.block_bytes);
        let held = most - before;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        figures.push(format!("{} {:.0} of {:.0} MiB planned", kv.name(), mib(held), mib(planned as u64)));
        println!("\n{}", figures[figures.len() - 1]);
        assert!(held <= planned as u64 + MARGIN_BYTES, "{}: {held} bytes, {planned} planned", kv.name());
        assert!(held >= planned as u64 * 9 / 10, "{}: {held} bytes, {planned} planned", kv.name());
    }
    println!("figures: {} tokens read to the end: {}", CONTEXT_TOKENS - 1, figures.join("; "));
}
