//! Unpacking of small floats, ternary digits and single bits: MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, Q2_0.

use super::packed::{Packed, bits_at, first, nibble_quads};
use super::simd::Simd;
use crate::quant::codebooks::E2M1_DOUBLED;
use crate::quant::{Format, Mxfp4, Nvfp4, Q1_0, Q2_0, Tq1_0, Tq2_0};

/// [`E2M1_DOUBLED`], encoded: plus 12.
const E2M1_CODES: [i8; 16] = {
    let mut codes = E2M1_DOUBLED;
    let mut i = 0;
    while i < 16 {
        codes[i] += 12;
        i += 1;
    }
    codes
};

impl Packed for Mxfp4 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        let mut codes = nibble_quads::<S, Self>(s, chain, count, bound, 1);
        for i in 0..bound / 2 {
            codes[i] = s.lookup(codes[i], &E2M1_CODES);
        }
        codes
    }

    /// The upper half of an f32, of which the lower is zero; see [`Mxfp4`].
    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        let e = u16::from(chain[g * Self::BLOCK_BYTES]);
        [if e < 2 { 0x20 << e } else { (e - 1) << 7 }, 0]
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        s.load_bf16(bits)
    }
}

impl Packed for Nvfp4 {
    const QUADS: bool = true;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for i in 0..bound / 4 {
            let mut starts = [&[0; 16]; 4];
            for q in 0..4 {
                let g = (4 * i + q).min(count - 1);
                starts[q] = first(chain, g / 2 * Self::BLOCK_BYTES + 4 + 16 * (g % 2));
            }
            // Eight bytes hold the codes of a half, eight low nibbles first.
            let [low, high] = s.nibbles(s.gather_b(starts));
            let [first, last] = s.zip_eights(low, high);
            codes[2 * i] = s.lookup(first, &E2M1_CODES);
            codes[2 * i + 1] = s.lookup(last, &E2M1_CODES);
        }
        codes
    }

    /// As bits of half precision they are the value over 2^7, subnormal ones included.
    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        let at = g / 2 * Self::BLOCK_BYTES + 2 * (g % 2);
        [chain[at], chain[at + 1]].map(|x| if x == 0x7f { 0 } else { u16::from(x & 0x7f) << 7 })
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        s.mul(s.load_f16(bits), s.splat(128.0))
    }
}

impl Packed for Q2_0 {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for i in 0..count / 2 {
            codes[i] = s.four_each(first(chain, i * Self::BLOCK_BYTES + 2));
        }
        codes
    }
}

impl Packed for Q1_0 {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for i in 0..count / 2 {
            let bits = u64::from_le_bytes(*first(chain, i / 2 * Self::BLOCK_BYTES + 2 + 8 * (i % 2)));
            codes[i] = s.with_mask(s.zero_b(), bits, 2);
        }
        codes
    }
}

impl Packed for Tq2_0 {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for half in 0..count / 4 {
            let bytes = first(chain, half / 2 * Self::BLOCK_BYTES + 32 * (half % 2));
            codes[2 * half] = s.two_bits(bytes, 0);
            codes[2 * half + 1] = s.two_bits(bytes, 4);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g / 8 * Self::BLOCK_BYTES + 64), 0]
    }
}

impl Packed for Tq1_0 {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        for b in 0..count / 8 {
            // 32 bytes and 16 bytes with five digits each; the last 16 of the block hold the four bytes with four digits.
            let block = &chain[b * Self::BLOCK_BYTES..];
            let mut rest =
                s.gather_b([first(block, 0), first(block, 16), first(block, 32), first(block, 38)]);
            let (mut digits, mut bytes) = ([s.zero_b(); 5], [[0; 64]; 5]);
            for n in 0..5 {
                [digits[n], rest] = s.ternary(rest);
                s.store_b(digits[n], &mut bytes[n]);
            }
            let last: [[u8; 4]; 4] = [0, 1, 2, 3].map(|n| *first(&bytes[n], 58));
            let last = first(last.as_flattened(), 0);
            let sixteen = |n: usize| first(&bytes[n], 32);
            codes[4 * b] = s.join_halves(digits[0], digits[1])[0];
            codes[4 * b + 1] = s.join_halves(digits[2], digits[3])[0];
            codes[4 * b + 2] =
                s.gather_b([first(&bytes[4], 0), first(&bytes[4], 16), sixteen(0), sixteen(1)]);
            codes[4 * b + 3] = s.gather_b([sixteen(2), sixteen(3), sixteen(4), last]);
        }
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        [bits_at(chain, g / 8 * Self::BLOCK_BYTES + 52), 0]
    }
}
