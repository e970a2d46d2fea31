//! Blocks of one- and two-bit codes with one scale: TQ1_0, TQ2_0, Q1_0, Q2_0.
//!
//! Layouts: `block_tq1_0`, `block_tq2_0`, `block_q1_0`, `block_q2_0` in ggml's `ggml-common.h`.

use super::{Format, Group, f16_at};
use gguf::TensorType;

/// 48 + 4 bytes of base-3 digits as fixed-point fractions, f16 d; value = d * (digit - 1).
pub struct Tq1_0;

impl Format for Tq1_0 {
    const TYPE: TensorType = TensorType::TQ1_0;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 54;

    /// Digit `n` of a byte is the integer part of 3 * fraction(byte * 3^n / 256). Digits run over 32 bytes (values
    /// 0..160), then 16 bytes (160..240), five digits each, then four digits of the last four bytes.
    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
        let digit = |byte: u8, n: usize| ((u16::from(byte.wrapping_mul(POWERS[n])) * 3) >> 8) as i8 - 1;
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = match 32 * sub + i {
                v @ ..160 => digit(block[v % 32], v / 32),
                v @ 160..240 => digit(block[32 + v % 16], (v - 160) / 16),
                v => digit(block[48 + v % 4], (v - 240) / 4),
            };
        }
        Group::plain(q, f16_at(block, 52))
    }
}

/// 64 bytes of 2-bit codes, f16 d; value = d * (code - 1).
pub struct Tq2_0;

impl Format for Tq2_0 {
    const TYPE: TensorType = TensorType::TQ2_0;
    const BLOCK_VALUES: usize = 256;
    const BLOCK_BYTES: usize = 66;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let mut q = [0; 32];
        for (q, &byte) in q.iter_mut().zip(&block[32 * (sub / 4)..][..32]) {
            *q = (byte >> (2 * (sub % 4)) & 3) as i8 - 1;
        }
        Group::plain(q, f16_at(block, 64))
    }
}

/// f16 d, 16 bytes of bits, value `i` in bit `i % 8` of byte `i / 8`; value = ±d.
pub struct Q1_0;

impl Format for Q1_0 {
    const TYPE: TensorType = TensorType::Q1_0;
    const BLOCK_VALUES: usize = 128;
    const BLOCK_BYTES: usize = 18;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let bytes = &block[2 + 4 * sub..][..4];
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = 2 * (bytes[i / 8] >> (i % 8) & 1) as i8 - 1;
        }
        Group::plain(q, f16_at(block, 0))
    }
}

/// f16 d, 16 bytes of 2-bit codes, value `i` in bits `2 * (i % 4)` of byte `i / 4`; value = d * (code - 1).
pub struct Q2_0;

impl Format for Q2_0 {
    const TYPE: TensorType = TensorType::Q2_0;
    const BLOCK_VALUES: usize = 64;
    const BLOCK_BYTES: usize = 18;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let bytes = &block[2 + 8 * sub..][..8];
        let mut q = [0; 32];
        for i in 0..32 {
            q[i] = (bytes[i / 4] >> (2 * (i % 4)) & 3) as i8 - 1;
        }
        Group::plain(q, f16_at(block, 0))
    }
}
