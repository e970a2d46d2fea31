//! Blocks whose codes index codebooks: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS.
//!
//! Layouts: `block_iq1_s` .. `block_iq4_xs` in ggml's `ggml-common.h`. Where ggml's scale holds a fraction (1/8 of the
//! IQ1 offset, the half in IQ2 and IQ3 scales) a power of two moves from the codes or the sub-scale into `d`: exact.

use super::codebooks::{
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, IQ4_NL_VALUES, SIGNS,
};
use super::half::f16_to_f32;
use super::{Format, Group, f16_at, nibbles, u16_at, u32_at};
use gguf::TensorType;

/// f16 d, 32 low index bytes, 8 u16 (4 x 3 high index bits, 3-bit scale, sign of the offset);
/// value = d*(2s + 1) * (grid ± 1/8).
pub struct Iq1S;

impl Format for Iq1S {
    const TYPE: TensorType = TensorType::IQ1_S;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 50;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let head = u16_at(block, 34 + 2 * sub);
        let mut q = [0; 32];
        for k in 0..4 {
            let index = usize::from(block[2 + 4 * sub + k]) | usize::from(head >> (3 * k) & 7) << 8;
            iq1_codes(&mut q[8 * k..8 * k + 8], index, head & 0x8000 != 0);
        }
        let scale = i32::from(2 * (head >> 12 & 7) + 1);
        Group { s16: [scale; 2], ..Group::plain(q, f16_at(block, 0) * 0.125) }
    }
}

/// 32 low index bytes, 16 bytes of (3 high index bits, sign of the offset) nibbles, 4 u16 with four 3-bit scales per 16
/// values below and a nibble of the f16 d on top; value as IQ1_S.
pub struct Iq1M;

impl Format for Iq1M {
    const TYPE: TensorType = TensorType::IQ1_M;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 56;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let mut q = [0; 32];
        for k in 0..4 {
            let high = block[32 + 2 * sub + k / 2] >> (4 * (k % 2)) & 15;
            let index = usize::from(block[4 * sub + k]) | usize::from(high & 7) << 8;
            iq1_codes(&mut q[8 * k..8 * k + 8], index, high & 8 != 0);
        }
        let word = |k: usize| u16_at(block, 48 + 2 * k);
        let d = f16_to_f32(word(0) >> 12 | word(1) >> 12 << 4 | word(2) >> 12 << 8 | word(3) >> 12 << 12);
        let scales = word(sub / 2) >> (6 * (sub % 2));
        let scale = |bits: u16| i32::from(2 * (bits & 7) + 1);
        Group { s16: [scale(scales), scale(scales >> 3)], ..Group::plain(q, d * 0.125) }
    }
}

/// f16 d, per 32 values 4 index bytes and a u32 (4 x 7-bit sign codes, 4-bit scale); value = d*(s + 1/2)/4 * ±grid.
pub struct Iq2Xxs;

impl Format for Iq2Xxs {
    const TYPE: TensorType = TensorType::IQ2_XXS;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 66;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let at = 2 + 8 * sub;
        let word = u32_at(block, at + 4);
        let mut q = [0; 32];
        for k in 0..4 {
            let signs = SIGNS[(word >> (7 * k) & 127) as usize];
            let grid = IQ2_XXS_GRID[usize::from(block[at + k])];
            signed(&mut q[8 * k..8 * k + 8], grid.to_le_bytes(), signs);
        }
        Group { s16: [odd(word >> 28); 2], ..Group::plain(q, f16_at(block, 0) * 0.125) }
    }
}

/// f16 d, 32 u16 (9-bit index, 7-bit sign code), 8 bytes of 4-bit scales per 16 values; value as IQ2_XXS.
pub struct Iq2Xs;

impl Format for Iq2Xs {
    const TYPE: TensorType = TensorType::IQ2_XS;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 74;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let mut q = [0; 32];
        for k in 0..4 {
            let code = u16_at(block, 2 + 8 * sub + 2 * k);
            let grid = IQ2_XS_GRID[usize::from(code & 511)];
            signed(&mut q[8 * k..8 * k + 8], grid.to_le_bytes(), SIGNS[usize::from(code >> 9)]);
        }
        let scales = u32::from(block[66 + sub]);
        Group { s16: [odd(scales & 15), odd(scales >> 4)], ..Group::plain(q, f16_at(block, 0) * 0.125) }
    }
}

/// f16 d, 32 low index bytes, 32 sign bytes, 8 bytes of 4 x 2 high index bits, 8 bytes of 4-bit scales per 16 values;
/// value as IQ2_XXS.
pub struct Iq2S;

impl Format for Iq2S {
    const TYPE: TensorType = TensorType::IQ2_S;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 82;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let high = usize::from(block[66 + sub]);
        let mut q = [0; 32];
        for k in 0..4 {
            let index = usize::from(block[2 + 4 * sub + k]) | (high >> (2 * k) & 3) << 8;
            signed(&mut q[8 * k..8 * k + 8], IQ2_S_GRID[index].to_le_bytes(), block[34 + 4 * sub + k]);
        }
        let scales = u32::from(block[74 + sub]);
        Group { s16: [odd(scales & 15), odd(scales >> 4)], ..Group::plain(q, f16_at(block, 0) * 0.125) }
    }
}

/// f16 d, 64 index bytes, per 32 values a u32 (4 x 7-bit sign codes, 4-bit scale); value = d*(s + 1/2)/2 * ±grid.
pub struct Iq3Xxs;

impl Format for Iq3Xxs {
    const TYPE: TensorType = TensorType::IQ3_XXS;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 98;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let word = u32_at(block, 66 + 4 * sub);
        let mut q = [0; 32];
        for k in 0..8 {
            let signs = SIGNS[(word >> (7 * (k / 2)) & 127) as usize] >> (4 * (k % 2));
            let grid = IQ3_XXS_GRID[usize::from(block[2 + 8 * sub + k])];
            signed(&mut q[4 * k..4 * k + 4], grid.to_le_bytes(), signs);
        }
        Group { s16: [odd(word >> 28); 2], ..Group::plain(q, f16_at(block, 0) * 0.25) }
    }
}

/// f16 d, 64 low index bytes, 8 bytes of high index bits, 32 sign bytes, 4 bytes of 4-bit scales per 32 values;
/// value = d*(2s + 1) * ±grid.
pub struct Iq3S;

impl Format for Iq3S {
    const TYPE: TensorType = TensorType::IQ3_S;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 110;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let high = usize::from(block[66 + sub]);
        let mut q = [0; 32];
        for k in 0..8 {
            let index = usize::from(block[2 + 8 * sub + k]) | (high >> k & 1) << 8;
            let signs = block[74 + 4 * sub + k / 2] >> (4 * (k % 2));
            signed(&mut q[4 * k..4 * k + 4], IQ3_S_GRID[index].to_le_bytes(), signs);
        }
        let scale = u32::from(block[106 + sub / 2]) >> (4 * (sub % 2)) & 15;
        Group { s16: [odd(scale); 2], ..Group::plain(q, f16_at(block, 0)) }
    }
}

/// f16 d, 16 bytes of nibbles; value = d * table[code].
pub struct Iq4Nl;

impl Format for Iq4Nl {
    const TYPE: TensorType = TensorType::IQ4_NL;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 18;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = nibbles(&block[2..18]).map(|code| IQ4_NL_VALUES[usize::from(code)]);
        Group::plain(q, f16_at(block, 0))
    }
}

/// f16 d, u16 of high scale bits, 4 bytes of low ones, 128 bytes of nibbles; value = d*(s - 32) * table[code].
pub struct Iq4Xs;

impl Format for Iq4Xs {
    const TYPE: TensorType = TensorType::IQ4_XS;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 136;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let q = nibbles(&block[8 + 16 * sub..][..16]).map(|code| IQ4_NL_VALUES[usize::from(code)]);
        let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let high = u16_at(block, 2) >> (2 * sub) & 3;
        let scale = i32::from(u16::from(low) | high << 4) - 32;
        Group { s16: [scale; 2], ..Group::plain(q, f16_at(block, 0)) }
    }
}

/// 2s + 1: a scale of s + 1/2 doubled.
#[inline]
fn odd(scale: u32) -> i32 {
    2 * scale as i32 + 1
}

/// Eight codes 8*grid ± 1: grid ± 1/8 times eight.
#[inline]
fn iq1_codes(q: &mut [i8], index: usize, negative_offset: bool) {
    let offset = if negative_offset { -1 } else { 1 };
    for (q, value) in q.iter_mut().zip(IQ1_GRID[index].to_le_bytes()) {
        *q = 8 * value as i8 + offset;
    }
}

/// Magnitudes (at most 62) with the sign of value `j` in bit `j`.
#[inline]
fn signed<const N: usize>(q: &mut [i8], magnitudes: [u8; N], signs: u8) {
    for j in 0..N {
        let magnitude = magnitudes[j] as i8;
        q[j] = if signs >> j & 1 == 0 { magnitude } else { -magnitude };
    }
}
