//! Whose answer is it? Models that copy a marker out of their prompt, asked by many at once: no answer has a digit that its own
//! prompt does not have. One server's slots read and wrote each other's recurrent state, and every answer was fluent.

mod copying_model;
mod rewrite;
mod support;

use std::path::{Path, PathBuf};

use copying_model::{FIRST_FILLER, PLACES, marker};
use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    Answer, EndReason, Engine, EngineConfig, KvType, LoadOptions, Request, RequestEvent, SavedOptions,
    Service, ServiceLimits,
};
use support::conductor::{Conductor, event};
use support::sequences::Random;

const CONTEXT_TOKENS: usize = 4096;
/// Steps that the conductor's answer has room for.
const STEPS_MAX: usize = 3800;
const VOCABULARY: u32 = 1024;

struct Chat {
    prompt: Vec<u32>,
    message_ends: Vec<usize>,
    marker: [u32; PLACES],
}

impl Chat {
    fn request(&self, tokens_max: usize) -> Request {
        Request {
            prompt: self.prompt.clone(),
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            tokens_max: Some(tokens_max),
            message_ends: self.message_ends.clone(),
            policy: Box::new(StopTokens(Vec::new())),
        }
    }
}

struct Open {
    chat: Chat,
    answer: Answer,
    heard: Vec<u32>,
    cancelled: bool,
}

struct World {
    random: Random,
    systems: Vec<Vec<u32>>,
    markers: usize,
    /// Conversations that go on.
    chats: Vec<Chat>,
    open: Vec<Open>,
    checked: usize,
    reused: usize,
}

/// `len` tokens of a marker that begins again and again.
fn copied(marker: [u32; PLACES], len: usize) -> Vec<u32> {
    marker.iter().copied().cycle().take(len).collect()
}

impl World {
    fn filler(&mut self, len: usize) -> Vec<u32> {
        let kinds = (VOCABULARY - FIRST_FILLER) as usize;
        (0..len).map(|_| FIRST_FILLER + self.random.below(kinds) as u32).collect()
    }

    /// A conversation that no other one shares its marker with.
    fn chat(&mut self) -> Chat {
        let mut prompt = self.systems[self.random.below(self.systems.len())].clone();
        let system = prompt.len();
        let before = self.random.within(0..=20);
        prompt.extend(self.filler(before));
        // Neighbours differ in every digit.
        self.markers += 1;
        let marker = marker(self.markers.wrapping_mul(0x6d2b));
        prompt.extend(marker);
        let after = self.random.within(1..=40);
        prompt.extend(self.filler(after));
        Chat { message_ends: vec![system, prompt.len()], prompt, marker }
    }

    fn submit(&mut self, service: &Service) {
        let chat = match self.chats.len() {
            many if many > 0 && self.random.chance(50) => self.chats.swap_remove(self.random.below(many)),
            _ => self.chat(),
        };
        let tokens_max = self.random.within(PLACES..=3 * PLACES);
        let answer = service.submit(chat.request(tokens_max)).expect("room in the queue");
        self.open.push(Open { chat, answer, heard: Vec::new(), cancelled: false });
    }

    fn listen(&mut self) {
        for mut open in std::mem::take(&mut self.open) {
            let mut ended = false;
            while let Some(event) = event(&mut open.answer) {
                ended |= self.note(&mut open, event);
            }
            match ended {
                false => self.open.push(open),
                true => self.go_on(open),
            }
        }
    }

    /// True at the end.
    fn note(&mut self, open: &mut Open, event: RequestEvent) -> bool {
        match event {
            RequestEvent::Admitted { reused_tokens } => self.reused += reused_tokens,
            RequestEvent::Read { .. } => {}
            RequestEvent::Token(sampled) => open.heard.push(sampled.token),
            RequestEvent::Ended(ended) => {
                let wanted = copied(open.chat.marker, open.heard.len());
                assert_eq!(open.heard, wanted, "a foreign marker after {} answers", self.checked);
                let cancelled = open.cancelled && ended.reason == EndReason::Cancelled;
                assert!(cancelled || ended.reason == EndReason::Length, "{:?}", ended.reason);
                self.checked += usize::from(!cancelled);
                return true;
            }
        }
        false
    }

    /// A conversation goes on with its answer; its marker is in what was read before only.
    fn go_on(&mut self, open: Open) {
        let Open { mut chat, heard, .. } = open;
        if chat.prompt.len() > 600 || !self.random.chance(70) {
            return;
        }
        chat.prompt.extend(heard);
        let more = self.random.within(1..=20);
        chat.prompt.extend(self.filler(more));
        chat.message_ends.push(chat.prompt.len());
        self.chats.push(chat);
    }

    /// A service with `slots` slots beside the conductor's, until `rounds` answers were checked or its context is full.
    fn life(&mut self, service: &Service, slots: usize, rounds: usize) {
        let leader = self.chat();
        let mut conductor = Conductor::start(service, leader.request(STEPS_MAX + 1));
        while self.checked < rounds && conductor.steps < STEPS_MAX {
            while self.open.len() < slots + 2 && self.random.chance(60) {
                self.submit(service);
            }
            if !self.open.is_empty() {
                let at = self.random.below(self.open.len());
                match self.random.below(30) {
                    0 => drop(self.open.swap_remove(at)),
                    1 => {
                        self.open[at].answer.cancel();
                        self.open[at].cancelled = true;
                    }
                    _ => {}
                }
            }
            conductor.step();
            self.listen();
        }
        self.open.clear();
        let heard = conductor.stop().into_iter().filter_map(|event| match event {
            RequestEvent::Token(sampled) => Some(sampled.token),
            _ => None,
        });
        let heard: Vec<u32> = heard.collect();
        assert_eq!(heard, copied(leader.marker, heard.len()), "the one that runs all the time");
    }
}

fn service(file: &Path, folder: &Path, random: &mut Random) -> (Service, usize) {
    let load = LoadOptions {
        kv: KvType::ALL[random.below(KvType::ALL.len())],
        context_tokens: Some(CONTEXT_TOKENS),
        prefix_bytes: [1 << 30, 1 << 21, 1 << 19][random.below(3)],
        ..LoadOptions::default()
    };
    let chunk_tokens = [7, 64, 256][random.below(3)];
    let config = EngineConfig { load, threads: random.within(1..=2), isa: None, chunk_tokens };
    let engine = Engine::load(file, &config).expect("a model");
    let slots = random.within(1..=8);
    let limits = ServiceLimits { parallel_max: 1 + slots, queue_max: 64 };
    let options = SavedOptions { folder: folder.into(), bytes_max: 1 << 28, ..SavedOptions::default() };
    (Service::start_saving(engine, limits, options).expect("a folder and threads"), slots)
}

/// So many answers of services one after the other, on one folder of conversations; how many tokens were not read again.
fn no_foreign_marker(make: fn(&Path) -> PathBuf, seed: u64, rounds: usize) -> usize {
    let (models, states) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let file = make(models.path());
    let mut world = World {
        random: Random::new(seed),
        systems: Vec::new(),
        markers: 0,
        chats: Vec::new(),
        open: Vec::new(),
        checked: 0,
        reused: 0,
    };
    world.systems = [1, 20, 150].map(|len| world.filler(len)).to_vec();
    let mut lives = 0;
    while world.checked < rounds {
        lives += 1;
        // Several of them, whatever the number of rounds is.
        let until = world.checked + (rounds / 8).max(25);
        let (service, slots) = service(&file, states.path(), &mut world.random);
        world.life(&service, slots, until.min(rounds));
    }
    assert!(lives >= 8 && world.reused > 10 * rounds, "{lives} services, {} tokens reused", world.reused);
    world.reused
}

#[test]
fn hybrid_models_copy_their_own_marker() {
    no_foreign_marker(copying_model::hybrid, 1, 400);
}

#[test]
fn attentive_models_copy_their_own_marker() {
    no_foreign_marker(copying_model::attentive, 2, 400);
}

#[test]
#[ignore = "some minutes; run by cargo xtask qualify"]
fn ten_thousand_rounds_have_no_foreign_marker() {
    let reused: Vec<usize> = [copying_model::hybrid, copying_model::attentive]
        .into_iter()
        .map(|make| no_foreign_marker(make, 3, 10_000))
        .collect();
    println!(
        "\nfigures: no foreign marker in 2 x 10000 answers; {} and {} tokens reused",
        reused[0], reused[1]
    );
}
