//! See `scalar::attention`.

use super::elementwise::{exp_differences, zip};
use super::simd::Simd;
use crate::math;
use crate::table::Cells;

/// An element type of a cache.
trait Cell: Copy {
    fn load<S: Simd>(s: S, x: &[Self; 16]) -> S::F;
    fn load_first<S: Simd>(s: S, x: &[Self]) -> S::F;
}

impl Cell for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; 16]) -> S::F {
        s.load(x)
    }
    #[inline(always)]
    fn load_first<S: Simd>(s: S, x: &[f32]) -> S::F {
        s.load_first(x)
    }
}

impl Cell for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u16; 16]) -> S::F {
        s.load_f16(x)
    }
    #[inline(always)]
    fn load_first<S: Simd>(s: S, x: &[u16]) -> S::F {
        s.load_f16_first(x)
    }
}

#[inline(always)]
pub(super) fn score_keys<S: Simd>(s: S, q: &[f32], keys: Cells<'_>, scale: f32, scores: &mut [f32]) {
    match keys {
        Cells::F32(keys) => score(s, q, keys, scale, scores),
        Cells::F16(keys) => score(s, q, keys, scale, scores),
    }
}

#[inline(always)]
fn score<S: Simd, C: Cell>(s: S, q: &[f32], keys: &[C], scale: f32, scores: &mut [f32]) {
    let width = q.len();
    assert_eq!(keys.len(), scores.len() * width);
    let scale = s.splat(scale);
    let (blocks, rest) = scores.as_chunks_mut::<16>();
    for (b, out) in blocks.iter_mut().enumerate() {
        let keys = &keys[16 * b * width..][..16 * width];
        let mut sums = [s.splat(0.0); 16];
        if S::WIDE {
            sums = key_sums(s, q, keys);
        } else {
            for i in (0..16).step_by(4) {
                sums[i..i + 4].copy_from_slice(&key_sums::<S, C, 4>(s, q, &keys[i * width..][..4 * width]));
            }
        }
        s.store(s.mul(s.sum_each(&sums), scale), out);
    }
    if !rest.is_empty() {
        let keys = &keys[16 * blocks.len() * width..];
        let mut sums = [s.splat(0.0); 16];
        for i in 0..rest.len() {
            [sums[i]] = key_sums(s, q, &keys[i * width..][..width]);
        }
        s.store_first(s.mul(s.sum_each(&sums), scale), rest);
    }
}

/// The sixteen lanes of each of N products of `q` with a key.
#[inline(always)]
fn key_sums<S: Simd, C: Cell, const N: usize>(s: S, q: &[f32], keys: &[C]) -> [S::F; N] {
    let width = q.len();
    assert_eq!(keys.len(), N * width);
    let mut sums = [s.splat(0.0); N];
    let (q, q_rest) = q.as_chunks::<16>();
    for (k, q) in q.iter().enumerate() {
        let q = s.load(q);
        for i in 0..N {
            let key = keys[i * width + 16 * k..].first_chunk().expect("a key has as many values as q");
            sums[i] = s.fma(q, C::load(s, key), sums[i]);
        }
    }
    if !q_rest.is_empty() {
        let rest = q_rest.len();
        for i in 0..N {
            let key = C::load_first(s, &keys[(i + 1) * width - rest..][..rest]);
            sums[i] = s.fma_first(rest, s.load_first(q_rest), key, sums[i]);
        }
    }
    sums
}

#[inline(always)]
pub(super) fn softmax_partition<S: Simd>(s: S, scores: &mut [f32]) -> (f32, f32) {
    let mut max = s.splat(f32::NEG_INFINITY);
    let (whole, rest) = scores.as_chunks();
    for x in whole {
        max = s.max(s.load(x), max);
    }
    let mut max = s.max_lane(max);
    for &x in rest {
        if x > max {
            max = x;
        }
    }
    if max == 0.0 {
        // Zeros of both signs compare equal; the definition keeps the first.
        max = *scores.iter().find(|&&x| x == 0.0).expect("the maximum is one of the scores");
    }
    let sums = exp_differences(s, scores, max);
    (max, s.sum(sums))
}

#[inline(always)]
pub(super) fn accumulate_values<S: Simd>(s: S, weights: &[f32], values: Cells<'_>, sum: &mut [f32]) {
    match values {
        Cells::F32(values) => accumulate(s, weights, values, sum),
        Cells::F16(values) => accumulate(s, weights, values, sum),
    }
}

#[inline(always)]
fn accumulate<S: Simd, C: Cell>(s: S, weights: &[f32], values: &[C], sum: &mut [f32]) {
    let width = sum.len();
    assert_eq!(values.len(), weights.len() * width);
    let (wide, rest) = sum.as_chunks_mut::<64>();
    let mut column = 0;
    for sum in wide {
        accumulate_columns::<S, C, 4>(s, weights, values, width, column, sum);
        column += 64;
    }
    let (single, rest) = rest.as_chunks_mut::<16>();
    for sum in single {
        accumulate_columns::<S, C, 1>(s, weights, values, width, column, sum);
        column += 16;
    }
    if !rest.is_empty() {
        let mut acc = s.load_first(rest);
        for (j, &weight) in weights.iter().enumerate() {
            if weight != 0.0 {
                let value = C::load_first(s, &values[j * width + column..][..rest.len()]);
                acc = s.fma(s.splat(weight), value, acc);
            }
        }
        s.store_first(acc, rest);
    }
}

/// Columns `column .. column + 16 N`; `sum` has 16 N values.
#[inline(always)]
fn accumulate_columns<S: Simd, C: Cell, const N: usize>(
    s: S,
    weights: &[f32],
    values: &[C],
    width: usize,
    column: usize,
    sum: &mut [f32],
) {
    let (sum, _) = sum.as_chunks_mut::<16>();
    let mut acc = [s.splat(0.0); N];
    for n in 0..N {
        acc[n] = s.load(&sum[n]);
    }
    for (j, &weight) in weights.iter().enumerate() {
        if weight != 0.0 {
            let weight = s.splat(weight);
            let (value, _) = values[j * width + column..][..16 * N].as_chunks::<16>();
            for n in 0..N {
                acc[n] = s.fma(weight, C::load(s, &value[n]), acc[n]);
            }
        }
    }
    for n in 0..N {
        s.store(acc[n], &mut sum[n]);
    }
}

#[inline(always)]
pub(super) fn merge_partition<S: Simd>(
    s: S,
    running: (f32, f32),
    values: &mut [f32],
    later: (f32, f32),
    later_values: &[f32],
) -> (f32, f32) {
    let max = if later.0 > running.0 { later.0 } else { running.0 };
    let f0 = math::exp(running.0 - max);
    let f1 = math::exp(later.0 - max);
    let (all_f0, all_f1) = (s.splat(f0), s.splat(f1));
    zip!(s, values, later_values, (value, later) => s.fma(later, all_f1, s.mul(value, all_f0)));
    (max, later.1.mul_add(f1, running.1 * f0))
}
