//! Conversations on disk, so that a restart need not read them again.
//!
//! A file holds a conversation's tokens and the states of some points of it, with checksums and bound to model, format of
//! cells and numeric definition. The engine's thread keeps the list of files and decides; one thread writes and removes, another
//! loads, so that no pass waits for the disk and no load for a file that is being written. What cannot be read is set aside
//! under another name and not tried again; files of other models and versions are not used.

pub(crate) mod command;
mod file;
mod folder;
mod index;
mod measure;

pub(crate) use file::BUFFERS_BYTES;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sys::lock::{FolderLock, LockError};

use crate::error::StateError;
use crate::model::Model;
use crate::state::State;
use file::{LoadFault, Order};
use folder::{Extension, Folder, Kind};
use index::{Found, Index, read_index};
pub use measure::{MeasuredConversation, SavedSpeed};

/// Where conversations are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedOptions {
    /// A folder for these files alone; made if it is not there.
    pub folder: PathBuf,
    /// Most bytes of all files, also while one is written; those not used for longest go first.
    pub bytes_max: u64,
    /// Files that were not used for so long go.
    pub age_max: Duration,
    /// How long a request waits for a state to be loaded before it reads its prompt instead.
    pub load_within: Duration,
    /// How long the end of a service may take for what is not saved yet.
    pub end_within: Duration,
}

impl Default for SavedOptions {
    fn default() -> SavedOptions {
        SavedOptions {
            folder: PathBuf::new(),
            bytes_max: 16 << 30,
            age_max: Duration::from_secs(30 * 24 * 60 * 60),
            load_within: Duration::from_secs(30),
            end_within: Duration::from_secs(30),
        }
    }
}

/// What a saved conversation is called: a number that its tokens give, so that no text of a request becomes a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SavedName(u64);

impl SavedName {
    /// The name that `text` writes as sixteen hexadecimal digits.
    pub fn parse(text: &str) -> Option<SavedName> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_name = text.len() == 16 && text.bytes().all(digit);
        is_name.then(|| SavedName(u64::from_str_radix(text, 16).expect("sixteen digits")))
    }

    fn with(self, folder: &Path, extension: Extension) -> PathBuf {
        folder.join(format!("{self}.{}", extension.text()))
    }

    fn path(self, folder: &Path) -> PathBuf {
        self.with(folder, Extension::Conversation)
    }

    fn temporary(self, folder: &Path) -> PathBuf {
        self.with(folder, Extension::Temporary)
    }

    fn damaged(self, folder: &Path) -> PathBuf {
        self.with(folder, Extension::Damaged)
    }
}

impl fmt::Display for SavedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A conversation in a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedConversation {
    /// What it is called.
    pub name: SavedName,
    /// Bytes of its file.
    pub bytes: u64,
    /// When it was written, or loaded last.
    pub used: SystemTime,
    /// What it holds; nothing for a file of another version of this program, or a damaged one.
    pub content: Option<SavedContent>,
}

/// What a saved conversation holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedContent {
    /// Tokens of the conversation.
    pub tokens: usize,
    /// States of beginnings of it that can be gone on from.
    pub points: usize,
    /// How its keys and values are cached.
    pub kv: String,
}

impl SavedContent {
    fn of(index: &Index) -> SavedContent {
        SavedContent { tokens: index.tokens.len(), points: index.points.len(), kv: index.kv.clone() }
    }
}

/// The conversations in a folder, the one used last first, without a model.
///
/// # Errors
/// The folder cannot be read.
pub fn list_saved(folder: &Path) -> io::Result<Vec<SavedConversation>> {
    let mut all = Vec::new();
    for folder::File { name, extension, bytes, used } in folder::files(folder)? {
        if extension == Extension::Conversation {
            let content = match read_index(&name.path(folder)) {
                Ok(Found::Conversation(index)) => Some(SavedContent::of(&index)),
                Ok(Found::OtherVersion(_)) | Err(_) => None,
            };
            all.push(SavedConversation { name, bytes, used, content });
        }
    }
    all.sort_by_key(|conversation| (std::cmp::Reverse(conversation.used), conversation.name));
    Ok(all)
}

/// Removes a conversation from a folder; false if it is not there.
///
/// # Errors
/// The file cannot be removed.
pub fn delete_saved(folder: &Path, name: SavedName) -> io::Result<bool> {
    match fs::remove_file(name.path(folder)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A conversation to be written.
pub(crate) struct Conversation {
    /// Its tokens, as many as its last state has read.
    pub tokens: Arc<[u32]>,
    /// States of beginnings of it, by length. Not copied: they are held until they are written.
    pub states: Vec<Arc<State>>,
}

/// The conversations in a folder, for the thread of an engine.
pub(crate) struct Saved {
    folder: Folder,
    to_writer: mpsc::Sender<ToWriter>,
    to_loader: mpsc::Sender<LoadOrder>,
    /// Files about to be removed.
    removing: usize,
    /// Tells the threads to leave what they do.
    ended: Arc<AtomicBool>,
    loads: u64,
    /// Nobody else writes into the folder or removes what is half written there.
    _lock: FolderLock,
}

enum ToWriter {
    Write { order: Order, unwanted: Arc<AtomicBool> },
    Remove(PathBuf),
}

/// A state to be loaded, and cut to `tokens` tokens.
struct LoadOrder {
    load: u64,
    entry: u64,
    name: SavedName,
    index: Arc<Index>,
    point: usize,
    tokens: usize,
    wanted: Arc<AtomicBool>,
}

/// What the threads tell the engine's thread, which gives it to [`Saved::hear`].
pub(crate) struct Note(Told);

enum Told {
    Removed,
    /// What was to be written next; the conversation, where its file had gone.
    Written {
        tokens: usize,
        file: io::Result<(Arc<Index>, u64)>,
        again: Option<Conversation>,
    },
    Loaded {
        load: u64,
        entry: u64,
        name: SavedName,
        index: Arc<Index>,
        state: Result<State, LoadFault>,
    },
}

/// A load under way. Dropping it abandons it.
pub(crate) struct Load {
    /// Its number.
    pub number: u64,
    wanted: Arc<AtomicBool>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.wanted.store(false, Ordering::Release);
    }
}

/// A load that has ended.
pub(crate) struct Loaded {
    /// Its number.
    pub number: u64,
    /// Tokens of the conversation, at least as many as the state has read.
    pub tokens: Arc<[u32]>,
    /// Nothing, if it could not be loaded.
    pub state: Option<State>,
    /// Whether its file is of no use any more, so that there may be another one to load.
    pub useless: bool,
}

impl Saved {
    /// Looks at what is in the folder and starts the threads, which tell what they did through `tell`.
    ///
    /// # Errors
    /// The folder cannot be made or read, somebody else uses it, or the system gives no thread.
    pub fn open(
        options: SavedOptions,
        model: Arc<Model>,
        tell: impl Fn(Note) + Clone + Send + 'static,
    ) -> io::Result<Saved> {
        fs::create_dir_all(&options.folder)?;
        let lock = FolderLock::take(&options.folder).map_err(|error| match error {
            LockError::Taken => io::Error::new(
                io::ErrorKind::ResourceBusy,
                "another server that runs has its conversations there; stop that one, or give this one a folder of its own",
            ),
            LockError::File(error) => error,
        })?;
        if !lock.is_held() {
            tracing::warn!(
                "{} lies where files cannot be locked: see to it that no other server uses it",
                options.folder.display()
            );
        }
        let ended = Arc::new(AtomicBool::new(false));
        let (to_writer, orders) = mpsc::channel();
        let (path, of_writer, over) = (options.folder.clone(), model.clone(), ended.clone());
        let told = tell.clone();
        let folder = Folder::open(options, model.clone())?;
        thread::Builder::new().name("conversations out".into()).spawn(move || {
            write_all(&orders, &path, &of_writer, &over, &told);
        })?;
        let (to_loader, orders) = mpsc::channel();
        let (path, of_loader, over) = (folder.options.folder.clone(), model.clone(), ended.clone());
        thread::Builder::new().name("conversations in".into()).spawn(move || {
            load_all(&orders, &path, &of_loader, &over, &tell);
        })?;
        Ok(Saved { folder, to_writer, to_loader, removing: 0, ended, loads: 0, _lock: lock })
    }

    /// Whether nothing is on its way to the disk.
    pub fn is_free(&self) -> bool {
        self.folder.writing.is_empty()
    }

    /// See [`SavedOptions`].
    pub fn options(&self) -> &SavedOptions {
        &self.folder.options
    }

    /// Has a conversation written in the background, if there is room for it beside what the `coming` prompts will go on
    /// from.
    pub fn write(&mut self, conversation: Conversation, coming: &[&[u32]]) {
        if self.folder.holds(&conversation) {
            return;
        }
        if let Some((order, unwanted)) = self.folder.order(conversation, coming) {
            self.send(ToWriter::Write { order, unwanted });
        }
    }

    fn send(&self, what: ToWriter) {
        assert!(self.to_writer.send(what).is_ok(), "the writer lives as long as this does");
    }

    fn remove(&mut self, path: PathBuf) {
        self.removing += 1;
        self.send(ToWriter::Remove(path));
    }

    /// Takes note of what a thread did. A load that ended is the caller's.
    pub fn hear(&mut self, note: Note) -> Option<Loaded> {
        match note.0 {
            Told::Removed => {
                self.removing -= 1;
                None
            }
            Told::Written { tokens, file, again } => {
                let unwanted =
                    self.folder.writing.front().is_some_and(|next| next.unwanted.load(Ordering::Acquire));
                let again = again.filter(|_| !unwanted);
                if let Err(error) = file.as_ref()
                    && !unwanted
                    && again.is_none()
                {
                    let folder = self.folder.options.folder.display();
                    tracing::warn!("a conversation of {tokens} tokens is not saved in {folder}: {error}");
                }
                let gone = self.folder.written(file);
                let old = self.folder.remove_old();
                gone.into_iter().chain(old).for_each(|path| self.remove(path));
                if let Some(conversation) = again {
                    self.write(conversation, &[]);
                }
                None
            }
            Told::Loaded { load, entry, name, index, state } => {
                // It may have been deleted.
                if let Some(at) = self.folder.entries.iter().position(|of| of.id == entry) {
                    self.folder.entries[at].users -= 1;
                    self.note_load(at, name, &state);
                }
                let useless = match &state {
                    // The memory may be there the next time, for somebody else.
                    Ok(_) | Err(LoadFault::Abandoned | LoadFault::State(StateError::NoMemory)) => false,
                    Err(LoadFault::Gone | LoadFault::State(_)) => true,
                };
                Some(Loaded { number: load, tokens: index.tokens.clone(), state: state.ok(), useless })
            }
        }
    }

    /// What a load says about its file.
    fn note_load(&mut self, at: usize, name: SavedName, state: &Result<State, LoadFault>) {
        let Folder { entries, options, .. } = &mut self.folder;
        match state {
            Ok(_) => entries[at].used = SystemTime::now(),
            Err(LoadFault::Abandoned | LoadFault::State(StateError::NoMemory)) => {}
            Err(LoadFault::Gone) => drop(entries.swap_remove(at)),
            Err(LoadFault::State(error @ StateError::Damaged(_))) => {
                set_aside(&options.folder, name, &error.to_string());
                entries[at].kind = Kind::Damaged;
            }
            // Somebody else's, who may want it.
            Err(LoadFault::State(StateError::Foreign { .. } | StateError::TooLong { .. })) => {
                entries[at].kind = Kind::Foreign;
            }
        }
    }

    /// How many tokens of `prompt` a state on disk has read, at most.
    pub fn known(&self, prompt: &[u32]) -> usize {
        self.folder.reach(prompt, 0).map_or(0, |reach| reach.tokens)
    }

    /// Begins to load a state that has read more of `prompt`, short of its last token, than the `known` tokens of another
    /// one. Its file stays until it is loaded.
    pub fn load(&mut self, prompt: &[u32], known: usize) -> Option<Load> {
        let reach = self.folder.reach(prompt, known)?;
        Some(self.order(reach.entry, reach.point, reach.tokens))
    }

    /// Begins to load the last state of a conversation.
    pub fn load_named(&mut self, name: SavedName) -> Option<Load> {
        let at = self.folder.named(name)?;
        let index = self.folder.entries[at].index().expect("a conversation");
        let point = index.points.len().checked_sub(1)?;
        let tokens = index.points[point].tokens;
        Some(self.order(at, point, tokens))
    }

    fn order(&mut self, at: usize, point: usize, tokens: usize) -> Load {
        self.loads += 1;
        let entry = &mut self.folder.entries[at];
        entry.users += 1;
        let index = entry.index().expect("a conversation").clone();
        let wanted = Arc::new(AtomicBool::new(true));
        let load = Load { number: self.loads, wanted: wanted.clone() };
        let (load_number, entry, name) = (self.loads, entry.id, entry.name);
        let order = LoadOrder { load: load_number, entry, name, index, point, tokens, wanted };
        assert!(self.to_loader.send(order).is_ok(), "the loader lives as long as this does");
        load
    }

    /// The conversations of this model, the one used last first.
    pub fn list(&self) -> Vec<SavedConversation> {
        let own = self.folder.entries.iter().filter_map(|entry| {
            let content = Some(SavedContent::of(entry.index()?));
            Some(SavedConversation { name: entry.name, bytes: entry.bytes, used: entry.used, content })
        });
        let mut all: Vec<_> = own.collect();
        all.sort_by_key(|conversation| (std::cmp::Reverse(conversation.used), conversation.name));
        all
    }

    /// Removes a conversation of this model, and what is being written of it; its tokens, if it is there. A load of it under way
    /// may still come to its end.
    pub fn delete(&mut self, name: SavedName) -> Option<Arc<[u32]>> {
        let entry = self.folder.delete(name)?;
        self.remove(entry.path(&self.folder.options.folder));
        Some(entry.index().expect("a conversation").tokens.clone())
    }

    /// Writes these at the end, and what is on its way, as far as there is time: the most wanted first. `notes` gives what
    /// the threads tell, or nothing if they told nothing for so long.
    pub fn end(
        mut self,
        mut unsaved: impl FnMut() -> Option<Conversation>,
        mut notes: impl FnMut(Duration) -> Option<Note>,
    ) {
        let deadline = Instant::now() + self.folder.options.end_within;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut lost = 0;
        while let Some(conversation) = unsaved() {
            // One after the other, so that the last ones are what time is short for.
            while !self.is_free() && !left().is_zero() {
                notes(left()).and_then(|note| self.hear(note));
            }
            match left().is_zero() {
                true => lost += 1,
                false => self.write(conversation, &[]),
            }
        }
        while (!self.is_free() || self.removing > 0) && !left().is_zero() {
            notes(left()).and_then(|note| self.hear(note));
        }
        self.ended.store(true, Ordering::Release);
        // Those under way are left at the next block; one that hangs in the system is left to it.
        let grace = Instant::now() + GRACE;
        while !self.is_free() && Instant::now() < grace {
            notes(GRACE).and_then(|note| self.hear(note));
        }
        lost += self.folder.writing.len();
        if lost > 0 {
            tracing::warn!(
                "{} conversations are not saved in {}: there were {} s for it, and they are read again when they go on",
                lost,
                self.folder.options.folder.display(),
                self.folder.options.end_within.as_secs()
            );
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// How long the end of a service waits for its threads to leave what they do.
const GRACE: Duration = Duration::from_secs(1);

/// What the thread that writes does.
fn write_all(
    orders: &mpsc::Receiver<ToWriter>,
    folder: &Path,
    model: &Model,
    ended: &AtomicBool,
    tell: &impl Fn(Note),
) {
    for order in orders {
        match order {
            ToWriter::Remove(path) => {
                remove(&path);
                tell(Note(Told::Removed));
            }
            ToWriter::Write { order, unwanted } => {
                let stop = || ended.load(Ordering::Acquire) || unwanted.load(Ordering::Acquire);
                let written = order.write(folder, model, &stop);
                let tokens = order.conversation.tokens.len();
                let file = written.map(|(index, bytes)| (Arc::new(index), bytes));
                let gone =
                    |error: &io::Error| error.kind() == io::ErrorKind::NotFound && order.base.is_some();
                // Its states are let go of before anybody hears that they are written.
                let again = file.as_ref().is_err_and(gone).then_some(order.conversation);
                tell(Note(Told::Written { tokens, file, again }));
            }
        }
    }
}

/// What the thread that loads does.
fn load_all(
    orders: &mpsc::Receiver<LoadOrder>,
    folder: &Path,
    model: &Model,
    ended: &AtomicBool,
    tell: &impl Fn(Note),
) {
    for LoadOrder { load, entry, name, index, point, tokens, wanted } in orders {
        let stop = || !wanted.load(Ordering::Acquire) || ended.load(Ordering::Acquire);
        let path = name.path(folder);
        let state = match stop() {
            true => Err(LoadFault::Abandoned),
            false => file::load(&path, &index, point, tokens, model, &stop),
        };
        if state.is_ok() {
            // Whether the file system keeps this matters for the order of removal only.
            let file = fs::File::options().append(true).open(&path);
            let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        }
        tell(Note(Told::Loaded { load, entry, name, index, state }));
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} cannot be removed: {error}", path.display());
        }
        _ => {}
    }
}

fn set_aside(folder: &Path, name: SavedName, problem: &str) {
    let path = name.path(folder);
    tracing::warn!("{} is set aside: {problem}", path.display());
    if let Err(error) = fs::rename(&path, name.damaged(folder)) {
        tracing::warn!("{} cannot be renamed: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoadOptions;

    /// What was being written when its beginning was deleted was there afterwards: whether it goes on in that file or has one of
    /// its own.
    #[test]
    fn a_deleted_conversation_leaves_nothing() {
        let model =
            Arc::new(Model::load(&oracle::model("q2-tiny-F32"), &LoadOptions::default()).expect("a model"));
        let conversation = |tokens: &[u32]| {
            let state = Arc::new(model.new_state().expect("memory"));
            Conversation { tokens: tokens.into(), states: vec![state] }
        };
        for more in [&[&[1, 2, 3][..]][..], &[&[1, 2, 3], &[1, 2, 3, 4]], &[]] {
            let folder = tempfile::tempdir().expect("a folder");
            let (tell, notes) = mpsc::channel();
            let options = SavedOptions { folder: folder.path().into(), ..SavedOptions::default() };
            let mut saved =
                Saved::open(options, model.clone(), move |note| drop(tell.send(note))).expect("a folder");
            saved.write(conversation(&[1, 2]), &[]);
            saved.hear(notes.recv().expect("written"));
            let name = saved.list()[0].name;
            more.iter().for_each(|tokens| saved.write(conversation(tokens), &[]));
            assert!(saved.delete(name).is_some());
            while !saved.is_free() || saved.removing > 0 {
                saved.hear(notes.recv().expect("a note"));
            }
            assert_eq!(saved.list(), []);
            assert_eq!(list_saved(folder.path()).expect("a folder"), []);
        }
    }
}
