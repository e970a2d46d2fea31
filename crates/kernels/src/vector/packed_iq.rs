//! Unpacking of codes that index grids: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S.
//!
//! A vector holds the 64 codes of two groups: eight entries of a grid of eights or sixteen of a grid of fours, with
//! signs from a mask of 64 bits.

use super::matmul_int8::CHAIN_GROUPS;
use super::packed::{Integers, Packed, bits_at, first};
use super::simd::Simd;
use crate::quant::codebooks::{IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID};
use crate::quant::{Format, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};

/// The same for each vector of a chain's `$count` groups; written out for a whole chain, so that addresses are constants.
macro_rules! each_vector {
    ($j:ident in $count:expr => $body:block) => {
        if $count == CHAIN_GROUPS {
            each!($j in 0 1 2 3 4 5 6 7 => $body);
        } else {
            for $j in 0..$count / 2 $body
        }
    };
}

/// Eight entries of a grid, whose size is a power of two.
#[inline(always)]
fn eights<S: Simd, const N: usize>(s: S, grid: &[u64; N], indices: [usize; 8]) -> S::B {
    let mut entries = [0; 8];
    for k in 0..8 {
        entries[k] = grid[indices[k] % N];
    }
    s.entries_8(entries)
}

/// Sixteen entries of a grid, whose size is a power of two.
#[inline(always)]
fn fours<S: Simd, const N: usize>(s: S, grid: &[u32; N], indices: [usize; 16]) -> S::B {
    let mut entries = [0; 16];
    for k in 0..16 {
        entries[k] = grid[indices[k] % N];
    }
    s.entries_4(entries)
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*first(bytes, at))
}

/// The nibbles of four bytes, lowest first, as bytes.
#[inline(always)]
fn spread_nibbles(x: u32) -> u64 {
    let x = u64::from(x);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// `2 s + 1` for the nibbles s of four bytes.
#[inline(always)]
fn odd_nibbles(x: u32) -> [i8; 8] {
    (spread_nibbles(x) << 1 | 0x0101_0101_0101_0101).to_le_bytes().map(|byte| byte as i8)
}

/// Sixteen scales `2 s + 1` of each block from nibbles at `at`.
#[inline(always)]
fn nibble_integers<F: Format>(chain: &[u8], at: usize) -> Integers {
    let mut integers = Integers::ZERO;
    for (block, scales) in chain.chunks_exact(F::BLOCK_BYTES).zip(&mut integers.scales) {
        for half in 0..2 {
            let nibbles = u32::from_le_bytes(*first(block, at + 4 * half));
            scales[8 * half..8 * half + 8].copy_from_slice(&odd_nibbles(nibbles));
        }
    }
    integers
}

/// A scale `2 s + 1` per group from the upper four bits of its word.
#[inline(always)]
fn top_integers<S: Simd>(s: S, words: S::B) -> Integers {
    let (nibbles, mut integers) = (s.top_nibbles(words), Integers::ZERO);
    s.store_i8(s.add_i(s.add_i(nibbles, nibbles), s.splat_i(1)), &mut integers.scales[0]);
    integers
}

/// What stands at `at` in both blocks of a chain; in the only block twice.
#[inline(always)]
fn of_both<F: Format, const N: usize>(chain: &[u8], at: usize) -> [&[u8; N]; 2] {
    let second = if chain.len() > F::BLOCK_BYTES { F::BLOCK_BYTES } else { 0 };
    [first(chain, at), first(chain, second + at)]
}

/// What lies in order in `[u16; 64]` before [`Simd::zip_bytes`] puts number i there.
#[inline(always)]
fn zipped(i: usize) -> usize {
    32 * (i / 8 % 2) + 8 * (i / 16) + i % 8
}

/// Indices of 64 entries from their low bytes and high ones, each at its [`zipped`] place.
#[inline(always)]
fn wide_indices<S: Simd>(s: S, low: S::B, high: S::B) -> [[u8; 64]; 2] {
    let mut indices = [[0; 64]; 2];
    for (vector, indices) in s.zip_bytes(low, high).into_iter().zip(&mut indices) {
        s.store_b(vector, indices);
    }
    indices
}

/// Magnitudes with the signs of a mask, encoded.
#[inline(always)]
fn signed<S: Simd>(s: S, magnitudes: S::B, signs: u64) -> S::B {
    s.signed_b(s.negate_masked(magnitudes, signs))
}

/// Float scales that are a power of two times those of the file.
#[inline(always)]
fn scaled<S: Simd>(s: S, bits: &[u16; 16], factor: f32) -> S::F {
    s.mul(s.load_f16(bits), s.splat(factor))
}

impl Packed for Iq2Xxs {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let (mut codes, mut signs) = ([s.zero_b(); 8], [0; 64]);
        s.store_b(s.even_signs(s.odd_words(of_both::<Self, 64>(chain, 2))), &mut signs);
        each_vector!(j in count => {
            let bytes = first::<16>(chain, j / 4 * Self::BLOCK_BYTES + 2 + 16 * (j % 4));
            let mut indices = [0; 8];
            for k in 0..8 {
                indices[k] = bytes[8 * (k / 4) + k % 4].into();
            }
            codes[j] = signed(s, eights(s, &IQ2_XXS_GRID, indices), u64_at(&signs, 8 * j));
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(s: S, chain: &[u8]) -> Integers {
        top_integers(s, s.odd_words(of_both::<Self, 64>(chain, 2)))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.125)
    }
}

impl Packed for Iq2Xs {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let (mut codes, mut signs) = ([s.zero_b(); 8], [0; 64]);
        s.store_b(s.high_signs(of_both::<Self, 64>(chain, 2)), &mut signs);
        each_vector!(j in count => {
            let bytes = first::<16>(chain, j / 4 * Self::BLOCK_BYTES + 2 + 16 * (j % 4));
            let mut indices = [0; 8];
            for k in 0..8 {
                indices[k] = bits_at(bytes, 2 * k).into();
            }
            codes[j] = signed(s, eights(s, &IQ2_XS_GRID, indices), u64_at(&signs, 8 * j));
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        nibble_integers::<Self>(chain, 66)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.125)
    }
}

impl Packed for Iq2S {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let [low, low_too] = of_both::<Self, 32>(chain, 2);
        let [high, high_too] = of_both::<Self, 8>(chain, 66);
        let low = s.gather_b([first(low, 0), first(low, 16), first(low_too, 0), first(low_too, 16)]);
        let mut high_16 = [0; 16];
        high_16[..8].copy_from_slice(high);
        high_16[8..].copy_from_slice(high_too);
        let wide = wide_indices(s, low, s.four_each(&high_16));
        let mut codes = [s.zero_b(); 8];
        each_vector!(j in count => {
            let mut indices = [0; 8];
            for k in 0..8 {
                indices[k] = bits_at(wide.as_flattened(), 2 * zipped(8 * j + k)).into();
            }
            let signs = u64_at(chain, j / 4 * Self::BLOCK_BYTES + 34 + 8 * (j % 4));
            codes[j] = signed(s, eights(s, &IQ2_S_GRID, indices), signs);
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        nibble_integers::<Self>(chain, 74)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.125)
    }
}

/// The words of sign codes and scales of a chain of IQ3_XXS.
#[inline(always)]
fn sign_words<S: Simd>(s: S, chain: &[u8]) -> S::B {
    let [a, b] = of_both::<Iq3Xxs, 32>(chain, 66);
    s.gather_b([first(a, 0), first(a, 16), first(b, 0), first(b, 16)])
}

impl Packed for Iq3Xxs {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let (mut codes, mut signs) = ([s.zero_b(); 8], [0; 64]);
        s.store_b(s.even_signs(sign_words(s, chain)), &mut signs);
        each_vector!(j in count => {
            let bytes = first::<16>(chain, j / 4 * Self::BLOCK_BYTES + 2 + 16 * (j % 4));
            codes[j] = signed(s, fours(s, &IQ3_XXS_GRID, bytes.map(usize::from)), u64_at(&signs, 8 * j));
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(s: S, chain: &[u8]) -> Integers {
        top_integers(s, sign_words(s, chain))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.25)
    }
}

impl Packed for Iq3S {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let (mut codes, mut wide) = ([s.zero_b(); 8], [[0; 64]; 2]);
        each_vector!(j in count => {
            let (block, sub) = (&chain[j / 4 * Self::BLOCK_BYTES..][..Self::BLOCK_BYTES], j % 4);
            if sub == 0 {
                let high = s.with_mask(s.zero_b(), u64_at(block, 66), 1);
                wide = wide_indices(s, s.load_b(first(block, 2)), high);
            }
            let mut indices = [0; 16];
            for k in 0..16 {
                indices[k] = bits_at(wide.as_flattened(), 2 * zipped(16 * sub + k)).into();
            }
            codes[j] = signed(s, fours(s, &IQ3_S_GRID, indices), u64_at(block, 74 + 8 * sub));
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (b, block) in chain.chunks_exact(Self::BLOCK_BYTES).enumerate() {
            let scales = odd_nibbles(u32::from_le_bytes(*first(block, 106)));
            integers.scales[0][8 * b..8 * b + 8].copy_from_slice(&scales);
        }
        integers
    }
}

/// [`IQ1_GRID`] as codes `8 * value`, encoded: plus 9, less the 1 that the offset adds or takes away.
static IQ1_CODES: [u64; 2048] = {
    let mut codes = [0; 2048];
    let mut i = 0;
    while i < 2048 {
        let values = IQ1_GRID[i].to_le_bytes();
        let mut j = 0;
        while j < 8 {
            codes[i] |= (8 * (values[j] as i8 as i64 + 1) as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    codes
};

impl Packed for Iq1S {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        each_vector!(j in count => {
            let (block, sub) = (&chain[j / 4 * Self::BLOCK_BYTES..], j % 4);
            let low: &[u8; 8] = first(block, 2 + 8 * sub);
            let head = |g: usize| u32::from(bits_at(block, 34 + 4 * sub + 2 * g));
            let heads = [head(0), head(1)];
            // Three bits each to 8..11, 11..14 and so on.
            let mut indices = [0; 8];
            for k in 0..8 {
                indices[k] = usize::from(low[k]) | (heads[k / 4] << 8 >> (3 * (k % 4))) as usize & 0x700;
            }
            let unsigned = eights(s, &IQ1_CODES, indices);
            let positive = |head: u32| u64::from((head >> 15).wrapping_sub(1));
            codes[j] = s.with_mask(unsigned, positive(heads[0]) | positive(heads[1]) << 32, 2);
        });
        codes
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (b, block) in chain.chunks_exact(Self::BLOCK_BYTES).enumerate() {
            for sub in 0..8 {
                integers.scales[0][8 * b + sub] = 2 * (block[35 + 2 * sub] >> 4 & 7) as i8 + 1;
            }
        }
        integers
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.125)
    }
}

impl Packed for Iq1M {
    const QUADS: bool = false;

    #[inline(always)]
    fn codes<S: Simd>(s: S, chain: &[u8], count: usize, _bound: usize) -> [S::B; 8] {
        let mut codes = [s.zero_b(); 8];
        each_vector!(j in count => {
            let (block, sub) = (&chain[j / 4 * Self::BLOCK_BYTES..], j % 4);
            let low: &[u8; 8] = first(block, 8 * sub);
            let high = u32::from_le_bytes(*first(block, 32 + 4 * sub));
            let mut indices = [0; 8];
            for k in 0..8 {
                indices[k] = usize::from(low[k]) | ((u64::from(high) << 8) >> (4 * k)) as usize & 0x700;
            }
            let unsigned = eights(s, &IQ1_CODES, indices);
            // A byte of ones for each index whose offset is not negative.
            let positive = (!spread_nibbles(high) >> 3 & 0x0101_0101_0101_0101) * 0xff;
            codes[j] = s.with_mask(unsigned, positive, 2);
        });
        codes
    }

    #[inline(always)]
    fn scale_bits(chain: &[u8], g: usize) -> [u16; 2] {
        let words = u64_at(chain, g / 8 * Self::BLOCK_BYTES + 48);
        let nibble = |k: u32| (words >> (16 * k + 12) & 15) as u16;
        [nibble(0) | nibble(1) << 4 | nibble(2) << 8 | nibble(3) << 12, 0]
    }

    #[inline(always)]
    fn integers<S: Simd>(_s: S, chain: &[u8]) -> Integers {
        let mut integers = Integers::ZERO;
        for (block, scales) in chain.chunks_exact(Self::BLOCK_BYTES).zip(&mut integers.scales) {
            let words = u64_at(block, 48);
            for k in 0..16 {
                scales[k] = 2 * (words >> (16 * (k / 4) + 3 * (k % 4)) & 7) as i8 + 1;
            }
        }
        integers
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, bits: &[u16; 16]) -> S::F {
        scaled(s, bits, 0.125)
    }
}
