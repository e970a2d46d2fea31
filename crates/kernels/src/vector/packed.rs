//! Block formats that vector instructions unpack a row at a time.

use super::matmul_int8::{CHAIN_GROUPS, Shape};
use super::simd::Simd;
use crate::GROUP_VALUES;
use crate::quant::Format;

/// Codes of a chain of a row: eight vectors.
///
/// In **quads** (formats with one scale per group) vector `2 i` holds the first 16 codes of groups `4 i .. 4 i + 4`,
/// vector `2 i + 1` the last 16. Else vector j holds the 64 codes of groups `2 j`, `2 j + 1` in order. Quarters of 16
/// codes then belong to one group, or to one integer scale.
/// None of these formats has minima.
pub(super) trait Packed: Shape {
    const QUADS: bool;

    /// Codes of the `count` groups of a chain, encoded as [`Shape`] says; what stands in the place of groups beyond is not
    /// specified. `chain` is the bytes of their blocks, `bound` at least `count`: 4, 8 or 16.
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8];

    /// Bits of the float scale of group g, for [`Packed::scales`]. Then those of the scale of the second half in formats with a
    /// float scale per 16. In most formats a block begins with them.
    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        let block = g / (Self::BLOCK_VALUES / GROUP_VALUES) * Self::BLOCK_BYTES;
        [bits_at(chain, block), 0]
    }

    /// The floats whose bits [`Packed::scale_bits`] gives: in most formats half-precision ones.
    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        s.load_f16(bits)
    }

    /// Integer scales of the chain's blocks.
    fn integers<S: Simd>(_s: S, _chain: &[u8]) -> Integers {
        unreachable!("{:?} has no integer scales", Self::TYPE)
    }
}

/// Integer scales of a chain. With one per group, those of all groups in order, in the first array; with one per
/// 16 values, those of each block. What stands in the place of a missing block is not specified.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Integers {
    pub scales: [[i8; 16]; 2],
}

impl Integers {
    pub(super) const ZERO: Integers = Integers { scales: [[0; 16]; 2] };
}

#[inline(always)]
pub(super) fn bits_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*bytes[at..].first_chunk().expect("two bytes"))
}

/// Sixteen bytes from `at` on of each block of quad i; the last group stands in for those that are missing.
#[inline(always)]
fn quad<S: Simd, F: Format>(s: S, chain: &[u8], count: usize, i: usize, at: usize) -> S::B {
    let mut starts = [&[0; 16]; 4];
    for q in 0..4 {
        let block = (4 * i + q).min(count - 1);
        starts[q] = chain[block * F::BLOCK_BYTES + at..].first_chunk().expect("a row holds whole blocks");
    }
    s.gather_b(starts)
}

/// Codes of formats with 16 bytes of nibbles from `at` on.
#[inline(always)]
pub(super) fn nibble_quads<S: Simd, F: Format>(
    s: S,
    chain: &[u8],
    count: usize,
    bound: usize,
    at: usize,
) -> [S::B; 8] {
    let mut codes = [s.zero_b(); 8];
    for i in 0..bound / 4 {
        [codes[2 * i], codes[2 * i + 1]] = s.nibbles(quad::<S, F>(s, chain, count, i, at));
    }
    codes
}

/// The N bytes from `at` on.
#[inline(always)]
pub(super) fn first<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a row holds whole blocks")
}

/// The bytes of groups `first .. first + count` of a row, whole blocks.
#[inline(always)]
pub(super) fn chain_bytes<F: Packed>(row: &[u8], first: usize, count: usize) -> &[u8] {
    let groups = F::BLOCK_VALUES / GROUP_VALUES;
    &row[first / groups * F::BLOCK_BYTES..][..count / groups * F::BLOCK_BYTES]
}

/// Both of [`Packed::scale_bits`] for the groups of a chain.
#[inline(always)]
pub(super) fn chain_scales<F: Packed>(
    chain: &[u8],
    count: usize,
    first: &mut [u16; CHAIN_GROUPS],
    second: &mut [u16; CHAIN_GROUPS],
) {
    for g in 0..count {
        let bits = F::scale_bits(chain, g);
        first[g] = bits[0];
        if F::FLOAT_SCALE_PER_16 {
            second[g] = bits[1];
        }
    }
}
