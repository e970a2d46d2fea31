//! Memory after very many conversations: what is kept stays within its budget, and the process does not grow.

mod support;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{Engine, EngineConfig, LoadOptions, Request, RequestEvent, Service, ServiceLimits};
use support::*;
use sys::memory::resident;

/// For all states that are kept.
const PREFIX_BYTES: usize = 8 << 20;
/// What the process may hold beyond what was promised: the allocator's rounding, and cells whose step is not free yet.
const MARGIN_BYTES: u64 = 24 << 20;
/// And how much it may be apart from itself in the last 80 % of the chats.
const FLAT_BYTES: u64 = 2 << 20;

fn service(name: &str) -> Service {
    let load = LoadOptions {
        context_tokens: Some(512),
        sequences: Some(2),
        prefix_bytes: PREFIX_BYTES,
        ..LoadOptions::default()
    };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 256 };
    let engine = Engine::load(&f32_model(name), &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max: 2, queue_max: 4 }).expect("a thread")
}

/// Tokens of a conversation that no other one begins like.
fn text(chat: usize, vocabulary: usize) -> Vec<u32> {
    let number = [chat / vocabulary, chat % vocabulary];
    let rest = (0..10 + chat * 7 % 50).map(|i| (chat * 131 + i * i * 7) % vocabulary);
    number.into_iter().chain(rest).map(|token| token as u32).collect()
}

/// How many tokens of the prompt were not read; the answer is appended to it.
fn asked(service: &Service, prompt: &mut Vec<u32>) -> usize {
    let mut answer = service
        .submit(Request {
            prompt: prompt.clone(),
            sampling: Sampling { temperature: 1.0, ..Sampling::default() },
            tokens_max: Some(3),
            message_ends: vec![prompt.len() / 2],
            policy: Box::new(StopTokens(Vec::new())),
        })
        .expect("taken");
    loop {
        match answer.next_blocking().expect("an end") {
            RequestEvent::Token(sampled) => prompt.push(sampled.token),
            RequestEvent::Ended(ended) => return ended.reused_tokens,
            _ => {}
        }
    }
}

fn anonymous() -> u64 {
    resident().expect("Linux tells").anonymous
}

/// `chats` conversations of two turns one after the other. The most that the process held, beyond what it did before them.
fn chats_leave_memory_flat(name: &str, chats: usize) -> u64 {
    let service = service(name);
    let (vocabulary, kv) = (service.model().spec.vocabulary, service.model().kv.clone());
    // Once everything is in its place.
    for chat in 0..10 {
        asked(&service, &mut text(1_000_000 + chat, vocabulary));
    }
    let before = anonymous();
    let (mut least, mut most) = (u64::MAX, 0);
    let mut reused = 0;
    for chat in 0..chats {
        let mut prompt = text(chat, vocabulary);
        assert!(asked(&service, &mut prompt) < 2 + 3, "{name}: nobody began like this before");
        let known = prompt.len() - 1;
        prompt.extend([1, 2, 3]);
        reused += usize::from(asked(&service, &mut prompt) == known);
        let bytes = service.counts().prefix.bytes;
        assert!(bytes <= PREFIX_BYTES, "{name}: {bytes} bytes kept after {chat} chats");
        let counters = kv.counters();
        assert!(counters.committed <= counters.budget, "{name}: {counters:?}");
        if chat >= chats / 5 {
            let now = anonymous();
            (least, most) = (least.min(now), most.max(now));
        }
    }
    assert_eq!(reused, chats, "{name}: a chat that goes on at once is read once");
    let grown = most.saturating_sub(before);
    assert!(
        most - least <= FLAT_BYTES,
        "{name}: between {least} and {most} bytes in the last 80 % of {chats} chats"
    );
    assert!(grown <= PREFIX_BYTES as u64 + MARGIN_BYTES, "{name}: {grown} bytes more than before the chats");
    grown
}

/// A cache that was limited to 8,192 MiB held 12,378, and prompts that were never seen again ended a server after some
/// thousands. One test, since memory is the whole process's.
#[test]
fn a_thousand_chats_leave_memory_flat() {
    for name in ["q35-tiny", "q2-tiny"] {
        chats_leave_memory_flat(name, 1000);
    }
    // A model that comes and goes leaves nothing.
    let load = || drop(service("q35-tiny"));
    (0..10).for_each(|_| load());
    let before = anonymous();
    (0..40).for_each(|_| load());
    assert!(anonymous() <= before + FLAT_BYTES, "{} bytes, {before} before", anonymous());
}

#[test]
#[ignore = "minutes; run by cargo xtask qualify, alone"]
fn ten_thousand_chats_leave_memory_flat() {
    let grown: Vec<String> = F32_MODELS
        .into_iter()
        .map(|name| {
            format!("{name} {:.1}", chats_leave_memory_flat(name, 10_000) as f64 / f64::from(1 << 20))
        })
        .collect();
    println!(
        "\nfigures: MiB more than before 10000 chats of two turns each with 8 MiB to keep states: {}",
        grown.join(" ")
    );
}
