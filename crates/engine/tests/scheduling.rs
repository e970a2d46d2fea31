//! Requests beside each other: who waits for whom, who gets which share, and that nothing is read twice meanwhile.

mod support;

use std::sync::mpsc;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{Answer, EndReason, Ended, Request, RequestEvent, RowPolicy, Service, Verdict};
use support::conductor::{Conductor, event};
use support::*;

const CHUNK_TOKENS: usize = 64;
/// Room for all that these tests read.
const ROOMY: usize = 1 << 30;
/// Models whose states can only be gone on from where one was kept.
const RECURRENT: [&str; 4] = ["q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];

fn service(name: &str, prefix_bytes: usize, parallel_max: usize) -> Service {
    started(name, 4096, prefix_bytes, parallel_max, CHUNK_TOKENS)
}

/// `len` tokens that begin with `seed`, so that texts of two seeds part at once.
fn text(service: &Service, seed: usize, len: usize) -> Vec<u32> {
    let vocabulary = service.model().spec.vocabulary;
    (0..len).map(|i| ((seed + i * i * 7 + i * seed * 13) % vocabulary) as u32).collect()
}

fn request(prompt: Vec<u32>, message_ends: &[usize], tokens_max: usize) -> Request {
    Request {
        prompt,
        sampling: Sampling { temperature: 1.0, seed: 7, ..Sampling::default() },
        tokens_max: Some(tokens_max),
        message_ends: message_ends.to_vec(),
        policy: Box::new(StopTokens(Vec::new())),
    }
}

/// A request that runs as long as the test wants, so that the test knows what the engine does next.
fn conductor(service: &Service) -> Conductor {
    Conductor::start(service, request(text(service, 11, 3), &[], 2000))
}

/// All that came.
fn heard(answer: &mut Answer) -> (Vec<u32>, Ended) {
    let mut tokens = Vec::new();
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Token(sampled) => tokens.push(sampled.token),
            RequestEvent::Ended(ended) => return (tokens, ended),
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
        }
    }
}

/// What a request heard of itself until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    /// Tokens that it had not to read, once it was admitted.
    admitted: Option<usize>,
    /// Tokens of its prompt that are read.
    read: usize,
    tokens: usize,
}

impl Progress {
    fn note(&mut self, answer: &mut Answer) -> Progress {
        while let Some(event) = event(answer) {
            match event {
                RequestEvent::Admitted { reused_tokens } => self.admitted = Some(reused_tokens),
                RequestEvent::Read { tokens } => self.read = tokens,
                RequestEvent::Token(_) => self.tokens += 1,
                RequestEvent::Ended(ended) => panic!("{ended:?}"),
            }
        }
        *self
    }
}

/// Each of them read it: none was in the cache yet when the others began.
#[test]
fn what_many_begin_with_is_read_once() {
    for name in F32_MODELS {
        let cold = service(name, 0, 1);
        let (system, tails) = (text(&cold, 1, 200), [30, 1, 45, 30, 100, 7]);
        let prompt = |i: usize| [&system[..], &text(&cold, 20 + i, tails[i])].concat();
        let lone: Vec<_> = (0..tails.len())
            .map(|i| heard(&mut cold.submit(request(prompt(i), &[], 5)).unwrap()).0)
            .collect();
        for (prefix_bytes, ends, parallel_max) in
            [(ROOMY, &[200][..], 8), (ROOMY, &[], 8), (0, &[], 8), (ROOMY, &[], 3), (0, &[200], 3)]
        {
            let service = service(name, prefix_bytes, parallel_max);
            let conductor = conductor(&service);
            let mut answers: Vec<_> = (0..tails.len())
                .map(|i| service.submit(request(prompt(i), ends, 5)).expect("taken"))
                .collect();
            conductor.stop();
            let heard: Vec<_> = answers.iter_mut().map(heard).collect();
            for (i, (tokens, ended)) in heard.iter().enumerate() {
                assert_eq!(tokens, &lone[i], "{name}: {ended:?}");
                let reused = if i == 0 { 0 } else { 200 };
                // A place for two at once: where nothing is kept, who comes after all that could be copied reads it again.
                if prefix_bytes > 0 || parallel_max == 8 {
                    assert_eq!(ended.reused_tokens, reused, "{name}, {ends:?}: {i} of {parallel_max}");
                }
                assert_eq!(ended.reused_tokens + ended.read_tokens, 200 + tails[i]);
            }
        }
    }
}

/// The same prompt from all: one reads it, the others its last rows.
#[test]
fn the_same_prompt_at_once_is_read_once() {
    for name in F32_MODELS {
        let service = service(name, ROOMY, 8);
        let prompt = text(&service, 1, 300);
        for (ends, last) in [(&[100, 297][..], 3), (&[], 4)] {
            let prompt = [&text(&service, 30 + last, 1)[..], &prompt].concat();
            let conductor = conductor(&service);
            let mut answers: Vec<_> =
                (0..6).map(|_| service.submit(request(prompt.clone(), ends, 5)).expect("taken")).collect();
            conductor.stop();
            let heard: Vec<_> = answers.iter_mut().map(heard).collect();
            let last = if RECURRENT.contains(&name) { 301 - ends.last().unwrap_or(&297) } else { 1 };
            for (i, (tokens, ended)) in heard.iter().enumerate() {
                assert_eq!(tokens, &heard[0].0, "{name}");
                assert_eq!(ended.read_tokens, if i == 0 { 301 } else { last }, "{name}, {ends:?}: {i}");
            }
        }
    }
}

/// Whoever reads for others may leave: the next one goes on from what was read, and the others wait for that one.
#[test]
fn the_next_one_takes_over_from_who_leaves() {
    for name in F32_MODELS {
        for prefix_bytes in [ROOMY, 0] {
            let service = service(name, prefix_bytes, 8);
            let system = text(&service, 1, 400);
            let prompt = |i: usize| [&system[..], &text(&service, 20 + i, 30)].concat();
            let mut conductor = conductor(&service);
            let submit = |i: usize| service.submit(request(prompt(i), &[400], 5)).expect("taken");
            let (mut first, mut second, mut third) = (submit(0), submit(1), submit(2));
            let [mut of_first, mut of_second, mut of_third] = [Progress::default(); 3];
            while of_first.note(&mut first).read < 150 {
                conductor.step();
            }
            assert_eq!(of_second.note(&mut second), Progress::default(), "{name}: it waits");
            first.cancel();
            conductor.step();
            let (tokens, ended) = heard(&mut first);
            let read = ended.read_tokens;
            assert_eq!((tokens.len(), ended.reason), (0, EndReason::Cancelled));
            assert!((of_first.read..400).contains(&read), "{name}: {read} after {of_first:?}");
            let kept = if prefix_bytes > 0 { read } else { 0 };
            assert_eq!(of_second.note(&mut second).admitted, Some(kept), "{name}");
            assert_eq!(of_third.note(&mut third), Progress::default(), "{name}: it waits");
            conductor.stop();
            let (second, third) = (heard(&mut second).1, heard(&mut third).1);
            assert_eq!((second.read_tokens, third.read_tokens), (430 - kept, 30), "{name}");
        }
    }
}

/// Waiting must save at least 64 tokens; below that a request begins at once.
#[test]
fn nobody_waits_for_little() {
    for name in ["llama-tiny", "q35-tiny"] {
        for (common, waits) in [(63, false), (64, true)] {
            let service = service(name, ROOMY, 8);
            let mut conductor = conductor(&service);
            let first = [&text(&service, 1, common)[..], &text(&service, 20, 300)].concat();
            let second = [&text(&service, 1, common)[..], &text(&service, 21, 300)].concat();
            let mut first = service.submit(request(first, &[], 5)).expect("taken");
            let mut second = service.submit(request(second, &[], 5)).expect("taken");
            conductor.step();
            let (of_first, of_second) =
                (Progress::default().note(&mut first), Progress::default().note(&mut second));
            assert_eq!(of_first.admitted, Some(0));
            assert_eq!(of_second.admitted.is_none(), waits, "{name}: {common} tokens in common");
            conductor.stop();
            assert_eq!(heard(&mut second).1.reused_tokens, if waits { common } else { 0 }, "{name}");
        }
    }
}

/// Two that part from each other later than from the one that reads for both: the first of them reads on for the other.
#[test]
fn who_waited_reads_for_others() {
    for name in F32_MODELS {
        let service = service(name, 0, 8);
        let conductor = conductor(&service);
        let (system, user) = (text(&service, 1, 150), text(&service, 2, 130));
        let prompts = [
            [&system[..], &text(&service, 20, 20)].concat(),
            [&system[..], &user, &text(&service, 21, 20)].concat(),
            [&system[..], &user, &text(&service, 22, 20)].concat(),
        ];
        let mut answers = prompts.map(|prompt| service.submit(request(prompt, &[], 5)).expect("taken"));
        conductor.stop();
        let reused = answers.each_mut().map(|answer| heard(answer).1.reused_tokens);
        assert_eq!(reused, [0, 150, 280], "{name}");
    }
}

/// A prompt that comes while another one with its beginning is being read, or answered, need not wait for its end.
#[test]
fn what_a_running_request_has_read_is_there_at_once() {
    for prefix_bytes in [ROOMY, 0] {
        let service = service("q3-tiny", prefix_bytes, 8);
        let mut conductor = conductor(&service);
        let system = text(&service, 1, 100);
        let long = [&system[..], &text(&service, 20, 2000)].concat();
        let mut long = service.submit(request(long, &[], 200)).expect("taken");
        let mut of_long = Progress::default();
        while of_long.note(&mut long).read < 100 {
            conductor.step();
        }
        let short = [&system[..], &text(&service, 21, 10)].concat();
        let mut short = service.submit(request(short, &[], 5)).expect("taken");
        conductor.step();
        assert_eq!(Progress::default().note(&mut short).admitted, Some(100));
        assert!(of_long.note(&mut long).read < 2100);
        conductor.stop();
        assert_eq!(heard(&mut short).0.len(), 5);
    }
}

/// Who waits for a beginning has its place meanwhile: others take only those that are free.
#[test]
fn who_waits_keeps_its_place() {
    for (parallel_max, beside) in [(3, false), (4, true)] {
        let service = service("q35-tiny", ROOMY, parallel_max);
        let mut conductor = conductor(&service);
        let long = |seed: usize| [&text(&service, 1, 1000)[..], &text(&service, seed, 10)].concat();
        let mut first = service.submit(request(long(20), &[], 5)).expect("taken");
        let mut second = service.submit(request(long(21), &[], 5)).expect("taken");
        let mut other = service.submit(request(text(&service, 2, 10), &[], 50)).expect("taken");
        conductor.step();
        assert_eq!(Progress::default().note(&mut first).admitted, Some(0));
        assert_eq!(Progress::default().note(&mut second).admitted, None);
        assert_eq!(Progress::default().note(&mut other).admitted.is_some(), beside);
        conductor.stop();
        assert_eq!(heard(&mut second).1.reused_tokens, 1000);
        assert_eq!(heard(&mut other).0.len(), 50);
    }
}

/// Holds the engine still when it is admitted and after each of its tokens.
struct Marked {
    reached: mpsc::Sender<()>,
    go_on: mpsc::Receiver<()>,
}

impl Marked {
    fn wait(&self) -> Verdict {
        // Once the test is done with it, nothing holds it up.
        let _ = self.reached.send(());
        let _ = self.go_on.recv();
        Verdict::GoOn
    }
}

impl RowPolicy for Marked {
    fn start(&mut self) -> Verdict {
        self.wait()
    }

    fn advance(&mut self, _token: u32) -> Verdict {
        self.wait()
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

/// It waited for the long prompt's end. Now it has the window that is under way when it comes to wait for, and one more.
#[test]
fn a_short_prompt_has_its_first_token_in_the_next_window() {
    for name in ["q3-tiny", "q4e-tiny"] {
        let service = service(name, ROOMY, 8);
        let mut long = service.submit(request(text(&service, 1, 3000), &[], 2)).expect("taken");
        let first = loop {
            if let Some(RequestEvent::Read { tokens }) = long.next_blocking() {
                break tokens;
            }
        };
        let ((reached, on_reached), (let_go, go_on)) = (mpsc::channel(), mpsc::channel());
        let policy = Box::new(Marked { reached, go_on });
        let short = Request { policy, ..request(text(&service, 2, 20), &[], 2) };
        let mut short = service.submit(short).expect("taken");
        let mut of_long = Progress { read: first, ..Progress::default() };
        on_reached.recv().expect("it is admitted");
        let before = of_long.note(&mut long).read;
        let_go.send(()).expect("the engine waits");
        on_reached.recv().expect("its first token");
        let after = of_long.note(&mut long).read;
        assert!(after < 3000, "{name}: the long one is still read: {before}, {after}");
        // Layers that are recurrent pause before the last four tokens.
        let paused = if RECURRENT.contains(&name) { 16 } else { 0 };
        let rows = after - before - paused;
        assert!(
            (CHUNK_TOKENS / 2..=CHUNK_TOKENS - 4).contains(&rows),
            "{name}: {rows} rows of the long one meanwhile"
        );
        drop(let_go);
        assert_eq!(heard(&mut short).0.len(), 2);
    }
}

/// The places of a service: the conductor's, and one that is asked for by whoever comes.
struct Phase {
    conductor: Conductor,
    answer: Answer,
    progress: Progress,
}

impl Phase {
    fn start(service: &Service, request: Request) -> Phase {
        let conductor = conductor(service);
        Phase { conductor, answer: service.submit(request).expect("taken"), progress: Progress::default() }
    }

    fn step_until(&mut self, reached: impl Fn(&Progress) -> bool) {
        while !reached(&self.progress.note(&mut self.answer)) {
            self.conductor.step();
        }
    }

    /// Its end, one step after it was cancelled; meanwhile the place is taken by `next`.
    fn cancel(&mut self, next: &mut Answer) -> Ended {
        assert_eq!(Progress::default().note(next).admitted, None, "there is no place yet");
        self.answer.cancel();
        self.conductor.step();
        assert!(Progress::default().note(next).admitted.is_some(), "the place is free in the next window");
        heard(&mut self.answer).1
    }
}

/// What a request has read is there for the next one, wherever it was cancelled, and its place is free within a window.
#[test]
fn cancelling_frees_the_place_and_keeps_what_was_read() {
    for name in ["llama-tiny", "q3-tiny", "q35-tiny", "q4e-tiny"] {
        let prompt = |service: &Service, len: usize| text(service, 1, len);
        let start = |len: usize| {
            let service = service(name, ROOMY, 2);
            let phase = Phase::start(&service, request(prompt(&service, len), &[], 500));
            let next = service.submit(request(text(&service, 2, 5), &[], 500)).expect("taken");
            (service, phase, next)
        };
        let asked_again = |service: &Service, mut prompt: Vec<u32>, answer: &[u32]| {
            prompt.extend(answer);
            prompt.push(5);
            heard(&mut service.submit(request(prompt, &[], 1)).expect("taken")).1.reused_tokens
        };
        // Just admitted, and while its prompt is read.
        for read in [0, 1, 500] {
            let (service, mut phase, mut next) = start(1500);
            phase.conductor.step();
            phase.step_until(|progress| progress.admitted.is_some() && progress.read >= read);
            let ended = phase.cancel(&mut next);
            assert_eq!((&ended.reason, ended.generated_tokens), (&EndReason::Cancelled, 0), "{name}");
            assert!(
                (read..=phase.progress.read + 2 * CHUNK_TOKENS).contains(&ended.read_tokens),
                "{name}: {ended:?}"
            );
            next.cancel();
            phase.conductor.stop();
            assert_eq!(asked_again(&service, prompt(&service, 1500), &[]), ended.read_tokens, "{name}");
        }
        // Between two tokens.
        let (service, mut phase, mut next) = start(100);
        phase.step_until(|progress| progress.tokens == 3);
        let ended = phase.cancel(&mut next);
        assert_eq!((&ended.reason, ended.read_tokens), (&EndReason::Cancelled, 100), "{name}");
        assert!((3..=5).contains(&ended.generated_tokens), "{name}: {ended:?}");
        next.cancel();
        phase.conductor.stop();
        let whole = request(prompt(&service, 100), &[], ended.generated_tokens);
        let answer = heard(&mut service.submit(whole).expect("taken")).0;
        let reused = asked_again(&service, prompt(&service, 100), &answer);
        assert!(reused >= 100 + ended.generated_tokens - 1, "{name}: {reused} after {ended:?}");
    }
}

/// Neither has a state yet: there is nothing to keep, and the place, in the queue or held while waiting, is given back.
#[test]
fn cancelling_before_the_beginning_gives_the_place_back() {
    let service = service("q35-tiny", ROOMY, 3);
    let long = |seed: usize| [&text(&service, 1, 2000)[..], &text(&service, seed, 10)].concat();
    let mut phase = Phase::start(&service, request(long(20), &[], 5));
    let mut waiting = service.submit(request(long(21), &[], 5)).expect("taken");
    let mut queued = service.submit(request(text(&service, 3, 5), &[], 5)).expect("taken");
    let mut next = service.submit(request(text(&service, 4, 5), &[], 5)).expect("taken");
    phase.step_until(|progress| progress.read > 0);
    for answer in [&mut waiting, &mut queued, &mut next] {
        assert_eq!(Progress::default().note(answer), Progress::default());
    }
    assert_eq!((service.counts().running, service.counts().queued), (2, 3));
    queued.cancel();
    phase.conductor.step();
    assert_eq!(heard(&mut queued).1.reason, EndReason::Cancelled);
    assert_eq!(service.counts().queued, 2);
    assert_eq!(Progress::default().note(&mut next), Progress::default(), "the other one's place");
    waiting.cancel();
    phase.conductor.step();
    assert_eq!(heard(&mut waiting).1.reason, EndReason::Cancelled);
    assert_eq!((service.counts().running, service.counts().queued), (3, 0));
    phase.conductor.stop();
    assert_eq!(heard(&mut next).0.len(), 5);
    assert_eq!(heard(&mut phase.answer).0.len(), 5);
}
