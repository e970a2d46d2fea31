//! Weight block formats of GGUF files: floats from bytes, the integer view that products use, and the numeric
//! definition of a quantised product.
//!
//! A row of weights is seen as **groups** of 32 consecutive values. [`Format`] has one implementation per block format
//! and describes a group by [`Format::group`]; decoding ([`dequantize_row`]) and products ([`dot_row`]) follow from it.

mod activation;
pub mod codebooks;
mod dot;
mod fp4;
mod half;
mod iq;
mod k;
mod legacy;
mod ternary;

pub use activation::{ActRow, quantize_row};
pub use dot::{CHAIN_VALUES, dot_format, dot_row};
pub use fp4::{Mxfp4, Nvfp4};
pub use half::{bf16_to_f32, f16_to_f32, f32_to_f16};
pub use iq::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs};
pub use k::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub use ternary::{Q1_0, Q2_0, Tq1_0, Tq2_0};

use gguf::TensorType;

/// Values in a group, of weights and of activations.
pub const GROUP_VALUES: usize = 32;

/// The tensor type has no implementation for what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Asked for floats.
    #[error("tensor type {0:?} is not a weight format this program can decode")]
    Decode(TensorType),
    /// Asked for the integer view.
    #[error("tensor type {0:?} is not a block-quantised weight format")]
    Group(TensorType),
}

/// Integer view of 32 consecutive weights:
/// `value(i) = d[i / 16] * s16[i / 16] * q[i] + min * m16[i / 16]`.
///
/// A power of two may have moved between `q`, `s16` and `d` to make the codes integers; all are exact. For every format
/// `32 * 127 * max|s16 * q| < 2^24` (largest: Q6_K with 128 * 32, IQ4_XS with 32 * 127), so the sum over a group of
/// `s16 * q * a` with `|a| <= 127` fits an i32 and is exact as an f32. The same holds for `m16 <= 63`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Code values, signs and codebooks applied.
    pub q: [i8; 32],
    /// Integer scale of each half; 1 where the format has none.
    pub s16: [i32; 2],
    /// Integer minimum of each half; 1 where the format has minima but no integer ones, 0 where it has no minima.
    pub m16: [i32; 2],
    /// Float scale of each half; equal unless [`Format::FLOAT_SCALE_PER_16`].
    pub d: [f32; 2],
    /// Float factor of the minima (`-dmin` in ggml's K formats, `m` in Q4_1 and Q5_1); 0 where there are none.
    pub min: f32,
}

impl Group {
    /// Codes with one float scale and nothing else.
    #[inline]
    pub(crate) fn plain(q: [i8; 32], d: f32) -> Group {
        Group { q, s16: [1; 2], m16: [0; 2], d: [d; 2], min: 0.0 }
    }
}

/// A block format. Implementations are empty types, chosen with [`with_format`].
pub trait Format {
    /// The tensor type of the file format.
    const TYPE: TensorType;
    /// Weights in a block: a multiple of 32.
    const BLOCK_VALUES: usize;
    /// Bytes of a block.
    const BLOCK_BYTES: usize;
    /// Whether a group has the second term `min * m16`.
    const HAS_MIN: bool = false;
    /// Whether `d` differs between the halves of a group; its product then has two terms, one per half.
    const FLOAT_SCALE_PER_16: bool = false;

    /// Values `32 * sub .. 32 * sub + 32` of a block. Every pattern of bytes is valid.
    ///
    /// Panics when `block` has fewer than `BLOCK_BYTES` bytes or `sub >= BLOCK_VALUES / 32`.
    fn group(block: &[u8], sub: usize) -> Group;

    /// Group `g` of a row.
    #[inline]
    fn row_group(row: &[u8], g: usize) -> Group {
        let groups = Self::BLOCK_VALUES / GROUP_VALUES;
        Self::group(&row[g / groups * Self::BLOCK_BYTES..][..Self::BLOCK_BYTES], g % groups)
    }

    /// A block's floats, bit-equal to `dequantize_row_*` in ggml's `ggml-quants.c` (NaNs aside), which computes
    /// `(d * s) * q` and `(d * s) * q - dmin * m` in this order. Where a power of two sits elsewhere there (IQ1, IQ2,
    /// IQ3), its products have at most 24 significant bits and are exact in either order.
    ///
    /// Panics when `block` is not `BLOCK_BYTES` or `out` not `BLOCK_VALUES` long.
    #[inline]
    fn dequantize_block(block: &[u8], out: &mut [f32]) {
        assert_eq!(block.len(), Self::BLOCK_BYTES);
        assert_eq!(out.len(), Self::BLOCK_VALUES);
        for (sub, out) in out.chunks_exact_mut(GROUP_VALUES).enumerate() {
            let group = Self::group(block, sub);
            for half in 0..2 {
                let scale = group.d[half] * group.s16[half] as f32;
                let min = group.min * group.m16[half] as f32;
                for i in 16 * half..16 * half + 16 {
                    let scaled = scale * f32::from(group.q[i]);
                    // Adding a zero would turn -0 into 0.
                    out[i] = if Self::HAS_MIN { scaled + min } else { scaled };
                }
            }
        }
    }
}

/// A computation that is generic over the format; see [`with_format`].
pub trait FormatVisitor {
    /// What it computes.
    type Output;

    /// Runs for the format `F`.
    fn visit<F: Format>(self) -> Self::Output;
}

macro_rules! formats {
    ($($format:ty),* $(,)?) => {
        /// The tensor types that have a [`Format`]: every block-quantised weight type of GGUF.
        pub const FORMATS: &[TensorType] = &[$(<$format>::TYPE),*];

        /// Runs `visitor` with the format of `dtype`, monomorphic inside.
        ///
        /// [`Unsupported::Group`] for float types, integer types and types that only hold activations.
        #[inline]
        pub fn with_format<V: FormatVisitor>(dtype: TensorType, visitor: V) -> Result<V::Output, Unsupported> {
            $(if dtype == <$format>::TYPE {
                return Ok(visitor.visit::<$format>());
            })*
            Err(Unsupported::Group(dtype))
        }

        const _: () = {
            $(
                assert!(<$format>::BLOCK_VALUES.is_multiple_of(GROUP_VALUES));
                assert!(<$format>::BLOCK_VALUES == <$format>::TYPE.block_values());
                assert!(<$format>::BLOCK_BYTES == <$format>::TYPE.block_bytes());
            )*
        };
    };
}

formats!(
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Iq1S, Iq1M, Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S,
    Iq4Nl, Iq4Xs, Tq1_0, Tq2_0, Mxfp4, Nvfp4, Q1_0, Q2_0,
);

/// Floats of a row: all weight types of GGUF, with F32, F16 and BF16.
///
/// Bit-equal to ggml's `to_float` except that a NaN may be another NaN. Panics when `bytes` and `out` are not the same
/// whole number of blocks.
pub fn dequantize_row(dtype: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), Unsupported> {
    match dtype {
        TensorType::F32 => widen(bytes, out, f32::from_le_bytes),
        TensorType::F16 => widen(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        TensorType::BF16 => widen(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        _ => {
            return with_format(dtype, Dequantize { bytes, out }).map_err(|_| Unsupported::Decode(dtype));
        }
    }
    Ok(())
}

/// Group `g` (values `32 * g ..`) of a row of a block format.
///
/// Panics when the row is too short.
pub fn group(dtype: TensorType, row: &[u8], g: usize) -> Result<Group, Unsupported> {
    with_format(dtype, RowGroup { row, g })
}

struct Dequantize<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl FormatVisitor for Dequantize<'_> {
    type Output = ();

    fn visit<F: Format>(self) {
        assert_row::<F>(self.bytes, self.out.len());
        let blocks = self.bytes.chunks_exact(F::BLOCK_BYTES);
        for (block, out) in blocks.zip(self.out.chunks_exact_mut(F::BLOCK_VALUES)) {
            F::dequantize_block(block, out);
        }
    }
}

struct RowGroup<'a> {
    row: &'a [u8],
    g: usize,
}

impl FormatVisitor for RowGroup<'_> {
    type Output = Group;

    fn visit<F: Format>(self) -> Group {
        F::row_group(self.row, self.g)
    }
}

/// A row must be whole blocks and hold as many values as the other side.
fn assert_row<F: Format>(row: &[u8], values: usize) {
    assert!(values.is_multiple_of(F::BLOCK_VALUES), "{values} values are not whole blocks of {:?}", F::TYPE);
    assert_eq!(
        row.len(),
        values / F::BLOCK_VALUES * F::BLOCK_BYTES,
        "bytes of {values} values of {:?}",
        F::TYPE
    );
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    assert_eq!(bytes.len(), N * out.len(), "bytes of {} values of {N} bytes", out.len());
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = value(*bytes);
    }
}

#[inline]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

/// 16 bytes: their low nibbles, then their high ones.
#[inline]
fn nibbles(bytes: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    for i in 0..16 {
        codes[i] = bytes[i] & 15;
        codes[i + 16] = bytes[i] >> 4;
    }
    codes
}
