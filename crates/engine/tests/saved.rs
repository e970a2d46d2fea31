//! Conversations outlive the process that had them.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    Ended, Engine, EngineConfig, KvType, LoadOptions, Request, RequestEvent, SavedOptions, Service,
    ServiceLimits,
};
use support::*;

const LIMITS: ServiceLimits = ServiceLimits { parallel_max: 2, queue_max: 16 };
const ROOMY: SavedOptions =
    SavedOptions { folder: PathBuf::new(), bytes_max: 1 << 30, age_max: Duration::from_secs(3600) };

fn engine(name: &str, kv: KvType, context_tokens: usize) -> Engine {
    let load = LoadOptions {
        kv,
        context_tokens: Some(context_tokens),
        prefix_bytes: 1 << 30,
        ..LoadOptions::default()
    };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 64 };
    Engine::load(&f32_model(name), &config).expect("a model")
}

/// A service whose conversations lie in `folder`.
fn saving(name: &str, folder: &Path) -> Service {
    saving_with(engine(name, KvType::F16, 1024), SavedOptions { folder: folder.into(), ..ROOMY })
}

fn saving_with(engine: Engine, options: SavedOptions) -> Service {
    Service::start_saving(engine, LIMITS, options).expect("a folder and threads")
}

fn text(service: &Service, seed: usize, len: usize) -> Vec<u32> {
    let vocabulary = service.model().spec.vocabulary;
    (0..len).map(|i| ((seed * 131 + i * i * 7 + i * seed) % vocabulary) as u32).collect()
}

fn asked(service: &Service, prompt: &[u32], message_ends: &[usize]) -> (Vec<u32>, Ended) {
    let request = Request {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 1.0, seed: 7, ..Sampling::default() },
        tokens_max: Some(6),
        message_ends: message_ends.to_vec(),
        policy: Box::new(StopTokens(Vec::new())),
    };
    let mut answer = service.submit(request).expect("taken");
    let mut tokens = Vec::new();
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Token(sampled) => tokens.push(sampled.token),
            RequestEvent::Ended(ended) => return (tokens, ended),
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
        }
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Saving and restoring a hybrid model's state reported success, and the next request read the whole prompt again: the
/// states that a conversation can be cut back to were not in the file.
#[test]
fn after_a_restart_only_what_is_new_is_read() {
    for name in F32_MODELS {
        let folder = tempfile::tempdir().expect("a folder");
        let before = saving(name, folder.path());
        let cold = Service::start(engine(name, KvType::F16, 1024), LIMITS).expect("a thread");
        let prompt = [&text(&before, 1, 100)[..], &text(&before, 2, 300), &[1, 2, 3]].concat();
        let ends = [100, 400];
        let (answer, first) = asked(&before, &prompt, &ends);
        assert_eq!(first.reused_tokens, 0);
        drop(before);
        let same = |service: &Service, prompt: &[u32], ends: &[usize]| {
            let (tokens, ended) = asked(service, prompt, ends);
            assert_eq!(tokens, asked(&cold, prompt, ends).0, "{name}");
            ended.reused_tokens
        };
        // One more turn, each time after a restart of its own.
        let more = [&prompt[..], &answer, &text(&cold, 3, 20)].concat();
        let reused = same(&saving(name, folder.path()), &more, &[100, 400, more.len()]);
        assert_eq!(reused, prompt.len() + answer.len() - 1, "{name}: one turn more");
        // The same prompt again.
        let reused = same(&saving(name, folder.path()), &prompt, &ends);
        assert!(reused >= 400, "{name}: the same prompt, {reused}");
        // Cut back to the first message.
        let cut = [&prompt[..100], &text(&cold, 4, 40)].concat();
        let reused = same(&saving(name, folder.path()), &cut, &[100, 140]);
        assert!(reused >= 100, "{name}: another second message, {reused}");
        // A foreign one.
        assert_eq!(same(&saving(name, folder.path()), &text(&cold, 9, 200), &[]), 0);
        assert_eq!(files(folder.path(), "damaged"), Vec::<PathBuf>::new());
        assert_eq!(files(folder.path(), "part"), Vec::<PathBuf>::new());
    }
}

/// A damaged file is set aside, whatever is wrong with it, and the prompt is read.
#[test]
fn damaged_files_are_set_aside() {
    let made = tempfile::tempdir().expect("a folder");
    let service = saving("q35-tiny", made.path());
    let prompt = text(&service, 1, 300);
    let (answer, _) = asked(&service, &prompt, &[200]);
    drop(service);
    let [path] = &files(made.path(), "conversation")[..] else { panic!("one file") };
    let whole = fs::read(path).expect("bytes");
    let last = whole.len() - 1;
    type Damage<'a> = (&'a str, Box<dyn Fn(&mut Vec<u8>)>);
    let damages: Vec<Damage<'_>> = vec![
        ("cut in the header", Box::new(|bytes| bytes.truncate(50))),
        ("cut in the states", Box::new(move |bytes| bytes.truncate(last / 2))),
        ("empty", Box::new(Vec::clear)),
        ("a token", Box::new(|bytes| bytes[40] ^= 1)),
        ("a count", Box::new(|bytes| bytes[20..28].fill(0xff))),
        ("points", Box::new(|bytes| bytes[28..36].fill(0xff))),
        ("an older version", Box::new(|bytes| bytes[8] = 0)),
        ("a byte of the last state", Box::new(move |bytes| bytes[last - 100] ^= 1)),
        ("its last byte", Box::new(move |bytes| bytes[last] ^= 1)),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().expect("a folder");
        let mut bytes = whole.clone();
        damage(&mut bytes);
        fs::write(folder.path().join("a.conversation"), bytes).expect("written");
        let service = saving("q35-tiny", folder.path());
        let more = [&prompt[..], &answer].concat();
        let (_, ended) = asked(&service, &more, &[]);
        assert_eq!(ended.reused_tokens, 0, "{what}");
        assert_eq!(files(folder.path(), "damaged").len(), 1, "{what}");
    }
}

/// Files of another model, and of the same one with another cache, are not its own: they are left alone, or at least not used.
#[test]
fn foreign_files_are_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35-tiny", folder.path());
    let prompt = text(&service, 1, 300);
    asked(&service, &prompt, &[]);
    drop(service);
    let other = saving("q3-tiny", folder.path());
    assert_eq!(asked(&other, &prompt, &[]).1.reused_tokens, 0);
    drop(other);
    assert_eq!(files(folder.path(), "conversation").len(), 2, "both have theirs");
    let options = SavedOptions { folder: folder.path().into(), ..ROOMY };
    let f32_cache = saving_with(engine("q35-tiny", KvType::F32, 1024), options.clone());
    assert_eq!(asked(&f32_cache, &prompt, &[]).1.reused_tokens, 0);
    drop(f32_cache);
    // A context that holds less than was saved.
    let small = saving_with(engine("q3-tiny", KvType::F16, 256), options);
    assert_eq!(asked(&small, &prompt[..200], &[]).1.reused_tokens, 0);
    drop(small);
    // They were set aside as if they were damaged, and their owners had lost them.
    assert_eq!(files(folder.path(), "damaged"), Vec::<PathBuf>::new());
    for name in ["q35-tiny", "q3-tiny"] {
        assert!(asked(&saving(name, folder.path()), &prompt, &[]).1.reused_tokens >= 290, "{name}");
    }
}

/// The budget of the folder holds, the oldest go first, and a conversation that went on has one file.
#[test]
fn the_folder_keeps_to_its_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes =
        || files(folder.path(), "conversation").iter().map(|p| p.metadata().unwrap().len()).sum::<u64>();
    let service = saving("q2-tiny", folder.path());
    let prompt = text(&service, 1, 200);
    let (answer, _) = asked(&service, &prompt, &[]);
    drop(service);
    let one = bytes();
    let service = saving("q2-tiny", folder.path());
    asked(&service, &[&prompt[..], &answer, &[5, 6]].concat(), &[]);
    drop(service);
    assert_eq!(files(folder.path(), "conversation").len(), 1, "it went on");
    for bytes_max in [5 * one / 2, one / 2, 0] {
        for seed in 2..8 {
            let options = SavedOptions { folder: folder.path().into(), bytes_max, ..ROOMY };
            let service = saving_with(engine("q2-tiny", KvType::F16, 1024), options.clone());
            asked(&service, &text(&service, seed, 200), &[]);
            drop(service);
            assert!(bytes() <= bytes_max, "{} of {bytes_max} bytes", bytes());
        }
    }
    // What nobody used for long goes when the folder is opened.
    drop(saving_with(
        engine("q2-tiny", KvType::F16, 1024),
        SavedOptions { folder: folder.path().into(), age_max: Duration::ZERO, ..ROOMY },
    ));
    assert_eq!(bytes(), 0);
}
