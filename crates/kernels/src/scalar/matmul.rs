//! Products of weight rows with activation rows.

use gguf::TensorType;

use super::reduce::dot;
use crate::quant;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;

/// Weights that are floats (F32, F16, BF16): each output is [`dot`] of the widened weight row and the f32 activations.
///
/// Tile row r takes activation row `rows[r]` of `x`, `[..][k]`; tile column c takes row c of `weights`.
pub fn matmul_float(weights: &WeightRows<'_>, x: &[f32], rows: &[u32], out: &mut Tile<'_>) {
    assert_eq!(rows.len(), out.rows());
    assert_eq!(weights.rows(), out.columns());
    let k = weights.k;
    let mut widened = vec![0.0; k];
    for c in 0..out.columns() {
        quant::dequantize_row(weights.dtype, weights.row(c), &mut widened).expect("float types decode");
        for (r, &row) in rows.iter().enumerate() {
            let x = &x[row as usize * k..][..k];
            out.row(r)[c] = dot(&widened, x);
        }
    }
}

/// Quantised weights against int8 activations: each output is [`quant::dot_row`].
pub fn matmul_int8(weights: &WeightRows<'_>, x: &Int8Rows<'_>, rows: &[u32], out: &mut Tile<'_>) {
    assert_eq!(rows.len(), out.rows());
    assert_eq!(weights.rows(), out.columns());
    assert!(!matches!(weights.dtype, TensorType::F32 | TensorType::F16 | TensorType::BF16));
    for c in 0..out.columns() {
        let bytes = weights.row_of_file(c);
        for (r, &row) in rows.iter().enumerate() {
            let (q, d) = x.row(row as usize);
            out.row(r)[c] = quant::dot_row(weights.dtype, &bytes, &quant::ActRow { q, d });
        }
    }
}
