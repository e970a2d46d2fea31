//! What the kernels of attention take and give.

use crate::PARTITION_CELLS;

/// Values of an int8 cell that share a scale.
pub const INT8_VALUES: usize = 64;

/// Values of a 4-bit cell that share a scale, and sixteen bytes of codes. Fewer than in int8, where the error hardly shows: with
/// 32 it is a tenth less than with 64, of all kinds of values, for a sixteenth more bytes.
pub const INT4_VALUES: usize = 32;

/// Rows of cached keys or values in a cache's element type.
///
/// Scales are bits of half precision: that is 1/32 of the bytes of int8 codes and half of what f32 would take, they widen in one
/// instruction, and a code times such a scale is exact in f32. A scale that is not finite is NaN, so that whatever reads the cell
/// notices.
#[derive(Clone, Copy)]
pub enum Cells<'a> {
    /// IEEE single precision.
    F32(&'a [f32]),
    /// Bits of IEEE half precision.
    F16(&'a [u16]),
    /// Codes, and per cell a scale for each [`INT8_VALUES`] of its values; the last may be for fewer.
    Int8 {
        /// `[cells][width]`.
        codes: &'a [i8],
        /// `[cells][width / 64, rounded up]`.
        scales: &'a [u16],
    },
    /// Codes of four bits plus 8, and per cell a scale for each [`INT4_VALUES`] of its values; the last may be for fewer.
    /// Byte `i` of sixteen has value `i` in its low bits and value `i + 16` in its high ones.
    Int4 {
        /// `[cells][width / 32, rounded up][16]`.
        codes: &'a [u8],
        /// `[cells][width / 32, rounded up]`.
        scales: &'a [u16],
    },
}

/// Scales of an int8 cell of `width` values.
pub fn int8_scales(width: usize) -> usize {
    width.div_ceil(INT8_VALUES)
}

/// Scales of a 4-bit cell of `width` values.
pub fn int4_scales(width: usize) -> usize {
    width.div_ceil(INT4_VALUES)
}

/// Bytes of the codes of a 4-bit cell of `width` values.
pub fn int4_bytes(width: usize) -> usize {
    int4_scales(width) * (INT4_VALUES / 2)
}

impl Cells<'_> {
    /// Number of cells of `width` values; `None` if they are not whole cells with their scales.
    pub fn cells_of(&self, width: usize) -> Option<usize> {
        let (len, each, scales, scales_each) = match self {
            Cells::F32(cells) => (cells.len(), width, 0, 0),
            Cells::F16(cells) => (cells.len(), width, 0, 0),
            Cells::Int8 { codes, scales } => (codes.len(), width, scales.len(), int8_scales(width)),
            Cells::Int4 { codes, scales } => {
                (codes.len(), int4_bytes(width), scales.len(), int4_scales(width))
            }
        };
        let cells = len / each;
        (len == cells * each && scales == cells * scales_each).then_some(cells)
    }
}

/// Query heads of some rows that share keys and values.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// `[heads][head_dim]` of each row; rows begin `stride` values apart.
    pub values: &'a [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// Number of rows, at least 1.
    pub rows: usize,
    /// Heads of a row, at least 1.
    pub heads: usize,
    /// Values of a head, at least 1.
    pub head_dim: usize,
}

impl<'a> Queries<'a> {
    /// Number of queries.
    pub fn len(&self) -> usize {
        self.rows * self.heads
    }

    /// True without queries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Query `i`: head `i % heads` of row `i / heads`.
    pub(crate) fn query(&self, i: usize) -> &'a [f32] {
        &self.values[i / self.heads * self.stride + i % self.heads * self.head_dim..][..self.head_dim]
    }

    pub(crate) fn assert_shape(&self) {
        assert!(self.rows > 0 && self.heads > 0 && self.head_dim > 0);
        assert!((self.rows - 1) * self.stride + self.heads * self.head_dim <= self.values.len());
    }
}

/// A partition's keys and values: cells one after the other, wherever they lie.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    /// `[cells][head_dim]` in pieces of whole cells, from the partition's first cell to the last that is seen, or beyond.
    pub keys: &'a [Cells<'a>],
    /// As many cells, in pieces of their own.
    pub values: &'a [Cells<'a>],
    /// How many of the first cells each row sees. A row that sees none is left out.
    pub seen: &'a [u16],
    /// What this thread reads next, if that lies scattered: the memory is asked for it meanwhile.
    pub next: &'a [Cells<'a>],
}

impl Partition<'_> {
    /// Cells from the first to the last that is seen by some row.
    pub(crate) fn end(&self) -> usize {
        self.seen.iter().copied().max().map_or(0, usize::from)
    }

    pub(crate) fn assert_shape(&self, queries: &Queries<'_>) {
        let end = self.end();
        assert!(end <= PARTITION_CELLS);
        for all in [self.keys, self.values] {
            assert!(cells_of_all(all, queries.head_dim).is_some_and(|cells| end <= cells));
        }
        assert_eq!(self.seen.len(), queries.rows);
    }
}

/// Number of cells of `width` values in some pieces; `None` if one of them is not whole cells with their scales.
pub(crate) fn cells_of_all(pieces: &[Cells<'_>], width: usize) -> Option<usize> {
    pieces.iter().map(|piece| piece.cells_of(width)).sum()
}

/// What queries get out of a partition, and room to work in; made once, used again and again.
#[derive(Default)]
pub struct Attended {
    pub(crate) head_dim: usize,
    /// Per query.
    pub(crate) max_sum: Vec<(f32, f32)>,
    /// Vectors of a head.
    pub(crate) lines: usize,
    /// `[queries][lines]`: what was accumulated.
    pub(crate) values: Lines,
    /// `[queries][lines]`: the queries, padded with zeros.
    pub(crate) queries: Lines,
    /// `[queries][16]`: scores of the cells of a partition, then their weights.
    pub(crate) weights: Lines,
    /// Some cells in single precision.
    pub(crate) chunk: Lines,
}

impl Attended {
    /// Room for so many queries of `head_dim` values; chunks of `chunk` lines.
    pub(crate) fn set_shape(&mut self, queries: usize, head_dim: usize, chunk: usize) {
        self.head_dim = head_dim;
        self.lines = head_dim.div_ceil(LINE);
        self.max_sum.resize(queries, (0.0, 0.0));
        self.values.grow(queries * self.lines);
        self.queries.grow(queries * self.lines);
        self.weights.grow(queries * PARTITION_CELLS / LINE);
        self.chunk.grow(chunk);
    }

    /// Largest score and sum of weights of query `i`.
    pub fn max_sum(&self, i: usize) -> (f32, f32) {
        self.max_sum[i]
    }

    /// The accumulated values of query `i`, `[head_dim]`.
    pub fn values(&self, i: usize) -> &[f32] {
        &self.values[i * self.lines..][..self.lines].as_flattened()[..self.head_dim]
    }

    pub(crate) fn values_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.values[i * self.lines..][..self.lines].as_flattened_mut()[..self.head_dim]
    }
}

/// Values of a vector and of a cache line.
pub(crate) const LINE: usize = 16;

/// Vectors of sixteen values, each on a cache line of its own.
#[derive(Default)]
pub(crate) struct Lines(Vec<Aligned>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Aligned([f32; LINE]);

impl Lines {
    /// Makes room for at least `lines` lines; what they hold is not specified.
    pub fn grow(&mut self, lines: usize) {
        if self.0.len() < lines {
            self.0.resize(lines, Aligned([0.0; LINE]));
        }
    }
}

impl std::ops::Deref for Lines {
    type Target = [[f32; LINE]];

    fn deref(&self) -> &[[f32; LINE]] {
        // SAFETY: an `Aligned` is its sixteen values and nothing else, so that many arrays of them lie there.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}

impl std::ops::DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [[f32; LINE]] {
        // SAFETY: as above; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len()) }
    }
}
