//! Where blocks of keys and values come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sys::arena::{ArenaError, Counters, Segment, lease_bytes, whole_steps};

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

/// Memory is committed in steps of so many bytes: a few blocks of a large model. Smaller steps are more calls of the
/// system, larger ones are promised to conversations that may never need them.
const STEP_BYTES: usize = 16 << 20;

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
    ) -> Result<Arc<KvPool>, ArenaError> {
        let bytes = match (layout.block_bytes, sequences) {
            (0, _) => 0,
            (_, None) => UNPLANNED_BYTES,
            (_, Some(sequences)) => {
                KvPool::budget_bytes(layout, sequences).saturating_add(whole_steps(more_bytes, STEP_BYTES))
            }
        };
        let segment = Segment::reserve("keys and values", bytes, STEP_BYTES)?;
        Ok(Arc::new(KvPool { segment, copies: AtomicUsize::new(0) }))
    }

    /// What a pool for `sequences` sequences of full length may take.
    pub fn budget_bytes(layout: &StateLayout, sequences: usize) -> usize {
        let blocks = layout.blocks(layout.context_tokens).saturating_mul(sequences);
        whole_steps(blocks.saturating_mul(lease_bytes(layout.block_bytes)), STEP_BYTES)
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
        let bytes = layout.block_bytes;
        let full = |error| {
            let left_bytes = match error {
                ArenaError::OutOfBudget { left_bytes, .. } => Some(left_bytes),
                ArenaError::Refused { .. } => None,
            };
            StepError::OutOfMemory { what: "keys and values", bytes, left_bytes }
        };
        Ok(CellBlock::new(self.segment.lease(bytes).map_err(full)?))
    }

    /// A copy of a block.
    pub(super) fn copy_of(&self, layout: &StateLayout, block: &CellBlock) -> Result<CellBlock, StepError> {
        let mut copy = self.block(layout)?;
        self.copies.fetch_add(1, Ordering::Relaxed);
        copy.as_bytes_mut().copy_from_slice(block.as_bytes());
        Ok(copy)
    }
}
