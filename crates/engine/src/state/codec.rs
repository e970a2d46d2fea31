//! States as bytes.

use std::io::{self, Read, Write};
use std::sync::Arc;

use kernels::{NUMERICS, PARTITION_CELLS};

use super::{CellBlock, DeltaState, KvPool, KvType, PendingRows, State, StateLayout};
use crate::error::{StateError, StepError};

const MAGIC: &[u8; 8] = b"STRATAst";
const VERSION: u32 = 3;

/// What a state belongs to: a hash over everything in a model file that decides the numbers, short of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelIdentity(pub u64);

impl State {
    /// The whole state: committed tokens only, so no span is open.
    pub fn to_bytes(&self, identity: ModelIdentity) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes() + 4096);
        self.write_to(identity, &mut out).expect("memory takes what is written");
        out
    }

    fn write_to(&self, identity: ModelIdentity, out: &mut dyn Write) -> io::Result<()> {
        self.assert_whole();
        let mut out = Checked::new(out);
        out.put(MAGIC)?;
        for number in [VERSION, NUMERICS] {
            out.put(&number.to_le_bytes())?;
        }
        out.put(&identity.0.to_le_bytes())?;
        out.put(&kv_code(self.layout.kv))?;
        out.put(&layout_hash(&self.layout).to_le_bytes())?;
        self.put_tokens(&mut out)?;
        for block in self.blocks_used() {
            out.put(block.as_bytes())?;
        }
        self.put_rest(&mut out)?;
        let checksum = out.hash.finalize();
        out.out.write_all(&checksum.to_le_bytes())
    }

    /// Writes everything but cells, whose blocks [`State::blocks_used`] has; returns how many bytes that is, and its
    /// checksum.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write_own(&self, out: &mut dyn Write) -> io::Result<(u64, u32)> {
        self.assert_whole();
        let mut out = Checked::new(out);
        self.put_tokens(&mut out)?;
        self.put_rest(&mut out)?;
        Ok((out.bytes, out.hash.finalize()))
    }

    /// At least as many bytes as [`State::write_own`] writes, and hardly more.
    pub(crate) fn own_len_max(&self) -> u64 {
        let counts = 8 * (8 + self.raw_keys.len() + 8 * self.delta.len());
        let history = size_of_val(&self.ngram_history[..]);
        (self.own_bytes() + history + counts) as u64
    }

    fn assert_whole(&self) {
        assert_eq!(self.tentative, 0, "the rows of the last span were neither kept nor taken back");
        assert!(!self.lost, "the state was lost in a pass that failed");
    }

    fn put_tokens(&self, out: &mut Checked<'_>) -> io::Result<()> {
        out.put_u64(self.tokens as u64)?;
        out.put(&i64::from(self.next_position).to_le_bytes())?;
        out.put_u64(self.positions_first as u64)?;
        out.put_u64(self.positions.len() as u64)?;
        self.positions.iter().flatten().try_for_each(|value| out.put(&value.to_le_bytes()))
    }

    /// What comes behind the cells.
    fn put_rest(&self, out: &mut Checked<'_>) -> io::Result<()> {
        for raw in &self.raw_keys {
            out.put_floats(raw)?;
        }
        for delta in &self.delta {
            out.put_floats(&delta.matrices)?;
            out.put_u64(delta.pending.rows as u64)?;
            let PendingRows { k, v, decay, beta, .. } = &delta.pending;
            for part in [k, v, decay, beta] {
                out.put_floats(part)?;
            }
        }
        for tail in self.tails.iter().chain(&self.ngram_tail) {
            out.put_floats(tail.values())?;
        }
        self.ngram_history.iter().try_for_each(|token| out.put(&token.to_le_bytes()))
    }

    /// Reads what [`State::to_bytes`] wrote for the same model.
    ///
    /// # Errors
    /// [`StateError::Foreign`] for another model, KV format, numeric definition or version; [`StateError::TooLong`] for
    /// more tokens than the context here; [`StateError::Damaged`] for what is not a whole, unchanged state.
    pub fn from_bytes(
        bytes: &[u8],
        layout: Arc<StateLayout>,
        identity: ModelIdentity,
        pool: &Arc<KvPool>,
    ) -> Result<State, StateError> {
        let body = bytes.len().checked_sub(4).ok_or(StateError::Damaged("too short"))?;
        let mut input = &bytes[..body];
        let mut reader = Reader { input: &mut input, left: body };
        if &reader.take()? != MAGIC {
            return Err(StateError::Damaged("not a state"));
        }
        for (what, wanted) in [("version", VERSION), ("numeric definition", NUMERICS)] {
            let found = reader.u32()?;
            if found != wanted {
                return Err(StateError::Foreign {
                    what,
                    found: found.to_string(),
                    wanted: wanted.to_string(),
                });
            }
        }
        if crc32fast::hash(&bytes[..body]).to_le_bytes() != bytes[body..] {
            return Err(StateError::Damaged("checksum"));
        }
        reader.same_number("model", identity.0)?;
        let (found, wanted) = (reader.take::<8>()?, kv_code(layout.kv));
        if found != wanted {
            let name = |code: &[u8]| String::from_utf8_lossy(code).trim_end().to_owned();
            return Err(StateError::Foreign {
                what: "KV format",
                found: name(&found),
                wanted: name(&wanted),
            });
        }
        reader.same_number("shape", layout_hash(&layout))?;
        let mut state = State::new(layout, pool).map_err(no_memory)?;
        reader.tokens_and_positions(&mut state)?;
        let blocks = state.layout.blocks(state.tokens);
        reader.cells(&mut state, blocks)?;
        reader.rest(&mut state)?;
        match reader.left {
            0 => Ok(state),
            _ => Err(StateError::Damaged("too long")),
        }
    }

    /// Reads what [`State::write_own`] wrote, `own_bytes` bytes with this checksum: a state whose cells are still to be
    /// [filled in](State::fill_blocks).
    ///
    /// # Errors
    /// As [`State::from_bytes`].
    pub(crate) fn read_own(
        input: &mut dyn Read,
        layout: Arc<StateLayout>,
        pool: &Arc<KvPool>,
        own_bytes: usize,
        own_checksum: u32,
    ) -> Result<State, StateError> {
        let mut state = State::new(layout, pool).map_err(no_memory)?;
        let mut own = Hashing { input, hash: crc32fast::Hasher::new() };
        let mut reader = Reader { input: &mut own, left: own_bytes };
        reader.tokens_and_positions(&mut state)?;
        reader.rest(&mut state)?;
        if reader.left > 0 {
            return Err(StateError::Damaged("too long"));
        }
        match own.hash.finalize() == own_checksum {
            true => Ok(state),
            false => Err(StateError::Damaged("checksum")),
        }
    }

    /// Takes memory for the first `count` blocks of cells, all of which `fill` writes. A state that needs more of them is to be
    /// cut.
    ///
    /// # Errors
    /// [`StateError::NoMemory`], and those of `fill`.
    pub(crate) fn fill_blocks<E: From<StateError>>(
        &mut self,
        count: usize,
        fill: impl FnOnce(Vec<&mut [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let block = |_| self.pool.block_as_it_is(&self.layout).map_err(|error| no_memory(error).into());
        let mut blocks = (0..count).map(block).collect::<Result<Vec<CellBlock>, E>>()?;
        fill(blocks.iter_mut().map(CellBlock::as_bytes_mut).collect())?;
        self.blocks = blocks.into_iter().map(Arc::new).collect();
        Ok(())
    }

    /// Blocks that hold cells of committed tokens.
    pub(crate) fn blocks_used(&self) -> &[Arc<CellBlock>] {
        &self.blocks[..self.blocks.len().min(self.tokens.div_ceil(PARTITION_CELLS))]
    }
}

fn no_memory(_: StepError) -> StateError {
    StateError::NoMemory
}

/// What passes through is in a checksum.
struct Checked<'a> {
    out: &'a mut dyn Write,
    hash: crc32fast::Hasher,
    bytes: u64,
}

impl Checked<'_> {
    fn new(out: &mut dyn Write) -> Checked<'_> {
        Checked { out, hash: crc32fast::Hasher::new(), bytes: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn put_u64(&mut self, value: u64) -> io::Result<()> {
        self.put(&value.to_le_bytes())
    }

    fn put_floats(&mut self, values: &[f32]) -> io::Result<()> {
        self.put_u64(values.len() as u64)?;
        self.put(sys::cast::bytes_of(values))
    }
}

/// What a state is bound to, in one number: another one means that no state from there can be loaded here.
pub(crate) fn binding(layout: &StateLayout, identity: ModelIdentity) -> u64 {
    let numbers = [u64::from(VERSION), u64::from(NUMERICS), identity.0, layout_hash(layout)];
    crate::model::fnv1a(sys::cast::bytes_of(&numbers))
}

/// Name of the KV format, padded with spaces.
fn kv_code(kv: KvType) -> [u8; 8] {
    let mut code = [b' '; 8];
    code[..kv.name().len()].copy_from_slice(kv.name().as_bytes());
    code
}

/// FNV-1a over the debug text of the layout's shapes: the layout has no other canonical form and needs none. The limit
/// of the context is no shape: a state fits wherever its tokens do.
fn layout_hash(layout: &StateLayout) -> u64 {
    let StateLayout { kv, attention, block_bytes, delta, ngram, context_tokens: _ } = layout;
    crate::model::fnv1a(format!("{kv:?} {attention:?} {block_bytes} {delta:?} {ngram:?}").as_bytes())
}

/// What is read through it is in a checksum.
struct Hashing<'a> {
    input: &'a mut dyn Read,
    hash: crc32fast::Hasher,
}

impl Read for Hashing<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(into)?;
        self.hash.update(&into[..read]);
        Ok(read)
    }
}

struct Reader<'a> {
    input: &'a mut dyn Read,
    /// Bytes that may still be read.
    left: usize,
}

impl Reader<'_> {
    fn fill(&mut self, into: &mut [u8]) -> Result<(), StateError> {
        self.left = self.left.checked_sub(into.len()).ok_or(StateError::Damaged("too short"))?;
        self.input.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StateError::Damaged("too short"),
            _ => StateError::Damaged("it cannot be read"),
        })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn same_number(&mut self, what: &'static str, wanted: u64) -> Result<(), StateError> {
        let found = self.u64()?;
        if found == wanted {
            return Ok(());
        }
        Err(StateError::Foreign { what, found: format!("{found:x}"), wanted: format!("{wanted:x}") })
    }

    fn count(&mut self, item_bytes: usize) -> Result<usize, StateError> {
        let count = usize::try_from(self.u64()?).map_err(|_| StateError::Damaged("a count"))?;
        match count.checked_mul(item_bytes) {
            Some(bytes) if bytes <= self.left => Ok(count),
            _ => Err(StateError::Damaged("a count")),
        }
    }

    fn floats(&mut self) -> Result<Vec<f32>, StateError> {
        let mut values = vec![0.0; self.count(4)?];
        self.fill(sys::cast::bytes_of_mut(&mut values))?;
        Ok(values)
    }

    fn floats_into(&mut self, out: &mut [f32]) -> Result<(), StateError> {
        if self.count(4)? != out.len() {
            return Err(StateError::Damaged("an array's length"));
        }
        self.fill(sys::cast::bytes_of_mut(out))
    }

    /// What comes behind the cells.
    fn rest(&mut self, state: &mut State) -> Result<(), StateError> {
        let State { layout, positions, raw_keys, .. } = state;
        for (cells, raw) in layout.attention.iter().zip(raw_keys) {
            *raw = self.floats()?;
            if raw.len() != cells.indexer.map_or(0, |indexer| positions.len() * indexer.head_dim) {
                return Err(StateError::Damaged("raw keys"));
            }
        }
        for delta in 0..state.delta.len() {
            self.delta(state, delta)?;
        }
        for tail in state.tails.iter_mut().chain(&mut state.ngram_tail) {
            self.floats_into(tail.values_mut())?;
        }
        for token in &mut state.ngram_history {
            *token = self.u32()?;
        }
        Ok(())
    }

    fn tokens_and_positions(&mut self, state: &mut State) -> Result<(), StateError> {
        let (tokens, context_tokens) = (self.u64()?, state.layout.context_tokens);
        if tokens > context_tokens as u64 {
            return Err(StateError::TooLong { tokens, context_tokens });
        }
        state.tokens = tokens as usize;
        let position = i64::from_le_bytes(self.take()?);
        state.next_position = i32::try_from(position).map_err(|_| StateError::Damaged("a position"))?;
        let first = self.u64()?;
        state.positions_first = state.layout.first_incomplete(state.tokens);
        if first != state.positions_first as u64 || self.count(12)? != state.tokens - state.positions_first {
            return Err(StateError::Damaged("positions"));
        }
        for _ in state.positions_first..state.tokens {
            let mut triple = [0; 3];
            for value in &mut triple {
                *value = self.u32()? as i32;
            }
            state.positions.push(triple);
        }
        Ok(())
    }

    fn cells(&mut self, state: &mut State, count: usize) -> Result<(), StateError> {
        let State { layout, pool, blocks, .. } = state;
        for _ in 0..count {
            // Memory is taken only for what can be there.
            if layout.block_bytes > self.left {
                return Err(StateError::Damaged("too short"));
            }
            let mut block = pool.block(layout).map_err(no_memory)?;
            self.fill(block.as_bytes_mut())?;
            blocks.push(Arc::new(block));
        }
        Ok(())
    }

    fn delta(&mut self, state: &mut State, layer: usize) -> Result<(), StateError> {
        let (shape, tokens) = (state.layout.delta[layer], state.tokens);
        let DeltaState { matrices, pending, .. } = &mut state.delta[layer];
        self.floats_into(matrices)?;
        let rows = self.u64()?;
        if rows > tokens as u64 {
            return Err(StateError::Damaged("pending rows"));
        }
        pending.rows = rows as usize;
        let keys = shape.key_heads * shape.key_dim;
        let values = shape.value_heads * shape.value_dim;
        let PendingRows { rows, k, v, decay, beta } = pending;
        for (part, width) in [(k, keys), (v, values), (decay, shape.value_heads), (beta, shape.value_heads)] {
            *part = self.floats()?;
            if Some(part.len()) != rows.checked_mul(width) {
                return Err(StateError::Damaged("pending rows"));
            }
        }
        Ok(())
    }
}
