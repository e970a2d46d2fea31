//! A conversation as a file.
//!
//! In front stand magic and version; then the blocks of cells of the whole conversation, each once; then what each point
//! holds besides cells; then an index with the tokens and with where everything lies, and at the very end where the index
//! is. Cells of a token depend on nothing but the tokens up to it, so a point's cells are the first ones of the
//! conversation's, whichever state they were written from.
//!
//! Blocks, points and the index have checksums of their own, so that a file is opened without being read, and a state
//! is loaded with nothing but what it needs. A file is written front to back and renamed when it is whole.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::cast::bytes_of;
use sys::direct::{self, ALIGNMENT_BYTES};

use super::{Conversation, SavedName};
use crate::error::StateError;
use crate::model::{Model, fnv1a};
use crate::state::{State, binding};

const MAGIC: &[u8; 8] = b"STRATAcv";
const VERSION: u32 = 2;
/// Of magic and version, padded.
const FRONT_BYTES: u64 = 64;
/// Where the index lies, its length, its checksum.
const TRAILER_BYTES: u64 = 20;
/// What an index begins with.
const INDEX_HEAD_BYTES: usize = 48;
/// More tokens than any context has, and more points than any conversation.
const TOKENS_MAX: u64 = 1 << 28;
const POINTS_MAX: u64 = 1 << 16;
/// What points that are taken over from another file may take of memory until they are written.
const CARRIED_BYTES_MAX: u64 = 256 << 20;
/// What saving and loading take of memory besides states: one file each at a time.
pub(crate) const BUFFERS_BYTES: u64 = 2 * direct::BUFFERS_BYTES as u64 + CARRIED_BYTES_MAX;

/// What a file holds, and where.
#[derive(Debug, PartialEq)]
pub(super) struct Index {
    /// What its states are bound to.
    pub binding: u64,
    /// Name of the format of its cells.
    pub kv: String,
    pub tokens: Arc<[u32]>,
    /// By length, ascending.
    pub points: Vec<SavedPoint>,
    block_bytes: u64,
    block_checksums: Vec<u32>,
}

/// A state in a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SavedPoint {
    pub tokens: usize,
    /// Of what it holds besides cells.
    own: Range<u64>,
    checksum: u32,
}

/// What a file is.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Conversation(Index),
    /// Of a version that is not known here.
    OtherVersion(u32),
}

/// Why a state was not loaded.
#[derive(Debug)]
pub(super) enum LoadFault {
    /// The file is not there any more.
    Gone,
    /// Nobody waits for it any more.
    Abandoned,
    State(StateError),
}

/// Reads what there is in a file.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_index(path: &Path) -> Result<Found, String> {
    let said = |error: io::Error| error.to_string();
    let mut file = File::open(path).map_err(said)?;
    let bytes = file.metadata().map_err(said)?.len();
    let front: [u8; 12] = read_at(&mut file, 0).map_err(said)?;
    let version = u32::from_le_bytes(front[8..].try_into().expect("four bytes"));
    if &front[..8] != MAGIC {
        return Err("it is no conversation".into());
    }
    if version != VERSION {
        return Ok(Found::OtherVersion(version));
    }
    let trailer_at = bytes.checked_sub(TRAILER_BYTES).ok_or("it is cut off")?;
    let trailer: [u8; TRAILER_BYTES as usize] = read_at(&mut file, trailer_at).map_err(said)?;
    let (at, len) = (number(&trailer[..8]), number(&trailer[8..16]));
    let end = at.checked_add(len).filter(|&end| end <= trailer_at);
    if end.is_none() || len < INDEX_HEAD_BYTES as u64 {
        return Err("it is cut off".into());
    }
    file.seek(SeekFrom::Start(at)).map_err(said)?;
    let mut index = vec![0; len as usize];
    file.read_exact(&mut index).map_err(said)?;
    if checksum_of_index(&index, &trailer[..16]) != trailer[16..] {
        return Err("the checksum of its index is wrong".into());
    }
    parse_index(&index, at).map(Found::Conversation).ok_or_else(|| "it names more than it holds".into())
}

fn read_at<const N: usize>(file: &mut File, offset: u64) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn checksum_of_index(index: &[u8], place: &[u8]) -> [u8; 4] {
    let mut hash = crc32fast::Hasher::new();
    hash.update(index);
    hash.update(place);
    hash.finalize().to_le_bytes()
}

impl Index {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut kv = [b' '; 8];
        kv[..self.kv.len()].copy_from_slice(self.kv.as_bytes());
        out.extend(self.binding.to_le_bytes());
        out.extend(kv);
        let counts = [self.tokens.len(), self.points.len(), self.block_checksums.len()];
        [self.block_bytes]
            .into_iter()
            .chain(counts.map(|n| n as u64))
            .for_each(|n| out.extend(n.to_le_bytes()));
        out.extend_from_slice(bytes_of(&self.tokens));
        out.extend_from_slice(bytes_of(&self.block_checksums));
        for SavedPoint { tokens, own, checksum } in &self.points {
            let numbers = [*tokens as u64, own.start, own.end];
            numbers.into_iter().for_each(|number| out.extend(number.to_le_bytes()));
            out.extend(checksum.to_le_bytes());
        }
        out
    }

    /// Bytes of the blocks that the first `tokens` tokens take.
    fn blocks(&self, tokens: usize) -> usize {
        if self.block_bytes == 0 { 0 } else { tokens.div_ceil(kernels::PARTITION_CELLS) }
    }

    /// The model and format that its states belong to.
    pub fn is_of(&self, model: &Model) -> bool {
        self.binding == binding(&model.layout, model.identity)
            && self.block_bytes == model.layout.block_bytes as u64
    }
}

/// Bytes of a point in an index.
const POINT_BYTES: u64 = 28;

/// Nothing, if it speaks of more than there is. States and blocks lie before `end`.
fn parse_index(bytes: &[u8], end: u64) -> Option<Index> {
    let (head, rest) = bytes.split_at(INDEX_HEAD_BYTES);
    let [block_bytes, tokens, points, blocks] = [16, 24, 32, 40].map(|at| number(&head[at..at + 8]));
    if tokens > TOKENS_MAX || points > POINTS_MAX || blocks > TOKENS_MAX {
        return None;
    }
    let blocks_end = blocks.checked_mul(block_bytes)?.checked_add(FRONT_BYTES)?;
    if rest.len() as u64 != 4 * (tokens + blocks) + POINT_BYTES * points || blocks_end > end {
        return None;
    }
    let (words, rest) = rest.split_at(4 * (tokens + blocks) as usize);
    let words: Vec<u32> = words.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let (tokens, block_checksums) = words.split_at(tokens as usize);
    let mut index = Index {
        binding: number(&head[..8]),
        kv: String::from_utf8_lossy(&head[8..16]).trim_end().to_owned(),
        tokens: tokens.into(),
        points: Vec::new(),
        block_bytes,
        block_checksums: block_checksums.to_vec(),
    };
    for point in rest.as_chunks::<{ POINT_BYTES as usize }>().0 {
        let [tokens, first, past] = [0, 8, 16].map(|at| number(&point[at..at + 8]));
        let before = index.points.last().map_or(0, |point| point.tokens);
        let tokens = usize::try_from(tokens).ok()?;
        let known = tokens > before && tokens <= index.tokens.len();
        if !known || first > past || past > end || index.blocks(tokens) > index.block_checksums.len() {
            return None;
        }
        let checksum = u32::from_le_bytes(point[24..].try_into().expect("four bytes"));
        index.points.push(SavedPoint { tokens, own: first..past, checksum });
    }
    Some(index)
}

/// A conversation on its way to the disk.
pub(super) struct Order {
    pub name: SavedName,
    pub conversation: Conversation,
    /// Points of beginnings of it in other files, which it is to hold too.
    pub carried: Vec<(PathBuf, SavedPoint)>,
    /// What goes before it is written, so that there is room.
    pub remove: Vec<PathBuf>,
}

/// The name of a conversation with these points.
pub(super) fn name(model: &Model, tokens: &[u32], points: impl Iterator<Item = usize>) -> SavedName {
    let mut bytes = binding(&model.layout, model.identity).to_le_bytes().to_vec();
    bytes.extend(points.flat_map(|tokens| (tokens as u64).to_le_bytes()));
    bytes.extend_from_slice(bytes_of(tokens));
    SavedName(fnv1a(&bytes))
}

impl Order {
    /// At least as many bytes as the file will have, and hardly more.
    pub fn bytes_max(&self, model: &Model) -> u64 {
        let Conversation { tokens, states } = &self.conversation;
        let blocks = model.layout.blocks(tokens.len()) as u64;
        let points = (states.len() + self.carried.len()) as u64;
        let own = states.iter().map(|state| state.own_len_max());
        let carried = self.carried.iter().map(|(_, point)| point.own.end - point.own.start);
        let index = INDEX_HEAD_BYTES as u64 + 4 * (tokens.len() as u64 + blocks) + POINT_BYTES * points;
        let blocks = blocks * model.layout.block_bytes as u64;
        let all = FRONT_BYTES + blocks + own.sum::<u64>() + carried.sum::<u64>() + index + TRAILER_BYTES;
        all.next_multiple_of(ALIGNMENT_BYTES as u64)
    }

    /// Writes it into `folder` under its name. `stop` is asked now and then whether to leave it.
    ///
    /// # Errors
    /// Those of files. Whatever happens, a file with its name is whole.
    pub fn write(&self, folder: &Path, model: &Model, stop: &dyn Fn() -> bool) -> io::Result<(Index, u64)> {
        go_on(stop)?;
        let carried = self.read_carried();
        self.remove.iter().for_each(|path| super::remove(path));
        let (path, temporary) = (self.name.path(folder), self.name.temporary(folder));
        let written = self.write_parts(&temporary, model, &carried, stop);
        let whole = written.and_then(|written| fs::rename(&temporary, &path).map(|()| written));
        if whole.is_err() {
            // It may not even have been made.
            let _ = fs::remove_file(&temporary);
        }
        whole
    }

    fn write_parts(
        &self,
        path: &Path,
        model: &Model,
        carried: &[(SavedPoint, Vec<u8>)],
        stop: &dyn Fn() -> bool,
    ) -> io::Result<(Index, u64)> {
        let Conversation { tokens, states } = &self.conversation;
        let mut out = direct::Writer::create(path)?;
        let mut front = MAGIC.to_vec();
        front.extend(VERSION.to_le_bytes());
        front.resize(FRONT_BYTES as usize, 0);
        out.write_all(&front)?;
        let mut block_checksums = Vec::new();
        for block in states.last().map_or(&[][..], |state| state.blocks_used()) {
            go_on(stop)?;
            block_checksums.push(crc32fast::hash(block.as_bytes()));
            out.write_all(block.as_bytes())?;
        }
        let mut points = Vec::new();
        for state in states {
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
        let index = Index {
            binding: binding(&model.layout, model.identity),
            kv: model.layout.kv.name().to_owned(),
            tokens: tokens.clone(),
            points,
            block_bytes: model.layout.block_bytes as u64,
            block_checksums,
        };
        let bytes = put_index(&mut out, &index)?;
        go_on(stop)?;
        out.finish()?;
        Ok((index, bytes))
    }

    /// What points of other files hold, those near the beginning first. What cannot be read is left out.
    fn read_carried(&self) -> Vec<(SavedPoint, Vec<u8>)> {
        let mut left = CARRIED_BYTES_MAX;
        let mut read = Vec::new();
        for (path, point) in &self.carried {
            let bytes = point.own.end - point.own.start;
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

/// Writes the index and what stands behind it; returns the length of the file.
fn put_index(out: &mut direct::Writer, index: &Index) -> io::Result<u64> {
    let (at, index) = (out.position(), index.to_bytes());
    let end = (at + index.len() as u64 + TRAILER_BYTES).next_multiple_of(ALIGNMENT_BYTES as u64);
    out.write_all(&index)?;
    out.write_all(&vec![0; (end - TRAILER_BYTES - out.position()) as usize])?;
    let place = [at.to_le_bytes(), (index.len() as u64).to_le_bytes()].concat();
    out.write_all(&place)?;
    out.write_all(&checksum_of_index(&index, &place))?;
    Ok(end)
}

/// Loads the state of point `point`, cut to its first `tokens` tokens. `stop` is asked now and then whether to leave it.
pub(super) fn load(
    path: &Path,
    index: &Index,
    point: usize,
    tokens: usize,
    model: &Model,
    stop: &dyn Fn() -> bool,
) -> Result<State, LoadFault> {
    let SavedPoint { own, checksum, .. } = &index.points[point];
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => LoadFault::Gone,
        _ => LoadFault::State(StateError::Damaged("it cannot be read")),
    };
    let blocks = &index.block_checksums[..index.blocks(tokens)];
    let cells = FRONT_BYTES..FRONT_BYTES + blocks.len() as u64 * index.block_bytes;
    let ranges = [own.clone(), cells].into_iter().filter(|range| !range.is_empty());
    let input = direct::Reader::open(path, ranges).map_err(unread)?;
    let mut input = Stoppable { input, stop };
    let own_bytes = (own.end - own.start) as usize;
    let state = State::read_own(&mut input, model.layout.clone(), &model.kv, own_bytes, *checksum, blocks);
    if stop() {
        return Err(LoadFault::Abandoned);
    }
    let mut state = state.map_err(LoadFault::State)?;
    if state.tokens() != index.points[point].tokens || (state.tokens() > tokens && !state.can_be_cut()) {
        return Err(LoadFault::State(StateError::Damaged("its states are not those it names")));
    }
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
impl Index {
    /// Of a model, with a state at each of these lengths that nobody can load.
    pub fn forged(model: &Model, tokens: &[u32], points: &[usize]) -> Index {
        let point = |&tokens: &usize| SavedPoint { tokens, own: 64..64, checksum: 0 };
        Index {
            binding: binding(&model.layout, model.identity),
            kv: "f16".into(),
            tokens: tokens.into(),
            points: points.iter().map(point).collect(),
            block_bytes: model.layout.block_bytes as u64,
            block_checksums: vec![7; model.layout.blocks(tokens.len())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoadOptions;

    fn model() -> Model {
        Model::load(&oracle::model("q35moe-tiny-F32"), &LoadOptions::default()).expect("a model")
    }

    fn conversation(model: &Model) -> Conversation {
        let state = Arc::new(model.new_state().expect("memory"));
        Conversation { tokens: [].into(), states: vec![state] }
    }

    #[test]
    fn an_index_survives_the_way_through_bytes() {
        let model = model();
        let tokens: Vec<u32> = (0..600).collect();
        let index = Index::forged(&model, &tokens, &[100, 300, 600]);
        let (bytes, end) = (index.to_bytes(), 1 << 40);
        assert_eq!(parse_index(&bytes, end).as_ref(), Some(&index));
        // More than the file has room for, points in disorder, one past the tokens.
        assert_eq!(parse_index(&bytes, 64 + 2 * index.block_bytes), None);
        for points in [&[300, 100][..], &[0], &[100, 601]] {
            let wrong = Index::forged(&model, &tokens, points).to_bytes();
            assert_eq!(parse_index(&wrong, end), None, "{points:?}");
        }
        // Whatever it says, nobody believes it.
        for at in 0..bytes.len() {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = wrong;
                parse_index(&bytes, end);
                parse_index(&bytes[..at.max(INDEX_HEAD_BYTES)], end);
            }
        }
    }

    /// One that was left in the middle, or had no place on the disk, is not there, and what was there before still is.
    #[test]
    fn what_is_left_in_the_middle_is_not_there() {
        let model = model();
        let folder = tempfile::tempdir().expect("a folder");
        let order =
            Order { name: SavedName(7), conversation: conversation(&model), carried: vec![], remove: vec![] };
        let before = order.name.path(folder.path());
        fs::write(&before, "before").expect("written");
        for checks in 0..3 {
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
