//! Quantised weights against int8 activations: how blocks are seen.
//!
//! The sum of an output runs serially over its groups, so the float part wants lanes that are different outputs.
//! [`super::product`] unpacks sixteen weight rows at once so that they are lanes. Formats that have to be unpacked row by row
//! ask for more than one activation row is worth: with few of those [`super::few_rows`] has groups as lanes and transposes
//! the terms of sixteen weight rows before it adds them.

use gguf::TensorType;

use super::simd::Simd;
use crate::quant::Format;
use crate::{CHAIN_VALUES, GROUP_VALUES};

/// Groups of a chain.
pub(super) const CHAIN_GROUPS: usize = CHAIN_VALUES / GROUP_VALUES;
/// Weight rows taken at once.
pub(super) const LANES: usize = 16;

/// How the kernels here see a format.
pub(super) trait Shape: Format {
    /// Integer scales of a group: none, one for all its values, or one per 16.
    const SCALES: usize = integer_scales(Self::TYPE);
    /// What is added to codes so that none is negative and none above 63; without one they may be any signed byte.
    const OFFSET: Option<i32> = if Self::HAS_MIN { Some(0) } else { code_offset(Self::TYPE) };
    const SIGNED: bool = Self::OFFSET.is_none();
}

impl<F: Format> Shape for F {}

/// What to take from a sum of products of encoded codes, per unit of activation sum.
#[inline(always)]
pub(super) const fn offset<S: Simd, F: Shape>() -> i32 {
    match F::OFFSET {
        Some(offset) => offset,
        None => S::SIGNED_BIAS,
    }
}

const fn integer_scales(dtype: TensorType) -> usize {
    match dtype {
        TensorType::Q4_0
        | TensorType::Q4_1
        | TensorType::Q5_0
        | TensorType::Q5_1
        | TensorType::Q8_0
        | TensorType::IQ4_NL
        | TensorType::MXFP4
        | TensorType::TQ1_0
        | TensorType::TQ2_0
        | TensorType::Q1_0
        | TensorType::Q2_0
        | TensorType::NVFP4 => 0,
        TensorType::Q4_K
        | TensorType::Q5_K
        | TensorType::IQ4_XS
        | TensorType::IQ2_XXS
        | TensorType::IQ3_XXS
        | TensorType::IQ3_S
        | TensorType::IQ1_S => 1,
        _ => 2,
    }
}

const fn code_offset(dtype: TensorType) -> Option<i32> {
    match dtype {
        TensorType::Q4_0 => Some(8),
        TensorType::Q5_0 => Some(16),
        TensorType::Q6_K => Some(32),
        TensorType::Q3_K => Some(4),
        TensorType::MXFP4 | TensorType::NVFP4 => Some(12),
        TensorType::IQ1_S | TensorType::IQ1_M => Some(9),
        TensorType::TQ1_0 | TensorType::TQ2_0 | TensorType::Q1_0 | TensorType::Q2_0 => Some(1),
        _ => None,
    }
}
