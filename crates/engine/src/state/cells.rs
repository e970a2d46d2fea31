//! Blocks of cached keys and values.

use kernels::{Cells, Kernels, PARTITION_CELLS};
use sys::arena::Lease;

use crate::models::AttentionSpec;
use std::ops::Range;

/// Element type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// Single precision.
    F32,
    /// Half precision.
    #[default]
    F16,
}

impl KvType {
    /// Every type.
    pub const ALL: [KvType; 2] = [KvType::F32, KvType::F16];

    /// Name on the command line and in state files.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
        }
    }

    /// The type of that name.
    pub fn from_name(name: &str) -> Option<KvType> {
        KvType::ALL.into_iter().find(|kv| kv.name() == name)
    }

    /// Bytes of one value.
    pub fn value_bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

/// Where one attention layer's values lie within a block: keys head by head, values head by head, then pooled keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCells {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// First value of the layer in a block.
    pub first: usize,
    /// Pooled indexer keys of a sparse layer.
    pub indexer: Option<IndexerCells>,
}

/// Where pooled indexer keys lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexerCells {
    /// Cells per indexer block.
    pub block_cells: usize,
    /// Values per pooled key.
    pub head_dim: usize,
    /// First value in a block.
    pub first: usize,
}

impl AttentionCells {
    pub(super) fn new(spec: &AttentionSpec, first: usize) -> AttentionCells {
        let keys_and_values = 2 * spec.kv_heads * PARTITION_CELLS * spec.head_dim;
        AttentionCells {
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            first,
            indexer: spec.indexer.map(|indexer| IndexerCells {
                block_cells: indexer.block_cells,
                head_dim: indexer.head_dim,
                first: first + keys_and_values,
            }),
        }
    }

    /// Past the layer's last value.
    pub(super) fn end(&self) -> usize {
        match self.indexer {
            Some(indexer) => indexer.first + PARTITION_CELLS / indexer.block_cells * indexer.head_dim,
            None => self.values(self.kv_heads - 1).end,
        }
    }

    /// Keys of head `head`, `[256][head_dim]`.
    pub fn keys(&self, head: usize) -> Range<usize> {
        let len = PARTITION_CELLS * self.head_dim;
        let start = self.first + head * len;
        start..start + len
    }

    /// Values of head `head`, `[256][head_dim]`.
    pub fn values(&self, head: usize) -> Range<usize> {
        let keys = self.keys(head);
        let offset = self.kv_heads * PARTITION_CELLS * self.head_dim;
        keys.start + offset..keys.end + offset
    }
}

/// 256 cells of every attention layer of a stage.
pub struct CellBlock {
    kv: KvType,
    memory: Lease,
}

impl CellBlock {
    pub(super) fn new(kv: KvType, memory: Lease) -> CellBlock {
        CellBlock { kv, memory }
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.memory
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Values `range` of the block.
    pub fn cells(&self, range: Range<usize>) -> Cells<'_> {
        match self.kv {
            KvType::F32 => Cells::F32(&self.memory.values()[range]),
            KvType::F16 => Cells::F16(&self.memory.values()[range]),
        }
    }

    /// Rounds `values` to the block's type and stores them from `first` on.
    pub(super) fn write(&mut self, kernels: &Kernels, first: usize, values: &[f32]) {
        let range = first..first + values.len();
        match self.kv {
            KvType::F32 => self.memory.values_mut()[range].copy_from_slice(values),
            KvType::F16 => kernels.narrow_f16(values, &mut self.memory.values_mut()[range]),
        }
    }
}
