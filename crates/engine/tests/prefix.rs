//! What was read before is not read again, and answers are the same for it.

mod support;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{EndReason, Ended, Request, RequestEvent, Service};
use support::*;

const CHUNK_TOKENS: usize = 64;
/// How far points lie apart at most.
const DISTANCE_TOKENS: usize = 2048;
/// Fewer tokens than these get no point for themselves.
const SHORT_TOKENS: usize = 16;
/// Room for all that these tests read.
const ROOMY: usize = 1 << 30;
/// Models whose states can only be gone on from where one was kept.
const RECURRENT: [&str; 4] = ["q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];

fn service(name: &str, prefix_bytes: usize) -> Service {
    service_of(name, prefix_bytes, 1)
}

fn service_of(name: &str, prefix_bytes: usize, parallel_max: usize) -> Service {
    service_in(name, 4096, prefix_bytes, parallel_max)
}

fn service_in(name: &str, context_tokens: usize, prefix_bytes: usize, parallel_max: usize) -> Service {
    started(name, context_tokens, prefix_bytes, parallel_max, CHUNK_TOKENS)
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

/// A chat of which everything was read so far.
struct Chat {
    tokens: Vec<u32>,
    /// How much of it a state has read.
    known: usize,
}

impl Chat {
    /// Says `len` tokens more, and hears an answer to them.
    fn say(&mut self, service: &Service, seed: usize, len: usize) -> Ended {
        self.tokens.extend(text(service, seed, len));
        let message_end = self.tokens.len();
        // What invites the answer.
        self.tokens.extend([1, 2, 3]);
        let (answer, ended) = asked(service, request(&self.tokens, &[message_end], 8));
        self.tokens.extend(answer);
        self.known = self.tokens.len() - 1;
        ended
    }
}

/// Two chats of thirty turns each take turns, every so often with a message of 2,000 tokens; now and then one is asked for its
/// last answer again, or goes on from another last message.
fn sixty_turns(name: &str, long_turns: usize) {
    let kept = service_in(name, 16384, ROOMY, 1);
    let mut chats = [1, 2].map(|seed| Chat { tokens: text(&kept, seed, 100), known: 0 });
    for turn in 0..60 {
        let chat = &mut chats[turn % 2];
        let (known, before) = (chat.known, chat.tokens.len());
        let len = match [1, 5, 60, 64, 65, 2000][turn / 2 % 6] {
            2000 if turn / 12 >= long_turns => 129,
            len => len,
        };
        let ended = chat.say(&kept, 10 + turn, len);
        assert_eq!(
            (ended.reused_tokens, ended.read_tokens),
            (known, before + len + 3 - known),
            "turn {turn}"
        );
        let message_end = before + len;
        if turn % 7 == 3 {
            // Only what invites the answer, and a message that is too short for a point of its own.
            let again =
                asked(&kept, request(&chat.tokens[..message_end + 3], &[message_end], 8)).1.read_tokens;
            assert!((3..3 + SHORT_TOKENS).contains(&again), "turn {turn}, again: {again}");
        }
        if turn % 7 == 5 {
            // Another last message: no more than the new one, and what lies between points so close to the end.
            let other = [&chat.tokens[..before], &text(&kept, 100 + turn, 33)].concat();
            let read = asked(&kept, request(&other, &[other.len()], 8)).1.read_tokens;
            let between = 1 + SHORT_TOKENS + len / 4;
            assert!((33..=33 + between).contains(&read), "turn {turn}, another message: {read}");
        }
    }
    // One character in the middle of a long past: what is behind it, and what lies between points there.
    for chat in &chats {
        let mut tokens = chat.tokens.clone();
        let behind = tokens.len() / 2;
        let at = tokens.len() - behind;
        tokens[at] ^= 1;
        let read = asked(&kept, request(&tokens, &[], 8)).1.read_tokens;
        assert!((behind..behind + DISTANCE_TOKENS).contains(&read), "{behind} behind a change: {read}");
    }
    let cold = service_in(name, 16384, 0, 1);
    for chat in &chats {
        let (answer, ended) = asked(&kept, request(&chat.tokens, &[], 8));
        assert_eq!((ended.reused_tokens, ended.read_tokens), (chat.known, 1));
        assert_eq!(answer, asked(&cold, request(&chat.tokens, &[], 8)).0);
    }
}

/// At 258,000 tokens all points of a conversation were found unsuitable and erased; short messages never got one.
#[test]
fn sixty_turns_are_read_once() {
    sixty_turns("q35-tiny", 1);
}

#[test]
#[ignore = "minutes; run by cargo xtask qualify"]
fn sixty_long_turns_are_read_once() {
    RECURRENT.into_iter().for_each(|name| sixty_turns(name, 5));
}

/// A conversation that goes on until the context holds no more, and is gone on from there.
#[test]
fn a_context_is_filled_to_its_last_token() {
    for name in F32_MODELS {
        let (kept, cold) = (service_in(name, 300, ROOMY, 1), service_in(name, 300, 0, 1));
        let prompt = text(&kept, 1, 257);
        let all = |prompt: &[u32]| Request { tokens_max: None, ..request(prompt, &[200, prompt.len()], 0) };
        let (answer, ended) = asked(&kept, all(&prompt));
        assert_eq!((answer.len(), ended.read_tokens), (43, 257), "{name}");
        assert_eq!(answer, asked(&cold, all(&prompt)).0, "{name}");
        // One more token of the answer is all that there is room for.
        let whole = [&prompt[..], &answer].concat();
        let (last, ended) = asked(&kept, all(&whole[..299]));
        let read = if RECURRENT.contains(&name) { 99 } else { 1 };
        assert_eq!((ended.read_tokens, last), (read, asked(&cold, all(&whole[..299])).0), "{name}");
        assert!(kept.submit(all(&whole)).is_err(), "{name}: no room for an answer");
        // Another last message, of a full context as well.
        let other = [&whole[..200], &text(&kept, 2, 99)].concat();
        let (last, ended) = asked(&kept, all(&other));
        assert_eq!(last, asked(&cold, all(&other)).0, "{name}");
        assert_eq!(ended.read_tokens, 99, "{name}");
    }
}

/// What is larger than the whole budget was kept by throwing out everything else, and then not kept either.
#[test]
fn what_is_larger_than_the_budget_takes_nobodys_place() {
    for name in ["q35-tiny", "llama-tiny"] {
        let alone = service(name, ROOMY);
        let chats = [2, 3].map(|seed| text(&alone, seed, 250));
        chats.iter().for_each(|chat| drop(asked(&alone, request(chat, &[], 3))));
        let kept = service(name, alone.counts().prefix.bytes);
        chats.iter().for_each(|chat| drop(asked(&kept, request(chat, &[], 3))));
        let before = kept.counts().prefix;
        assert_eq!(before.bytes, alone.counts().prefix.bytes, "{name}: all of it, in exactly as many bytes");
        let large = text(&alone, 4, 2040);
        assert_eq!(asked(&kept, request(&large, &[], 3)).1.reused_tokens, 0);
        assert_eq!(kept.counts().prefix, before, "{name}");
        for chat in &chats {
            assert!(asked(&kept, request(chat, &[], 3)).1.reused_tokens >= 246, "{name}");
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
