//! Block formats that vector instructions unpack, a chain of a row at a time.

use super::matmul_int8::{CHAIN_GROUPS, Shape};
use super::simd::Simd;
use crate::GROUP_VALUES;
use crate::quant::{Format, Q4_0, Q4_1, Q6K, Q8_0};

/// Codes of a chain of a row: eight vectors.
///
/// In **quads** (formats with one scale per group) vector `2 i` holds the first 16 codes of groups `4 i .. 4 i + 4`,
/// vector `2 i + 1` the last 16. Else vector j holds the 64 codes of groups `2 j`, `2 j + 1` in order. Quarters of 16
/// codes then belong to one group, or to one integer scale.
pub(super) trait Packed: Shape {
    const QUADS: bool;

    /// Codes of the `count` groups of a chain, encoded as [`Shape`] says; what stands in the place of groups beyond is not
    /// specified. `chain` is the bytes of their blocks, `bound` at least `count`: 4 or 16.
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8];

    /// Half-precision bits of the float scale of group g, and of the minimum's factor in formats that have one.
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2];

    /// Integer scales of block `block`, one per 16 values.
    fn integer_scales(_chain: &[u8], _block: usize) -> &[i8; 16] {
        unreachable!("{:?} has no integer scales", Self::TYPE)
    }
}

#[inline(always)]
fn bits_at(bytes: &[u8], at: usize) -> u16 {
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
fn nibble_quads<S: Simd, F: Format>(s: S, chain: &[u8], count: usize, bound: usize, at: usize) -> [S::B; 8] {
    let mut codes = [s.zero_b(); 8];
    for i in 0..bound / 4 {
        [codes[2 * i], codes[2 * i + 1]] = s.nibbles(quad::<S, F>(s, chain, count, i, at));
    }
    codes
}

impl Packed for Q4_0 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        nibble_quads::<S, Self>(s, chain, count, bound, 2)
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g * Self::BLOCK_BYTES), 0]
    }
}

impl Packed for Q4_1 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        nibble_quads::<S, Self>(s, chain, count, bound, 4)
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g * Self::BLOCK_BYTES), bits_at(chain, g * Self::BLOCK_BYTES + 2)]
    }
}

impl Packed for Q8_0 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for i in 0..bound / 4 {
            codes[2 * i] = s.signed_b(quad::<S, Self>(s, chain, count, i, 2));
            codes[2 * i + 1] = s.signed_b(quad::<S, Self>(s, chain, count, i, 18));
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g * Self::BLOCK_BYTES), 0]
    }
}

impl Packed for Q6K {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let block = &chain[half / 2 * Self::BLOCK_BYTES..];
            let low = block[64 * (half % 2)..].first_chunk().expect("64 bytes of low bits");
            let high = block[128 + 32 * (half % 2)..].first_chunk().expect("32 bytes of high bits");
            let [first_two, last_two] = s.nibbles(s.load_b(low));
            codes[2 * half] = s.with_high_bits(first_two, high, 0);
            codes[2 * half + 1] = s.with_high_bits(last_two, high, 4);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g / 8 * Self::BLOCK_BYTES + 208), 0]
    }

    #[inline(always)]
    fn integer_scales(chain: &[u8], block: usize) -> &[i8; 16] {
        let bytes: &[u8; 16] = chain[block * Self::BLOCK_BYTES + 192..].first_chunk().expect("16 scales");
        // SAFETY: any byte is an i8, of the same size and alignment.
        unsafe { &*(bytes as *const [u8; 16]).cast() }
    }
}

/// The bytes of groups `first .. first + count` of a row, whole blocks.
#[inline(always)]
pub(super) fn chain_bytes<F: Packed>(row: &[u8], first: usize, count: usize) -> &[u8] {
    let groups = F::BLOCK_VALUES / GROUP_VALUES;
    &row[first / groups * F::BLOCK_BYTES..][..count / groups * F::BLOCK_BYTES]
}

/// Half-precision bits of the scales of a chain.
#[inline(always)]
pub(super) fn chain_scales<F: Packed>(
    chain: &[u8],
    count: usize,
    d: &mut [u16; CHAIN_GROUPS],
    min: &mut [u16; CHAIN_GROUPS],
) {
    for i in 0..count {
        let [d_bits, min_bits] = F::scale_bits(chain, i);
        d[i] = d_bits;
        if F::HAS_MIN {
            min[i] = min_bits;
        }
    }
}
