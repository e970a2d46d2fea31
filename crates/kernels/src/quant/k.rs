//! Blocks of 256 values with integer sub-scales: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.
//!
//! Layouts: `block_q2_K` .. `block_q6_K` in ggml's `ggml-common.h`. Group `sub` is values `32 * sub ..`; where a byte
//! holds several codes they belong to different groups.

use super::{Format, Group, f16_at};
use gguf::TensorType;

/// 16 bytes (scale, min) nibbles per 16 values, 64 bytes of 2-bit codes, f16 d, f16 dmin; value = d*s * code - dmin*m.
pub struct Q2K;

impl Format for Q2K {
    const TYPE: TensorType = TensorType::Q2_K;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 84;
    const HAS_MIN: bool = true;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let mut q = [0; 32];
        for (q, &byte) in q.iter_mut().zip(&block[16 + 32 * (sub / 4)..][..32]) {
            *q = (byte >> (2 * (sub % 4)) & 3) as i8;
        }
        let scales = [block[2 * sub], block[2 * sub + 1]];
        Group {
            q,
            s16: scales.map(|s| i32::from(s & 15)),
            m16: scales.map(|s| i32::from(s >> 4)),
            d: [f16_at(block, 80); 2],
            min: -f16_at(block, 82),
        }
    }
}

/// 32 bytes of high bits, 64 bytes of 2-bit codes, 6-bit scales per 16 values, f16 d; value = d*(s - 32) * (code - 4).
pub struct Q3K;

impl Format for Q3K {
    const TYPE: TensorType = TensorType::Q3_K;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 110;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let low = &block[32 + 32 * (sub / 4)..][..32];
        let mut q = [0; 32];
        for i in 0..32 {
            let high = block[i] >> sub & 1;
            q[i] = (low[i] >> (2 * (sub % 4)) & 3 | high << 2) as i8 - 4;
        }
        let scales = &block[96..108];
        // Low nibbles in the first eight bytes (scales 0..8, then 8..16), high pairs of bits in the last four.
        let scale = |k: usize| {
            let low = scales[k % 8] >> (4 * (k / 8)) & 15;
            let high = scales[8 + k % 4] >> (2 * (k / 4)) & 3;
            i32::from(low | high << 4) - 32
        };
        Group { s16: [scale(2 * sub), scale(2 * sub + 1)], ..Group::plain(q, f16_at(block, 108)) }
    }
}

/// f16 d, f16 dmin, 8 6-bit (scale, min) pairs, 128 bytes of nibbles; value = d*s * code - dmin*m.
pub struct Q4K;

impl Format for Q4K {
    const TYPE: TensorType = TensorType::Q4_K;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const HAS_MIN: bool = true;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let mut q = [0; 32];
        for (q, &byte) in q.iter_mut().zip(&block[16 + 32 * (sub / 2)..][..32]) {
            *q = (byte >> (4 * (sub % 2)) & 15) as i8;
        }
        with_scale_and_min(block, sub, q)
    }
}

/// As Q4_K with 32 bytes of fifth bits before the nibbles.
pub struct Q5K;

impl Format for Q5K {
    const TYPE: TensorType = TensorType::Q5_K;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 176;
    const HAS_MIN: bool = true;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let high = &block[16..48];
        let low = &block[48 + 32 * (sub / 2)..][..32];
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = (low[i] >> (4 * (sub % 2)) & 15 | (high[i] >> sub & 1) << 4) as i8;
        }
        with_scale_and_min(block, sub, q)
    }
}

/// 128 bytes of nibbles, 64 bytes of high pairs, 16 signed scales per 16 values, f16 d; value = d*s * (code - 32).
pub struct Q6K;

impl Format for Q6K {
    const TYPE: TensorType = TensorType::Q6_K;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 210;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let (half, quarter) = (sub / 4, sub % 4);
        let low = &block[64 * half + 32 * (quarter % 2)..][..32];
        let high = &block[128 + 32 * half..][..32];
        let mut q = [0; 32];
        for i in 0..32 {
            let code = low[i] >> (4 * (quarter / 2)) & 15 | (high[i] >> (2 * quarter) & 3) << 4;
            q[i] = code as i8 - 32;
        }
        let scale = |k: usize| i32::from(block[192 + k] as i8);
        Group { s16: [scale(2 * sub), scale(2 * sub + 1)], ..Group::plain(q, f16_at(block, 208)) }
    }
}

/// The head Q4_K and Q5_K share: d, dmin, then 12 bytes with eight 6-bit scales and mins.
#[inline]
fn with_scale_and_min(block: &[u8], sub: usize, q: [i8; 32]) -> Group {
    let packed = &block[4..16];
    let (scale, min) = if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let low = packed[sub + 4];
        (low & 15 | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
    };
    Group {
        q,
        s16: [scale.into(); 2],
        m16: [min.into(); 2],
        d: [f16_at(block, 0); 2],
        min: -f16_at(block, 2),
    }
}
