//! Products with many activation rows, through panels of decoded weights.
//!
//! A panel holds the codes of one chain of sixteen weight rows, interleaved four bytes by four bytes, so that one
//! activation word broadcast to all lanes meets sixteen weight rows and no horizontal sum is needed. Decoding costs the
//! same for every number of activation rows; the products after it depend on a format's [`Shape`] only.

use super::few_rows::add_chain;
use super::matmul_int8::{CHAIN_GROUPS, LANES, Shape, bias};
use super::packed::{Packed, chain_bytes, chain_scales};
use super::simd::{Dots, Simd};
use crate::GROUP_VALUES;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;

/// One chain of sixteen weight rows; every innermost index is the weight row.
#[repr(align(64))]
pub(super) struct Panel {
    /// Codes as [`Simd::interleave`] gives them: in quads vector by vector, else eight words a group.
    codes: [[u8; 64]; 8 * CHAIN_GROUPS],
    d: [[[f32; LANES]; 2]; CHAIN_GROUPS],
    min: [[f32; LANES]; CHAIN_GROUPS],
    s16: [[[i32; LANES]; 2]; CHAIN_GROUPS],
    m16: [[[i32; LANES]; 2]; CHAIN_GROUPS],
}

impl Panel {
    fn zeroed() -> Panel {
        Panel {
            codes: [[0; 64]; 8 * CHAIN_GROUPS],
            d: [[[0.0; LANES]; 2]; CHAIN_GROUPS],
            min: [[0.0; LANES]; CHAIN_GROUPS],
            s16: [[[0; LANES]; 2]; CHAIN_GROUPS],
            m16: [[[0; LANES]; 2]; CHAIN_GROUPS],
        }
    }

    /// Decodes groups `first .. first + count` of up to sixteen rows. Lanes without a row keep what they have.
    #[inline(always)]
    fn fill<S: Simd, F: Packed>(&mut self, s: S, weights: &WeightRows<'_>, first: usize, count: usize) {
        let mut codes = [[[0u8; 64]; LANES]; 8];
        let (mut d, mut second) = ([[0u16; CHAIN_GROUPS]; LANES], [[0u16; CHAIN_GROUPS]; LANES]);
        for lane in 0..weights.rows() {
            let chain = chain_bytes::<F>(weights.row(lane), first, count);
            for (vector, codes) in F::codes(s, chain, count, CHAIN_GROUPS).into_iter().zip(&mut codes) {
                s.store_b(vector, &mut codes[lane]);
            }
            chain_scales::<F>(chain, count, &mut d[lane], &mut second[lane]);
            if F::SCALES > 0 {
                let integers = F::integers(s, chain);
                for g in 0..count {
                    for h in 0..F::SCALES {
                        // One array of sixteen groups, or one for each block.
                        let (array, i) = if F::SCALES == 1 { (0, g) } else { (g / 8, 2 * (g % 8) + h) };
                        self.s16[g][h][lane] = i32::from(integers.scales[array][i]);
                        if F::HAS_MIN {
                            self.m16[g][h][lane] = i32::from(integers.minima[array][i]);
                        }
                    }
                }
            }
        }
        for (codes, words) in codes.iter().zip(self.codes.as_chunks_mut().0) {
            // The codes are encoded already.
            s.interleave(false, codes.each_ref(), words);
        }
        let d = transposed::<S, F>(s, &d);
        for g in 0..count {
            s.store(d[g], &mut self.d[g][0]);
        }
        if F::HAS_MIN {
            let min = transposed::<S, F>(s, &second);
            for g in 0..count {
                s.store(min[g], &mut self.min[g]);
            }
        }
        if F::FLOAT_SCALE_PER_16 {
            let d = transposed::<S, F>(s, &second);
            for g in 0..count {
                s.store(d[g], &mut self.d[g][1]);
            }
        }
    }
}

#[inline(always)]
pub(super) fn transposed<S: Simd, F: Packed>(s: S, bits: &[[u16; 16]; 16]) -> [S::F; 16] {
    let mut out = [s.splat(0.0); 16];
    for i in 0..16 {
        out[i] = F::scales(s, &bits[i]);
    }
    s.transpose(&mut out);
    out
}

/// See [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul<S: Dots, F: Packed>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    assert!(rows.len() == out.rows() && weights.rows() == out.columns() && weights.k == x.k);
    let mut panel = Panel::zeroed();
    let groups = x.k / GROUP_VALUES;
    for c in (0..out.columns()).step_by(LANES) {
        let weights = weights.slice(c, LANES.min(out.columns() - c));
        for first in (0..groups).step_by(CHAIN_GROUPS) {
            let count = CHAIN_GROUPS.min(groups - first);
            panel.fill::<S, F>(s, &weights, first, count);
            let product =
                Product { panel: &panel, quads: F::QUADS, x, first, count, c, lanes: weights.rows() };
            if S::WIDE {
                product.rows::<S, F, 8>(s, rows, out);
            } else {
                product.rows::<S, F, 2>(s, rows, out);
            }
        }
    }
}

/// One panel against activation rows.
struct Product<'a> {
    panel: &'a Panel,
    quads: bool,
    x: &'a Int8Rows<'a>,
    /// Groups of the chain.
    first: usize,
    count: usize,
    /// Columns of the tile.
    c: usize,
    lanes: usize,
}

/// One chain of an activation row.
#[derive(Clone, Copy)]
struct Chain<'a> {
    q: &'a [[i8; 32]],
    d: &'a [f32],
    /// Sums of codes, per 16.
    sum16: [[i32; 2]; CHAIN_GROUPS],
    /// Per 16, or per group in the first of two: what the sum of products starts from to end without bias.
    start: [[i32; 2]; CHAIN_GROUPS],
    /// Sums of codes per group, as floats.
    sums: [f32; CHAIN_GROUPS],
}

impl<'a> Product<'a> {
    #[inline(always)]
    fn rows<S: Dots, F: Shape, const R: usize>(&self, s: S, rows: &[u32], out: &mut Tile<'_>) {
        let (batches, rest) = rows.as_chunks::<R>();
        for (b, batch) in batches.iter().enumerate() {
            self.batch::<S, F, R>(s, batch, b * R, out);
        }
        for (r, row) in rest.iter().enumerate() {
            self.batch::<S, F, 1>(s, std::array::from_ref(row), batches.len() * R + r, out);
        }
    }

    /// Adds the chain to R rows of the tile, `r` on.
    #[inline(always)]
    fn batch<S: Dots, F: Shape, const R: usize>(&self, s: S, rows: &[u32; R], r: usize, out: &mut Tile<'_>) {
        let mut chains = [Chain {
            q: &[],
            d: &[],
            sum16: [[0; 2]; CHAIN_GROUPS],
            start: [[0; 2]; CHAIN_GROUPS],
            sums: [0.0; CHAIN_GROUPS],
        }; R];
        // The usual case with its bounds known.
        let sums = if self.count == CHAIN_GROUPS {
            self.set_chains::<S, F, R>(rows, CHAIN_GROUPS, &mut chains);
            self.chain_sums::<S, F, R>(s, CHAIN_GROUPS, &chains)
        } else {
            self.set_chains::<S, F, R>(rows, self.count, &mut chains);
            self.chain_sums::<S, F, R>(s, self.count, &chains)
        };
        for i in 0..R {
            let out = &mut out.row(r + i)[self.c..self.c + self.lanes];
            add_chain(s, self.first == 0, sums[i], out);
        }
    }

    #[inline(always)]
    fn set_chains<S: Simd, F: Shape, const R: usize>(
        &self,
        rows: &[u32; R],
        count: usize,
        chains: &mut [Chain<'a>; R],
    ) {
        let bias = bias::<S, F>();
        let per_16 = F::SCALES == 2 || F::FLOAT_SCALE_PER_16;
        for (chain, &row) in chains.iter_mut().zip(rows) {
            let first = row as usize * (self.x.k / GROUP_VALUES) + self.first;
            chain.q = &self.x.q.as_chunks().0[first..first + count];
            chain.d = &self.x.d[first..first + count];
            let sum16 = &self.x.sum16.as_chunks::<2>().0[first..first + count];
            for g in 0..count {
                let sum16 = [i32::from(sum16[g][0]), i32::from(sum16[g][1])];
                let sum = sum16[0] + sum16[1];
                chain.start[g] = if per_16 { [-bias * sum16[0], -bias * sum16[1]] } else { [-bias * sum, 0] };
                chain.sum16[g] = sum16;
                chain.sums[g] = sum as f32;
            }
        }
    }

    /// Codes of half h of group g.
    #[inline(always)]
    fn codes<S: Simd>(&self, s: S, g: usize, h: usize) -> [S::B; 4] {
        let word = if self.quads { g / 4 * 32 + 16 * h + g % 4 * 4 } else { 8 * g + 4 * h };
        let words: &[[u8; 64]; 4] = &self.panel.codes.as_chunks().0[word / 4];
        [s.load_b(&words[0]), s.load_b(&words[1]), s.load_b(&words[2]), s.load_b(&words[3])]
    }

    /// The sums over the chain of sixteen weight rows (lanes) with each of R activation rows, at most eight.
    #[inline(always)]
    fn chain_sums<S: Dots, F: Shape, const R: usize>(
        &self,
        s: S,
        count: usize,
        chains: &[Chain<'_>; R],
    ) -> [S::F; R] {
        const { assert!(R <= 8) };
        let mut acc = [s.splat(0.0); R];
        for g in 0..count {
            let group = Group {
                codes: [self.codes(s, g, 0), self.codes(s, g, 1)],
                d: [s.load(&self.panel.d[g][0]), s.load(&self.panel.d[g][1])],
                min: s.load(&self.panel.min[g]),
                s16: &self.panel.s16[g],
                m16: &self.panel.m16[g],
            };
            // Unrolled by hand, so that the sums stay in registers.
            macro_rules! add_to {
                ($($r:literal)*) => {$(
                    if $r < R {
                        acc[$r] = group.add_to::<F>(s, acc[$r], g, &chains[$r]);
                    }
                )*};
            }
            add_to!(0 1 2 3 4 5 6 7);
        }
        acc
    }
}

/// A group of sixteen weight rows.
struct Group<'a, S: Dots> {
    codes: [[S::B; 4]; 2],
    d: [S::F; 2],
    min: S::F,
    s16: &'a [[i32; LANES]; 2],
    m16: &'a [[i32; LANES]; 2],
}

impl<S: Dots> Group<'_, S> {
    /// `acc` and the terms of the group with group g of an activation row.
    #[inline(always)]
    fn add_to<F: Shape>(&self, s: S, acc: S::F, g: usize, chain: &Chain<'_>) -> S::F {
        let d_a = s.splat(chain.d[g]);
        let (q, _) = chain.q[g].as_chunks::<16>();
        let first = s.dot16(F::SIGNED, s.splat_i(chain.start[g][0]), &self.codes[0], &q[0]);
        if F::FLOAT_SCALE_PER_16 {
            let second = s.dot16(F::SIGNED, s.splat_i(chain.start[g][1]), &self.codes[1], &q[1]);
            let acc = s.add(acc, s.mul(s.to_f(first), s.mul(self.d[0], d_a)));
            return s.add(acc, s.mul(s.to_f(second), s.mul(self.d[1], d_a)));
        }
        let isum = if F::SCALES == 2 {
            let second = s.dot16(F::SIGNED, s.splat_i(chain.start[g][1]), &self.codes[1], &q[1]);
            s.add_i(s.mul_i(first, s.load_i(&self.s16[0])), s.mul_i(second, s.load_i(&self.s16[1])))
        } else {
            let isum = s.dot16(F::SIGNED, first, &self.codes[1], &q[1]);
            if F::SCALES == 1 { s.mul_i(isum, s.load_i(&self.s16[0])) } else { isum }
        };
        let mut t = s.mul(s.to_f(isum), s.mul(self.d[0], d_a));
        if F::HAS_MIN {
            t = s.add(t, s.mul(self.minimum_sum::<F>(s, g, chain), s.mul(self.min, d_a)));
        }
        s.add(acc, t)
    }

    /// `f32(sum_i m16 * a(i))`; the product of a sum of 32 codes and an m16 below 64 is exact as a float, too.
    #[inline(always)]
    fn minimum_sum<F: Shape>(&self, s: S, g: usize, chain: &Chain<'_>) -> S::F {
        match F::SCALES {
            0 => s.splat(chain.sums[g]),
            1 => s.mul(s.to_f(s.load_i(&self.m16[0])), s.splat(chain.sums[g])),
            _ => {
                let first = s.mul_i(s.load_i(&self.m16[0]), s.splat_i(chain.sum16[g][0]));
                s.to_f(s.add_i(first, s.mul_i(s.load_i(&self.m16[1]), s.splat_i(chain.sum16[g][1]))))
            }
        }
    }
}
