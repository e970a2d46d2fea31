//! What lies in the folder, and what goes when there is no room.
//!
//! Every file whose name is that of a conversation counts: those of other models, formats and versions and damaged ones too,
//! so that the folder keeps to its budget whoever wrote into it. Other files are nobody's business here. Damaged ones go
//! first, then what is about to be written anew, then what was not used for longest; never what a request that waits will
//! go on from.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::file::{Found, Index, SavedPoint, read_index};
use super::{Conversation, SavedName, SavedOptions, remove, set_aside};
use crate::model::Model;
use crate::prefix::{common_prefix, next_thin};

/// The files of a folder.
pub(super) struct Folder {
    pub options: SavedOptions,
    model: Arc<Model>,
    pub entries: Vec<Entry>,
    /// Bytes of files that will be there once they are written.
    reserved: u64,
}

/// A file.
pub(super) struct Entry {
    pub name: SavedName,
    pub kind: Kind,
    pub bytes: u64,
    pub used: SystemTime,
    /// How many loads of it are under way.
    pub loads: usize,
}

/// What it holds.
pub(super) enum Kind {
    /// States of this model.
    Own(Arc<Index>),
    /// Something else's.
    Foreign,
    /// Nothing of use.
    Damaged,
}

impl Entry {
    pub fn index(&self) -> Option<&Arc<Index>> {
        match &self.kind {
            Kind::Own(index) => Some(index),
            Kind::Foreign | Kind::Damaged => None,
        }
    }

    pub fn path(&self, folder: &Path) -> PathBuf {
        match self.kind {
            Kind::Damaged => self.name.damaged(folder),
            Kind::Own(_) | Kind::Foreign => self.name.path(folder),
        }
    }
}

/// A state that a prompt can go on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// Tokens of the prompt that it has read, once it is cut.
    pub tokens: usize,
    pub entry: usize,
    pub point: usize,
}

/// Damaged files that are kept for whoever wants to see what happened.
const DAMAGED_MAX: usize = 8;

impl Folder {
    /// Looks at what is there, sets aside what is damaged and removes what is too old or too much.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn open(options: SavedOptions, model: Arc<Model>) -> io::Result<Folder> {
        fs::create_dir_all(&options.folder)?;
        let mut entries = Vec::new();
        for file in files(&options.folder)? {
            let File { name, extension, bytes, used } = file;
            let kind = match extension {
                // Nobody finished it.
                Extension::Temporary => {
                    remove(&name.temporary(&options.folder));
                    continue;
                }
                Extension::Damaged => Kind::Damaged,
                Extension::Conversation => match read_index(&name.path(&options.folder)) {
                    Ok(Found::Conversation(index)) if index.is_of(&model) => Kind::Own(index.into()),
                    Ok(_) => Kind::Foreign,
                    Err(problem) => {
                        set_aside(&options.folder, name, &problem);
                        Kind::Damaged
                    }
                },
            };
            entries.push(Entry { name, kind, bytes, used, loads: 0 });
        }
        let mut folder = Folder { options, model, entries, reserved: 0 };
        folder.remove_old().iter().for_each(|path| remove(path));
        folder.room(0, &[], &[]).into_iter().flatten().for_each(|path| remove(&path));
        Ok(folder)
    }

    /// Takes out what was not used for too long and damaged files that are too many; their paths.
    pub fn remove_old(&mut self) -> Vec<PathBuf> {
        let now = SystemTime::now();
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.entries[at].used));
        let mut damaged = 0;
        let gone = order.into_iter().filter(|&at| {
            let Entry { kind, used, loads, .. } = &self.entries[at];
            damaged += usize::from(matches!(kind, Kind::Damaged));
            let old = now.duration_since(*used).is_ok_and(|age| age > self.options.age_max);
            (old && *loads == 0) || (matches!(kind, Kind::Damaged) && damaged > DAMAGED_MAX)
        });
        let gone = gone.collect();
        self.take(gone)
    }

    /// Takes entries out; their paths.
    fn take(&mut self, mut gone: Vec<usize>) -> Vec<PathBuf> {
        gone.sort_unstable();
        let gone = gone.into_iter().rev().map(|at| self.entries.swap_remove(at));
        gone.map(|entry| entry.path(&self.options.folder)).collect()
    }

    /// Makes room for `bytes` more bytes of a conversation with `tokens` and reserves it; the paths of what goes for that.
    /// Nothing, and nothing goes, if there cannot be as much without what the `coming` prompts will go on from.
    pub fn room(&mut self, bytes: u64, tokens: &[u32], coming: &[&[u32]]) -> Option<Vec<PathBuf>> {
        let pinned: Vec<usize> =
            coming.iter().filter_map(|prompt| Some(self.reach(prompt, 0)?.entry)).collect();
        let rank = |at: &usize| {
            let entry = &self.entries[*at];
            let class = match &entry.kind {
                Kind::Damaged => 0,
                Kind::Own(index) if tokens.starts_with(&index.tokens) => 1,
                Kind::Own(_) | Kind::Foreign => 2,
            };
            (class, entry.used)
        };
        let free = |at: &usize| self.entries[*at].loads == 0 && !pinned.contains(at);
        let mut order: Vec<usize> = (0..self.entries.len()).filter(free).collect();
        order.sort_by_key(rank);
        let mut total = bytes + self.reserved + self.entries.iter().map(|entry| entry.bytes).sum::<u64>();
        let mut gone = Vec::new();
        for at in order {
            if total <= self.options.bytes_max {
                break;
            }
            total -= self.entries[at].bytes;
            gone.push(at);
        }
        // What is there already and does not fit goes in any case.
        if total > self.options.bytes_max && bytes > 0 {
            return None;
        }
        self.reserved += bytes;
        Some(self.take(gone))
    }

    /// Takes note that a file for which `reserved` bytes were kept is there, or is not; the paths of what it is in the place of.
    pub fn written(&mut self, reserved: u64, file: Option<(SavedName, Arc<Index>, u64)>) -> Vec<PathBuf> {
        self.reserved -= reserved;
        let Some((name, index, bytes)) = file else { return Vec::new() };
        let replaced = |entry: &Entry| match entry.index() {
            Some(old) => entry.name != name && entry.loads == 0 && index.tokens.starts_with(&old.tokens),
            None => false,
        };
        let gone = (0..self.entries.len()).filter(|&at| replaced(&self.entries[at])).collect();
        let gone = self.take(gone);
        // One of this name was replaced by it.
        self.entries.retain(|entry| entry.name != name || matches!(entry.kind, Kind::Damaged));
        let entry = Entry { name, kind: Kind::Own(index), bytes, used: SystemTime::now(), loads: 0 };
        self.entries.push(entry);
        gone
    }

    /// Whether some file holds all of a conversation.
    pub fn holds(&self, conversation: &Conversation) -> bool {
        let Conversation { tokens, states } = conversation;
        let cuts = self.model.layout.can_be_cut();
        let has = |index: &Index, len: usize| index.points.iter().any(|point| point.tokens == len);
        self.entries.iter().filter_map(Entry::index).any(|index| {
            index.tokens.starts_with(tokens)
                && (cuts || states.iter().all(|state| has(index, state.tokens())))
        })
    }

    /// Points of beginnings of a conversation that other files hold and it does not, by length.
    pub fn carried(&self, conversation: &Conversation) -> Vec<(PathBuf, SavedPoint)> {
        let Conversation { tokens, states } = conversation;
        let mut carried: Vec<(PathBuf, SavedPoint)> = Vec::new();
        if self.model.layout.can_be_cut() {
            return carried;
        }
        for entry in &self.entries {
            let Some(index) = entry.index().filter(|index| tokens.starts_with(&index.tokens)) else {
                continue;
            };
            for point in &index.points {
                let here = states.iter().any(|state| state.tokens() == point.tokens);
                if !here && carried.iter().all(|(_, other)| other.tokens != point.tokens) {
                    carried.push((entry.path(&self.options.folder), point.clone()));
                }
            }
        }
        carried.sort_by_key(|(_, point)| point.tokens);
        // As thin as they would be in memory.
        let mut lengths: Vec<usize> = states.iter().map(|state| state.tokens()).collect();
        lengths.extend(carried.iter().map(|(_, point)| point.tokens));
        lengths.sort_unstable();
        let mut at = 1;
        while let Some(thin) = next_thin(&lengths, at) {
            let before = carried.len();
            carried.retain(|(_, point)| point.tokens != lengths[thin]);
            if carried.len() < before {
                lengths.remove(thin);
            } else {
                at = thin + 1;
            }
        }
        carried
    }

    /// The state that has read most of `prompt`, short of its last token and more than `known` tokens of it.
    pub fn reach(&self, prompt: &[u32], known: usize) -> Option<Reach> {
        let most = prompt.len().checked_sub(1)?;
        let (cuts, context_tokens) = (self.model.layout.can_be_cut(), self.model.layout.context_tokens);
        let reached = self.entries.iter().enumerate().filter_map(|(entry, file)| {
            let index = file.index()?;
            let common = common_prefix(&index.tokens, prompt).min(most);
            let before = index.points.partition_point(|point| point.tokens <= common);
            let cut = index.points.get(before).filter(|point| cuts && point.tokens <= context_tokens);
            match (cut, before.checked_sub(1)) {
                (Some(_), _) => Some(Reach { tokens: common, entry, point: before }),
                (None, Some(point)) => Some(Reach { tokens: index.points[point].tokens, entry, point }),
                (None, None) => None,
            }
        });
        // The longest; among equals that in the smallest file.
        let best =
            reached.max_by_key(|reach| (reach.tokens, std::cmp::Reverse(self.entries[reach.entry].bytes)));
        best.filter(|reach| reach.tokens > known)
    }

    /// The file of a conversation.
    pub fn named(&mut self, name: SavedName) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name && entry.index().is_some())
    }
}

/// A file with the name of a conversation.
pub(super) struct File {
    pub name: SavedName,
    pub extension: Extension,
    pub bytes: u64,
    pub used: SystemTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extension {
    Conversation,
    Temporary,
    Damaged,
}

impl Extension {
    pub fn text(self) -> &'static str {
        match self {
            Extension::Conversation => "conversation",
            Extension::Temporary => "part",
            Extension::Damaged => "damaged",
        }
    }
}

/// The files of a folder that are conversations by name. Links are not followed and not counted.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn files(folder: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = PathBuf::from(entry.file_name());
        let name = path.file_stem().and_then(|stem| SavedName::parse(stem.to_str()?));
        let all = [Extension::Conversation, Extension::Temporary, Extension::Damaged];
        let extension = all.into_iter().find(|one| path.extension().is_some_and(|text| text == one.text()));
        // It may have been removed since.
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file);
        if let (Some(name), Some(extension), Some(metadata)) = (name, extension, metadata) {
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(File { name, extension, bytes: metadata.len(), used });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::LoadOptions;

    /// A folder of which only the list is there: a file for each of these tokens, oldest first, of 10 bytes.
    fn folder(bytes_max: u64, files: &[&[u32]]) -> Folder {
        let model = Model::load(&oracle::model("q2-tiny-F32"), &LoadOptions::default()).expect("a model");
        let options = SavedOptions { bytes_max, ..SavedOptions::default() };
        let entry = |(at, tokens): (usize, &&[u32])| Entry {
            name: SavedName(at as u64),
            kind: Kind::Own(Index::forged(&model, tokens, &[tokens.len()]).into()),
            bytes: 10,
            used: SystemTime::now() - Duration::from_secs(1000 - at as u64),
            loads: 0,
        };
        let entries = files.iter().enumerate().map(entry).collect();
        Folder { options, model: Arc::new(model), entries, reserved: 0 }
    }

    /// The numbers of the files that go.
    fn gone(paths: Option<Vec<PathBuf>>) -> Option<Vec<u64>> {
        let number = |path: PathBuf| {
            let stem = path.file_stem().expect("a name").to_str().expect("text");
            u64::from_str_radix(stem, 16).expect("a number")
        };
        let mut all: Vec<u64> = paths?.into_iter().map(number).collect();
        all.sort_unstable();
        Some(all)
    }

    const FILES: [&[u32]; 4] = [&[1, 2, 3], &[4, 5, 6], &[7, 8], &[1, 2]];

    #[test]
    fn room_is_made_before_anything_is_written() {
        let room =
            |bytes_max, bytes, tokens: &[u32]| gone(folder(bytes_max, &FILES).room(bytes, tokens, &[]));
        assert_eq!(room(50, 10, &[9]), Some(vec![]));
        assert_eq!(room(49, 10, &[9]), Some(vec![0]));
        // What it takes the place of goes before others that are older.
        assert_eq!(room(49, 10, &[7, 8, 9]), Some(vec![2]));
        assert_eq!(room(40, 20, &[1, 2, 3, 4]), Some(vec![0, 3]));
        // Too large: nothing goes for it.
        assert_eq!(room(49, 50, &[9]), None);
        // What is on its way counts.
        let mut folder = folder(60, &FILES);
        assert_eq!(gone(folder.room(20, &[9], &[])), Some(vec![]));
        assert_eq!(gone(folder.room(20, &[10], &[])), Some(vec![0, 1]));
        assert_eq!(folder.entries.len(), 2);
        assert_eq!(folder.written(20, None), Vec::<PathBuf>::new());
        assert_eq!(gone(folder.room(20, &[11], &[])), Some(vec![]));
    }

    #[test]
    fn damaged_files_go_first_and_those_in_use_never() {
        let mut with_damage = folder(40, &FILES);
        with_damage.entries[3].kind = Kind::Damaged;
        assert_eq!(gone(with_damage.room(10, &[9], &[])), Some(vec![3]));
        let mut foreign = folder(40, &FILES);
        foreign.entries[0].kind = Kind::Foreign;
        assert_eq!(gone(foreign.room(10, &[9], &[])), Some(vec![0]));
        let mut loading = folder(40, &FILES);
        loading.entries[0].loads = 1;
        assert_eq!(gone(loading.room(10, &[9], &[])), Some(vec![1]));
        // What a request that waits will go on from.
        assert_eq!(gone(folder(40, &FILES).room(20, &[9], &[&[1, 2, 3, 4], &[7, 8, 9]])), Some(vec![1, 3]));
        assert_eq!(gone(folder(40, &FILES).room(30, &[9], &[&[1, 2, 3, 4], &[7, 8, 9]])), None);
    }

    /// Of a conversation and its beginning one file is left, and one that is there already is not written.
    #[test]
    fn what_goes_on_takes_the_place_of_its_beginning() {
        let mut folder = folder(100, &FILES);
        let index = Index::forged(&folder.model, &[1, 2, 3, 4], &[4]);
        let replaced = folder.written(0, Some((SavedName(9), index.into(), 12)));
        assert_eq!(gone(Some(replaced)), Some(vec![0, 3]));
        assert_eq!(folder.reach(&[1, 2, 3, 4, 5], 0).map(|reach| reach.tokens), Some(4));
        assert_eq!(folder.reach(&[1, 2, 3, 9], 0).map(|reach| reach.tokens), Some(3));
        assert_eq!(folder.reach(&[1, 2, 3, 9], 3), None);
        assert_eq!(folder.reach(&[9, 9], 0).map(|reach| reach.tokens), None);
    }
}
