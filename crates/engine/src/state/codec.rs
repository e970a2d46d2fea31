//! States as bytes.

use std::io::{self, Write};
use std::sync::Arc;

use kernels::{NUMERICS, PARTITION_CELLS};

use super::{DeltaState, KvPool, KvType, PendingRows, State, StateLayout};
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

    /// Writes what [`State::to_bytes`] makes, without a copy of it in memory.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write_to(&self, identity: ModelIdentity, out: &mut dyn Write) -> io::Result<()> {
        assert_eq!(self.tentative, 0, "the rows of the last span were neither kept nor taken back");
        assert!(!self.lost, "the state was lost in a pass that failed");
        let mut out = Checked { out, hash: crc32fast::Hasher::new() };
        out.put(MAGIC)?;
        for number in [VERSION, NUMERICS] {
            out.put(&number.to_le_bytes())?;
        }
        out.put(&identity.0.to_le_bytes())?;
        out.put(&kv_code(self.layout.kv))?;
        out.put(&layout_hash(&self.layout).to_le_bytes())?;
        out.put_u64(self.tokens as u64)?;
        out.put(&i64::from(self.next_position).to_le_bytes())?;
        out.put_u64(self.positions_first as u64)?;
        out.put_u64(self.positions.len() as u64)?;
        for value in self.positions.iter().flatten() {
            out.put(&value.to_le_bytes())?;
        }
        for block in &self.blocks[..self.blocks_used()] {
            out.put(block.as_bytes())?;
        }
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
        for token in &self.ngram_history {
            out.put(&token.to_le_bytes())?;
        }
        let checksum = out.hash.finalize();
        out.out.write_all(&checksum.to_le_bytes())
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
        let mut reader = Reader { bytes: &bytes[..body] };
        if reader.take(8)? != MAGIC {
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
        let (found, wanted) = (reader.take(8)?, kv_code(layout.kv));
        if found != wanted {
            let name = |code: &[u8]| String::from_utf8_lossy(code).trim_end().to_owned();
            return Err(StateError::Foreign { what: "KV format", found: name(found), wanted: name(&wanted) });
        }
        reader.same_number("shape", layout_hash(&layout))?;
        let mut state = State::new(layout, pool).map_err(no_memory)?;
        reader.state(&mut state)?;
        match reader.bytes.is_empty() {
            true => Ok(state),
            false => Err(StateError::Damaged("too long")),
        }
    }

    fn blocks_used(&self) -> usize {
        self.blocks.len().min(self.tokens.div_ceil(PARTITION_CELLS))
    }
}

fn no_memory(_: StepError) -> StateError {
    StateError::NoMemory
}

/// What passes through is in a checksum.
struct Checked<'a> {
    out: &'a mut dyn Write,
    hash: crc32fast::Hasher,
}

impl Checked<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
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

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], StateError> {
        let (head, tail) = self.bytes.split_at_checked(len).ok_or(StateError::Damaged("too short"))?;
        self.bytes = tail;
        Ok(head)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
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
            Some(bytes) if bytes <= self.bytes.len() => Ok(count),
            _ => Err(StateError::Damaged("a count")),
        }
    }

    fn floats(&mut self) -> Result<Vec<f32>, StateError> {
        let count = self.count(4)?;
        let bytes = self.take(count * 4)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect())
    }

    fn floats_into(&mut self, out: &mut [f32]) -> Result<(), StateError> {
        let values = self.floats()?;
        if values.len() != out.len() {
            return Err(StateError::Damaged("an array's length"));
        }
        out.copy_from_slice(&values);
        Ok(())
    }

    fn state(&mut self, state: &mut State) -> Result<(), StateError> {
        self.tokens_and_positions(state)?;
        self.cells(state)?;
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
        let position = i64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes"));
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

    fn cells(&mut self, state: &mut State) -> Result<(), StateError> {
        let State { layout, pool, tokens, positions, blocks, raw_keys, .. } = state;
        if layout.block_bytes > 0 {
            for _ in 0..tokens.div_ceil(PARTITION_CELLS) {
                // Looked for before memory is taken for it.
                let bytes = self.take(layout.block_bytes)?;
                let mut block = pool.block(layout).map_err(no_memory)?;
                block.as_bytes_mut().copy_from_slice(bytes);
                blocks.push(Arc::new(block));
            }
        }
        for (cells, raw) in layout.attention.iter().zip(raw_keys) {
            *raw = self.floats()?;
            if raw.len() != cells.indexer.map_or(0, |indexer| positions.len() * indexer.head_dim) {
                return Err(StateError::Damaged("raw keys"));
            }
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
