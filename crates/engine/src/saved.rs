//! Conversations on disk, so that a restart need not read them again.
//!
//! A file holds a conversation's tokens and the states of some points of it, each with its own checksum and bound to
//! model, format of cells and numeric definition. A thread of its own writes: to a temporary name first, so that a file is
//! whole or not there. What cannot be read is set aside under another name and not tried again; files of other models
//! are left alone.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use sys::mmap::Map;

use crate::error::StateError;
use crate::model::{Model, fnv1a};
use crate::prefix::common_prefix;
use crate::state::{State, binding};

/// Where conversations are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedOptions {
    /// A folder for these files alone; made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of all files; those not used for longest go first.
    pub bytes_max: u64,
    /// Files that were not used for so long go.
    pub age_max: Duration,
}

/// A conversation to be written.
pub(crate) struct Conversation {
    /// Its tokens, as many as its last state has read.
    pub tokens: Arc<[u32]>,
    /// States of beginnings of it, by length. Not copied: they are held until they are written.
    pub states: Vec<Arc<State>>,
}

/// The conversations in a folder.
pub(crate) struct Saved {
    options: SavedOptions,
    model: Arc<Model>,
    files: Vec<SavedFile>,
    /// Absent only while it is dropped.
    to_write: Option<mpsc::Sender<Conversation>>,
    /// Of each conversation, the file that was made of it.
    written: mpsc::Receiver<Option<SavedFile>>,
    /// Conversations on their way.
    writing: usize,
    writer: Option<JoinHandle<()>>,
}

struct SavedFile {
    path: PathBuf,
    tokens: Vec<u32>,
    /// How many tokens each state has read, and where it lies.
    points: Vec<(usize, Range<u64>)>,
    bytes: u64,
    used: SystemTime,
}

const MAGIC: &[u8; 8] = b"STRATAcv";
const VERSION: u32 = 1;
const EXTENSION: &str = "conversation";
const TEMPORARY: &str = "part";
/// More tokens than any context has, and more points than any conversation.
const TOKENS_MAX: u64 = 1 << 28;
const POINTS_MAX: u64 = 1 << 16;

impl Saved {
    /// Looks at what is in the folder and starts the thread that writes.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the system gives no thread.
    pub fn open(options: SavedOptions, model: Arc<Model>) -> io::Result<Saved> {
        fs::create_dir_all(&options.folder)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&options.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == TEMPORARY) {
                // Nobody finished it.
                remove(&path);
            }
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            match read_header(&path, binding(&model.layout, model.identity)) {
                Ok(Some(file)) => files.push(file),
                Ok(None) => {}
                Err(problem) => set_aside(&path, &problem),
            }
        }
        let (to_write, incoming) = mpsc::channel::<Conversation>();
        let (done, written) = mpsc::channel();
        let (folder, of_writer) = (options.folder.clone(), model.clone());
        let writer = thread::Builder::new().name("saved conversations".into()).spawn(move || {
            for conversation in incoming {
                let file = write(&folder, &of_writer, &conversation).map_err(|error| {
                    tracing::warn!("a conversation is not saved in {}: {error}", folder.display());
                });
                // Its states are let go of before anybody hears that they are written.
                drop(conversation);
                // Nobody may be there to hear of it: then it is found at the next start.
                drop(done.send(file.ok()));
            }
        })?;
        let mut saved = Saved {
            options,
            model,
            files,
            to_write: Some(to_write),
            written,
            writing: 0,
            writer: Some(writer),
        };
        saved.keep_budget();
        Ok(saved)
    }

    /// Whether nothing is on its way to the disk.
    pub fn is_free(&mut self) -> bool {
        self.settle();
        self.writing == 0
    }

    /// Has a conversation written in the background.
    pub fn write(&mut self, conversation: Conversation) {
        self.writing += 1;
        let to_write = self.to_write.as_ref().expect("present until dropped");
        assert!(to_write.send(conversation).is_ok(), "the writer lives as long as this does");
    }

    /// Takes note of what was written since.
    pub fn settle(&mut self) {
        let mut any = false;
        while let Ok(file) = self.written.try_recv() {
            self.writing -= 1;
            any |= file.is_some();
            file.into_iter().for_each(|file| self.note(file));
        }
        if any {
            self.keep_budget();
        }
    }

    /// Takes a file among the others. What it goes on from is in it, but for the states of beginnings of a conversation that
    /// was loaded from its end: these stay where they are.
    fn note(&mut self, file: SavedFile) {
        let cuts = self.model.layout.can_be_cut();
        let first = |file: &SavedFile| file.points.first().map_or(0, |(tokens, _)| *tokens);
        let (old, kept): (Vec<SavedFile>, Vec<SavedFile>) = self
            .files
            .drain(..)
            .partition(|old| file.tokens.starts_with(&old.tokens) && (cuts || first(&file) <= first(old)));
        self.files = kept;
        let lies_in = |other: &SavedFile| {
            let has = |point: &(usize, Range<u64>)| other.points.iter().any(|(tokens, _)| *tokens == point.0);
            other.tokens.starts_with(&file.tokens) && file.points.iter().all(has)
        };
        if self.files.iter().any(lies_in) {
            return remove(&file.path);
        }
        old.iter().filter(|old| old.path != file.path).for_each(|old| remove(&old.path));
        self.files.push(file);
    }

    fn keep_budget(&mut self) {
        self.files.sort_by_key(|file| file.used);
        let now = SystemTime::now();
        let mut bytes: u64 = self.files.iter().map(|file| file.bytes).sum();
        let SavedOptions { bytes_max, age_max, .. } = self.options;
        self.files.retain(|file| {
            let old = now.duration_since(file.used).is_ok_and(|age| age > age_max);
            if !old && bytes <= bytes_max {
                return true;
            }
            bytes -= file.bytes;
            remove(&file.path);
            false
        });
    }

    /// How many tokens a state that [`Saved::find`] answers with would have read.
    pub fn known(&self, prompt: &[u32]) -> usize {
        self.reach(prompt).map_or(0, |(tokens, ..)| tokens)
    }

    /// The most tokens of `prompt`, short of its last one, that a state on disk has read; its file and its point there.
    fn reach(&self, prompt: &[u32]) -> Option<(usize, usize, usize)> {
        let most = prompt.len().checked_sub(1)?;
        let context_tokens = self.model.layout.context_tokens;
        let reached = self.files.iter().enumerate().filter_map(|(at, file)| {
            let common = common_prefix(&file.tokens, prompt).min(most);
            let usable = file.points.iter().rposition(|(tokens, _)| *tokens <= common);
            let cut = self.model.layout.can_be_cut().then(|| usable.map_or(0, |point| point + 1));
            let loadable = |&(tokens, _): &(usize, _)| tokens <= context_tokens;
            let cut = cut.filter(|&point| common > 0 && file.points.get(point).is_some_and(loadable));
            match (cut, usable) {
                (Some(point), _) => Some((common, at, point)),
                (None, Some(point)) => Some((file.points[point].0, at, point)),
                (None, None) => None,
            }
        });
        reached.max_by_key(|&(tokens, ..)| tokens)
    }

    /// A state that has read more of `prompt`, short of its last token, than the `known` tokens of another one.
    pub fn find(&mut self, prompt: &[u32], known: usize) -> Option<State> {
        self.settle();
        loop {
            let (tokens, at, point) = self.reach(prompt).filter(|&(tokens, ..)| tokens > known)?;
            match self.load(at, point) {
                Ok(state) if state.tokens() == tokens => return Some(state),
                Ok(mut state) if state.can_be_cut() && state.tokens() > tokens => {
                    state.cut(tokens);
                    return Some(state);
                }
                Ok(_) => set_aside(&self.files.remove(at).path, "its states are not those it names"),
                // The memory may be there the next time.
                Err(StateError::NoMemory) => return None,
                Err(error @ StateError::Damaged(_)) => {
                    set_aside(&self.files.remove(at).path, &error.to_string());
                }
                // Somebody else's, who may want it.
                Err(StateError::Foreign { .. } | StateError::TooLong { .. }) => drop(self.files.remove(at)),
            }
        }
    }

    fn load(&mut self, at: usize, point: usize) -> Result<State, StateError> {
        let file = &mut self.files[at];
        let (_, range) = &file.points[point];
        // Its pages are the system's, so that the state is in memory once.
        let unread = StateError::Damaged("it cannot be read");
        let map = Map::open(&file.path).map_err(|_| unread.clone())?;
        let bytes = map.get(range.start as usize..range.end as usize).ok_or(unread.clone())?;
        let Model { layout, identity, kv, .. } = &*self.model;
        let state = State::from_bytes(bytes, layout.clone(), *identity, kv)?;
        if map.damaged() {
            return Err(unread);
        }
        let now = SystemTime::now();
        // Whether the file system keeps this matters for the order of removal only.
        let _ = File::options().append(true).open(&file.path).and_then(|file| file.set_modified(now));
        file.used = now;
        Ok(state)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.to_write = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the thread was reported where it happened.
            let _ = writer.join();
        }
        self.settle();
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!("{} cannot be removed: {error}", path.display());
    }
}

fn set_aside(path: &Path, problem: &str) {
    tracing::warn!("{} is set aside: {problem}", path.display());
    if let Err(error) = fs::rename(path, path.with_extension("damaged")) {
        tracing::warn!("{} cannot be renamed: {error}", path.display());
    }
}

/// What comes before the states: everything that finds them, with a checksum.
fn header(binding: u64, tokens: &[u32], lengths: &[(u64, u64)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend(binding.to_le_bytes());
    out.extend((tokens.len() as u64).to_le_bytes());
    out.extend((lengths.len() as u64).to_le_bytes());
    tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
    lengths
        .iter()
        .for_each(|(tokens, bytes)| out.extend([tokens.to_le_bytes(), bytes.to_le_bytes()].concat()));
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out
}

/// Of a file; nothing if its states are another model's, in another type of cells or of another definition.
fn read_header(path: &Path, binding: u64) -> Result<Option<SavedFile>, String> {
    let said = |error: io::Error| error.to_string();
    let mut file = File::open(path).map_err(said)?;
    let metadata = file.metadata().map_err(said)?;
    let mut fixed = [0; 36];
    file.read_exact(&mut fixed).map_err(said)?;
    let number = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("eight bytes"));
    if &fixed[..8] != MAGIC || fixed[8..12] != VERSION.to_le_bytes() {
        return Err("it is no conversation of this version".into());
    }
    if number(12) != binding {
        return Ok(None);
    }
    let (tokens, points) = (number(20), number(28));
    if tokens > TOKENS_MAX || points > POINTS_MAX || 4 * tokens + 16 * points > metadata.len() {
        return Err("it names more than it holds".into());
    }
    let mut rest = vec![0; (4 * tokens + 16 * points + 4) as usize];
    file.read_exact(&mut rest).map_err(said)?;
    let (body, checksum) = rest.split_at(rest.len() - 4);
    let mut hash = crc32fast::Hasher::new();
    hash.update(&fixed);
    hash.update(body);
    if hash.finalize().to_le_bytes() != checksum {
        return Err("its checksum is wrong".into());
    }
    let (words, lengths) = body.split_at(4 * tokens as usize);
    let tokens: Vec<u32> = words.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let mut at = (fixed.len() + rest.len()) as u64;
    let mut read = Vec::new();
    for pair in lengths.as_chunks::<16>().0 {
        let (count, bytes) = pair.split_at(8);
        let [count, bytes] = [count, bytes].map(|n| u64::from_le_bytes(n.try_into().expect("eight bytes")));
        let end = at.checked_add(bytes).filter(|&end| end <= metadata.len() && count <= tokens.len() as u64);
        let end = end.ok_or("it is cut off")?;
        read.push((count as usize, at..end));
        at = end;
    }
    let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Some(SavedFile { path: path.to_owned(), tokens, points: read, bytes: metadata.len(), used }))
}

/// Writes a conversation under a name that its tokens and points give.
fn write(folder: &Path, model: &Model, conversation: &Conversation) -> io::Result<SavedFile> {
    let Conversation { tokens, states } = conversation;
    let binding = binding(&model.layout, model.identity);
    let lengths = |of: &dyn Fn(usize) -> u64| -> Vec<(u64, u64)> {
        states.iter().enumerate().map(|(i, state)| (state.tokens() as u64, of(i))).collect()
    };
    // How long states are is known once they are written; until then their place is kept.
    let nothing_yet = header(binding, tokens, &lengths(&|_| 0));
    let name = fnv1a(&nothing_yet);
    let path = folder.join(format!("{name:016x}.{EXTENSION}"));
    let temporary = path.with_extension(TEMPORARY);
    let mut out = BufWriter::new(File::create(&temporary)?);
    out.write_all(&nothing_yet)?;
    let mut at = nothing_yet.len() as u64;
    let mut points = Vec::new();
    for state in states {
        state.write_to(model.identity, &mut out)?;
        let end = out.stream_position()?;
        points.push((state.tokens(), at..end));
        at = end;
    }
    out.rewind()?;
    out.write_all(&header(binding, tokens, &lengths(&|i| points[i].1.end - points[i].1.start)))?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    fs::rename(&temporary, &path)?;
    Ok(SavedFile { path, tokens: tokens.to_vec(), points, bytes: at, used: SystemTime::now() })
}
