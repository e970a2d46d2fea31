//! Blocks of E2M1 floats with small float scales: MXFP4, NVFP4.
//!
//! Layouts: `block_mxfp4`, `block_nvfp4` in ggml's `ggml-common.h`; E2M1 and E8M0 are of the OCP microscaling formats,
//! version 1.0. Codes are doubled E2M1 values, scales are halved: exact.

use super::codebooks::E2M1_DOUBLED;
use super::{Format, Group, nibbles};
use gguf::TensorType;

/// E8M0 scale, 16 bytes of nibbles; value = 2^(e - 127) * E2M1.
pub struct Mxfp4;

impl Format for Mxfp4 {
    const TYPE: TensorType = TensorType::MXFP4;
    const BLOCK_VALUES: usize = 32;
    const BLOCK_BYTES: usize = 17;

    #[inline]
    fn group(block: &[u8], _sub: usize) -> Group {
        let q = nibbles(&block[1..17]).map(|code| E2M1_DOUBLED[usize::from(code)]);
        Group::plain(q, half_of_e8m0(block[0]))
    }
}

/// 4 UE4M3 scales per 16 values, 4 x 8 bytes of nibbles (eight low, then eight high); value = scale * E2M1.
pub struct Nvfp4;

impl Format for Nvfp4 {
    const TYPE: TensorType = TensorType::NVFP4;
    const BLOCK_VALUES: usize = 64;
    const BLOCK_BYTES: usize = 36;
    const FLOAT_SCALE_PER_16: bool = true;

    #[inline]
    fn group(block: &[u8], sub: usize) -> Group {
        let bytes = &block[4 + 16 * sub..][..16];
        let mut q = [0; 32];
        for i in 0..32 {
            let code = bytes[8 * (i / 16) + i % 8] >> (4 * (i / 8 % 2)) & 15;
            q[i] = E2M1_DOUBLED[usize::from(code)];
        }
        let d = [half_of_ue4m3(block[2 * sub]), half_of_ue4m3(block[2 * sub + 1])];
        Group { d, ..Group::plain(q, 0.0) }
    }
}

/// 2^(e - 128); the two smallest are subnormal. 255, NaN in the standard, is 2^127 as in ggml.
#[inline]
fn half_of_e8m0(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Half of an unsigned E4M3 float (bias 7). As in ggml the top bit is ignored and 0x7f, NaN in the standard, is 0.
#[inline]
fn half_of_ue4m3(x: u8) -> f32 {
    if x == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), u32::from(x & 7));
    if exponent == 0 {
        mantissa as f32 / 1024.0
    } else {
        // 2^(exponent - 8) * (1 + mantissa / 8)
        f32::from_bits((exponent + 119) << 23 | mantissa << 20)
    }
}
