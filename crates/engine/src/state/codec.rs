//! States as bytes.

use std::sync::Arc;

use kernels::{NUMERICS, PARTITION_CELLS};

use super::{CellBlock, PendingRows, State, StateLayout};
use crate::error::{StateError, StepError};

const MAGIC: &[u8; 8] = b"STRATAst";
const VERSION: u32 = 1;

/// What a state belongs to: a hash over everything in a model file that decides the numbers, short of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelIdentity(pub u64);

impl State {
    /// The whole state: committed tokens only, so no span is open.
    pub fn to_bytes(&self, identity: ModelIdentity) -> Vec<u8> {
        assert_eq!(self.tentative, 0, "the rows of the last span were neither kept nor taken back");
        let mut out = Vec::with_capacity(self.bytes() + 4096);
        out.extend_from_slice(MAGIC);
        for number in [VERSION, NUMERICS] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&identity.0.to_le_bytes());
        out.extend_from_slice(&layout_hash(&self.layout).to_le_bytes());
        put_u64(&mut out, self.tokens as u64);
        put_u64(&mut out, self.next_position as u64);
        put_u64(&mut out, self.positions_first as u64);
        put_u64(&mut out, self.positions.len() as u64);
        for value in self.positions.iter().flatten() {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for block in &self.blocks[..self.blocks_used()] {
            out.extend_from_slice(block.as_bytes());
        }
        for raw in &self.raw_keys {
            put_floats(&mut out, raw);
        }
        for delta in &self.delta {
            put_floats(&mut out, &delta.matrices);
            put_u64(&mut out, delta.pending.rows as u64);
            let PendingRows { k, v, decay, beta, .. } = &delta.pending;
            [k, v, decay, beta].into_iter().for_each(|part| put_floats(&mut out, part));
        }
        for tail in self.tails.iter().chain(&self.ngram_tail) {
            put_floats(&mut out, tail.values());
        }
        for token in &self.ngram_history {
            out.extend_from_slice(&token.to_le_bytes());
        }
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads what [`State::to_bytes`] wrote for the same model.
    ///
    /// # Errors
    /// [`StateError::Foreign`] for another model, precision, numeric definition or version; [`StateError::Damaged`]
    /// for anything that is not a whole, unchanged state.
    pub fn from_bytes(
        bytes: &[u8],
        layout: Arc<StateLayout>,
        identity: ModelIdentity,
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
        for (what, wanted) in [("model", identity.0), ("shape or KV format", layout_hash(&layout))] {
            let found = reader.u64()?;
            if found != wanted {
                return Err(StateError::Foreign {
                    what,
                    found: format!("{found:x}"),
                    wanted: format!("{wanted:x}"),
                });
            }
        }
        let mut state = State::new(layout).map_err(no_memory)?;
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
    StateError::Damaged("no memory for it")
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_floats(out: &mut Vec<u8>, values: &[f32]) {
    put_u64(out, values.len() as u64);
    out.extend_from_slice(sys::cast::bytes_of(values));
}

/// FNV-1a over the layout's debug text: the layout has no other canonical form and needs none.
fn layout_hash(layout: &StateLayout) -> u64 {
    crate::model::fnv1a(format!("{layout:?}").as_bytes())
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
        let tokens = self.u64()?;
        if tokens > state.layout.context_tokens as u64 {
            return Err(StateError::Damaged("more tokens than the context"));
        }
        state.tokens = tokens as usize;
        state.next_position = self.u64()? as i32;
        state.positions_first = self.u64()? as usize;
        let positions = self.count(12)?;
        if state.positions_first.checked_add(positions) != Some(state.tokens) {
            return Err(StateError::Damaged("positions"));
        }
        for _ in 0..positions {
            let mut triple = [0; 3];
            for value in &mut triple {
                *value = self.u32()? as i32;
            }
            state.positions.push(triple);
        }
        if state.layout.block_values > 0 {
            for _ in 0..state.tokens.div_ceil(PARTITION_CELLS) {
                let mut block =
                    CellBlock::new(state.layout.kv, state.layout.block_values).map_err(no_memory)?;
                let len = block.bytes();
                block.as_bytes_mut().copy_from_slice(self.take(len)?);
                state.blocks.push(Arc::new(block));
            }
        }
        for raw in &mut state.raw_keys {
            *raw = self.floats()?;
        }
        for (cells, raw) in state.layout.attention.iter().zip(&state.raw_keys) {
            if raw.len() != cells.indexer.map_or(0, |indexer| positions * indexer.head_dim) {
                return Err(StateError::Damaged("raw keys"));
            }
        }
        for (delta, shape) in state.delta.iter_mut().zip(&state.layout.delta) {
            self.floats_into(&mut delta.matrices)?;
            let rows = self.u64()? as usize;
            let widths = [
                shape.key_heads * shape.key_dim,
                shape.value_heads * shape.value_dim,
                shape.value_heads,
                shape.value_heads,
            ];
            let mut parts = Vec::new();
            for width in widths {
                let part = self.floats()?;
                if rows.checked_mul(width) != Some(part.len()) {
                    return Err(StateError::Damaged("pending rows"));
                }
                parts.push(part);
            }
            let [k, v, decay, beta] = parts.try_into().expect("four parts");
            delta.pending = PendingRows { rows, k, v, decay, beta };
        }
        for tail in state.tails.iter_mut().chain(&mut state.ngram_tail) {
            self.floats_into(tail.values_mut())?;
        }
        for token in &mut state.ngram_history {
            *token = u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes"));
        }
        Ok(())
    }
}
