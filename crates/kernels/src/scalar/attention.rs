//! Attention over one partition of cells, and the merging of partitions.
//!
//! A query attends partition by partition in ascending order. Within a partition: scores, then [`softmax_partition`],
//! then [`accumulate_values`] from zeros; [`merge_partition`] folds the result into what came before (the online softmax
//! of Milakov and Gimelshein 2018, at fixed places). The output is `accumulated * (1 / sum)`.
//!
//! Partitions are cut from the list of cells that a row attends to ([`PARTITION_CELLS`]), so a row that attends to some
//! only has as few of them as it has cells, however far these lie apart.
//!
//! Keys and values count as what they are in f32, see [`widen`].

use super::cells::widen;
use super::reduce::{LANES, dot, sum_lanes};
use crate::attention::{Attended, Cells, Partition, Queries};
use crate::{PARTITION_CELLS, math};

/// What each query gets out of a partition: its largest score, the sum of its weights and the weighted sum of values.
///
/// A cell that a query does not see has score -infinity. A row that sees no cell is left out: `(-infinity, 0)` and zeros.
pub fn attend_partition(queries: &Queries<'_>, scale: f32, partition: &Partition<'_>, out: &mut Attended) {
    let width = queries.head_dim;
    out.set_shape(queries.len(), width, 0);
    for i in 0..queries.len() {
        let mut scores = [f32::NEG_INFINITY; PARTITION_CELLS];
        let scores = &mut scores[..partition.end()];
        let seen = usize::from(partition.seen[i / queries.heads]);
        out.max_sum[i] = (f32::NEG_INFINITY, 0.0);
        out.values_mut(i).fill(0.0);
        if seen == 0 {
            continue;
        }
        score_keys(queries.query(i), partition.keys, scale, scores);
        scores[seen..].fill(f32::NEG_INFINITY);
        out.max_sum[i] = softmax_partition(scores);
        accumulate_values(scores, partition.values, out.values_mut(i));
    }
}

/// Scores of pooled keys for each row: `scores[row][j] = sum_h max(0, dot(q_h, key_j))`, heads ascending from +0; a NaN
/// stays one.
///
/// `keys` holds rows of `head_dim` values, as many as a row has scores, in pieces of [`PARTITION_CELLS`] at most.
pub fn score_blocks(queries: &Queries<'_>, keys: &[Cells<'_>], scores: &mut [f32], _: &mut Attended) {
    let blocks = scores.len() / queries.rows;
    let mut dots = vec![0.0; blocks];
    scores.fill(0.0);
    for i in 0..queries.len() {
        score_keys(queries.query(i), keys, 1.0, &mut dots);
        for (score, &dot) in scores[i / queries.heads * blocks..][..blocks].iter_mut().zip(&dots) {
            *score += if dot < 0.0 { 0.0 } else { dot };
        }
    }
}

/// Each cell's piece and its place there.
fn places<'a>(pieces: &'a [Cells<'a>], width: usize) -> impl Iterator<Item = (Cells<'a>, usize)> + 'a {
    let cells = move |piece: &Cells<'_>| piece.cells_of(width).expect("whole cells");
    pieces.iter().flat_map(move |piece| (0..cells(piece)).map(|i| (*piece, i)))
}

/// `scores[j] = dot(q, key_j) * scale`.
///
/// `keys` holds rows of `q.len()` values, at least as many as there are scores.
pub fn score_keys(q: &[f32], keys: &[Cells<'_>], scale: f32, scores: &mut [f32]) {
    let mut key = vec![0.0; q.len()];
    for (score, (piece, i)) in scores.iter_mut().zip(places(keys, q.len())) {
        widen(piece, i, &mut key);
        *score = dot(q, &key) * scale;
    }
}

/// Turns scores into weights: `m = max(scores)` (starting from -infinity, NaN never chosen, a zero of either sign counts
/// as +0), then `scores[j] = exp(scores[j] - m)`; returns `(m, sum)`, the sum in sixteen lanes by `j % 16`.
///
/// At least one score is that of a cell that is seen.
pub fn softmax_partition(scores: &mut [f32]) -> (f32, f32) {
    let mut max = f32::NEG_INFINITY;
    for &score in scores.iter() {
        if score > max {
            max = score;
        }
    }
    max += 0.0;
    let mut lanes = [0.0; LANES];
    for (j, score) in scores.iter_mut().enumerate() {
        *score = math::exp(*score - max);
        lanes[j % LANES] += *score;
    }
    (max, sum_lanes(lanes))
}

/// `sum[c] = fma(weights[j], value_j[c], sum[c])` over cells j ascending; cells of weight 0 are passed over.
///
/// `values` holds rows of `sum.len()` values, at least as many as there are weights.
pub fn accumulate_values(weights: &[f32], values: &[Cells<'_>], sum: &mut [f32]) {
    let mut value = vec![0.0; sum.len()];
    for (&weight, (piece, i)) in weights.iter().zip(places(values, sum.len())) {
        if weight == 0.0 {
            continue;
        }
        widen(piece, i, &mut value);
        for c in 0..sum.len() {
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
