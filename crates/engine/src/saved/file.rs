//! Writing a conversation to a file, and loading a state of it. What a file looks like is in [`index`](super::index).
//!
//! A new file is written front to back and renamed when it is whole; in one that is there only what is new is written.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::cast::bytes_of;
use sys::direct::{self, ALIGNMENT_BYTES};

use super::index::{self, FRONT_BYTES, Index, Place, SavedBlock, SavedPoint, stride};
use super::{Conversation, SavedName};
use crate::error::StateError;
use crate::model::{Model, fnv1a};
use crate::state::{State, binding};

/// What points that are taken over from another file may take of memory until they are written.
const CARRIED_BYTES_MAX: u64 = 256 << 20;
/// What saving and loading take of memory besides states: one file each at a time.
pub(crate) const BUFFERS_BYTES: u64 = 2 * direct::BUFFERS_BYTES as u64 + CARRIED_BYTES_MAX;

/// Why a state was not loaded.
#[derive(Debug)]
pub(super) enum LoadFault {
    /// The file is not there any more.
    Gone,
    /// Nobody waits for it any more.
    Abandoned,
    State(StateError),
}

impl From<StateError> for LoadFault {
    fn from(error: StateError) -> LoadFault {
        LoadFault::State(error)
    }
}

/// A conversation on its way to the disk.
pub(super) struct Order {
    pub name: SavedName,
    pub conversation: Conversation,
    /// What the file of this name holds, if it is to go on; it is made otherwise.
    pub base: Option<Base>,
    /// Points of beginnings of it in other files, which it is to hold too.
    pub carried: Vec<(PathBuf, SavedPoint)>,
    /// What goes before it is written, so that there is room.
    pub remove: Vec<PathBuf>,
}

/// A beginning of a conversation in a file.
pub(super) struct Base {
    pub index: Arc<Index>,
    /// Its points that stay.
    pub points: Vec<SavedPoint>,
}

impl Base {
    /// Blocks that stay: those that were full, and all of the same conversation.
    fn blocks(&self, tokens: usize) -> &[SavedBlock] {
        let Index { tokens: before, blocks, .. } = &*self.index;
        let full =
            if tokens == before.len() { blocks.len() } else { before.len() / kernels::PARTITION_CELLS };
        &blocks[..full.min(blocks.len())]
    }
}

/// The name of a conversation with these points; another one for every `attempt`.
pub(super) fn name(
    model: &Model,
    tokens: &[u32],
    points: impl Iterator<Item = usize>,
    attempt: u64,
) -> SavedName {
    let mut bytes = (binding(&model.layout, model.identity) + attempt).to_le_bytes().to_vec();
    bytes.extend(points.flat_map(|tokens| (tokens as u64).to_le_bytes()));
    bytes.extend_from_slice(bytes_of(tokens));
    SavedName(fnv1a(&bytes))
}

impl Order {
    /// States that the file does not hold.
    fn new_states(&self) -> impl Iterator<Item = &Arc<State>> {
        let there = |state: &State| {
            let points = self.base.iter().flat_map(|base| &base.points);
            points.into_iter().any(|point| point.tokens == state.tokens())
        };
        self.conversation.states.iter().filter(move |state| !there(state))
    }

    fn blocks_there(&self) -> &[SavedBlock] {
        self.base.as_ref().map_or(&[], |base| base.blocks(self.conversation.tokens.len()))
    }

    /// At least as many bytes as are written, and hardly more.
    pub fn bytes_max(&self, model: &Model) -> u64 {
        let tokens = self.conversation.tokens.len();
        let blocks = model.layout.blocks(tokens);
        let new_blocks = (blocks - self.blocks_there().len()) as u64;
        let there = self.base.as_ref().map_or(0, |base| base.points.len());
        let points = there + self.new_states().count() + self.carried.len();
        let own: u64 = self.new_states().map(|state| state.own_len_max()).sum();
        let carried: u64 = self.carried.iter().map(|(_, point)| point.bytes()).sum();
        let front = if self.base.is_some() { 0 } else { FRONT_BYTES };
        let cells = new_blocks * stride(model.layout.block_bytes as u64);
        let all = front + cells + own + carried + index::index_bytes(tokens, blocks, points);
        all.next_multiple_of(ALIGNMENT_BYTES as u64)
    }

    /// Of how many bytes of the file nothing speaks any more once it goes on, and how many there are of which the index does.
    pub fn dead_and_live(&self, model: &Model) -> (u64, u64) {
        let Some(Base { index, points }) = &self.base else { return (0, self.bytes_max(model)) };
        let blocks = self.blocks_there().len() as u64 * stride(index.block_bytes);
        let live = FRONT_BYTES + blocks + points.iter().map(SavedPoint::bytes).sum::<u64>();
        (index.end - live.min(index.end), live + self.bytes_max(model))
    }

    /// Writes it into `folder` under its name. `stop` is asked now and then whether to leave it.
    ///
    /// # Errors
    /// Those of files. Whatever happens, a file with its name is whole.
    pub fn write(&self, folder: &Path, model: &Model, stop: &dyn Fn() -> bool) -> io::Result<(Index, u64)> {
        go_on(stop)?;
        let carried = self.read_carried();
        self.remove.iter().for_each(|path| super::remove(path));
        let path = self.name.path(folder);
        if let Some(Base { index, .. }) = &self.base {
            let out = direct::Writer::append(&path, index.end)?;
            let written = self.write_parts(out, model, &carried, stop);
            if written.is_err() {
                // What is behind the end is nothing, and would count.
                let _ = File::options().write(true).open(&path).and_then(|file| file.set_len(index.end));
            }
            return written;
        }
        let temporary = self.name.temporary(folder);
        let written = direct::Writer::create(&temporary).and_then(|mut out| {
            out.write_all(&index::front())?;
            self.write_parts(out, model, &carried, stop)
        });
        let whole = written.and_then(|written| {
            go_on(stop)?;
            fs::rename(&temporary, &path).map(|()| written)
        });
        if whole.is_err() {
            // It may not even have been made.
            let _ = fs::remove_file(&temporary);
        }
        whole
    }

    /// Writes a generation.
    fn write_parts(
        &self,
        mut out: direct::Writer,
        model: &Model,
        carried: &[(SavedPoint, Vec<u8>)],
        stop: &dyn Fn() -> bool,
    ) -> io::Result<(Index, u64)> {
        let Conversation { tokens, states } = &self.conversation;
        let mut blocks = self.blocks_there().to_vec();
        let all = states.last().map_or(&[][..], |state| state.blocks_used());
        for block in &all[blocks.len()..] {
            go_on(stop)?;
            let checksum = crc32fast::hash(block.as_bytes());
            blocks.push(SavedBlock { at: out.position(), checksum });
            out.write_all(block.as_bytes())?;
            out.pad()?;
        }
        let mut points = self.base.as_ref().map_or(Vec::new(), |base| base.points.clone());
        for state in self.new_states() {
            go_on(stop)?;
            let first = out.position();
            let (bytes, checksum) = state.write_own(&mut out)?;
            points.push(SavedPoint { tokens: state.tokens(), own: first..first + bytes, checksum });
        }
        for (SavedPoint { tokens, checksum, .. }, own) in carried {
            go_on(stop)?;
            let first = out.position();
            out.write_all(own)?;
            points.push(SavedPoint { tokens: *tokens, own: first..out.position(), checksum: *checksum });
        }
        points.sort_by_key(|point| point.tokens);
        let mut index = Index {
            binding: binding(&model.layout, model.identity),
            kv: model.layout.kv.name().to_owned(),
            tokens: tokens.clone(),
            points,
            block_bytes: model.layout.block_bytes as u64,
            blocks,
            generation: self.base.as_ref().map_or(0, |base| base.index.generation) + 1,
            end: 0,
        };
        let (at, bytes) = (out.position(), index.to_bytes());
        out.write_all(&bytes)?;
        out.pad()?;
        index.end = out.position();
        go_on(stop)?;
        let (generation, len, checksum) = (index.generation, bytes.len() as u64, crc32fast::hash(&bytes));
        let place = Place { generation, at, len, checksum };
        out.finish_and_say(place.offset(), &place.to_page())?;
        let end = index.end;
        Ok((index, end))
    }

    /// What points of other files hold, those near the beginning first. What cannot be read is left out.
    fn read_carried(&self) -> Vec<(SavedPoint, Vec<u8>)> {
        let mut left = CARRIED_BYTES_MAX;
        let mut read = Vec::new();
        for (path, point) in &self.carried {
            let bytes = point.bytes();
            if bytes > left {
                tracing::debug!("a state of {} tokens in {} is not taken over", point.tokens, path.display());
                continue;
            }
            let mut own = vec![0; bytes as usize];
            let filled = File::open(path).and_then(|mut file| {
                file.seek(SeekFrom::Start(point.own.start))?;
                file.read_exact(&mut own)
            });
            if filled.is_ok() && crc32fast::hash(&own) == point.checksum {
                left -= bytes;
                read.push((point.clone(), own));
            }
        }
        read
    }
}

fn go_on(stop: &dyn Fn() -> bool) -> io::Result<()> {
    match stop() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "there was no time to write it")),
        false => Ok(()),
    }
}

/// Loads the state of point `point`, cut to its first `tokens` tokens. `stop` is asked now and then whether to leave it.
pub(super) fn load(
    path: &Path,
    index: &Index,
    point: usize,
    tokens: usize,
    model: &Model,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<State, LoadFault> {
    let SavedPoint { own, checksum, .. } = &index.points[point];
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => LoadFault::Gone,
        io::ErrorKind::InvalidData => LoadFault::State(StateError::Damaged("checksum")),
        _ if stop() => LoadFault::Abandoned,
        _ => LoadFault::State(StateError::Damaged("it cannot be read")),
    };
    let input = direct::Reader::open(path, [own.clone()].into_iter().filter(|own| !own.is_empty()));
    let mut input = Stoppable { input: input.map_err(unread)?, stop };
    let own_bytes = (own.end - own.start) as usize;
    let state = State::read_own(&mut input, model.layout.clone(), &model.kv, own_bytes, *checksum);
    if stop() {
        return Err(LoadFault::Abandoned);
    }
    let mut state = state?;
    drop(input);
    if state.tokens() != index.points[point].tokens || (state.tokens() > tokens && !state.can_be_cut()) {
        return Err(LoadFault::State(StateError::Damaged("its states are not those it names")));
    }
    let blocks = &index.blocks[..index.blocks_of(tokens)];
    state.fill_blocks(blocks.len(), |memory| {
        let parts = blocks.iter().zip(memory);
        let parts = parts.map(|(block, into)| direct::Part { offset: block.at, into }).collect();
        direct::read_scattered(path, parts, &|at, read| match stop() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false if crc32fast::hash(read) != blocks[at].checksum => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(()),
        })
        .map_err(unread)
    })?;
    if state.tokens() > tokens {
        state.cut(tokens);
    }
    Ok(state)
}

struct Stoppable<'a> {
    input: direct::Reader,
    stop: &'a dyn Fn() -> bool,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match (self.stop)() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => self.input.read(into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoadOptions;
    use crate::saved::index::read_index;

    fn model() -> Model {
        Model::load(&oracle::model("q35moe-tiny-F32"), &LoadOptions::default()).expect("a model")
    }

    fn conversation(model: &Model) -> Conversation {
        let state = Arc::new(model.new_state().expect("memory"));
        Conversation { tokens: [].into(), states: vec![state] }
    }

    fn order(conversation: Conversation) -> Order {
        Order { name: SavedName(7), conversation, base: None, carried: vec![], remove: vec![] }
    }

    /// One that was left in the middle, or had no place on the disk, is not there, and what was there before still is.
    #[test]
    fn what_is_left_in_the_middle_is_not_there() {
        let model = model();
        let folder = tempfile::tempdir().expect("a folder");
        let order = order(conversation(&model));
        let before = order.name.path(folder.path());
        fs::write(&before, "before").expect("written");
        for checks in 0..4 {
            let left = std::cell::Cell::new(checks);
            let stop = || left.replace(left.get() - 1) == 0;
            let error = order.write(folder.path(), &model, &stop).expect_err("stopped");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(fs::read(&before).expect("still there"), b"before");
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        }
        fs::create_dir(order.name.temporary(folder.path())).expect("made");
        assert!(order.write(folder.path(), &model, &|| false).is_err());
        fs::remove_dir(order.name.temporary(folder.path())).expect("still there");
        let (index, bytes) = order.write(folder.path(), &model, &|| false).expect("written");
        assert!(bytes <= order.bytes_max(&model) && bytes == before.metadata().expect("there").len());
        assert_eq!(read_index(&before), Err("it names more than it holds".into()), "a state of no tokens");
        assert!(index.is_of(&model));
    }
}
