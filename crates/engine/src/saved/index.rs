//! What a file of a conversation says it holds, and where.
//!
//! The first page has magic and version; the next two have a place each for where an index lies. Behind them come
//! *generations*, one written after the other: blocks of cells, each from the start of a page; what points hold besides cells; an index
//! with the tokens and with where every block and point lies, in this generation or those before. A conversation that goes on
//! is a new generation in the same file, of what is new. Generations use the two places in turn, and one is written when all that it
//! speaks of is on the disk: whatever happens meanwhile, the other one and all that it speaks of are as they were. What stands behind
//! the last generation is nothing.
//!
//! Cells of a token depend on nothing but the tokens up to it, so a point's cells are the first ones of the conversation's,
//! whichever state they were written from; a block that was full stays as it is.
//!
//! Blocks, points, the index and the places have checksums of their own, so that a file is opened without being read, and a state
//! is loaded with nothing but what it needs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use sys::cast::bytes_of;
use sys::direct::ALIGNMENT_BYTES;

use crate::model::Model;
use crate::state::binding;

const MAGIC: &[u8; 8] = b"STRATAcv";
const VERSION: u32 = 3;
/// Of the first page and the two places.
pub(super) const FRONT_BYTES: u64 = 3 * PAGE;
const PAGE: u64 = ALIGNMENT_BYTES as u64;
/// Generation, where its index lies, its length, its checksum, and that of these.
const PLACE_BYTES: usize = 32;
/// What an index begins with.
const HEAD_BYTES: usize = 48;
/// Bytes of a block in an index, and of a point.
const BLOCK_BYTES: usize = 12;
const POINT_BYTES: usize = 28;
/// More tokens than any context has, and more points than any conversation.
const TOKENS_MAX: u64 = 1 << 28;
const POINTS_MAX: u64 = 1 << 16;

/// What a file holds, and where.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Index {
    /// What its states are bound to.
    pub binding: u64,
    /// Name of the format of its cells.
    pub kv: String,
    pub tokens: Arc<[u32]>,
    /// By length, ascending.
    pub points: Vec<SavedPoint>,
    pub block_bytes: u64,
    pub blocks: Vec<SavedBlock>,
    /// Counts from 1.
    pub generation: u64,
    /// Where the next generation begins.
    pub end: u64,
}

/// A block of cells in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SavedBlock {
    pub at: u64,
    pub checksum: u32,
}

/// A state in a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SavedPoint {
    pub tokens: usize,
    /// Of what it holds besides cells.
    pub own: Range<u64>,
    pub checksum: u32,
}

impl SavedPoint {
    pub fn bytes(&self) -> u64 {
        self.own.end - self.own.start
    }
}

/// What a file is.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    Conversation(Index),
    /// Of a version that is not known here.
    OtherVersion(u32),
}

/// Where the index of a generation lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub generation: u64,
    pub at: u64,
    pub len: u64,
    pub checksum: u32,
}

impl Place {
    /// Where it stands in the file.
    pub fn offset(&self) -> u64 {
        PAGE * (1 + self.generation % 2)
    }

    pub fn to_page(self) -> [u8; ALIGNMENT_BYTES] {
        let mut page = [0; ALIGNMENT_BYTES];
        let numbers = [self.generation, self.at, self.len];
        let numbers = numbers.into_iter().flat_map(u64::to_le_bytes).chain(self.checksum.to_le_bytes());
        numbers.enumerate().for_each(|(at, byte)| page[at] = byte);
        let checksum = crc32fast::hash(&page[..PLACE_BYTES - 4]);
        page[PLACE_BYTES - 4..PLACE_BYTES].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    /// Nothing, if there is none.
    fn parse(bytes: &[u8; PLACE_BYTES]) -> Option<Place> {
        let (said, checksum) = bytes.split_at(PLACE_BYTES - 4);
        let [generation, at, len] = [0, 8, 16].map(|at| number(&said[at..at + 8]));
        // Another one can follow.
        let counts = generation > 0 && generation < u64::MAX;
        let known = crc32fast::hash(said).to_le_bytes() == *checksum && counts;
        known.then(|| Place { generation, at, len, checksum: word(&said[24..]) })
    }

    fn index(&self, file: &mut File, bytes: u64) -> Result<Index, String> {
        let end = self.at.checked_add(self.len).filter(|&end| end <= bytes);
        let end = end.and_then(|end| end.checked_next_multiple_of(PAGE)).ok_or("it is cut off")?;
        if self.len < HEAD_BYTES as u64 {
            return Err("it is cut off".into());
        }
        let mut index = vec![0; self.len as usize];
        let read = file.seek(SeekFrom::Start(self.at)).and_then(|_| file.read_exact(&mut index));
        read.map_err(|error| error.to_string())?;
        if crc32fast::hash(&index) != self.checksum {
            return Err("the checksum of its index is wrong".into());
        }
        let index = parse_index(&index, self.at).ok_or("it names more than it holds")?;
        Ok(Index { generation: self.generation, end, ..index })
    }
}

/// What a file begins with: places that say nothing yet.
pub(super) fn front() -> Vec<u8> {
    let mut front = MAGIC.to_vec();
    front.extend(VERSION.to_le_bytes());
    front.resize(FRONT_BYTES as usize, 0);
    front
}

/// Reads what there is in a file: the last generation that is whole.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read_index(path: &Path) -> Result<Found, String> {
    let said = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "it is cut off".into(),
        _ => error.to_string(),
    };
    let mut file = File::open(path).map_err(said)?;
    let bytes = file.metadata().map_err(said)?.len();
    let front: [u8; 12] = read_at(&mut file, 0).map_err(said)?;
    let version = word(&front[8..]);
    if &front[..8] != MAGIC {
        return Err("it is no conversation".into());
    }
    if version != VERSION {
        return Ok(Found::OtherVersion(version));
    }
    let mut places = Vec::new();
    for at in [PAGE, 2 * PAGE] {
        places.extend(Place::parse(&read_at(&mut file, at).map_err(said)?));
    }
    places.sort_by_key(|place| std::cmp::Reverse(place.generation));
    let mut problem = None;
    for place in places {
        match place.index(&mut file, bytes) {
            Ok(index) => return Ok(Found::Conversation(index)),
            Err(found) => problem = problem.or(Some(found)),
        }
    }
    Err(problem.unwrap_or_else(|| "it does not say what it holds".into()))
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

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

/// What a block takes of a file: whole pages, so that it is read straight to where it belongs.
pub(super) fn stride(block_bytes: u64) -> u64 {
    block_bytes.next_multiple_of(PAGE)
}

/// Bytes of an index of so many tokens, blocks and points.
pub(super) fn index_bytes(tokens: usize, blocks: usize, points: usize) -> u64 {
    (HEAD_BYTES + 4 * tokens + BLOCK_BYTES * blocks + POINT_BYTES * points) as u64
}

impl Index {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut kv = [b' '; 8];
        kv[..self.kv.len()].copy_from_slice(self.kv.as_bytes());
        out.extend(self.binding.to_le_bytes());
        out.extend(kv);
        let counts = [self.tokens.len(), self.points.len(), self.blocks.len()];
        [self.block_bytes]
            .into_iter()
            .chain(counts.map(|n| n as u64))
            .for_each(|n| out.extend(n.to_le_bytes()));
        out.extend_from_slice(bytes_of(&self.tokens));
        for SavedBlock { at, checksum } in &self.blocks {
            out.extend(at.to_le_bytes());
            out.extend(checksum.to_le_bytes());
        }
        for SavedPoint { tokens, own, checksum } in &self.points {
            let numbers = [*tokens as u64, own.start, own.end];
            numbers.into_iter().for_each(|number| out.extend(number.to_le_bytes()));
            out.extend(checksum.to_le_bytes());
        }
        out
    }

    /// Blocks that the first `tokens` tokens take.
    pub fn blocks_of(&self, tokens: usize) -> usize {
        if self.block_bytes == 0 { 0 } else { tokens.div_ceil(kernels::PARTITION_CELLS) }
    }

    /// The model and format that its states belong to.
    pub fn is_of(&self, model: &Model) -> bool {
        self.binding == binding(&model.layout, model.identity)
            && self.block_bytes == model.layout.block_bytes as u64
    }
}

/// Nothing, if it speaks of more than there is. States and blocks lie before `end`.
fn parse_index(bytes: &[u8], end: u64) -> Option<Index> {
    let (head, rest) = bytes.split_at(HEAD_BYTES);
    let [block_bytes, tokens, points, blocks] = [16, 24, 32, 40].map(|at| number(&head[at..at + 8]));
    if tokens > TOKENS_MAX || points > POINTS_MAX || blocks > TOKENS_MAX || block_bytes > end {
        return None;
    }
    if bytes.len() as u64 != index_bytes(tokens as usize, blocks as usize, points as usize) {
        return None;
    }
    let (words, rest) = rest.split_at(4 * tokens as usize);
    let (of_blocks, of_points) = rest.split_at(BLOCK_BYTES * blocks as usize);
    let tokens: Vec<u32> = words.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    let mut index = Index {
        binding: number(&head[..8]),
        kv: String::from_utf8_lossy(&head[8..16]).trim_end().to_owned(),
        tokens: tokens.into(),
        points: Vec::new(),
        block_bytes,
        blocks: Vec::new(),
        generation: 0,
        end: 0,
    };
    for block in of_blocks.as_chunks::<BLOCK_BYTES>().0 {
        let at = number(&block[..8]);
        let past = at.checked_add(stride(block_bytes))?;
        if at < FRONT_BYTES || !at.is_multiple_of(PAGE) || past > end {
            return None;
        }
        index.blocks.push(SavedBlock { at, checksum: word(&block[8..]) });
    }
    for point in of_points.as_chunks::<POINT_BYTES>().0 {
        let [tokens, first, past] = [0, 8, 16].map(|at| number(&point[at..at + 8]));
        let before = index.points.last().map_or(0, |point| point.tokens);
        let tokens = usize::try_from(tokens).ok()?;
        let known = tokens > before && tokens <= index.tokens.len();
        if !known || first > past || past > end || index.blocks_of(tokens) > index.blocks.len() {
            return None;
        }
        index.points.push(SavedPoint { tokens, own: first..past, checksum: word(&point[24..]) });
    }
    // What goes on in this file has at least as many.
    (index.blocks.len() <= index.blocks_of(index.tokens.len())).then_some(index)
}

#[cfg(test)]
impl Index {
    /// Of a model, with a state at each of these lengths that nobody can load.
    pub fn forged(model: &Model, tokens: &[u32], points: &[usize]) -> Index {
        let point = |&tokens: &usize| SavedPoint { tokens, own: 64..64, checksum: 0 };
        let block_bytes = model.layout.block_bytes as u64;
        let blocks = model.layout.blocks(tokens.len());
        let block = |at| SavedBlock { at: FRONT_BYTES + at as u64 * stride(block_bytes), checksum: 7 };
        Index {
            binding: binding(&model.layout, model.identity),
            kv: "f16".into(),
            tokens: tokens.into(),
            points: points.iter().map(point).collect(),
            block_bytes,
            blocks: (0..blocks).map(block).collect(),
            generation: 0,
            end: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoadOptions;

    #[test]
    fn an_index_survives_the_way_through_bytes() {
        let model = Model::load(&oracle::model("q35moe-tiny-F32"), &LoadOptions::default()).expect("a model");
        let tokens: Vec<u32> = (0..600).collect();
        let index = Index::forged(&model, &tokens, &[100, 300, 600]);
        let (bytes, end) = (index.to_bytes(), 1 << 40);
        assert_eq!(parse_index(&bytes, end).as_ref(), Some(&index));
        // Blocks that end where the index begins, and a byte behind that.
        let blocks_end = FRONT_BYTES + 3 * stride(index.block_bytes);
        assert_eq!(parse_index(&bytes, blocks_end).as_ref(), Some(&index));
        assert_eq!(parse_index(&bytes, blocks_end - 1), None);
        for at in [0, FRONT_BYTES - PAGE, FRONT_BYTES + 1, u64::MAX - 1] {
            let mut wrong = index.clone();
            wrong.blocks[1].at = at;
            assert_eq!(parse_index(&wrong.to_bytes(), end), None, "a block at {at}");
        }
        let mut wrong = index.clone();
        wrong.blocks.pop();
        assert_eq!(parse_index(&wrong.to_bytes(), end), None, "a block too few");
        // Writing what goes on from such a one ended the thread that writes.
        wrong = index.clone();
        wrong.blocks.push(wrong.blocks[0]);
        assert_eq!(parse_index(&wrong.to_bytes(), end), None, "a block too many");
        // A point that ends behind the index's beginning, points in disorder, one past the tokens.
        wrong = index.clone();
        wrong.points[1].own = 64..end + 1;
        assert_eq!(parse_index(&wrong.to_bytes(), end), None);
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
                parse_index(&bytes[..at.max(HEAD_BYTES)], end);
            }
        }
    }

    #[test]
    fn places_are_believed_as_they_were_written_only() {
        let place = Place { generation: 3, at: 1 << 33, len: 48, checksum: 0xfeed_beef };
        let page = place.to_page();
        let bytes: [u8; PLACE_BYTES] = *page.first_chunk().expect("a page");
        assert_eq!(Place::parse(&bytes), Some(place));
        assert_eq!((place.offset(), Place { generation: 4, ..place }.offset()), (2 * PAGE, PAGE));
        for bit in 0..8 * PLACE_BYTES {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Place::parse(&bytes), None, "bit {bit}");
        }
        assert_eq!(Place::parse(&[0; PLACE_BYTES]), None);
        let last = Place { generation: u64::MAX, ..place }.to_page();
        assert_eq!(Place::parse(last.first_chunk().expect("a page")), None, "none could follow");
    }
}
