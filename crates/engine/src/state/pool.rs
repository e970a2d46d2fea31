//! Where blocks of keys and values come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sys::arena::{ArenaError, Counters, Lease, Segment, lease_bytes, whole_steps};

use super::{CellBlock, StateLayout};
use crate::error::StepError;

/// Memory for the cells of all sequences of a model (or of its draft layer): committed in steps as conversations grow,
/// given back when whole steps are free. Never more than its budget.
#[derive(Debug)]
pub struct KvPool {
    segment: Segment,
    /// Blocks that were copied.
    copies: AtomicUsize,
}

/// How memory for cells comes and goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvGrowth {
    /// Tokens of each sequence whose cells have memory from the start, and keep it.
    pub init_tokens: usize,
    /// Tokens for whose cells memory is taken at a time; those of a few blocks if absent.
    pub step_tokens: Option<usize>,
    /// Whether what was taken stays when conversations end, up to what all sequences may have; else whole steps that are free
    /// are given back.
    pub hold: bool,
}

/// Memory is committed in steps of so many bytes unless somebody says otherwise: a few blocks of a large model. Smaller steps are more calls of the
/// system, larger ones are promised to conversations that may never need them.
const STEP_BYTES: usize = 16 << 20;

impl KvGrowth {
    /// Bytes of a step of a pool for `sequences` sequences: no more than all of them may have.
    fn step_bytes(&self, layout: &StateLayout, sequences: usize) -> usize {
        let Some(tokens) = self.step_tokens else { return STEP_BYTES };
        let blocks = layout.blocks(tokens).clamp(1, layout.blocks(layout.context_tokens).max(1) * sequences);
        blocks.saturating_mul(lease_bytes(layout.block_bytes)).max(1)
    }
}

/// Addresses for the cells of a model that was not planned: more than a machine has memory, which then is the limit.
const UNPLANNED_BYTES: usize = 1 << 40;

impl KvPool {
    /// For `sequences` sequences of full length and `more_bytes` of cells that are kept of others; without a number there is
    /// no limit but the system's.
    ///
    /// # Errors
    /// [`ArenaError::Refused`] when the system gives no addresses.
    pub fn new(
        layout: &StateLayout,
        sequences: Option<usize>,
        more_bytes: usize,
        growth: KvGrowth,
    ) -> Result<Arc<KvPool>, ArenaError> {
        let step_bytes = growth.step_bytes(layout, sequences.unwrap_or(1));
        let planned = KvPool::budget_bytes(layout, sequences.unwrap_or(1), growth);
        let bytes = match (layout.block_bytes, sequences) {
            (0, _) => 0,
            (_, None) => UNPLANNED_BYTES,
            (_, Some(_)) => planned.saturating_add(whole_steps(more_bytes, step_bytes)),
        };
        let segment = Segment::reserve("keys and values", bytes, step_bytes)?;
        let init_tokens = growth.init_tokens.min(layout.context_tokens);
        let init_blocks = layout.blocks(init_tokens).saturating_mul(sequences.unwrap_or(1));
        segment.commit_first(init_blocks.saturating_mul(lease_bytes(layout.block_bytes)).min(bytes))?;
        if growth.hold {
            segment.keep(planned);
        }
        Ok(Arc::new(KvPool { segment, copies: AtomicUsize::new(0) }))
    }

    /// What a pool for `sequences` sequences of full length may take.
    pub fn budget_bytes(layout: &StateLayout, sequences: usize, growth: KvGrowth) -> usize {
        let blocks = layout.blocks(layout.context_tokens).saturating_mul(sequences);
        let bytes = blocks.saturating_mul(lease_bytes(layout.block_bytes));
        whole_steps(bytes, growth.step_bytes(layout, sequences))
    }

    /// What it holds now.
    pub fn counters(&self) -> Counters {
        self.segment.counters()
    }

    /// How many blocks were copied since it was made, since two states wanted to write into them.
    pub fn copies(&self) -> usize {
        self.copies.load(Ordering::Relaxed)
    }

    /// A block of zeros.
    pub(super) fn block(&self, layout: &StateLayout) -> Result<CellBlock, StepError> {
        self.leased(layout, Segment::lease)
    }

    /// A block that holds anything, for whoever writes all of it.
    pub(super) fn block_as_it_is(&self, layout: &StateLayout) -> Result<CellBlock, StepError> {
        self.leased(layout, Segment::lease_as_it_is)
    }

    fn leased(
        &self,
        layout: &StateLayout,
        lease: impl Fn(&Segment, usize) -> Result<Lease, ArenaError>,
    ) -> Result<CellBlock, StepError> {
        let bytes = layout.block_bytes;
        let full = |error| {
            let left_bytes = match error {
                ArenaError::OutOfBudget { left_bytes, .. } => Some(left_bytes),
                ArenaError::Refused { .. } => None,
            };
            StepError::OutOfMemory { what: "keys and values", bytes, left_bytes }
        };
        Ok(CellBlock::new(lease(&self.segment, bytes).map_err(full)?))
    }

    /// A copy of a block.
    pub(super) fn copy_of(&self, layout: &StateLayout, block: &CellBlock) -> Result<CellBlock, StepError> {
        let mut copy = self.block_as_it_is(layout)?;
        self.copies.fetch_add(1, Ordering::Relaxed);
        copy.as_bytes_mut().copy_from_slice(block.as_bytes());
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::KvType;

    /// Blocks of a mebibyte, 64 to a sequence.
    fn layout() -> StateLayout {
        StateLayout {
            kv: KvType::F16,
            attention: Vec::new(),
            block_bytes: 1 << 20,
            delta: Vec::new(),
            ngram: None,
            context_tokens: 64 * kernels::PARTITION_CELLS,
        }
    }

    /// Mebibytes that a pool for two sequences has from the system: at the start, with five blocks, without any again.
    fn committed(growth: KvGrowth) -> [usize; 3] {
        let layout = layout();
        let pool = KvPool::new(&layout, Some(2), 0, growth).unwrap();
        let committed = || pool.counters().committed >> 20;
        let start = committed();
        let blocks: Vec<CellBlock> = (0..5).map(|_| pool.block(&layout).unwrap()).collect();
        let grown = committed();
        drop(blocks);
        [start, grown, committed()]
    }

    #[test]
    fn cells_grow_and_shrink_as_they_are_told() {
        const BLOCK: usize = kernels::PARTITION_CELLS;
        let steps = KvGrowth { step_tokens: Some(4 * BLOCK), ..KvGrowth::default() };
        assert_eq!(committed(KvGrowth::default()), [0, 16, 0]);
        assert_eq!(committed(steps), [0, 8, 0]);
        assert_eq!(committed(KvGrowth { init_tokens: BLOCK, ..steps }), [4, 8, 4]);
        assert_eq!(committed(KvGrowth { hold: true, ..steps }), [0, 8, 8]);
        assert_eq!(committed(KvGrowth { init_tokens: 3 * BLOCK, hold: true, ..steps }), [8, 8, 8]);
        // No step is larger than all sequences, and no start either.
        let large = KvGrowth { init_tokens: usize::MAX, step_tokens: Some(usize::MAX), hold: false };
        assert_eq!(committed(large), [128, 128, 128]);
        assert_eq!(KvPool::budget_bytes(&layout(), 2, large), 128 << 20);
    }
}
