//! Conversations outlive the process that had them.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use engine::policy::StopTokens;
use engine::sampler::Sampling;
use engine::{
    Answer, EndReason, Ended, Engine, EngineConfig, KvType, LoadOptions, Request, RequestEvent, RowPolicy,
    Sampled, SavedError, SavedName, SavedOptions, Service, ServiceLimits, Verdict, list_saved,
};
use support::*;

const LIMITS: ServiceLimits = ServiceLimits { parallel_max: 2, queue_max: 16 };
const ROOMY: SavedOptions = SavedOptions {
    folder: PathBuf::new(),
    bytes_max: 1 << 30,
    age_max: Duration::from_secs(3600),
    load_within: Duration::from_secs(600),
    end_within: Duration::from_secs(600),
};
/// The types of cells that conversations are served with.
const KV: [KvType; 4] = [KvType::F16, KvType::Int8, KvType::K8V4, KvType::Q4];

fn engine(name: &str, kv: KvType, context_tokens: usize) -> Engine {
    engine_keeping(name, kv, context_tokens, 1 << 30)
}

fn engine_keeping(name: &str, kv: KvType, context_tokens: usize, prefix_bytes: usize) -> Engine {
    let load =
        LoadOptions { kv, context_tokens: Some(context_tokens), prefix_bytes, ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 64 };
    Engine::load(&f32_model(name), &config).expect("a model")
}

/// A service whose conversations lie in `folder`.
fn saving(name: &str, folder: &Path) -> Service {
    saving_as(name, KvType::F16, folder)
}

fn saving_as(name: &str, kv: KvType, folder: &Path) -> Service {
    saving_with(engine(name, kv, 1024), SavedOptions { folder: folder.into(), ..ROOMY })
}

fn saving_with(engine: Engine, options: SavedOptions) -> Service {
    Service::start_saving(engine, LIMITS, options).expect("a folder and threads")
}

fn request(prompt: &[u32], message_ends: &[usize]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 1.0, seed: 7, log_probabilities: Some(32), ..Sampling::default() },
        tokens_max: Some(6),
        message_ends: message_ends.to_vec(),
        policy: Box::new(StopTokens(Vec::new())),
    }
}

fn asked(service: &Service, prompt: &[u32], message_ends: &[usize]) -> (Vec<u32>, Ended) {
    heard(&mut service.submit(request(prompt, message_ends)).expect("taken"))
}

fn heard(answer: &mut Answer) -> (Vec<u32>, Ended) {
    let (said, ended) = heard_exactly(answer);
    (said.into_iter().map(|sampled| sampled.token).collect(), ended)
}

/// The answer with the log probabilities that its tokens were chosen by.
fn heard_exactly(answer: &mut Answer) -> (Vec<Sampled>, Ended) {
    let mut said = Vec::new();
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            RequestEvent::Token(sampled) => said.push(sampled),
            RequestEvent::Ended(ended) => return (said, ended),
            RequestEvent::Admitted { .. } | RequestEvent::Read { .. } => {}
        }
    }
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

fn bytes(folder: &Path) -> u64 {
    let all = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    all.map(|entry| entry.metadata().expect("a file").len()).sum()
}

/// The one file of a conversation.
fn the_file(folder: &Path) -> PathBuf {
    let [path] = &files(folder, "conversation")[..] else { panic!("one file") };
    path.clone()
}

/// Saving and restoring a hybrid model's state reported success, and the next request read the whole prompt again: the
/// states that a conversation can be cut back to were not in the file.
fn only_what_is_new_is_read(name: &str, kv: KvType) {
    let folder = tempfile::tempdir().expect("a folder");
    let before = saving_as(name, kv, folder.path());
    let cold = Service::start(engine(name, kv, 1024), LIMITS).expect("a thread");
    let prompt = [&text(&before, 1, 100)[..], &text(&before, 2, 300), &[1, 2, 3]].concat();
    let ends = [100, 400];
    let (answer, first) = asked(&before, &prompt, &ends);
    assert_eq!(first.reused_tokens, 0);
    drop(before);
    let same = |prompt: &[u32], ends: &[usize]| {
        let restarted = saving_as(name, kv, folder.path());
        let said =
            |service: &Service| heard_exactly(&mut service.submit(request(prompt, ends)).expect("taken"));
        // Restored from disk, parked in memory since, and never saved.
        let ((restored, ended), (never_saved, _)) = (said(&restarted), said(&cold));
        assert!(restored == never_saved, "{name} {kv:?}: {restored:?}, {never_saved:?}");
        let (parked, again) = said(&restarted);
        assert!(parked == restored && again.reused_tokens >= ended.reused_tokens, "{name} {kv:?}: {again:?}");
        assert_eq!(ended.reused_tokens + ended.read_tokens, ended.prompt_tokens);
        ended.reused_tokens
    };
    // One more turn, each time after a restart of its own.
    let more = [&prompt[..], &answer, &text(&cold, 3, 20)].concat();
    let reused = same(&more, &[100, 400, more.len()]);
    assert_eq!(reused, prompt.len() + answer.len() - 1, "{name} {kv:?}: one turn more");
    // The same prompt again.
    let reused = same(&prompt, &ends);
    assert!(reused >= 400, "{name} {kv:?}: the same prompt, {reused}");
    // Cut back to the first message.
    let cut = [&prompt[..100], &text(&cold, 4, 40)].concat();
    let reused = same(&cut, &[100, 140]);
    assert!(reused >= 100, "{name} {kv:?}: another second message, {reused}");
    // A foreign one.
    assert_eq!(same(&text(&cold, 9, 200), &[]), 0);
    assert_eq!(files(folder.path(), "damaged"), Vec::<PathBuf>::new());
    assert_eq!(files(folder.path(), "part"), Vec::<PathBuf>::new());
}

#[test]
fn after_a_restart_only_what_is_new_is_read() {
    F32_MODELS.into_iter().for_each(|name| only_what_is_new_is_read(name, KvType::F16));
}

#[test]
fn after_a_restart_only_what_is_new_is_read_of_any_cells() {
    for name in ["q35moe-tiny", "q3next-tiny", "q4e-tiny"] {
        KV.into_iter().filter(|kv| *kv != KvType::F16).for_each(|kv| only_what_is_new_is_read(name, kv));
    }
}

/// A damaged file is set aside, whatever is wrong with it, and the prompt is read.
#[test]
fn damaged_files_are_set_aside() {
    for kv in KV {
        let made = tempfile::tempdir().expect("a folder");
        let service = saving_as("q35moe-tiny", kv, made.path());
        let prompt = text(&service, 1, 300);
        let (answer, _) = asked(&service, &prompt, &[200]);
        let block_bytes = service.model().layout.block_bytes;
        drop(service);
        let path = the_file(made.path());
        let whole = fs::read(&path).expect("bytes");
        let end = whole.len();
        // The place of the first generation is the second one.
        let place = 2 * 4096;
        let number = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().expect("eight bytes"));
        let (index, index_bytes) = (number(place + 8) as usize, number(place + 16) as usize);
        type Damage<'a> = (&'a str, Box<dyn Fn(&mut Vec<u8>)>);
        let flip = |at: usize| -> Box<dyn Fn(&mut Vec<u8>)> { Box::new(move |bytes| bytes[at] ^= 1) };
        let cut = |to: usize| -> Box<dyn Fn(&mut Vec<u8>)> { Box::new(move |bytes| bytes.truncate(to)) };
        let damages: Vec<Damage<'_>> = vec![
            ("empty", cut(0)),
            ("cut in its first bytes", cut(10)),
            ("cut in the cells", cut(3 * 4096 + 100)),
            ("one byte of the index short", cut(index + index_bytes - 1)),
            ("cut to whole pages", cut(end - 4096)),
            ("another kind of file", flip(0)),
            ("a byte of the first cells", flip(3 * 4096)),
            (
                "a byte of the last cells",
                flip(3 * 4096 + block_bytes.next_multiple_of(4096) + block_bytes - 1),
            ),
            ("a byte of the last state", flip(index - 100)),
            ("what it is bound to", flip(index)),
            ("a count", flip(index + 31)),
            ("a token", flip(index + 50)),
            ("where the index lies", flip(place + 8)),
            ("how long it is", flip(place + 16)),
            ("its generation", flip(place)),
            ("its last byte", flip(index + index_bytes - 1)),
        ];
        // What cells are made of is looked at once, and they and what lies beside them for each type.
        let of_cells =
            |(what, _): &Damage<'_>| kv == KvType::F16 || what.contains(" last ") || what.contains("cells");
        for (what, damage) in damages.into_iter().filter(of_cells) {
            let folder = tempfile::tempdir().expect("a folder");
            let mut bytes = whole.clone();
            damage(&mut bytes);
            fs::write(folder.path().join(path.file_name().expect("a name")), bytes).expect("written");
            let service = saving_as("q35moe-tiny", kv, folder.path());
            let more = [&prompt[..], &answer].concat();
            let (_, ended) = asked(&service, &more, &[]);
            assert_eq!(ended.reused_tokens, 0, "{kv:?}: {what}");
            assert_eq!(files(folder.path(), "damaged").len(), 1, "{kv:?}: {what}");
        }
    }
}

/// Files of another model, of the same one with another cache, and of another version are not used, and left alone: they
/// were set aside as if they were damaged, and their owners had lost them.
#[test]
fn foreign_files_are_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35moe-tiny", folder.path());
    let prompt = text(&service, 1, 300);
    asked(&service, &prompt, &[]);
    drop(service);
    let older = folder.path().join("00000000000000aa.conversation");
    let mut bytes = fs::read(the_file(folder.path())).expect("read");
    bytes[8] -= 1;
    fs::write(&older, bytes).expect("written");
    let other = saving("q3-tiny", folder.path());
    assert_eq!(asked(&other, &prompt, &[]).1.reused_tokens, 0);
    drop(other);
    for kv in [KvType::F32, KvType::Int8, KvType::K8V4, KvType::Q4] {
        let other = saving_as("q35moe-tiny", kv, folder.path());
        assert_eq!(asked(&other, &prompt, &[]).1.reused_tokens, 0, "{kv:?}");
    }
    assert_eq!(files(folder.path(), "conversation").len(), 7, "all have theirs");
    // A context that holds less than was saved.
    let options = SavedOptions { folder: folder.path().into(), ..ROOMY };
    let small = saving_with(engine("q3-tiny", KvType::F16, 256), options);
    assert_eq!(asked(&small, &prompt[..200], &[]).1.reused_tokens, 0);
    drop(small);
    assert_eq!(files(folder.path(), "damaged"), Vec::<PathBuf>::new());
    assert!(older.exists());
    for name in ["q35moe-tiny", "q3-tiny"] {
        assert!(asked(&saving(name, folder.path()), &prompt, &[]).1.reused_tokens >= 290, "{name}");
    }
}

/// The states of a conversation share their cells, and so they do in a file: each held all of them.
#[test]
fn a_file_holds_each_block_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q4e-tiny", folder.path());
    let prompt = text(&service, 1, 900);
    let ends = [200, 400, 700];
    asked(&service, &prompt, &ends);
    let (cells, own) = (service.model().layout.block_bytes as u64, service.model().layout.recurrent_bytes());
    service.save_all().expect("saved");
    let [saved] = &service.saved().expect("a folder")[..] else { panic!("one conversation") };
    let content = saved.content.as_ref().expect("of this version");
    assert_eq!((content.tokens, content.kv.as_str()), (905, "f16"));
    assert!(content.points >= 3, "{content:?}");
    // Four blocks of 256 cells; states are padded to nothing, the file to a page.
    let most = 4 * cells + content.points as u64 * (own as u64 + 16384) + 4 * 905 + 8192;
    assert!((4 * cells..most).contains(&saved.bytes), "{} of {most}", saved.bytes);
}

/// The budget of the folder holds, the oldest go first, and a conversation that went on has one file.
#[test]
fn the_folder_keeps_to_its_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = || bytes(folder.path());
    let service = saving("q2-tiny", folder.path());
    let prompt = text(&service, 1, 200);
    let (answer, _) = asked(&service, &prompt, &[]);
    drop(service);
    let one = bytes();
    let service = saving("q2-tiny", folder.path());
    asked(&service, &[&prompt[..], &answer, &[5, 6]].concat(), &[]);
    drop(service);
    assert_eq!(files(folder.path(), "conversation").len(), 1, "it went on");
    // Files of others count.
    drop(saving("q35-tiny", folder.path()));
    for bytes_max in [5 * one / 2, one / 2, 0] {
        for seed in 2..8 {
            let name = if seed % 2 == 0 { "q2-tiny" } else { "q3-tiny" };
            let options = SavedOptions { folder: folder.path().into(), bytes_max, ..ROOMY };
            let service = saving_with(engine(name, KvType::F16, 1024), options);
            asked(&service, &text(&service, seed, 200), &[]);
            drop(service);
            assert!(bytes() <= bytes_max, "{} of {bytes_max} bytes", bytes());
        }
    }
    // What nobody used for long goes when the folder is opened, and what is damaged and too much.
    for at in 0..20 {
        fs::write(folder.path().join(format!("{at:016x}.damaged")), "").expect("written");
    }
    fs::write(folder.path().join("notes.damaged"), "").expect("written");
    drop(saving("q2-tiny", folder.path()));
    assert_eq!(files(folder.path(), "damaged").len(), 9, "eight, and one that is somebody else's");
    drop(saving_with(
        engine("q2-tiny", KvType::F16, 1024),
        SavedOptions { folder: folder.path().into(), age_max: Duration::ZERO, ..ROOMY },
    ));
    assert_eq!(bytes(), 0);
    assert_eq!(files(folder.path(), "damaged").len(), 1);
}

/// A conversation that went on was written whole every time. Now what is new is written behind what is there, and at no moment is
/// there a file that holds neither: of what a power cut leaves in the middle the state before is read.
#[test]
fn a_conversation_that_goes_on_is_appended() {
    const PAGE: usize = 4096;
    for (name, kv) in [("q35moe-tiny", KvType::F16), ("q4e-tiny", KvType::Q4), ("llama-tiny", KvType::Int8)] {
        let folder = tempfile::tempdir().expect("a folder");
        let service = saving_as(name, kv, folder.path());
        let mut prompt = text(&service, 1, 900);
        prompt.extend(asked(&service, &prompt, &[300, 800]).0);
        service.save_all().expect("saved");
        let path = the_file(folder.path());
        let before = fs::read(&path).expect("bytes");
        prompt.extend(text(&service, 2, 60));
        prompt.extend(asked(&service, &prompt, &[]).0);
        drop(service);
        assert_eq!(the_file(folder.path()), path, "{name}");
        let after = fs::read(&path).expect("bytes");
        // The second generation has the first place.
        let place = PAGE..2 * PAGE;
        assert!(after.len() > before.len() && before[place.clone()] != after[place.clone()]);
        let kept = |at: &usize| !place.contains(at);
        assert!((0..before.len()).filter(kept).all(|at| before[at] == after[at]), "{name}");
        assert!(
            after.len() - before.len() < before.len() * 2 / 3,
            "{name}: {} {}",
            before.len(),
            after.len()
        );
        let (old, new) = (905, prompt.len() - 1);
        let never_saved = Service::start(engine(name, kv, 1024), LIMITS).expect("a thread");
        let exactly =
            |service: &Service| heard_exactly(&mut service.submit(request(&prompt, &[])).expect("taken"));
        let (expected, _) = exactly(&never_saved);
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = after.clone();
            change(&mut bytes);
            bytes
        };
        let left: Vec<(&str, Vec<u8>, usize)> = vec![
            ("all of it", after.clone(), new),
            (
                "all but the place",
                changed(&|bytes| bytes[place.clone()].copy_from_slice(&before[place.clone()])),
                old,
            ),
            ("half of the place", changed(&|bytes| bytes[PAGE + 12..2 * PAGE].fill(0)), old),
            ("a place without its index", changed(&|bytes| bytes.truncate(after.len() - PAGE)), old),
            ("a place without anything", changed(&|bytes| bytes.truncate(before.len())), old),
        ];
        for (what, bytes, tokens) in left {
            let crashed = tempfile::tempdir().expect("a folder");
            let file = crashed.path().join(path.file_name().expect("a name"));
            fs::write(&file, bytes).expect("written");
            let service = saving_as(name, kv, crashed.path());
            let (answer, ended) = exactly(&service);
            assert!(answer == expected, "{name}, {what}");
            let least = if name == "llama-tiny" { tokens } else { tokens.min(900) };
            assert!(
                (least..=tokens).contains(&ended.reused_tokens),
                "{name}, {what}: {}",
                ended.reused_tokens
            );
            // It goes on from there, behind what is whole.
            drop(service);
            let service = saving_as(name, kv, crashed.path());
            let (answer, ended) = exactly(&service);
            assert!(answer == expected, "{name}, {what}: after one more");
            assert!(ended.reused_tokens + 16 > prompt.len(), "{name}, {what}: {}", ended.reused_tokens);
            assert_eq!(files(crashed.path(), "damaged"), Vec::<PathBuf>::new(), "{name}, {what}");
        }
    }
}

/// And a file of which most is of no use any more is written anew, with what only it had of the beginnings.
#[test]
fn what_is_of_no_use_does_not_pile_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35moe-tiny", folder.path());
    let mut prompt = text(&service, 1, 300);
    prompt.extend(asked(&service, &prompt, &[100]).0);
    drop(service);
    let service = saving("q35moe-tiny", folder.path());
    let saved = || {
        service.save_all().expect("saved");
        let [saved] = &service.saved().expect("a folder")[..] else { panic!("one conversation") };
        saved.clone()
    };
    let mut sizes = vec![saved().bytes];
    while prompt.len() < 900 || sizes.windows(2).all(|pair| pair[1] >= pair[0]) {
        prompt.extend(text(&service, prompt.len(), 10));
        prompt.extend(asked(&service, &prompt, &[]).0);
        sizes.push(saved().bytes);
        assert!(prompt.len() < 1010, "it only grows: {sizes:?}");
    }
    let (model, points) = (service.model(), saved().content.expect("of this version").points as u64);
    let live = 4 * model.layout.block_bytes as u64
        + points * (model.layout.recurrent_bytes() as u64 + 16384)
        + 32768;
    assert!(sizes.iter().all(|&size| size <= live * 3 / 2), "{sizes:?} {live}");
    drop(service);
    let service = saving("q35moe-tiny", folder.path());
    assert_eq!(the_file(folder.path()).metadata().expect("a file").len(), *sizes.last().expect("turns"));
    let other = [&prompt[..100], &text(&service, 3, 50)].concat();
    assert_eq!(asked(&service, &other, &[]).1.reused_tokens, 100);
    assert_eq!(asked(&service, &prompt, &[]).1.reused_tokens, prompt.len() - 1);
}

/// What an earlier process wrote of a conversation's beginnings is in the file that takes its place: only the points that
/// were in memory were.
#[test]
fn a_conversation_that_goes_on_keeps_its_beginnings() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q3next-tiny", folder.path());
    let mut prompt = text(&service, 1, 300);
    prompt.extend(asked(&service, &prompt, &[100, 200]).0);
    drop(service);
    let service = saving("q3next-tiny", folder.path());
    prompt.extend([5, 6]);
    assert_eq!(asked(&service, &prompt, &[]).1.reused_tokens, 305);
    drop(service);
    the_file(folder.path());
    let service = saving("q3next-tiny", folder.path());
    let other = [&prompt[..100], &text(&service, 3, 50)].concat();
    assert_eq!(asked(&service, &other, &[]).1.reused_tokens, 100);
}

/// Parking and restoring a conversation copied a block of cells, and that of a longer one as well. One that can be cut goes on in
/// its own, from memory as from disk; a recurrent state stays where it is, as what can be gone back to, and shares whole
/// blocks but not the last one.
#[test]
fn parking_and_restoring_copy_no_cells() {
    // Prompts that bring no points, or such at the ends of blocks.
    for (name, next, copied) in [("llama-tiny", 768, 0), ("q35moe-tiny", 536, 1), ("q4e-tiny", 536, 1)] {
        let folder = tempfile::tempdir().expect("a folder");
        let service = saving(name, folder.path());
        let copies = |service: &Service| service.model().kv.copies();
        let ends = [256];
        let mut prompt = text(&service, 1, 512);
        prompt.extend(asked(&service, &prompt, &ends).0);
        // Whoever writes it holds it, too.
        service.save_all().expect("saved");
        assert_eq!(copies(&service), 0, "{name}: parked");
        prompt.extend(text(&service, 2, next - prompt.len()));
        let (answer, ended) = asked(&service, &prompt, &ends);
        assert_eq!((ended.reused_tokens, copies(&service)), (517, copied), "{name}: from memory");
        prompt.extend(answer);
        drop(service);
        let service = saving(name, folder.path());
        prompt.extend(text(&service, 3, 16));
        let (_, ended) = asked(&service, &prompt, &[]);
        // Where a beginning can be cut off, a point is made at the end of the prompt, which is not that of a block.
        let of_point = usize::from(name == "llama-tiny");
        assert_eq!((ended.reused_tokens, copies(&service)), (next + 5, of_point), "{name}: from disk");
    }
}

/// A file that nothing comes out of before somebody writes into it.
#[cfg(target_os = "linux")]
fn made_a_pipe(path: &Path) {
    fs::remove_file(path).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("a command of every system");
    assert!(made.success());
}

/// A state was loaded on the engine's thread: everybody waited for the disk.
#[cfg(target_os = "linux")]
#[test]
fn others_go_on_while_a_state_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35moe-tiny", folder.path());
    let (prompt, other) = (text(&service, 1, 300), text(&service, 2, 100));
    let (expected, _) = asked(&service, &prompt, &[]);
    drop(service);
    let service = saving("q35moe-tiny", folder.path());
    let pipe = the_file(folder.path());
    made_a_pipe(&pipe);
    let mut waiting = service.submit(request(&prompt, &[])).expect("taken");
    for _ in 0..3 {
        assert_eq!(asked(&service, &other, &[]).1.reason, EndReason::Length);
    }
    assert_eq!((service.counts().queued, service.counts().running), (1, 0));
    // Who has enough of waiting leaves its place.
    waiting.cancel();
    let (_, ended) = heard(&mut waiting);
    assert_eq!((ended.reason, ended.read_tokens, ended.reused_tokens), (EndReason::Cancelled, 0, 0));
    assert_eq!(service.counts().queued, 0);
    // The loader gets to an end, which is of no use, and the prompt is read.
    let _open = fs::File::options().write(true).open(&pipe).expect("it is being read");
    let (answer, ended) = asked(&service, &prompt, &[]);
    assert_eq!((answer, ended.reused_tokens), (expected, 0));
}

/// A disk that does not answer costs a request the time it may wait, and the end of a service none.
#[cfg(target_os = "linux")]
#[test]
fn a_load_that_takes_too_long_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35moe-tiny", folder.path());
    let prompt = text(&service, 1, 300);
    let (expected, _) = asked(&service, &prompt, &[]);
    drop(service);
    let hurried = SavedOptions { folder: folder.path().into(), load_within: Duration::ZERO, ..ROOMY };
    let service = saving_with(engine("q35moe-tiny", KvType::F16, 1024), hurried);
    made_a_pipe(&the_file(folder.path()));
    let (answer, ended) = asked(&service, &prompt, &[]);
    assert_eq!((answer, ended.reused_tokens), (expected, 0));
}

/// Without time for it nothing is saved at the end but what was by then, and nothing is left that is not whole.
#[test]
fn an_end_without_time_leaves_nothing_that_is_not_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let hurried = SavedOptions { folder: folder.path().into(), end_within: Duration::ZERO, ..ROOMY };
    let service = saving_with(engine("q2-tiny", KvType::F16, 1024), hurried);
    asked(&service, &text(&service, 1, 200), &[]);
    drop(service);
    assert_eq!(files(folder.path(), "part"), Vec::<PathBuf>::new());
    let saved = list_saved(folder.path()).expect("a folder");
    assert!(saved.len() <= 1 && saved.iter().all(|one| one.content.is_some()), "{saved:?}");
}

/// And it waits for no disk that hangs.
#[cfg(target_os = "linux")]
#[test]
fn an_end_without_time_waits_for_no_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let hurried = SavedOptions { folder: folder.path().into(), end_within: Duration::ZERO, ..ROOMY };
    let service = saving_with(engine("q2-tiny", KvType::F16, 1024), hurried);
    let mut prompt = text(&service, 1, 600);
    prompt.extend(asked(&service, &prompt, &[]).0);
    service.save_all().expect("saved");
    let pipe = the_file(folder.path());
    made_a_pipe(&pipe);
    // What is written now goes nowhere, until somebody reads it.
    asked(&service, &prompt, &[]);
    let (ended, end) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        drop(service);
        ended.send(()).expect("heard");
    });
    end.recv_timeout(Duration::from_secs(60)).expect("an end");
    thread.join().expect("no panic");
}

/// Conversations were saved when nobody asked anything: who killed a busy server lost all of them.
#[test]
fn an_answer_that_ended_is_saved_while_others_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = SavedOptions { folder: folder.path().into(), ..ROOMY };
    let service = saving_with(engine("q2-tiny", KvType::F16, 1 << 18), options);
    let long = Request { tokens_max: Some(20_000), ..request(&text(&service, 2, 100), &[]) };
    let mut long = service.submit(long).expect("taken");
    while !matches!(long.next_blocking(), Some(RequestEvent::Token(_))) {}
    asked(&service, &text(&service, 1, 300), &[]);
    loop {
        if !files(folder.path(), "conversation").is_empty() {
            break;
        }
        assert!(!matches!(long.next_blocking(), Some(RequestEvent::Ended(_))), "only when nothing was asked");
    }
    long.cancel();
    assert_eq!(heard(&mut long).1.reason, EndReason::Cancelled);
    assert_eq!(list_saved(folder.path()).expect("a folder")[0].content.as_ref().expect("whole").tokens, 305);
}

/// Two servers in one folder removed each other's half written files, and neither knew what the other one had removed.
#[test]
fn a_folder_has_one_service_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = saving("q2-tiny", folder.path());
    let options = || SavedOptions { folder: folder.path().into(), ..ROOMY };
    let second = Service::start_saving(engine("q3-tiny", KvType::F16, 256), LIMITS, options());
    let error = second.err().expect("it is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("another server that runs has its conversations there"), "{error}");
    drop(first);
    saving_with(engine("q3-tiny", KvType::F16, 256), options());
}

/// What memory had no room for any more was lost unless there had been a pause before.
#[test]
fn what_leaves_memory_is_saved_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = saving("q35moe-tiny", folder.path());
    asked(&alone, &text(&alone, 1, 300), &[]);
    let one = alone.counts().prefix.bytes;
    drop(alone);
    fs::remove_file(the_file(folder.path())).expect("removed");
    let budget = 9 * one / 2;
    let options = SavedOptions { folder: folder.path().into(), ..ROOMY };
    let service = saving_with(engine_keeping("q35moe-tiny", KvType::F16, 1024, budget), options);
    for seed in 1..12 {
        asked(&service, &text(&service, seed, 300), &[]);
        assert!(service.counts().prefix.bytes <= budget);
        // As if this took a while: what must go soon is on disk by then.
        while service.saved().expect("a folder").len() + 3 < seed {}
    }
    for seed in 1..9 {
        assert!(asked(&service, &text(&service, seed, 300), &[]).1.reused_tokens >= 290, "{seed}");
    }
}

/// Lets a request begin when it is told to: what is submitted before that waits behind it.
struct Gate(mpsc::Receiver<()>);

impl RowPolicy for Gate {
    fn start(&mut self) -> Verdict {
        self.0.recv().expect("opened");
        Verdict::GoOn
    }

    fn advance(&mut self, _: u32) -> Verdict {
        Verdict::GoOn
    }

    fn roll_back(&mut self, _: usize) {}
}

/// The conversation that went before was stored first, and that pushed out the very one that the next request was about to
/// go on from: of memory, and of the disk.
#[test]
fn what_a_waiting_request_goes_on_from_stays() {
    for name in ["q2-tiny", "q35moe-tiny"] {
        let folder = tempfile::tempdir().expect("a folder");
        let alone = saving(name, folder.path());
        let (first, second) = (text(&alone, 1, 300), text(&alone, 2, 300));
        asked(&alone, &first, &[]);
        let one = alone.counts().prefix.bytes;
        drop(alone);
        let one_on_disk = bytes(folder.path());
        for on_disk in [true, false] {
            // Room for one, there or in memory.
            let (budget, bytes_max) = if on_disk { (1 << 30, 3 * one_on_disk / 2) } else { (3 * one / 2, 0) };
            let options = SavedOptions { folder: folder.path().into(), bytes_max, ..ROOMY };
            let engine = engine_keeping(name, KvType::F16, 1024, budget);
            let limits = ServiceLimits { parallel_max: 1, queue_max: 4 };
            let service = Service::start_saving(engine, limits, options).expect("a folder");
            if !on_disk {
                asked(&service, &first, &[]);
            }
            let (open, gate) = mpsc::channel();
            let gated =
                Request { policy: Box::new(Gate(gate)), tokens_max: Some(700), ..request(&second, &[]) };
            let mut before = service.submit(gated).expect("taken");
            let mut next = service.submit(request(&first, &[])).expect("taken");
            open.send(()).expect("heard");
            while !matches!(before.next_blocking(), Some(RequestEvent::Read { tokens: 300 })) {}
            service.save_all().expect("nothing but room is short");
            before.cancel();
            heard(&mut before);
            assert!(heard(&mut next).1.reused_tokens >= 290, "{name}, on disk: {on_disk}");
            assert!(service.counts().prefix.bytes <= budget);
            drop(service);
            assert!(bytes(folder.path()) <= bytes_max);
        }
    }
}

#[test]
fn conversations_are_listed_saved_restored_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = saving("q35moe-tiny", folder.path());
    let prompt = text(&service, 1, 300);
    assert_eq!(service.saved().expect("a folder"), []);
    service.save_all().expect("nothing to save");
    let more = [&prompt[..], &asked(&service, &prompt, &[]).0].concat();
    service.save_all().expect("saved");
    let [one] = &service.saved().expect("a folder")[..] else { panic!("one") };
    let [same] = &list_saved(folder.path()).expect("a folder")[..] else { panic!("one") };
    assert_eq!((one.name, one.bytes, &one.content), (same.name, same.bytes, &same.content));
    assert_eq!(one.content.as_ref().expect("whole").tokens, 305);
    drop(service);
    // Into memory ahead: the file may go then.
    let service = saving("q35moe-tiny", folder.path());
    assert_eq!(service.counts().prefix.points, 0);
    assert_eq!(service.restore(one.name), Ok(305));
    assert_eq!(service.counts().prefix.points, 1);
    fs::remove_file(the_file(folder.path())).expect("removed");
    // A file that has gone is no error of a request.
    assert_eq!(service.restore(one.name), Err(SavedError::NotLoaded { name: one.name }));
    assert_eq!(service.restore(one.name), Err(SavedError::Unknown { name: one.name }));
    let longer = [&more[..], &asked(&service, &more, &[]).0].concat();
    service.save_all().expect("saved");
    // Nor is it lost when that goes on which it held.
    fs::remove_file(the_file(folder.path())).expect("removed");
    assert_eq!(asked(&service, &longer, &[]).1.reused_tokens, 311);
    service.save_all().expect("saved");
    the_file(folder.path());
    // Deleted from both.
    let name = service.saved().expect("a folder")[0].name;
    assert_eq!(service.delete_saved(name), Ok(()));
    assert_eq!(service.delete_saved(name), Err(SavedError::Unknown { name }));
    assert_eq!(asked(&service, &more, &[]).1.reused_tokens, 0);
    let none = Service::start(engine("q2-tiny", KvType::F16, 256), LIMITS).expect("a thread");
    assert_eq!(none.saved(), Err(SavedError::Off));
}

/// No text becomes a path.
#[test]
fn names_are_numbers() {
    assert!(SavedName::parse("0123456789abcdef").is_some_and(|name| name.to_string() == "0123456789abcdef"));
    let long = "0".repeat(4096);
    for text in
        ["", "../../etc/passwd", "/etc/passwd\0abcd", "0123456789ABCDEF", "+123456789abcdef", "con", &long]
    {
        assert_eq!(SavedName::parse(text), None, "{text}");
    }
}

/// Every request that had something on a disk that hung waited for it as long as the first one did, one after the other.
#[cfg(target_os = "linux")]
#[test]
fn nobody_waits_behind_a_load_that_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = saving("llama-tiny", folder.path());
    let prompts = [1, 2].map(|seed| text(&before, seed, 200));
    prompts.iter().for_each(|prompt| drop(asked(&before, prompt, &[])));
    drop(before);
    let load_within = Duration::from_secs(2);
    let options = SavedOptions { folder: folder.path().into(), load_within, ..ROOMY };
    let after = saving_with(engine("llama-tiny", KvType::F16, 1024), options);
    files(folder.path(), "conversation").iter().for_each(|path| made_a_pipe(path));
    let ends = prompts.map(|prompt| asked(&after, &prompt, &[]).1);
    assert_eq!(
        ends.each_ref().map(|end| (end.reused_tokens, end.reason.clone())),
        [(0, EndReason::Length), (0, EndReason::Length)]
    );
    assert!(ends[0].queue_time >= load_within, "the first one waits as long as it may");
    assert!(ends[1].queue_time < load_within, "the second one waited behind it: {:?}", ends[1].queue_time);
}
