//! Cells of a cache: how keys and values are rounded when they are stored, and what the codes stand for.
//!
//! A rotation by a Hadamard matrix spreads what is large in one value over all of them, so that few bits are enough. It keeps
//! scalar products: 4-bit keys are met by queries that are rotated likewise, and sums of 4-bit values are rotated back.

use crate::attention::{Cells, INT4_VALUES, INT8_VALUES, int4_bytes, int4_scales, int8_scales};
use crate::quant::{f16_to_f32, f32_to_f16};

/// Bits of NaN in half precision.
pub(crate) const F16_NAN: u16 = 0x7e00;
/// Sixteenths of two codes that are 0.
pub(crate) const INT4_ZEROS: u8 = 0x88;

/// A cell in int8. Per [`INT8_VALUES`] values (the last may be fewer):
/// - one is NaN or infinite: the scale is NaN, all codes are 0;
/// - else the scale is `max|x| / 127` rounded to half precision, and NaN where that is too large;
/// - a scale of 0 or NaN: all codes are 0;
/// - else `inv = 1 / scale`, of the rounded scale, and a code is `x * inv` rounded half to even and clamped to ±127.
///
/// Lengths: n values, n codes, `n / 64` scales, rounded up.
pub fn narrow_int8(x: &[f32], codes: &mut [i8], scales: &mut [u16]) {
    assert!(codes.len() == x.len() && scales.len() == int8_scales(x.len()));
    let groups = x.chunks(INT8_VALUES).zip(codes.chunks_mut(INT8_VALUES));
    for ((x, codes), scale) in groups.zip(scales) {
        let (bits, inv) = scale_and_inverse(largest_bits(x), f32::from_bits(largest_bits(x)) / 127.0);
        *scale = bits;
        for (code, x) in codes.iter_mut().zip(x) {
            *code = if inv == 0.0 { 0 } else { (x * inv).round_ties_even().clamp(-127.0, 127.0) as i8 };
        }
    }
}

/// A cell in four bits. As [`narrow_int8`], but for each [`INT4_VALUES`] values, the scale is `m / -8`, where m is the largest
/// value if it is at least as far from 0 as the least one, else the least; and a code is clamped to -8..=7. So m has code
/// -8, and all sixteen are used, which makes the error a tenth less than codes of -7..=7 would.
///
/// Lengths: n values, `n / 32` scales, rounded up, and sixteen bytes for each. Codes beyond the last value are 0.
pub fn narrow_int4(x: &[f32], codes: &mut [u8], scales: &mut [u16]) {
    assert!(codes.len() == int4_bytes(x.len()) && scales.len() == int4_scales(x.len()));
    let groups = x.chunks(INT4_VALUES).zip(codes.chunks_mut(INT4_VALUES / 2));
    for ((x, codes), scale) in groups.zip(scales) {
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = x.iter().copied().fold(f32::INFINITY, f32::min);
        let (bits, inv) = scale_and_inverse(largest_bits(x), int4_scale(most, least));
        *scale = bits;
        codes.fill(INT4_ZEROS);
        if inv == 0.0 {
            continue;
        }
        for (i, x) in x.iter().enumerate() {
            let code = ((x * inv).round_ties_even().clamp(-8.0, 7.0) + 8.0) as u8;
            let (byte, shift) = (i % 16, i / 16 * 4);
            codes[byte] = codes[byte] & !(15 << shift) | code << shift;
        }
    }
}

/// `m / -8` of the largest and the least of some values.
pub(crate) fn int4_scale(most: f32, least: f32) -> f32 {
    (if most >= -least { most } else { least }) / -8.0
}

/// The largest value's bits without the sign, which are those of infinity or more where a value is not finite.
fn largest_bits(x: &[f32]) -> u32 {
    x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().expect("a group has values")
}

/// A scale in half precision and what values are multiplied by: 0 where all codes are to be 0. `largest` are the bits of the
/// largest value without sign.
pub(crate) fn scale_and_inverse(largest: u32, scale: f32) -> (u16, f32) {
    let bits = f32_to_f16(scale);
    if largest >= 0x7f80_0000 || bits & 0x7c00 == 0x7c00 {
        return (F16_NAN, 0.0);
    }
    // A zero has no sign, whatever became zero.
    if bits & 0x7fff == 0 { (0, 0.0) } else { (bits, 1.0 / f16_to_f32(bits)) }
}

/// Multiplies by a Hadamard matrix of length 1, its own inverse: butterflies `(a, b) -> (a + b, a - b)` of values 1 apart, then 2,
/// 4 and so on, and at last each value times [`hadamard_norm`].
///
/// A length that is no power of two is rotated in pieces, each the largest power of two that is left: 96 values as 64 and 32.
pub fn hadamard(x: &mut [f32]) {
    let mut rest = x;
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at_mut(1 << rest.len().ilog2());
        rest = tail;
        let n = piece.len();
        let mut stride = 1;
        while stride < n {
            for i in (0..n).filter(|i| i & stride == 0) {
                let (a, b) = (piece[i], piece[i + stride]);
                (piece[i], piece[i + stride]) = (a + b, a - b);
            }
            stride *= 2;
        }
        piece.iter_mut().for_each(|v| *v *= hadamard_norm(n));
    }
}

/// What makes the rotation of n values keep lengths: `1 / sqrt(n)`, both rounded.
pub(crate) fn hadamard_norm(n: usize) -> f32 {
    1.0 / (n as f32).sqrt()
}

/// Cell `cell` of cells of `out.len()` values in single precision, exactly: half precision widens, and a code of at most
/// eight bits times a scale of eleven fits.
pub fn widen(cells: Cells<'_>, cell: usize, out: &mut [f32]) {
    let width = out.len();
    match cells {
        Cells::F32(cells) => out.copy_from_slice(&cells[cell * width..][..width]),
        Cells::F16(cells) => {
            for (value, &bits) in out.iter_mut().zip(&cells[cell * width..][..width]) {
                *value = f16_to_f32(bits);
            }
        }
        Cells::Int8 { codes, scales } => {
            let scales = &scales[cell * int8_scales(width)..];
            for (i, (value, &code)) in out.iter_mut().zip(&codes[cell * width..]).enumerate() {
                *value = f32::from(code) * f16_to_f32(scales[i / INT8_VALUES]);
            }
        }
        Cells::Int4 { codes, scales } => {
            let groups = codes[cell * int4_bytes(width)..].chunks(INT4_VALUES / 2);
            let groups = groups.zip(&scales[cell * int4_scales(width)..]);
            for (out, (codes, &scale)) in out.chunks_mut(INT4_VALUES).zip(groups) {
                for (i, value) in out.iter_mut().enumerate() {
                    let code = codes[i % 16] >> (i / 16 * 4) & 15;
                    *value = (f32::from(code) - 8.0) * f16_to_f32(scale);
                }
            }
        }
    }
}
