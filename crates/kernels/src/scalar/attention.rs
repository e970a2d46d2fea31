//! Attention over one partition of cells, and the merging of partitions.
//!
//! A query attends partition by partition in ascending order. Within a partition: scores, then [`softmax_partition`],
//! then [`accumulate_values`] from zeros; [`merge_partition`] folds the result into what came before (the online softmax
//! of Milakov and Gimelshein 2018, at fixed places). The output is `accumulated * (1 / sum)`.

use super::reduce::{LANES, dot, sum_lanes};
use crate::math;
use crate::quant::f16_to_f32;
use crate::table::Cells;

/// `scores[j] = dot(q, key_j) * scale` for the cells of one partition; keys widen to f32 exactly.
///
/// `keys` holds `scores.len()` rows of `q.len()` values.
pub fn score_keys(q: &[f32], keys: Cells<'_>, scale: f32, scores: &mut [f32]) {
    let width = q.len();
    assert_eq!(keys.len(), scores.len() * width);
    let mut key = vec![0.0; width];
    for (j, score) in scores.iter_mut().enumerate() {
        widen(keys, j * width, &mut key);
        *score = dot(q, &key) * scale;
    }
}

/// Turns scores into weights: `m = max(scores)` (starting from -infinity, ascending, NaN never chosen), then
/// `scores[j] = exp(scores[j] - m)`; returns `(m, sum)`, the sum in sixteen lanes by `j % 16`.
///
/// A cell that must not be seen has score -infinity. At least one cell is seen.
pub fn softmax_partition(scores: &mut [f32]) -> (f32, f32) {
    let mut max = f32::NEG_INFINITY;
    for &score in scores.iter() {
        if score > max {
            max = score;
        }
    }
    let mut lanes = [0.0; LANES];
    for (j, score) in scores.iter_mut().enumerate() {
        *score = math::exp(*score - max);
        lanes[j % LANES] += *score;
    }
    (max, sum_lanes(lanes))
}

/// `sum[c] = fma(weights[j], value_j[c], sum[c])` over cells j ascending; cells of weight 0 are passed over.
///
/// `values` holds `weights.len()` rows of `sum.len()` values.
pub fn accumulate_values(weights: &[f32], values: Cells<'_>, sum: &mut [f32]) {
    let width = sum.len();
    assert_eq!(values.len(), weights.len() * width);
    let mut value = vec![0.0; width];
    for (j, &weight) in weights.iter().enumerate() {
        if weight == 0.0 {
            continue;
        }
        widen(values, j * width, &mut value);
        for c in 0..width {
            sum[c] = weight.mul_add(value[c], sum[c]);
        }
    }
}

/// Folds a later partition `(max, sum, values)` into the running one:
/// `M = max(m0, m1)`, `f0 = exp(m0 - M)`, `f1 = exp(m1 - M)`, `sum = fma(s1, f1, s0 * f0)`, values likewise.
pub fn merge_partition(
    running: (f32, f32),
    values: &mut [f32],
    later: (f32, f32),
    later_values: &[f32],
) -> (f32, f32) {
    assert_eq!(values.len(), later_values.len());
    let max = if later.0 > running.0 { later.0 } else { running.0 };
    let f0 = math::exp(running.0 - max);
    let f1 = math::exp(later.0 - max);
    for c in 0..values.len() {
        values[c] = later_values[c].mul_add(f1, values[c] * f0);
    }
    (max, later.1.mul_add(f1, running.1 * f0))
}

fn widen(cells: Cells<'_>, first: usize, out: &mut [f32]) {
    match cells {
        Cells::F32(cells) => out.copy_from_slice(&cells[first..first + out.len()]),
        Cells::F16(cells) => {
            for (value, &bits) in out.iter_mut().zip(&cells[first..]) {
                *value = f16_to_f32(bits);
            }
        }
    }
}
