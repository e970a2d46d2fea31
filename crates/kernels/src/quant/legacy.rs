//! Blocks of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! Layouts: `block_q4_0` .. `block_q8_0` in ggml's `ggml-common.h`.

use super::{Format, Group, f16_at, nibbles, u32_at};
use gguf::TensorType;

/// f16 d, 16 bytes of nibbles; value = d * (code - 8).
pub struct Q4_0;

impl Format for Q4_0 {
    const TYPE: TensorType = TensorType::Q4_0;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 18;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = nibbles(&block[2..18]).map(|code| code as i8 - 8);
        Group::plain(q, f16_at(block, 0))
    }
}

/// f16 d, f16 m, 16 bytes of nibbles; value = d * code + m.
pub struct Q4_1;

impl Format for Q4_1 {
    const TYPE: TensorType = TensorType::Q4_1;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 20;
    const HAS_MIN: bool = true;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = nibbles(&block[4..20]).map(|code| code as i8);
        Group { m16: [1; 2], min: f16_at(block, 2), ..Group::plain(q, f16_at(block, 0)) }
    }
}

/// f16 d, 32 high bits, 16 bytes of nibbles; value = d * (code - 16).
pub struct Q5_0;

impl Format for Q5_0 {
    const TYPE: TensorType = TensorType::Q5_0;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 22;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = five_bits(&block[6..22], u32_at(block, 2)).map(|code| code - 16);
        Group::plain(q, f16_at(block, 0))
    }
}

/// f16 d, f16 m, 32 high bits, 16 bytes of nibbles; value = d * code + m.
pub struct Q5_1;

impl Format for Q5_1 {
    const TYPE: TensorType = TensorType::Q5_1;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 24;
    const HAS_MIN: bool = true;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = five_bits(&block[8..24], u32_at(block, 4));
        Group { m16: [1; 2], min: f16_at(block, 2), ..Group::plain(q, f16_at(block, 0)) }
    }
}

/// f16 d, 32 signed bytes; value = d * code.
pub struct Q8_0;

impl Format for Q8_0 {
    const TYPE: TensorType = TensorType::Q8_0;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 34;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let mut q = [0; 32];
        for (q, &code) in q.iter_mut().zip(&block[2..34]) {
            *q = code as i8;
        }
        Group::plain(q, f16_at(block, 0))
    }
}

/// Codes 0..32 from 16 bytes of nibbles and one high bit each.
#[inline]
fn five_bits(low: &[u8], high: u32) -> [i8; 32] {
    let mut q = [0; 32];
    for (i, (q, low)) in q.iter_mut().zip(nibbles(low)).enumerate() {
        *q = (low | ((high >> i & 1) as u8) << 4) as i8;
    }
    q
}
