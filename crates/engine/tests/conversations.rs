//! Conversations as people have them, by chance from a seed: they come and leave at any step, go on, are changed in the
//! middle, cut back, asked again, and outlive the service. Every answer has the tokens and the bits of log probabilities
//! that its prompt has alone, read in one window by a service that keeps nothing.

mod support;

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use engine::sampler::{Sampled, Sampling};
use engine::{
    Answer, EndReason, Engine, EngineConfig, KvType, LoadOptions, Request, RequestEvent, RowPolicy,
    SavedOptions, Service, ServiceLimits, Verdict,
};
use support::conductor::{Conductor, event};
use support::sequences::Random;
use support::*;

/// Long enough that nothing here is refused.
const CONTEXT_TOKENS: usize = 2048;
/// A prompt that is longer is not gone on from.
const PROMPT_MAX: usize = 500;

/// What differs between services and must not show.
#[derive(Clone, Debug)]
struct Setting {
    threads: usize,
    chunk_tokens: usize,
    parallel_max: usize,
    prefix_bytes: usize,
}

const ALONE: Setting = Setting { threads: 1, chunk_tokens: CONTEXT_TOKENS, parallel_max: 1, prefix_bytes: 0 };

impl Setting {
    fn random(random: &mut Random) -> Setting {
        Setting {
            threads: random.within(1..=2),
            chunk_tokens: [5, 16, 63, 64, 200, 512][random.below(6)],
            // The conductor has a place of its own.
            parallel_max: 1 + random.within(1..=7),
            prefix_bytes: [1 << 30, 1 << 30, 1 << 22, 1 << 20, 1 << 18, 0][random.below(6)],
        }
    }

    fn service(&self, name: &str, kv: KvType, folder: Option<&Path>) -> Service {
        let &Setting { threads, chunk_tokens, parallel_max, prefix_bytes } = self;
        let load =
            LoadOptions { kv, context_tokens: Some(CONTEXT_TOKENS), prefix_bytes, ..LoadOptions::default() };
        let config = EngineConfig { load, threads, isa: None, chunk_tokens };
        let engine = Engine::load(&f32_model(name), &config).expect("a model");
        let limits = ServiceLimits { parallel_max, queue_max: 64 };
        match folder {
            None => Service::start(engine, limits).expect("a thread"),
            Some(folder) => {
                // As long as it takes: a load that is given up is read again, and that is what the counts would say.
                let within = Duration::from_secs(600);
                let options = SavedOptions {
                    folder: folder.into(),
                    bytes_max: 1 << 30,
                    load_within: within,
                    end_within: within,
                    ..SavedOptions::default()
                };
                Service::start_saving(engine, limits, options).expect("a folder and threads")
            }
        }
    }
}

/// Makes some answers go where the model would not, as the end of a thinking budget does.
struct Forces(usize);

impl RowPolicy for Forces {
    fn advance(&mut self, token: u32) -> Verdict {
        self.0 = self.0.wrapping_sub(1);
        if self.0 == 0 { Verdict::Force(vec![token, 3, token]) } else { Verdict::GoOn }
    }

    fn roll_back(&mut self, _tokens: usize) {}
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ask {
    prompt: Vec<u32>,
    message_ends: Vec<usize>,
    /// Of the sampling; every third is greedy.
    seed: u64,
    tokens_max: usize,
    /// Before which token of the answer others are forced; 0 for none.
    forced: usize,
}

impl Ask {
    fn request(&self) -> Request {
        let sampling = Sampling {
            temperature: if self.seed.is_multiple_of(3) { 0.0 } else { 1.0 },
            seed: self.seed,
            log_probabilities: Some(4),
            ..Sampling::default()
        };
        Request {
            prompt: self.prompt.clone(),
            sampling,
            tokens_max: Some(self.tokens_max),
            message_ends: self.message_ends.clone(),
            policy: Box::new(Forces(self.forced)),
        }
    }
}

/// A token with the bits of its log probability and of those of the likeliest.
type Bits = (u32, u32, Vec<(u32, u32)>);

fn bits(sampled: &Sampled) -> Bits {
    let found = sampled.log_probabilities.as_ref().expect("they were wanted");
    let top = found.top.iter().map(|&(token, value)| (token, value.to_bits()));
    (sampled.token, found.token.to_bits(), top.collect())
}

/// An answer that is not over.
struct Open {
    ask: Rc<Ask>,
    answer: Answer,
    heard: Vec<Bits>,
    reused: Option<usize>,
    cancelled: bool,
}

#[derive(Clone)]
struct Conversation {
    tokens: Vec<u32>,
    message_ends: Vec<usize>,
}

/// What came of it, so that a test sees that it did not go round the thing that it is for.
#[derive(Debug, Default)]
struct Tally {
    answers: usize,
    cancelled: usize,
    read: usize,
    reused: usize,
    /// Tokens that a service went on from which had read nothing itself.
    restored: usize,
    /// Most answers at the same time.
    together: usize,
}

struct World {
    what: String,
    random: Random,
    vocabulary: usize,
    lone: Service,
    /// Of everything asked so far.
    wanted: HashMap<Rc<Ask>, Rc<Vec<Bits>>>,
    systems: [Vec<u32>; 2],
    conversations: Vec<Conversation>,
    open: Vec<Open>,
    tally: Tally,
}

impl World {
    fn new(name: &str, kv: KvType, seed: u64) -> World {
        let lone = ALONE.service(name, kv, None);
        let mut random = Random::new(seed);
        let vocabulary = lone.model().spec.vocabulary;
        let mut text = |len| (0..len).map(|_| random.below(vocabulary) as u32).collect();
        let systems = [text(130), text(20)];
        World {
            what: format!("{name}, {} cells, seed {seed}", kv.name()),
            vocabulary,
            lone,
            wanted: HashMap::new(),
            systems,
            conversations: Vec::new(),
            open: Vec::new(),
            tally: Tally::default(),
            random,
        }
    }

    fn text(&mut self) -> Vec<u32> {
        let len = [1, 2, 5, 15, 16, 17, 33, 60, 64, 65, 129, 257][self.random.below(12)];
        (0..len).map(|_| self.random.below(self.vocabulary) as u32).collect()
    }

    /// The answer alone.
    fn alone(&mut self, ask: &Rc<Ask>) -> Rc<Vec<Bits>> {
        if let Some(wanted) = self.wanted.get(ask) {
            return wanted.clone();
        }
        let mut answer = self.lone.submit(ask.request()).expect("an idle service");
        let events = std::iter::from_fn(|| answer.next_blocking());
        let tokens = events.filter_map(|event| match event {
            RequestEvent::Token(sampled) => Some(bits(&sampled)),
            RequestEvent::Ended(ended) => {
                assert_eq!((ended.reason, ended.reused_tokens), (EndReason::Length, 0));
                None
            }
            _ => None,
        });
        let wanted = Rc::new(tokens.collect::<Vec<_>>());
        self.wanted.insert(ask.clone(), wanted.clone());
        wanted
    }

    fn ask(&mut self, conversation: &Conversation) -> Rc<Ask> {
        Rc::new(Ask {
            prompt: conversation.tokens.clone(),
            message_ends: conversation.message_ends.clone(),
            seed: self.random.below(4) as u64,
            tokens_max: self.random.within(0..=12),
            forced: self.random.below(20),
        })
    }

    fn submit(&mut self, service: &Service, ask: Rc<Ask>) {
        let answer = service.submit(ask.request()).expect("room in the queue");
        self.open.push(Open { ask, answer, heard: Vec::new(), reused: None, cancelled: false });
        self.tally.together = self.tally.together.max(self.open.len());
    }

    /// A conversation that is asked, and goes on with its answer.
    fn say(&mut self, service: &Service, mut conversation: Conversation) {
        let more = self.text();
        conversation.tokens.extend(more);
        conversation.message_ends.push(conversation.tokens.len());
        if self.random.chance(50) {
            // What invites the answer.
            conversation.tokens.extend([1, 2, 3]);
        }
        let ask = self.ask(&conversation);
        let wanted = self.alone(&ask);
        self.submit(service, ask);
        conversation.tokens.extend(wanted.iter().map(|(token, ..)| token));
        conversation.message_ends.push(conversation.tokens.len());
        if conversation.tokens.len() > PROMPT_MAX {
            return;
        }
        match self.conversations.len() {
            0..6 => self.conversations.push(conversation),
            many => {
                let at = self.random.below(many);
                self.conversations[at] = conversation;
            }
        }
    }

    /// One thing that somebody does.
    fn act(&mut self, service: &Service) {
        let old = match self.conversations.len() {
            0 => None,
            many => Some(self.conversations[self.random.below(many)].clone()),
        };
        match (self.random.below(12), old) {
            (0..5, Some(old)) => self.say(service, old),
            (5, Some(mut old)) => {
                // Another token in the middle, or where a message ends.
                let ends = &old.message_ends;
                let at = match self.random.chance(50) {
                    true => self.random.below(old.tokens.len()),
                    false => ends[self.random.below(ends.len())] - 1,
                };
                old.tokens[at] = (old.tokens[at] + 1) % self.vocabulary as u32;
                self.say(service, old);
            }
            (6, Some(mut old)) => {
                // Another message in the place of an earlier one.
                let kept = self.random.within(1..=old.message_ends.len());
                old.message_ends.truncate(kept);
                old.tokens.truncate(old.message_ends[kept - 1]);
                self.say(service, old);
            }
            (7, _) if !self.open.is_empty() => {
                // The same, once or several times.
                let ask = self.open[self.random.below(self.open.len())].ask.clone();
                (0..self.random.within(1..=3)).for_each(|_| self.submit(service, ask.clone()));
            }
            (8, _) if !self.open.is_empty() => {
                let at = self.random.below(self.open.len());
                self.open[at].answer.cancel();
                self.open[at].cancelled = true;
            }
            (9, _) if !self.open.is_empty() => {
                drop(self.open.swap_remove(self.random.below(self.open.len())))
            }
            _ => {
                let system = self.systems[self.random.below(2)].clone();
                let message_ends = vec![system.len()];
                self.say(service, Conversation { tokens: system, message_ends });
            }
        }
    }

    /// Takes in what has come and compares it.
    fn listen(&mut self) {
        for mut open in std::mem::take(&mut self.open) {
            let mut ended = false;
            while let Some(event) = event(&mut open.answer) {
                ended |= self.note(&mut open, event);
            }
            if !ended {
                self.open.push(open);
            }
        }
    }

    /// True at the end.
    fn note(&mut self, open: &mut Open, event: RequestEvent) -> bool {
        let wanted = &self.wanted[&open.ask];
        let what = || format!("{}, a prompt of {} tokens", self.what, open.ask.prompt.len());
        match event {
            RequestEvent::Admitted { reused_tokens } => {
                assert!(reused_tokens < open.ask.prompt.len(), "{}", what());
                open.reused = Some(reused_tokens);
            }
            RequestEvent::Read { .. } => {}
            RequestEvent::Token(sampled) => {
                let (at, found) = (open.heard.len(), bits(&sampled));
                assert_eq!(Some(&found), wanted.get(at), "{}, {:?} reused, token {at}", what(), open.reused);
                open.heard.push(found);
            }
            RequestEvent::Ended(ended) => {
                assert_eq!(ended.generated_tokens, open.heard.len(), "{}", what());
                self.tally.answers += 1;
                self.tally.read += ended.read_tokens;
                self.tally.reused += ended.reused_tokens;
                if open.cancelled && ended.reason == EndReason::Cancelled {
                    self.tally.cancelled += 1;
                    return true;
                }
                assert_eq!((ended.reason, open.heard.len()), (EndReason::Length, wanted.len()), "{}", what());
                assert_eq!(ended.reused_tokens + ended.read_tokens, ended.prompt_tokens, "{}", what());
                return true;
            }
        }
        false
    }

    /// One service, from its start to its end, `steps` of them with somebody doing something.
    fn life(&mut self, setting: &Setting, service: Service, steps: usize) {
        let prompt = self.systems[1].clone();
        let long = Rc::new(Ask { prompt, message_ends: vec![], seed: 1, tokens_max: 1900, forced: 0 });
        let mut conductor = Conductor::start(&service, long.request());
        // What the first one goes on from was read by another service.
        let mut first = true;
        for _ in 0..steps {
            if self.random.chance(70) && self.open.len() < setting.parallel_max + 4 {
                self.act(&service);
            }
            conductor.step();
            self.listen();
            let known = self.open.iter().filter_map(|open| open.reused).next();
            if let (true, Some(reused)) = (first, known) {
                self.tally.restored += reused;
                first = false;
            }
            assert!(service.counts().prefix.bytes <= setting.prefix_bytes, "{}, {setting:?}", self.what);
        }
        let stay = self.random.chance(50);
        while stay && !self.open.is_empty() && conductor.steps < 1800 {
            conductor.step();
            self.listen();
        }
        // Nobody's step any more once the engine does not stand still.
        self.open.iter().for_each(|open| open.answer.cancel());
        self.open.iter_mut().for_each(|open| open.cancelled = true);
        let steps = conductor.steps;
        self.check_conductor(&long, steps, conductor.stop());
        for mut open in std::mem::take(&mut self.open) {
            while let Some(event) = open.answer.next_blocking() {
                self.note(&mut open, event);
            }
        }
        let counts = service.counts();
        assert_eq!((counts.queued, counts.running, counts.alive), (0, 0, true), "{}", self.what);
    }

    fn check_conductor(&mut self, long: &Rc<Ask>, steps: usize, events: Vec<RequestEvent>) {
        let found: Vec<Bits> = events
            .iter()
            .filter_map(|event| match event {
                RequestEvent::Token(sampled) => Some(bits(sampled)),
                _ => None,
            })
            .collect();
        assert_eq!(found.len(), steps, "{}", self.what);
        let alone = Rc::new(Ask { tokens_max: steps, ..Ask::clone(long) });
        assert_eq!(found, *self.alone(&alone), "{}: the one that runs all the time", self.what);
    }
}

/// Services one after the other on the same folder.
fn lives(name: &str, kv: KvType, seed: u64, lives: usize, steps: usize) -> Tally {
    let mut world = World::new(name, kv, seed);
    let folder = tempfile::tempdir().expect("a folder");
    for life in 0..lives {
        let setting = Setting::random(&mut world.random);
        let what = world.what.clone();
        world.what = format!("{what}, service {life}: {setting:?}");
        let service = setting.service(name, kv, Some(folder.path()));
        world.life(&setting, service, steps);
        world.what = what;
    }
    world.tally
}

fn total(tallies: impl Iterator<Item = Tally>) -> Tally {
    tallies.fold(Tally::default(), |a, b| Tally {
        answers: a.answers + b.answers,
        cancelled: a.cancelled + b.cancelled,
        read: a.read + b.read,
        reused: a.reused + b.reused,
        restored: a.restored + b.restored,
        together: a.together.max(b.together),
    })
}

/// A few dozen steps for each type of cells.
fn answers_are_the_lone_ones(name: &str) {
    let tally = total(KvType::ALL.into_iter().zip(1..).map(|(kv, seed)| lives(name, kv, seed, 2, 20)));
    println!("{name}: {tally:?}");
    // Else it shows nothing.
    assert!(tally.answers > 50 && tally.cancelled > 5 && tally.together >= 7, "{name}: {tally:?}");
    assert!(tally.reused > 1000 && tally.read > 1000 && tally.restored > 0, "{name}: {tally:?}");
}

macro_rules! models {
    ($($test:ident $name:literal,)*) => {
        $(#[test]
        fn $test() {
            answers_are_the_lone_ones($name);
        })*

        const MODELS: &[&str] = &[$($name),*];
    };
}

models! {
    llama "llama-tiny",
    qwen2 "q2-tiny",
    qwen3 "q3-tiny",
    qwen3moe "q3moe-tiny",
    qwen3next "q3next-tiny",
    qwen35 "q35-tiny",
    qwen35moe "q35moe-tiny",
    qwen4exp "q4e-tiny",
}

#[test]
fn no_architecture_is_left_out() {
    assert_eq!(MODELS, F32_MODELS);
}

/// As above, by the hour.
#[test]
#[ignore = "an hour; run by cargo xtask qualify"]
fn answers_of_long_lives_are_the_lone_ones() {
    let all = MODELS.iter().flat_map(|name| KvType::ALL.map(|kv| (*name, kv)));
    let seeds = all.flat_map(|(name, kv)| (100..110).map(move |seed| (name, kv, seed)));
    let tally = total(seeds.map(|(name, kv, seed)| lives(name, kv, seed, 4, 300)));
    println!(
        "\nfigures: {} answers beside up to {} others all equal to alone in tokens and bits ({} cancelled); {} tokens read \
         {} reused {} of them from a service before",
        tally.answers, tally.together, tally.cancelled, tally.read, tally.reused, tally.restored
    );
}
