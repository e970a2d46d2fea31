//! What was read before is not read again, and answers are the same for it.

mod support;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    EndReason, Ended, Engine, EngineConfig, LoadOptions, Request, RequestEvent, Service, ServiceLimits,
};
use support::*;

const CHUNK_TOKENS: usize = 64;
/// Room for all that these tests read.
const ROOMY: usize = 1 << 30;
/// Models whose states can only be gone on from where one was kept.
const RECURRENT: [&str; 4] = ["q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];

fn service(name: &str, prefix_bytes: usize) -> Service {
    service_of(name, prefix_bytes, 1)
}

fn service_of(name: &str, prefix_bytes: usize, parallel_max: usize) -> Service {
    let load = LoadOptions {
        context_tokens: Some(4096),
        sequences: Some(parallel_max),
        prefix_bytes,
        ..LoadOptions::default()
    };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: CHUNK_TOKENS };
    let engine = Engine::load(&f32_model(name), &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max, queue_max: 64 }).expect("a thread")
}

/// `len` tokens that no other seed gives.
fn text(service: &Service, seed: usize, len: usize) -> Vec<u32> {
    let vocabulary = service.model().spec.vocabulary;
    (0..len).map(|i| ((seed * 131 + i * i * 7 + i * seed) % vocabulary) as u32).collect()
}

fn request(prompt: &[u32], message_ends: &[usize], tokens_max: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 1.0, seed: 7, ..Sampling::default() },
        tokens_max: Some(tokens_max),
        message_ends: message_ends.to_vec(),
        policy: Box::new(StopTokens(Vec::new())),
    }
}

/// The answer and its end.
fn asked(service: &Service, request: Request) -> (Vec<u32>, Ended) {
    heard(&mut service.submit(request).expect("taken"))
}

fn heard(answer: &mut engine::Answer) -> (Vec<u32>, Ended) {
    let (mut tokens, mut reused) = (Vec::new(), None);
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Admitted { reused_tokens } => reused = Some(reused_tokens),
            RequestEvent::Read { tokens } => assert!(tokens > reused.expect("admitted before")),
            RequestEvent::Token(sampled) => tokens.push(sampled.token),
            RequestEvent::Ended(ended) => {
                assert_eq!(Some(ended.reused_tokens), reused);
                assert_eq!(ended.reason, EndReason::Length);
                assert_eq!(ended.reused_tokens + ended.read_tokens, ended.prompt_tokens);
                return (tokens, ended);
            }
        }
    }
}

/// A conversation that grows at its end: what was said before and answered is never read again.
#[test]
fn a_conversation_that_grows_is_read_once() {
    for name in F32_MODELS {
        let (kept, cold) = (service(name, ROOMY), service(name, 0));
        let mut prompt = Vec::new();
        let mut known = 0;
        for (turn, len) in [300, 1, 5, 60, 64, 65, 2, 700, 1, 33].into_iter().enumerate() {
            prompt.extend(text(&kept, turn + 1, len));
            let ends = [prompt.len()];
            let (answer, ended) = asked(&kept, request(&prompt, &ends, 8));
            let (expected, cold_ended) = asked(&cold, request(&prompt, &ends, 8));
            assert_eq!(answer, expected, "{name}: turn {turn}");
            assert_eq!(ended.reused_tokens, known, "{name}: turn {turn}");
            assert_eq!(cold_ended.reused_tokens, 0);
            prompt.extend(&answer);
            // The row of the answer's last token is not computed.
            known = prompt.len() - 1;
        }
        assert_eq!(cold.counts().prefix.points, 0);
    }
}

/// The same prompt again, another last message, and an answer that comes back in other words: the message before is not read
/// again. All of it was, on hybrid models, wherever a state could not be cut.
#[test]
fn what_parts_late_is_read_from_there() {
    for name in F32_MODELS {
        let (kept, cold) = (service(name, ROOMY), service(name, 0));
        let (system, user) = (text(&kept, 1, 100), text(&kept, 2, 80));
        // What invites the answer: three tokens.
        let prompt = [&system[..], &user, &[1, 2, 3]].concat();
        let ends = [100, 180];
        let check = |prompt: &[u32], ends: &[usize], reused: usize| {
            let (answer, ended) = asked(&kept, request(prompt, ends, 6));
            assert_eq!(answer, asked(&cold, request(prompt, ends, 6)).0, "{name}");
            let least = if RECURRENT.contains(&name) { reused..=reused } else { reused..=prompt.len() - 1 };
            assert!(least.contains(&ended.reused_tokens), "{name}: {} of {reused}", ended.reused_tokens);
        };
        check(&prompt, &ends, 0);
        check(&prompt, &ends, 180);
        // The answer in other words, and one more message.
        let more = [&prompt[..], &text(&kept, 3, 20)].concat();
        check(&more, &[100, 180, 200], 180);
        // Another last message.
        let other = [&system[..], &text(&kept, 4, 50), &[1, 2, 3]].concat();
        check(&other, &[100, 150], 100);
        // Nothing in common.
        let foreign = text(&kept, 5, 90);
        check(&foreign, &[], 0);
        // And the first one is still there.
        check(&prompt, &ends, 180);
    }
}

/// One character in the middle of a long prompt: the next point before it is no further away than points lie apart.
#[test]
fn a_change_in_the_middle_is_read_from_the_point_before() {
    let kept = service("q35-tiny", ROOMY);
    let cold = service("q35-tiny", 0);
    let mut prompt = text(&kept, 1, 3900);
    let first = asked(&kept, request(&prompt, &[], 2));
    assert_eq!(first.1.reused_tokens, 0);
    prompt[3000] ^= 1;
    let (answer, ended) = asked(&kept, request(&prompt, &[], 2));
    assert_eq!(ended.reused_tokens, 2048);
    assert_eq!(answer, asked(&cold, request(&prompt, &[], 2)).0);
}

/// Three conversations with one system prompt, in a budget of two: the order in which they take turns decides what is
/// there, the common beginning always is, and the budget is never exceeded, as little as one byte below what one takes.
#[test]
fn the_budget_holds_and_the_common_beginning_stays() {
    for name in ["q35-tiny", "llama-tiny"] {
        let alone = service(name, ROOMY);
        let system = text(&alone, 1, 200);
        let prompt = |seed: usize| [&system[..], &text(&alone, seed, 150)].concat();
        asked(&alone, request(&prompt(2), &[200, 350 - 4], 3));
        let one = alone.counts().prefix.bytes;
        for budget in [2 * one, 2 * one - 1, one, one - 1, one / 2, 1, 0] {
            let kept = service(name, budget);
            let mut last = 0;
            for (turn, seed) in [2, 3, 2, 4, 2, 3, 3, 4].into_iter().enumerate() {
                let (answer, ended) = asked(&kept, request(&prompt(seed), &[200, 350 - 4], 3));
                assert_eq!(answer, asked(&alone, request(&prompt(seed), &[200, 350 - 4], 3)).0, "{name}");
                let held = kept.counts().prefix.bytes;
                assert!(held <= budget, "{name}: {held} bytes in a budget of {budget}");
                if budget >= one - 1 && turn > 0 {
                    assert!(ended.reused_tokens >= 200, "{name}, {budget} of {one}, turn {turn}: {ended:?}");
                }
                if budget == 2 * one && seed == last {
                    assert!(ended.reused_tokens >= 346, "{name}: {ended:?}");
                }
                last = seed;
            }
        }
    }
}

/// Prompts that were never seen before, one after the other: what is held stays within its budget, and what it held is given
/// back.
#[test]
fn many_prompts_leave_memory_as_it_was() {
    for name in ["q35-tiny", "q2-tiny"] {
        let budget = 4 << 20;
        let kept = service(name, budget);
        let mut most = 0;
        for seed in 0..300 {
            asked(&kept, request(&text(&kept, seed, 40 + seed % 90), &[20], 2));
            most = most.max(kept.counts().prefix.bytes);
            assert!(most <= budget);
        }
        let committed = kept.model().kv.counters().committed;
        // Steps of the pool, of which each side may hold one that is not full.
        assert!(committed <= budget + (64 << 20), "{name}: {committed} bytes");
    }
}

/// Identical requests at once, and different ones, joined by others at any time: each has its own lone answer.
#[test]
fn answers_of_shared_beginnings_are_the_lone_ones() {
    for name in F32_MODELS {
        let cold = service(name, 0);
        let kept = service_of(name, ROOMY, 5);
        let system = text(&cold, 1, 130);
        let prompt = |seed: usize| [&system[..], &text(&cold, 2 + seed % 4, 10 + 40 * (seed % 3))].concat();
        let expected: Vec<_> = (0..12).map(|i| asked(&cold, request(&prompt(i), &[130], 9)).0).collect();
        for _ in 0..3 {
            let mut answers: Vec<_> =
                (0..12).map(|i| kept.submit(request(&prompt(i), &[130], 9)).expect("taken")).collect();
            // Some leave in the middle of it; what they read may be gone on from.
            drop(kept.submit(request(&prompt(3), &[130], 50)).expect("taken"));
            for (answer, expected) in answers.iter_mut().zip(&expected) {
                assert_eq!(&heard(answer).0, expected, "{name}");
            }
        }
    }
}
