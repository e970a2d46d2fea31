//! Products with few activation rows: bound by the bytes of the weights, read as they lie, once.
//!
//! For sixteen weight rows at a time: the terms of a chain with its groups as lanes, then a transposition, after which
//! lanes are weight rows and the terms are added in ascending order.

use super::matmul_int8::{CHAIN_GROUPS, LANES, offset};
use super::packed::{Packed, chain_bytes, chain_scales};
use super::simd::Simd;
use crate::GROUP_VALUES;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;

/// Activation rows up to which this is faster than unpacking for all of them, of types that are unpacked row by row.
pub(super) const FEW_ROWS: usize = 8;

/// One chain of an activation row. Groups beyond the end are zeros.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chain {
    /// Codes in the order of [`Packed::codes`].
    q: [[u8; 64]; 8],
    d: [f32; CHAIN_GROUPS],
    /// What to take from the sums of products: per group, in formats with an integer scale per 16 values per 16, in those
    /// with a float scale per 16 for first halves and for last ones.
    bias: [[i32; 16]; 2],
}

impl Chain {
    const ZERO: Chain = Chain { q: [[0; 64]; 8], d: [0.0; 16], bias: [[0; 16]; 2] };

    /// Groups `first .. first + count` of a row.
    #[inline(always)]
    fn set<S: Simd, F: Packed>(&mut self, x: &Int8Rows<'_>, row: usize, first: usize, count: usize) {
        let bias = offset::<S, F>();
        let at = row * (x.k / GROUP_VALUES) + first;
        let (q, sum16) = (&x.q.as_chunks::<16>().0[2 * at..], &x.sum16.as_chunks::<2>().0[at..]);
        self.d[..count].copy_from_slice(&x.d[at..at + count]);
        for g in 0..count {
            for h in 0..2 {
                let (vector, quarter) =
                    if F::QUADS { (g / 4 * 2 + h, g % 4) } else { (g / 2, 2 * (g % 2) + h) };
                self.q[vector][16 * quarter..16 * quarter + 16]
                    .copy_from_slice(&q[2 * g + h].map(|q| q as u8));
                if F::FLOAT_SCALE_PER_16 {
                    const { assert!(F::QUADS || !F::FLOAT_SCALE_PER_16) };
                    self.bias[h][g] = bias * i32::from(sum16[g][h]);
                } else if F::SCALES == 2 {
                    self.bias[g / 8][2 * (g % 8) + h] = bias * i32::from(sum16[g][h]);
                }
            }
            if F::SCALES < 2 && !F::FLOAT_SCALE_PER_16 {
                self.bias[0][g] = bias * (i32::from(sum16[g][0]) + i32::from(sum16[g][1]));
            }
        }
    }
}

/// Up to [`FEW_ROWS`] activation rows; see [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul<S: Simd, F: Packed>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    const { assert!(!F::HAS_MIN) };
    assert!(rows.len() == out.rows() && weights.rows() == out.columns() && weights.k == x.k);
    if rows.is_empty() {
        return;
    }
    let groups = x.k / GROUP_VALUES;
    let mut chains = Vec::with_capacity(groups.div_ceil(CHAIN_GROUPS) * rows.len());
    for first in (0..groups).step_by(CHAIN_GROUPS) {
        for &row in rows {
            chains.push(Chain::ZERO);
            let chain = chains.last_mut().expect("one was pushed");
            chain.set::<S, F>(x, row as usize, first, CHAIN_GROUPS.min(groups - first));
        }
    }
    let mut terms = [[s.splat(0.0); LANES]; 2 * FEW_ROWS];
    for c in (0..out.columns()).step_by(LANES) {
        let weights = weights.slice(c, LANES.min(out.columns() - c));
        for (i, chains) in chains.chunks_exact(rows.len()).enumerate() {
            let first = i * CHAIN_GROUPS;
            let part = Part { weights, chains, first, c };
            // The usual cases with their bounds known.
            match groups - first {
                CHAIN_GROUPS.. => part.add::<S, F>(s, CHAIN_GROUPS, CHAIN_GROUPS, &mut terms, out),
                count @ ..=4 => part.add::<S, F>(s, count, 4, &mut terms, out),
                count => part.add::<S, F>(s, count, CHAIN_GROUPS, &mut terms, out),
            }
        }
    }
}

/// Terms of each activation row and weight row, the groups of a chain as lanes. In formats with a float scale per 16
/// those of first halves; those of last ones are `FEW_ROWS` further on.
type Terms<S> = [[<S as Simd>::F; LANES]; 2 * FEW_ROWS];

/// One chain of up to sixteen weight rows against all activation rows.
struct Part<'a> {
    weights: WeightRows<'a>,
    /// The chain of each activation row.
    chains: &'a [Chain],
    /// The chain's first group.
    first: usize,
    /// The tile's column of the first weight row.
    c: usize,
}

impl Part<'_> {
    /// Adds the sums of the chain's `count` groups to the outputs. `bound` is at least `count`: 4 or 16.
    #[inline(always)]
    fn add<S: Simd, F: Packed>(
        &self,
        s: S,
        count: usize,
        bound: usize,
        terms: &mut Terms<S>,
        out: &mut Tile<'_>,
    ) {
        self.set_terms::<S, F>(s, count, bound, terms);
        for r in 0..self.chains.len() {
            s.transpose(&mut terms[r]);
            if F::FLOAT_SCALE_PER_16 {
                s.transpose(&mut terms[FEW_ROWS + r]);
            }
            let mut acc = s.splat(0.0);
            for g in 0..count {
                acc = s.add(acc, terms[r][g]);
                if F::FLOAT_SCALE_PER_16 {
                    acc = s.add(acc, terms[FEW_ROWS + r][g]);
                }
            }
            let out = &mut out.row(r)[self.c..self.c + self.weights.rows()];
            add_chain(s, self.first == 0, acc, out);
        }
    }

    /// The terms of the chain's groups, for each weight row and activation row.
    #[inline(always)]
    fn set_terms<S: Simd, F: Packed>(&self, s: S, count: usize, bound: usize, terms: &mut Terms<S>) {
        let weights = &self.weights;
        // All scales before any product: a vector load right after the narrow stores it reads would wait for them.
        let (mut d, mut second) = ([[0u16; CHAIN_GROUPS]; LANES], [[0u16; CHAIN_GROUPS]; LANES]);
        for lane in 0..weights.rows() {
            let bytes = chain_bytes::<F>(weights.row(lane), self.first, count);
            chain_scales::<F>(bytes, count, &mut d[lane], &mut second[lane]);
        }
        for lane in 0..weights.rows() {
            let bytes = chain_bytes::<F>(weights.row(lane), self.first, count);
            // Sixteen rows at a time are too many streams for the processor to foresee.
            let next = bytes.as_ptr().wrapping_add(LANES * weights.row_bytes());
            for line in (0..bytes.len()).step_by(64) {
                s.prefetch(next.wrapping_add(line));
            }
            let codes = F::codes(s, bytes, count, bound);
            let d = F::scales(s, &d[lane]);
            let mut scales = [s.splat_i(0); 2];
            if F::SCALES > 0 {
                let integers = F::integers(s, bytes);
                for i in 0..F::SCALES {
                    scales[i] = s.load_i8(&integers.scales[i]);
                }
            }
            for (r, chain) in self.chains.iter().enumerate() {
                if F::FLOAT_SCALE_PER_16 {
                    let (d, d_a) = ([d, F::scales(s, &second[lane])], s.load(&chain.d));
                    let sums = half_sums::<S, F>(s, bound, &codes, chain);
                    for h in 0..2 {
                        terms[h * FEW_ROWS + r][lane] = s.mul(s.to_f(sums[h]), s.mul(d[h], d_a));
                    }
                    continue;
                }
                let isum = integer_sums::<S, F>(s, bound, &codes, &scales, chain);
                terms[r][lane] = s.mul(s.to_f(isum), s.mul(d, s.load(&chain.d)));
            }
        }
    }
}

/// Adds the sums of a chain to outputs, to zeros if it is the first.
#[inline(always)]
pub(super) fn add_chain<S: Simd>(s: S, first: bool, sums: S::F, out: &mut [f32]) {
    if first {
        out.fill(0.0);
    }
    if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
        s.store(s.add(s.load(out), sums), out);
    } else {
        s.store_first(s.add(s.load_first(out), sums), out);
    }
}

/// The integer sums of the first halves of the groups of a chain in quads, then of the last ones.
#[inline(always)]
fn half_sums<S: Simd, F: Packed>(s: S, bound: usize, codes: &[S::B; 8], chain: &Chain) -> [S::I; 2] {
    let zero = s.splat_i(0);
    let mut sums = [[zero; 4]; 2];
    for i in 0..bound / 2 {
        sums[i % 2][i / 2] = s.dot_bytes(F::SIGNED, zero, codes[i], s.load_b(&chain.q[i]));
    }
    let mut of_16 = [zero; 2];
    for h in 0..2 {
        of_16[h] = s.sub_i(s.sum_quads(sums[h]), s.load_i(&chain.bias[h]));
    }
    of_16
}

/// The integer sums of the groups of a chain, the first `bound` of sixteen.
#[inline(always)]
fn integer_sums<S: Simd, F: Packed>(
    s: S,
    bound: usize,
    codes: &[S::B; 8],
    scales: &[S::I; 2],
    chain: &Chain,
) -> S::I {
    let zero = s.splat_i(0);
    if F::QUADS {
        let mut sums = [zero; 4];
        for i in 0..bound / 4 {
            let first = s.dot_bytes(F::SIGNED, zero, codes[2 * i], s.load_b(&chain.q[2 * i]));
            sums[i] = s.dot_bytes(F::SIGNED, first, codes[2 * i + 1], s.load_b(&chain.q[2 * i + 1]));
        }
        let sums = s.sub_i(s.sum_quads(sums), s.load_i(&chain.bias[0]));
        return if F::SCALES == 1 { s.mul_i(sums, scales[0]) } else { sums };
    }
    if F::SCALES < 2 {
        let mut sums = [zero; 8];
        for i in 0..8 {
            sums[i] = s.dot_bytes(F::SIGNED, zero, codes[i], s.load_b(&chain.q[i]));
        }
        let sums = s.sub_i(s.sum_halves(sums), s.load_i(&chain.bias[0]));
        return if F::SCALES == 1 { s.mul_i(sums, scales[0]) } else { sums };
    }
    let mut of_16 = [zero; 2];
    for half in 0..2 {
        let mut sums = [zero; 4];
        for i in 0..4 {
            sums[i] = s.dot_bytes(F::SIGNED, zero, codes[4 * half + i], s.load_b(&chain.q[4 * half + i]));
        }
        let sums = s.sub_i(s.sum_quads(sums), s.load_i(&chain.bias[half]));
        of_16[half] = s.mul_i(sums, scales[half]);
    }
    s.sum_pairs(of_16[0], of_16[1])
}
