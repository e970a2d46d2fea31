//! Blocks of cached keys and values.

use std::ops::Range;

use kernels::attention::{int4_bytes, int4_scales, int8_scales};
use kernels::{Cells, Kernels, PARTITION_CELLS};
use sys::arena::{LEASE_ALIGNMENT_BYTES, Lease};
use sys::cast::Pod;

use crate::models::AttentionSpec;

/// How keys and values are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KvType {
    /// Single precision.
    F32,
    /// Half precision.
    #[default]
    F16,
    /// Codes of eight bits.
    Int8,
    /// Keys in eight bits and values in four: a score is `exp`ed, so its error counts for more than that of a value.
    K8V4,
    /// Codes of four bits, rotated.
    Q4,
}

impl KvType {
    /// Every type, those with more bytes first.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::Int8, KvType::K8V4, KvType::Q4];

    /// Name on the command line and in state files.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Int8 => "int8",
            KvType::K8V4 => "k8v4",
            KvType::Q4 => "q4",
        }
    }

    /// The type of that name, or of the one that ggml's programs have for both its keys and its values.
    pub fn from_name(name: &str) -> Option<KvType> {
        let is = |kv: &KvType| {
            kv.name() == name || [kv.keys(), kv.values()].map(CellFormat::ggml_name) == [name; 2]
        };
        KvType::ALL.into_iter().find(is)
    }

    /// How keys are stored.
    pub fn keys(self) -> CellFormat {
        match self {
            KvType::F32 => CellFormat::F32,
            KvType::F16 => CellFormat::F16,
            KvType::Int8 | KvType::K8V4 => CellFormat::Int8,
            KvType::Q4 => CellFormat::Int4,
        }
    }

    /// How values are stored.
    pub fn values(self) -> CellFormat {
        match self {
            KvType::F32 => CellFormat::F32,
            KvType::F16 => CellFormat::F16,
            KvType::Int8 => CellFormat::Int8,
            KvType::K8V4 | KvType::Q4 => CellFormat::Int4,
        }
    }

    /// How indexer keys of sparse layers are stored, raw and pooled. Never in codes: they decide which cells are read at all,
    /// so an error there costs more than one in a key, and they are few.
    pub fn indexer_keys(self) -> CellFormat {
        match self {
            KvType::F32 => CellFormat::F32,
            KvType::F16 | KvType::Int8 | KvType::K8V4 | KvType::Q4 => CellFormat::F16,
        }
    }
}

/// How vectors are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellFormat {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Codes of eight bits with scales in half precision ([`Kernels::narrow_int8`]).
    Int8,
    /// Codes of four bits with scales in half precision ([`Kernels::narrow_int4`]) of the vector rotated by
    /// [`Kernels::hadamard`]. Who reads them rotates queries likewise, and back what was summed.
    Int4,
}

impl CellFormat {
    /// Bytes of numbers or codes of a vector of `width` values, and bytes of its scales.
    fn parts(self, width: usize) -> [usize; 2] {
        match self {
            CellFormat::F32 => [4 * width, 0],
            CellFormat::F16 => [2 * width, 0],
            CellFormat::Int8 => [width, 2 * int8_scales(width)],
            CellFormat::Int4 => [int4_bytes(width), 2 * int4_scales(width)],
        }
    }

    /// Bytes of a vector of `width` values.
    pub fn bytes(self, width: usize) -> usize {
        let [codes, scales] = self.parts(width);
        codes + scales
    }

    /// The name that ggml's programs have for what is nearest.
    pub fn ggml_name(self) -> &'static str {
        match self {
            CellFormat::F32 => "f32",
            CellFormat::F16 => "f16",
            CellFormat::Int8 => "q8_0",
            CellFormat::Int4 => "q4_0",
        }
    }

    /// Whether vectors are stored rotated.
    pub fn rotated(self) -> bool {
        self == CellFormat::Int4
    }
}

/// Where some vectors lie within a block: their numbers or codes one after the other, then their scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellArray {
    format: CellFormat,
    /// Values of a vector.
    width: usize,
    /// First byte, aligned as the block is.
    first: usize,
    /// First byte of the scales, aligned likewise.
    scales: usize,
    /// Past the last byte, with what aligns the next array.
    end: usize,
}

impl CellArray {
    fn new(format: CellFormat, count: usize, width: usize, first: usize) -> CellArray {
        let aligned = |bytes: usize| bytes.next_multiple_of(LEASE_ALIGNMENT_BYTES);
        let [codes, scales_of_all] = format.parts(width).map(|bytes| aligned(count * bytes));
        let scales = first + codes;
        CellArray { format, width, first, scales, end: scales + scales_of_all }
    }

    /// Bytes of the codes and of the scales of some of the vectors.
    fn ranges(&self, these: Range<usize>) -> [Range<usize>; 2] {
        let [codes, scales] = self.format.parts(self.width);
        let range = |first: usize, each: usize| first + these.start * each..first + these.end * each;
        [range(self.first, codes), range(self.scales, scales)]
    }
}

/// Where one attention layer's cells lie within a block: keys head by head, values head by head, then pooled keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCells {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Pooled indexer keys of a sparse layer.
    pub indexer: Option<IndexerCells>,
    kv: KvType,
    /// First byte of the layer in a block.
    first: usize,
}

/// Shape of pooled indexer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexerCells {
    /// Cells per indexer block.
    pub block_cells: usize,
    /// Values per pooled key.
    pub head_dim: usize,
}

impl AttentionCells {
    pub(super) fn new(spec: &AttentionSpec, kv: KvType, first: usize) -> AttentionCells {
        let indexer = spec
            .indexer
            .map(|indexer| IndexerCells { block_cells: indexer.block_cells, head_dim: indexer.head_dim });
        AttentionCells { kv_heads: spec.kv_heads, head_dim: spec.head_dim, indexer, kv, first }
    }

    /// The same shape in another type, from another byte on.
    pub(super) fn stored_as(&self, kv: KvType, first: usize) -> AttentionCells {
        AttentionCells { kv, first, ..*self }
    }

    /// Past the layer's last byte.
    pub(super) fn end(&self) -> usize {
        self.pooled().map_or(self.values(self.kv_heads - 1).end, |pooled| pooled.end)
    }

    /// Keys of head `head`, one a cell.
    pub fn keys(&self, head: usize) -> CellArray {
        self.heads(self.kv.keys(), self.first, head)
    }

    /// Values of head `head`, one a cell.
    pub fn values(&self, head: usize) -> CellArray {
        self.heads(self.kv.values(), self.keys(self.kv_heads - 1).end, head)
    }

    /// Pooled indexer keys of a sparse layer, one for each of its blocks.
    pub fn pooled(&self) -> Option<CellArray> {
        let first = self.values(self.kv_heads - 1).end;
        self.indexer.map(|indexer| {
            let count = PARTITION_CELLS / indexer.block_cells;
            CellArray::new(self.kv.indexer_keys(), count, indexer.head_dim, first)
        })
    }

    /// The array of head `head` of those that begin at `first`.
    fn heads(&self, format: CellFormat, first: usize, head: usize) -> CellArray {
        let array = |first| CellArray::new(format, PARTITION_CELLS, self.head_dim, first);
        array(first + head * (array(first).end - first))
    }
}

/// 256 cells of every attention layer of a stage.
pub struct CellBlock {
    memory: Lease,
}

impl CellBlock {
    pub(super) fn new(memory: Lease) -> CellBlock {
        CellBlock { memory }
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.memory
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Vectors `these` of an array.
    pub fn cells(&self, array: &CellArray, these: Range<usize>) -> Cells<'_> {
        let [codes, scales] = array.ranges(these).map(|range| &self.memory[range]);
        match array.format {
            CellFormat::F32 => Cells::F32(numbers(codes)),
            CellFormat::F16 => Cells::F16(numbers(codes)),
            CellFormat::Int8 => Cells::Int8 { codes: numbers(codes), scales: numbers(scales) },
            CellFormat::Int4 => Cells::Int4 { codes, scales: numbers(scales) },
        }
    }

    /// Rounds a vector to the array's format and stores it in place `i`. `room` is to work in.
    pub(super) fn write(
        &mut self,
        kernels: &Kernels,
        array: &CellArray,
        i: usize,
        values: &[f32],
        room: &mut Vec<f32>,
    ) {
        assert_eq!(values.len(), array.width);
        let [codes, scales] = array.ranges(i..i + 1);
        let (before, from_scales) = self.memory.split_at_mut(array.scales);
        let codes = &mut before[codes];
        let scales = &mut from_scales[scales.start - array.scales..scales.end - array.scales];
        match array.format {
            CellFormat::F32 => numbers_mut(codes).copy_from_slice(values),
            CellFormat::F16 => kernels.narrow_f16(values, numbers_mut(codes)),
            CellFormat::Int8 => kernels.narrow_int8(values, numbers_mut(codes), numbers_mut(scales)),
            CellFormat::Int4 => {
                room.clear();
                room.extend_from_slice(values);
                kernels.hadamard(room);
                kernels.narrow_int4(room, codes, numbers_mut(scales));
            }
        }
    }
}

fn numbers<T: Pod>(bytes: &[u8]) -> &[T] {
    sys::cast::slice(bytes).expect("arrays are aligned and hold whole numbers")
}

fn numbers_mut<T: Pod>(bytes: &mut [u8]) -> &mut [T] {
    sys::cast::slice_mut(bytes).expect("arrays are aligned and hold whole numbers")
}
