//! What lies in the folder, and what goes when there is no room.
//!
//! Every file whose name is that of a conversation counts: those of other models, formats and versions and damaged ones too,
//! so that the folder keeps to its budget whoever wrote into it. Other files are nobody's business here. Damaged ones go
//! first, then what is about to be written anew, then what was not used for longest; never what a request that waits will
//! go on from.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::file::{self, Base, Order};
use super::index::{Found, Index, SavedPoint, read_index};
use super::{Conversation, SavedName, SavedOptions, remove, set_aside};
use crate::model::Model;
use crate::prefix::{common_prefix, next_thin};

/// The files of a folder.
pub(super) struct Folder {
    pub options: SavedOptions,
    model: Arc<Model>,
    pub entries: Vec<Entry>,
    /// What is being written, in this order.
    pub writing: VecDeque<Writing>,
    /// Numbers entries.
    ids: u64,
}

/// A file.
pub(super) struct Entry {
    /// A number that no other one has or had.
    pub id: u64,
    pub name: SavedName,
    pub kind: Kind,
    pub bytes: u64,
    pub used: SystemTime,
    /// How many read it, or go on in it.
    pub users: usize,
}

/// A conversation that is being written.
pub(super) struct Writing {
    name: SavedName,
    tokens: Arc<[u32]>,
    /// The file that it goes on in.
    base: Option<u64>,
    /// More bytes that will be there once it is written.
    reserved: u64,
    /// Nobody wants it any more.
    pub unwanted: Arc<AtomicBool>,
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

/// A conversation goes on in its file as long as what nothing speaks of any more is at most this part of the rest; then it is written
/// whole, into another one. So a file is at most half as large again as what it holds, and all that is written at most three
/// times what is new.
const DEAD_OF_LIVE: u64 = 2;

/// Damaged files that are kept for whoever wants to see what happened.
const DAMAGED_MAX: usize = 8;

impl Folder {
    /// Looks at what is there, sets aside what is damaged and removes what is too old or too much.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn open(options: SavedOptions, model: Arc<Model>) -> io::Result<Folder> {
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
            entries.push(Entry { id: entries.len() as u64, name, kind, bytes, used, users: 0 });
        }
        let ids = entries.len() as u64;
        let mut folder = Folder { options, model, entries, writing: VecDeque::new(), ids };
        folder.remove_old().iter().for_each(|path| remove(path));
        folder.room(0, &[], &[], None).into_iter().flatten().for_each(|path| remove(&path));
        Ok(folder)
    }

    /// Takes out what was not used for too long and damaged files that are too many; their paths.
    pub fn remove_old(&mut self) -> Vec<PathBuf> {
        let now = SystemTime::now();
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.entries[at].used));
        let mut damaged = 0;
        let gone = order.into_iter().filter(|&at| {
            let Entry { kind, used, users, .. } = &self.entries[at];
            damaged += usize::from(matches!(kind, Kind::Damaged));
            let old = now.duration_since(*used).is_ok_and(|age| age > self.options.age_max);
            (old && *users == 0) || (matches!(kind, Kind::Damaged) && damaged > DAMAGED_MAX)
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

    /// Makes room for `bytes` more bytes of a conversation with `tokens`; the paths of what goes for that. Nothing, and nothing
    /// goes, if there cannot be as much without what the `coming` prompts will go on from and the file that it goes on in.
    pub fn room(
        &mut self,
        bytes: u64,
        tokens: &[u32],
        coming: &[&[u32]],
        base: Option<u64>,
    ) -> Option<Vec<PathBuf>> {
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
        let free = |at: &usize| {
            let Entry { users, id, .. } = &self.entries[*at];
            *users == 0 && Some(*id) != base && !pinned.contains(at)
        };
        let mut order: Vec<usize> = (0..self.entries.len()).filter(free).collect();
        order.sort_by_key(rank);
        let reserved: u64 = self.writing.iter().map(|writing| writing.reserved).sum();
        let mut total = bytes + reserved + self.entries.iter().map(|entry| entry.bytes).sum::<u64>();
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
        Some(self.take(gone))
    }

    /// What is to be written of a conversation, with the room for it. Nothing if there is none.
    pub fn order(
        &mut self,
        conversation: Conversation,
        coming: &[&[u32]],
    ) -> Option<(Order, Arc<AtomicBool>)> {
        let base = self.base(&conversation);
        let mut order = self.order_onto(conversation, base);
        let mut base = base.map(|at| self.entries[at].id);
        let (dead, live) = order.dead_and_live(&self.model);
        let mut room = match base.is_some() && dead > live / DEAD_OF_LIVE {
            true => None,
            false => self.room(order.bytes_max(&self.model), &order.conversation.tokens, coming, base),
        };
        if room.is_none() && base.take().is_some() {
            // A file of its own, and the other one goes: before, if there is no room for both.
            order = self.order_onto(order.conversation, None);
            room = self.room(order.bytes_max(&self.model), &order.conversation.tokens, coming, None);
        }
        let reserved = order.bytes_max(&self.model);
        let tokens = order.conversation.tokens.clone();
        let Some(remove) = room else {
            tracing::debug!("a conversation is not saved: there is no room for its {reserved} bytes");
            return None;
        };
        order.remove = remove;
        self.entries.iter_mut().filter(|entry| Some(entry.id) == base).for_each(|entry| entry.users += 1);
        let unwanted = Arc::new(AtomicBool::new(false));
        let writing = Writing { name: order.name, tokens, base, reserved, unwanted: unwanted.clone() };
        self.writing.push_back(writing);
        Some((order, unwanted))
    }

    /// The file that holds most of a conversation's beginning and nothing else, and that nobody writes.
    fn base(&self, conversation: &Conversation) -> Option<usize> {
        let holds = |(at, entry): (usize, &Entry)| {
            let index = entry.index().filter(|index| conversation.tokens.starts_with(&index.tokens))?;
            let writes = self.writing.iter().any(|writing| writing.base == Some(entry.id));
            (!writes).then_some((index.tokens.len(), at))
        };
        self.entries.iter().enumerate().filter_map(holds).max().map(|(_, at)| at)
    }

    fn order_onto(&self, conversation: Conversation, base: Option<usize>) -> Order {
        let (points, carried) = self.points(&conversation, base);
        let name = match base {
            Some(at) => self.entries[at].name,
            None => self.free_name(&conversation),
        };
        let base = base.map(|at| {
            let index = self.entries[at].index().expect("a conversation").clone();
            Base { index, points }
        });
        Order { name, conversation, base, carried, remove: Vec::new() }
    }

    /// A name that no file has or will have: of one that went on since, the tokens were others when it was named.
    fn free_name(&self, Conversation { tokens, states }: &Conversation) -> SavedName {
        let points = || states.iter().map(|state| state.tokens());
        let names = (0..).map(|attempt| file::name(&self.model, tokens, points(), attempt));
        let taken = |name: &SavedName| {
            self.entries.iter().any(|entry| entry.name == *name)
                || self.writing.iter().any(|writing| writing.name == *name)
        };
        names.into_iter().find(|name| !taken(name)).expect("more names than files")
    }

    /// Takes note that what was to be written next is, or is not; the paths of what goes now.
    pub fn written(&mut self, file: io::Result<(Arc<Index>, u64)>) -> Vec<PathBuf> {
        let Writing { name, base, unwanted, .. } = self.writing.pop_front().expect("it was to be written");
        let base = base.map(|id| self.entries.iter().position(|entry| entry.id == id));
        if let Some(Some(at)) = base {
            self.entries[at].users -= 1;
        }
        let unwanted = unwanted.load(Ordering::Acquire);
        let (index, bytes) = match (file, base) {
            // Somebody removed the file, and what it held is not wanted any more.
            (Err(error), Some(Some(at))) if error.kind() == io::ErrorKind::NotFound => {
                self.entries.swap_remove(at);
                return Vec::new();
            }
            // Deleted meanwhile: it goes after all.
            (_, Some(None)) | (Err(_), _) => return Vec::new(),
            (Ok(_), None) if unwanted => return vec![name.path(&self.options.folder)],
            (Ok(written), _) => written,
        };
        match base.flatten() {
            Some(at) => {
                let entry = &mut self.entries[at];
                // It may have been found damaged, and set aside.
                if matches!(entry.kind, Kind::Own(_)) {
                    entry.kind = Kind::Own(index.clone());
                }
                (entry.bytes, entry.used) = (bytes, SystemTime::now());
            }
            None => {
                self.ids += 1;
                let (id, kind) = (self.ids, Kind::Own(index.clone()));
                self.entries.push(Entry { id, name, kind, bytes, used: SystemTime::now(), users: 0 });
            }
        }
        let replaced = |entry: &Entry| match entry.index() {
            Some(old) => entry.name != name && entry.users == 0 && index.tokens.starts_with(&old.tokens),
            None => false,
        };
        let gone = (0..self.entries.len()).filter(|&at| replaced(&self.entries[at])).collect();
        self.take(gone)
    }

    /// Takes out a conversation, and says of what is being written of it, of its beginnings and of what goes on from it, that
    /// nobody wants it.
    pub fn delete(&mut self, name: SavedName) -> Option<Entry> {
        let at = self.named(name)?;
        let entry = self.entries.swap_remove(at);
        let tokens = &entry.index().expect("a conversation").tokens;
        for writing in &self.writing {
            let of_it = writing.tokens.starts_with(tokens) || tokens.starts_with(&writing.tokens);
            // What goes on in another file is a part of that one.
            if of_it && writing.base.is_none_or(|id| id == entry.id) {
                writing.unwanted.store(true, Ordering::Release);
            }
        }
        Some(entry)
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

    /// Points of the `base` of a conversation that stay, and points of its beginnings that other files hold and neither has,
    /// both by length.
    fn points(
        &self,
        conversation: &Conversation,
        base: Option<usize>,
    ) -> (Vec<SavedPoint>, Vec<(PathBuf, SavedPoint)>) {
        let Conversation { tokens, states } = conversation;
        if self.model.layout.can_be_cut() {
            return (Vec::new(), Vec::new());
        }
        let new = |len: usize| states.iter().all(|state| state.tokens() != len);
        let mut points =
            base.map_or(Vec::new(), |at| self.entries[at].index().expect("a conversation").points.clone());
        let mut carried: Vec<(PathBuf, SavedPoint)> = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let index = entry.index().filter(|index| Some(at) != base && tokens.starts_with(&index.tokens));
            for point in index.iter().flat_map(|index| &index.points) {
                let mut others = points.iter().chain(carried.iter().map(|(_, point)| point));
                if new(point.tokens) && others.all(|other| other.tokens != point.tokens) {
                    carried.push((entry.path(&self.options.folder), point.clone()));
                }
            }
        }
        carried.sort_by_key(|(_, point)| point.tokens);
        // As thin as they would be in memory.
        let files = points.iter().chain(carried.iter().map(|(_, point)| point)).map(|point| point.tokens);
        let mut lengths: Vec<usize> =
            states.iter().map(|state| state.tokens()).chain(files.filter(|&len| new(len))).collect();
        lengths.sort_unstable();
        let mut at = 1;
        while let Some(thin) = next_thin(&lengths, at) {
            match new(lengths[thin]) {
                true => drop(lengths.remove(thin)),
                false => at = thin + 1,
            }
        }
        points.retain(|point| lengths.contains(&point.tokens));
        carried.retain(|(_, point)| lengths.contains(&point.tokens));
        (points, carried)
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
    use crate::saved::index::{FRONT_BYTES, stride};

    /// A folder of which only the list is there: a file for each of these tokens, oldest first, of 10 bytes.
    fn folder(bytes_max: u64, files: &[&[u32]]) -> Folder {
        let model = Model::load(&oracle::model("q2-tiny-F32"), &LoadOptions::default()).expect("a model");
        let options = SavedOptions { bytes_max, ..SavedOptions::default() };
        let entry = |(at, tokens): (usize, &&[u32])| Entry {
            id: at as u64,
            name: SavedName(at as u64),
            kind: Kind::Own(Index::forged(&model, tokens, &[tokens.len()]).into()),
            bytes: 10,
            used: SystemTime::now() - Duration::from_secs(1000 - at as u64),
            users: 0,
        };
        let entries = files.iter().enumerate().map(entry).collect();
        Folder { options, model: Arc::new(model), entries, writing: VecDeque::new(), ids: 100 }
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
            |bytes_max, bytes, tokens: &[u32]| gone(folder(bytes_max, &FILES).room(bytes, tokens, &[], None));
        assert_eq!(room(50, 10, &[9]), Some(vec![]));
        assert_eq!(room(49, 10, &[9]), Some(vec![0]));
        // What it takes the place of goes before others that are older.
        assert_eq!(room(49, 10, &[7, 8, 9]), Some(vec![2]));
        assert_eq!(room(40, 20, &[1, 2, 3, 4]), Some(vec![0, 3]));
        // But not the file that it goes on in.
        assert_eq!(gone(folder(40, &FILES).room(20, &[1, 2, 3, 4], &[], Some(3))), Some(vec![0, 1]));
        // Too large: nothing goes for it.
        assert_eq!(room(49, 50, &[9]), None);
        // What is on its way counts, and does no longer once it is there or is not.
        let mut folder = folder(60, &FILES);
        folder.writing.push_back(writing(&[9], None, 20));
        assert_eq!(gone(folder.room(20, &[10], &[], None)), Some(vec![0, 1]));
        assert_eq!(folder.entries.len(), 2);
        assert_eq!(folder.written(Err(io::ErrorKind::StorageFull.into())), Vec::<PathBuf>::new());
        assert_eq!(gone(folder.room(40, &[11], &[], None)), Some(vec![]));
    }

    fn writing(tokens: &[u32], base: Option<u64>, reserved: u64) -> Writing {
        let unwanted = Arc::new(AtomicBool::new(false));
        Writing { name: SavedName(9), tokens: tokens.into(), base, reserved, unwanted }
    }

    /// What a folder writes of these tokens, with a state that nobody can load, onto which file.
    fn ordered(folder: &mut Folder, tokens: &[u32]) -> Option<(SavedName, bool)> {
        let state = Arc::new(folder.model.new_state().expect("memory"));
        let conversation = Conversation { tokens: tokens.into(), states: vec![state] };
        folder.order(conversation, &[]).map(|(order, _)| (order.name, order.base.is_some()))
    }

    /// A conversation goes on in the file of its longest beginning, if nobody does just now and most of that stays.
    #[test]
    fn what_goes_on_is_appended() {
        let mut folder = folder(1 << 30, &FILES);
        assert_eq!(ordered(&mut folder, &[1, 2, 3, 4]), Some((SavedName(0), true)));
        assert_eq!(folder.entries[0].users, 1);
        // The next one of these cannot know where that will end.
        assert_eq!(ordered(&mut folder, &[1, 2, 3, 5]), Some((SavedName(3), true)));
        let (name, onto) = ordered(&mut folder, &[1, 2, 3, 4, 5]).expect("room");
        assert!(!onto && name != SavedName(0));
        let index = Index::forged(&folder.model, &[1, 2, 3, 4], &[4]);
        assert_eq!(folder.written(Ok((index.into(), 12))), Vec::<PathBuf>::new(), "in use");
        let first = &folder.entries[0];
        let index = first.index().expect("a conversation");
        assert_eq!((first.name, first.bytes, first.users, index.tokens.len()), (SavedName(0), 12, 0, 4));
        // Of a file in which there is more that nothing speaks of.
        let mut index = Index::clone(index);
        let block = index.blocks.len() as u64 * stride(index.block_bytes);
        for (end, onto) in [(3 * block, false), (FRONT_BYTES + block / 3, true)] {
            index.end = end;
            folder.entries[0].kind = Kind::Own(Arc::new(index.clone()));
            assert_eq!(ordered(&mut folder, &[1, 2, 3, 4, 6]).expect("room").1, onto, "{end}");
        }
    }

    /// There is a file of its name, which holds another conversation by now, or there will be.
    #[test]
    fn no_name_is_given_twice() {
        let mut folder = folder(1 << 30, &[]);
        let (first, _) = ordered(&mut folder, &[1, 2]).expect("room");
        let (second, _) = ordered(&mut folder, &[1, 2]).expect("room");
        assert_ne!(first, second);
        let index = Index::forged(&folder.model, &[1, 2], &[2]);
        folder.written(Ok((index.into(), 12)));
        folder.entries[0].kind = Kind::Own(Arc::new(Index::forged(&folder.model, &[1, 3], &[2])));
        let (third, _) = ordered(&mut folder, &[1, 2]).expect("room");
        assert!(third != first && third != second);
    }

    /// What was being written of a deleted conversation was there afterwards.
    #[test]
    fn what_is_written_of_a_deleted_conversation_goes() {
        let mut folder = folder(100, &FILES);
        let all: [(&[u32], Option<u64>, bool); 6] = [
            (&[1, 2, 3, 4], None, true),
            (&[1, 2, 3, 4], Some(0), true),
            (&[1, 2], None, true),
            (&[1, 2, 3, 4], Some(3), false),
            (&[1, 2, 4], None, false),
            (&[7, 8, 9], Some(2), false),
        ];
        for (tokens, base, _) in all {
            folder.writing.push_back(writing(tokens, base, 1));
        }
        assert!(folder.delete(SavedName(0)).is_some());
        let unwanted = folder.writing.iter().map(|writing| writing.unwanted.load(Ordering::Acquire));
        assert!(unwanted.eq(all.iter().map(|(_, _, unwanted)| *unwanted)));
        // It was too late to leave it.
        let index = Arc::new(Index::forged(&folder.model, &[1, 2, 3, 4], &[4]));
        assert_eq!(gone(Some(folder.written(Ok((index.clone(), 12))))), Some(vec![9]));
        assert_eq!(folder.written(Ok((index, 12))), Vec::<PathBuf>::new(), "deleted after it was written");
        assert_eq!(folder.entries.len(), 3);
    }

    #[test]
    fn damaged_files_go_first_and_those_in_use_never() {
        let mut with_damage = folder(40, &FILES);
        with_damage.entries[3].kind = Kind::Damaged;
        assert_eq!(gone(with_damage.room(10, &[9], &[], None)), Some(vec![3]));
        let mut foreign = folder(40, &FILES);
        foreign.entries[0].kind = Kind::Foreign;
        assert_eq!(gone(foreign.room(10, &[9], &[], None)), Some(vec![0]));
        let mut loading = folder(40, &FILES);
        loading.entries[0].users = 1;
        assert_eq!(gone(loading.room(10, &[9], &[], None)), Some(vec![1]));
        // What a request that waits will go on from.
        assert_eq!(
            gone(folder(40, &FILES).room(20, &[9], &[&[1, 2, 3, 4], &[7, 8, 9]], None)),
            Some(vec![1, 3])
        );
        assert_eq!(gone(folder(40, &FILES).room(30, &[9], &[&[1, 2, 3, 4], &[7, 8, 9]], None)), None);
    }

    /// Of a conversation and its beginning one file is left, and one that is there already is not written.
    #[test]
    fn what_goes_on_takes_the_place_of_its_beginning() {
        let mut folder = folder(100, &FILES);
        let index = Index::forged(&folder.model, &[1, 2, 3, 4], &[4]);
        folder.writing.push_back(writing(&[1, 2, 3, 4], None, 0));
        let replaced = folder.written(Ok((index.into(), 12)));
        assert_eq!(gone(Some(replaced)), Some(vec![0, 3]));
        assert_eq!(folder.reach(&[1, 2, 3, 4, 5], 0).map(|reach| reach.tokens), Some(4));
        assert_eq!(folder.reach(&[1, 2, 3, 9], 0).map(|reach| reach.tokens), Some(3));
        assert_eq!(folder.reach(&[1, 2, 3, 9], 3), None);
        assert_eq!(folder.reach(&[9, 9], 0).map(|reach| reach.tokens), None);
    }
}
