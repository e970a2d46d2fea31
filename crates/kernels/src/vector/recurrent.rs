//! See `scalar::recurrent`.

use super::elementwise::{add_products, scale};
use super::simd::Simd;

#[inline(always)]
pub(super) fn convolve<S: Simd>(s: S, taps: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    let channels = out.len();
    assert_eq!(weights.len(), taps.len() * channels);
    out.fill(0.0);
    for (k, tap) in taps.iter().enumerate() {
        add_products(s, &weights[k * channels..][..channels], tap, out);
    }
}

#[inline(always)]
pub(super) fn delta_step<S: Simd>(
    s: S,
    state: &mut [f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: f32,
    query: Option<(&[f32], f32, &mut [f32])>,
) {
    let columns = v.len();
    assert_eq!(state.len(), k.len() * columns);
    // Without a query the products with zeros are computed and dropped.
    let (q, q_scale, mut out) = match query {
        Some((q, q_scale, out)) => (q, q_scale, Some(out)),
        None => (k, 0.0, None),
    };
    assert!(q.len() == k.len() && out.as_ref().is_none_or(|out| out.len() == columns));
    let mut column = 0;
    while column < columns {
        let step = Step { k, q, decay, beta, column, columns };
        let out = out.as_deref_mut().map(|out| &mut out[column..]);
        column += match columns - column {
            64.. => step.whole_columns::<S, 4>(s, state, v, out),
            16.. => step.whole_columns::<S, 1>(s, state, v, out),
            n => step.last_columns(s, n, state, v, out),
        };
    }
    if let Some(out) = out {
        scale(s, out, q_scale);
    }
}

/// One step of the rule on some columns of the state; each method returns how many.
struct Step<'a> {
    k: &'a [f32],
    q: &'a [f32],
    decay: f32,
    beta: f32,
    /// First column.
    column: usize,
    /// Columns of the whole state.
    columns: usize,
}

impl Step<'_> {
    /// 16 N columns in two passes: the decayed state is computed twice and written once.
    #[inline(always)]
    fn whole_columns<S: Simd, const N: usize>(
        &self,
        s: S,
        state: &mut [f32],
        v: &[f32],
        out: Option<&mut [f32]>,
    ) -> usize {
        let decay = s.splat(self.decay);
        let mut read = [s.splat(0.0); N];
        for (row, &k) in state.chunks_exact(self.columns).zip(self.k) {
            let (row, k) = (row[self.column..][..16 * N].as_chunks().0, s.splat(k));
            for n in 0..N {
                read[n] = s.fma(s.mul(decay, s.load(&row[n])), k, read[n]);
            }
        }
        let v = v[self.column..][..16 * N].as_chunks().0;
        for n in 0..N {
            read[n] = s.mul(s.splat(self.beta), s.sub(s.load(&v[n]), read[n]));
        }
        let mut sums = [s.splat(0.0); N];
        for ((row, &k), &q) in state.chunks_exact_mut(self.columns).zip(self.k).zip(self.q) {
            let (row, k, q) = (row[self.column..][..16 * N].as_chunks_mut().0, s.splat(k), s.splat(q));
            for n in 0..N {
                let moved = s.fma(k, read[n], s.mul(decay, s.load(&row[n])));
                s.store(moved, &mut row[n]);
                sums[n] = s.fma(moved, q, sums[n]);
            }
        }
        if let Some(out) = out {
            for (n, out) in out[..16 * N].as_chunks_mut().0.iter_mut().enumerate() {
                s.store(sums[n], out);
            }
        }
        16 * N
    }

    /// The last n columns, fewer than 16.
    #[inline(always)]
    fn last_columns<S: Simd>(
        &self,
        s: S,
        n: usize,
        state: &mut [f32],
        v: &[f32],
        out: Option<&mut [f32]>,
    ) -> usize {
        let decay = s.splat(self.decay);
        let mut read = s.splat(0.0);
        for (row, &k) in state.chunks_exact(self.columns).zip(self.k) {
            read = s.fma(s.mul(decay, s.load_first(&row[self.column..])), s.splat(k), read);
        }
        let read = s.mul(s.splat(self.beta), s.sub(s.load_first(&v[self.column..]), read));
        let mut sums = s.splat(0.0);
        for ((row, &k), &q) in state.chunks_exact_mut(self.columns).zip(self.k).zip(self.q) {
            let row = &mut row[self.column..];
            let moved = s.fma(s.splat(k), read, s.mul(decay, s.load_first(row)));
            s.store_first(moved, row);
            sums = s.fma(moved, s.splat(q), sums);
        }
        if let Some(out) = out {
            s.store_first(sums, out);
        }
        n
    }
}
