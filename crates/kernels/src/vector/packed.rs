//! Block formats that vector instructions unpack, a chain of a row at a time.

use super::matmul_int8::{CHAIN_GROUPS, Shape};
use super::simd::Simd;
use crate::GROUP_VALUES;
use crate::quant::codebooks::IQ4_NL_VALUES;
use crate::quant::{Format, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// Codes of a chain of a row: eight vectors.
///
/// In **quads** (formats with one scale per group) vector `2 i` holds the first 16 codes of groups `4 i .. 4 i + 4`,
/// vector `2 i + 1` the last 16. Else vector j holds the 64 codes of groups `2 j`, `2 j + 1` in order. Quarters of 16
/// codes then belong to one group, or to one integer scale.
pub(super) trait Packed: Shape {
    const QUADS: bool;

    /// Codes of the `count` groups of a chain, encoded as [`Shape`] says; what stands in the place of groups beyond is not
    /// specified. `chain` is the bytes of their blocks, `bound` at least `count`: 4, 8 or 16.
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8];

    /// Bits of the float scale of group g, for [`Packed::scales`]. Then those of the minimum's factor in formats that have
    /// one, or of the scale of the second half in formats with a scale per 16. In most formats a block begins with them.
    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        let block = g / (Self::BLOCK_VALUES / GROUP_VALUES) * Self::BLOCK_BYTES;
        [bits_at(chain, block), if Self::HAS_MIN { bits_at(chain, block + 2) } else { 0 }]
    }

    /// The floats whose bits [`Packed::scale_bits`] gives: in most formats half-precision ones.
    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        s.load_f16(bits)
    }

    /// Integer scales and minima of the chain's blocks.
    fn integers<S: Simd>(_s: S, _chain: &[u8]) -> Integers {
        unreachable!("{:?} has no integer scales", Self::TYPE)
    }
}

/// Integer scales and minima of a chain. With one per group, those of all groups in order, in the first array; with one per
/// 16 values, those of each block. What stands in the place of a missing block is not specified.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Integers {
    pub scales: [[i8; 16]; 2],
    /// Of formats that have them.
    pub minima: [[i8; 16]; 2],
}

impl Integers {
    pub(super) const ZERO: Integers = Integers { scales: [[0; 16]; 2], minima: [[0; 16]; 2] };
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

impl Packed for Q4_0 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        nibble_quads::<S, Self>(s, chain, count, bound, 2)
    }
}

impl Packed for Q4_1 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        nibble_quads::<S, Self>(s, chain, count, bound, 4)
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
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (block, scales) in chain.chunks_exact(Self::BLOCK_BYTES).zip(&mut integers.scales) {
            *scales = first::<16>(block, 192).map(|scale| scale as i8);
        }
        integers
    }
}

/// The N bytes from `at` on.
#[inline(always)]
pub(super) fn first<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("a row holds whole blocks")
}

/// Codes whose nibbles lie in pairs of groups: 32 low ones are a group, the high ones of the same bytes the next.
/// Vectors of two groups each, from the 64 bytes of four.
#[inline(always)]
fn paired_nibbles<S: Simd>(s: S, bytes: &[u8; 64]) -> [S::B; 2] {
    let [even, odd] = s.nibbles(s.load_b(bytes));
    s.join_halves(even, odd)
}

/// Eight 6-bit scales and as many minima from the 12 bytes that Q4_K and Q5_K have them in, each as the bytes of a number.
#[inline(always)]
fn six_bits(bytes: &[u8; 12]) -> [[i8; 8]; 2] {
    let word =
        |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
    let (scales, minima, rest) = (word(0), word(1), word(2));
    let high = |x: u32| x >> 2 & 0x3030_3030;
    let eight =
        |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes().map(|byte| byte as i8);
    [
        eight(scales & 0x3f3f_3f3f, rest & 0x0f0f_0f0f | high(scales)),
        eight(minima & 0x3f3f_3f3f, rest >> 4 & 0x0f0f_0f0f | high(minima)),
    ]
}

/// The scales and minima of Q4_K and Q5_K, whose blocks begin alike.
#[inline(always)]
fn six_bit_integers<F: Format>(chain: &[u8]) -> Integers {
    let mut integers = Integers::ZERO;
    for (b, block) in chain.chunks_exact(F::BLOCK_BYTES).enumerate() {
        let [scales, minima] = six_bits(first(block, 4));
        integers.scales[0][8 * b..8 * b + 8].copy_from_slice(&scales);
        integers.minima[0][8 * b..8 * b + 8].copy_from_slice(&minima);
    }
    integers
}

/// Bits of `d` at `d_at`, and of the negated factor of the minima two bytes later, in blocks of eight groups.
#[inline(always)]
fn scale_and_minimum<F: Format>(chain: &[u8], g: usize, d_at: usize) -> [u16; 2] {
    let block = g / 8 * F::BLOCK_BYTES + d_at;
    [bits_at(chain, block), bits_at(chain, block + 2) ^ 0x8000]
}

impl Packed for Q4K {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let at = half / 2 * Self::BLOCK_BYTES + 16 + 64 * (half % 2);
            [codes[2 * half], codes[2 * half + 1]] = paired_nibbles(s, first(chain, at));
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        scale_and_minimum::<Self>(chain, g, 0)
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        six_bit_integers::<Self>(chain)
    }
}

impl Packed for Q5K {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let block = half / 2 * Self::BLOCK_BYTES;
            let high = first(chain, block + 16);
            let [two, next] = paired_nibbles(s, first(chain, block + 48 + 64 * (half % 2)));
            let bit = 4 * (half % 2) as i32;
            codes[2 * half] = s.with_bits(two, high, bit, 16);
            codes[2 * half + 1] = s.with_bits(next, high, bit + 2, 16);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        scale_and_minimum::<Self>(chain, g, 0)
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        six_bit_integers::<Self>(chain)
    }
}

impl Packed for Q2K {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let bytes = first(chain, half / 2 * Self::BLOCK_BYTES + 16 + 32 * (half % 2));
            codes[2 * half] = s.two_bits(bytes, 0);
            codes[2 * half + 1] = s.two_bits(bytes, 4);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        scale_and_minimum::<Self>(chain, g, 80)
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (b, block) in chain.chunks_exact(Self::BLOCK_BYTES).enumerate() {
            let bytes = first::<16>(block, 0);
            integers.scales[b] = bytes.map(|byte| (byte & 15) as i8);
            integers.minima[b] = bytes.map(|byte| (byte >> 4) as i8);
        }
        integers
    }
}

impl Packed for Q3K {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let block = half / 2 * Self::BLOCK_BYTES;
            let (high, low) = (first(chain, block), first(chain, block + 32 + 32 * (half % 2)));
            let bit = 4 * (half % 2) as i32;
            codes[2 * half] = s.with_bits(s.two_bits(low, 0), high, bit, 4);
            codes[2 * half + 1] = s.with_bits(s.two_bits(low, 4), high, bit + 2, 4);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g / 8 * Self::BLOCK_BYTES + 108), 0]
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (block, scales) in chain.chunks_exact(Self::BLOCK_BYTES).zip(&mut integers.scales) {
            let (low, high) = (first::<8>(block, 96), first::<4>(block, 104));
            for k in 0..16 {
                let low = low[k % 8] >> (4 * (k / 8)) & 15;
                scales[k] = (low | (high[k % 4] >> (2 * (k / 4)) & 3) << 4) as i8 - 32;
            }
        }
        integers
    }
}

/// Bit 4 of the codes of quad i: the first 16 of each block, then the last 16, from 32 bits at `at`.
#[inline(always)]
fn fifth_bits<F: Format>(chain: &[u8], count: usize, i: usize, at: usize) -> [u64; 2] {
    let mut masks = [0; 2];
    for q in 0..4 {
        let bits = u32::from_le_bytes(*first(chain, (4 * i + q).min(count - 1) * F::BLOCK_BYTES + at));
        masks[0] |= u64::from(bits & 0xffff) << (16 * q);
        masks[1] |= u64::from(bits >> 16) << (16 * q);
    }
    masks
}

/// Codes of formats with 32 high bits at `at` and 16 bytes of nibbles behind them.
#[inline(always)]
fn five_bit_quads<S: Simd, F: Format>(
    s: S,
    chain: &[u8],
    count: usize,
    bound: usize,
    at: usize,
) -> [S::B; 8] {
    let mut codes = nibble_quads::<S, F>(s, chain, count, bound, at + 4);
    for i in 0..bound / 4 {
        let masks = fifth_bits::<F>(chain, count, i, at);
        codes[2 * i] = s.with_mask(codes[2 * i], masks[0], 16);
        codes[2 * i + 1] = s.with_mask(codes[2 * i + 1], masks[1], 16);
    }
    codes
}

impl Packed for Q5_0 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        five_bit_quads::<S, Self>(s, chain, count, bound, 2)
    }
}

impl Packed for Q5_1 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        five_bit_quads::<S, Self>(s, chain, count, bound, 4)
    }
}

impl Packed for Iq4Nl {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        let mut codes = nibble_quads::<S, Self>(s, chain, count, bound, 2);
        for i in 0..bound / 2 {
            codes[i] = s.signed_b(s.lookup(codes[i], &IQ4_NL_VALUES));
        }
        codes
    }
}

impl Packed for Iq4Xs {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let at = half / 2 * Self::BLOCK_BYTES + 8 + 64 * (half % 2);
            let nibbles = s.nibbles(s.load_b(first(chain, at)));
            [codes[2 * half], codes[2 * half + 1]] =
                nibbles.map(|codes| s.signed_b(s.lookup(codes, &IQ4_NL_VALUES)));
        }
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (b, block) in chain.chunks_exact(Self::BLOCK_BYTES).enumerate() {
            let (high, low) = (bits_at(block, 2), u32::from_le_bytes(*first(block, 4)));
            for sub in 0..8 {
                let scale = low >> (4 * sub) & 15 | u32::from(high >> (2 * sub) & 3) << 4;
                integers.scales[0][8 * b + sub] = scale as i8 - 32;
            }
        }
        integers
    }
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
        if F::HAS_MIN || F::FLOAT_SCALE_PER_16 {
            second[g] = bits[1];
        }
    }
}
