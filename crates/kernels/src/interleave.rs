//! Sixteen weight rows side by side: what a multiplication reads then lies in the order in which it is read.
//!
//! Blocks come in ascending order, each as sixteen rows of its parts. A part is a word of four bytes or, where a block's length
//! is no multiple of that, the half-precision scale at its beginning or end. Parts come in the order in which they are read
//! ([`place`]), each row by row. So rows take as many bytes as they did, and all that is moved are whole parts.

use std::ops::Range;

use gguf::TensorType;

/// Rows that lie side by side.
pub const INTERLEAVED_ROWS: usize = 16;

/// How the bytes of rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One row after another, as in the file.
    Rows,
    /// Sixteen rows side by side, then the next sixteen.
    Interleaved,
}

/// Bytes of a word.
const WORD: usize = 4;

/// Whether so many rows of a type can be interleaved: where products unpack sixteen at once and ask for what is read next.
pub fn can_interleave(dtype: TensorType, rows: usize) -> bool {
    rows.is_multiple_of(INTERLEAVED_ROWS)
        && matches!(
            dtype,
            TensorType::Q4_0
                | TensorType::Q4_1
                | TensorType::Q5_0
                | TensorType::Q5_1
                | TensorType::Q8_0
                | TensorType::Q2_K
                | TensorType::Q3_K
                | TensorType::Q4_K
                | TensorType::Q5_K
                | TensorType::Q6_K
                | TensorType::IQ4_NL
                | TensorType::IQ4_XS
        )
}

/// Where the words of a block lie in it; before or behind them may lie two bytes.
fn words(dtype: TensorType) -> Range<usize> {
    let bytes = dtype.block_bytes();
    match (dtype, bytes % WORD) {
        // These end with their scale.
        (TensorType::Q3_K | TensorType::Q6_K, 2) => 0..bytes - 2,
        (_, 2) => 2..bytes,
        _ => 0..bytes,
    }
}

/// The bytes of a block in the order in which a product reads them, where that is not the file's: it goes through memory from
/// front to back, which is what processors foresee. One that read Q6_K in the file's order got a third of the bandwidth.
const fn order(dtype: TensorType) -> &'static [(usize, usize)] {
    match dtype {
        // Floats, integer scales, high bits, low bits; halves of Q6_K each for themselves.
        TensorType::Q2_K => &[(80, 84), (0, 16), (16, 80)],
        TensorType::Q3_K => &[(108, 110), (96, 108), (0, 32), (32, 96)],
        TensorType::Q6_K => &[(208, 210), (192, 208), (128, 160), (0, 64), (160, 192), (64, 128)],
        _ => &[],
    }
}

/// Where the part that begins at byte `at` of a row's blocks begins: at sixteen times this.
#[inline(always)]
pub(crate) const fn place(dtype: TensorType, at: usize) -> usize {
    let order = order(dtype);
    let (mut i, mut before) = (0, 0);
    while i < order.len() {
        let (first, end) = order[i];
        if at >= first && at < end {
            return before + at - first;
        }
        before += end - first;
        i += 1;
    }
    at
}

/// Calls `copy(at, len)` for every part of a block: where it begins, and its bytes.
fn parts(dtype: TensorType, mut copy: impl FnMut(usize, usize)) {
    let (words, bytes) = (words(dtype), dtype.block_bytes());
    if words.start > 0 {
        copy(0, words.start);
    }
    words.clone().step_by(WORD).for_each(|at| copy(at, WORD));
    if words.end < bytes {
        copy(words.end, bytes - words.end);
    }
}

/// Writes to `out` the rows that `rows` holds one after another, sixteen by sixteen side by side.
///
/// # Panics
/// When these cannot be interleaved ([`can_interleave`]), or lengths differ.
pub fn interleave(dtype: TensorType, row_bytes: usize, rows: &[u8], out: &mut [u8]) {
    assert!(can_interleave(dtype, rows.len() / row_bytes) && rows.len().is_multiple_of(row_bytes));
    assert_eq!(rows.len(), out.len());
    let (sixteen, block) = (INTERLEAVED_ROWS * row_bytes, dtype.block_bytes());
    for (rows, out) in rows.chunks_exact(sixteen).zip(out.chunks_exact_mut(sixteen)) {
        for (first, out) in (0..row_bytes).step_by(block).zip(out.chunks_exact_mut(INTERLEAVED_ROWS * block))
        {
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                let row = &row[first..first + block];
                parts(dtype, |at, len| {
                    let to = INTERLEAVED_ROWS * place(dtype, at) + lane * len;
                    out[to..to + len].copy_from_slice(&row[at..at + len]);
                });
            }
        }
    }
}

/// Writes to `out` the bytes of row `lane` of sixteen interleaved ones as they lie in the file.
pub(crate) fn copy_row(dtype: TensorType, sixteen: &[u8], lane: usize, out: &mut [u8]) {
    assert!(lane < INTERLEAVED_ROWS && sixteen.len() == INTERLEAVED_ROWS * out.len());
    let block = dtype.block_bytes();
    for (from, out) in sixteen.chunks_exact(INTERLEAVED_ROWS * block).zip(out.chunks_exact_mut(block)) {
        parts(dtype, |at, len| {
            let from = &from[INTERLEAVED_ROWS * place(dtype, at) + lane * len..];
            out[at..at + len].copy_from_slice(&from[..len]);
        });
    }
}
