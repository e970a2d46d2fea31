//! Quantised weights against int8 activations.
//!
//! The sum of an output runs serially over its groups, so lanes are outputs: sixteen weight rows at a time. A panel holds
//! the codes of one chain (512 values) of those rows, decoded and interleaved four bytes by four bytes, so that one
//! activation word broadcast to all lanes meets sixteen weight rows and no horizontal sum is needed. Decoding costs the
//! same for every number of activation rows, the products after it do not depend on the block format.

use gguf::TensorType;

use super::simd::Simd;
use crate::quant::Format;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;
use crate::{CHAIN_VALUES, GROUP_VALUES};

/// Groups of a chain.
pub(super) const CHAIN_GROUPS: usize = CHAIN_VALUES / GROUP_VALUES;
/// Weight rows of a panel.
pub(super) const LANES: usize = 16;

/// How many integer scales a group of a format has: none, one for all its values, or one per 16.
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
        TensorType::Q4_K | TensorType::Q5_K => 1,
        _ => 2,
    }
}

/// What a panel holds, by format: codes are signed exactly where there are no minima.
trait Shape: Format {
    const SCALES: usize = integer_scales(Self::TYPE);
    const SIGNED: bool = !Self::HAS_MIN;
}

impl<F: Format> Shape for F {}

/// One chain of sixteen weight rows; every innermost index is the weight row.
#[repr(align(64))]
struct Panel {
    /// Codes as [`Simd::interleave`] gives them, eight words a group.
    codes: [[[u8; 64]; 8]; CHAIN_GROUPS],
    d: [[[f32; LANES]; 2]; CHAIN_GROUPS],
    min: [[f32; LANES]; CHAIN_GROUPS],
    s16: [[[i32; LANES]; 2]; CHAIN_GROUPS],
    m16: [[[i32; LANES]; 2]; CHAIN_GROUPS],
}

impl Panel {
    fn zeroed() -> Panel {
        Panel {
            codes: [[[0; 64]; 8]; CHAIN_GROUPS],
            d: [[[0.0; LANES]; 2]; CHAIN_GROUPS],
            min: [[0.0; LANES]; CHAIN_GROUPS],
            s16: [[[0; LANES]; 2]; CHAIN_GROUPS],
            m16: [[[0; LANES]; 2]; CHAIN_GROUPS],
        }
    }

    /// Decodes groups `first .. first + count` of up to sixteen rows. Lanes without a row keep what they have.
    #[inline(always)]
    fn fill<S: Simd, F: Shape>(&mut self, s: S, weights: &WeightRows<'_>, first: usize, count: usize) {
        // Two groups of sixteen rows.
        let mut codes = [[0u8; 64]; LANES];
        for g in (0..count).step_by(2) {
            for lane in 0..weights.rows() {
                let row = weights.row(lane);
                for i in g..(g + 2).min(count) {
                    let group = F::row_group(row, first + i);
                    let at = GROUP_VALUES * (i - g);
                    codes[lane][at..at + GROUP_VALUES].copy_from_slice(&group.q.map(|q| q as u8));
                    self.d[i][0][lane] = group.d[0];
                    if F::FLOAT_SCALE_PER_16 {
                        self.d[i][1][lane] = group.d[1];
                    }
                    for h in 0..2 {
                        if h < F::SCALES {
                            self.s16[i][h][lane] = group.s16[h];
                        }
                        if F::HAS_MIN && h < F::SCALES {
                            self.m16[i][h][lane] = group.m16[h];
                        }
                    }
                    if F::HAS_MIN {
                        self.min[i][lane] = group.min;
                    }
                }
            }
            let words = self.codes[g..g + 2].as_flattened_mut().try_into().expect("sixteen words");
            s.interleave(F::SIGNED, codes.each_ref(), words);
        }
    }
}

/// One chain of an activation row.
#[derive(Clone, Copy)]
struct Activations<'a> {
    q: &'a [[i8; 32]],
    d: &'a [f32],
    sum16: &'a [[i16; 2]],
}

/// See [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul_int8<S: Simd, F: Format>(
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
            let product = Product { panel: &panel, x, first, count, c, lanes: weights.rows() };
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
    x: &'a Int8Rows<'a>,
    /// Groups of the chain.
    first: usize,
    count: usize,
    /// Columns of the tile.
    c: usize,
    lanes: usize,
}

impl<'a> Product<'a> {
    #[inline(always)]
    fn rows<S: Simd, F: Shape, const R: usize>(&self, s: S, rows: &[u32], out: &mut Tile<'_>) {
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
    fn batch<S: Simd, F: Shape, const R: usize>(&self, s: S, rows: &[u32; R], r: usize, out: &mut Tile<'_>) {
        let activations = rows.map(|row| self.activations(row as usize));
        let sums = chain_sums::<S, F, R>(s, self.panel, self.count, &activations);
        for i in 0..R {
            let out = &mut out.row(r + i)[self.c..self.c + self.lanes];
            if self.first == 0 {
                out.fill(0.0);
            }
            if let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) {
                s.store(s.add(s.load(out), sums[i]), out);
            } else {
                s.store_first(s.add(s.load_first(out), sums[i]), out);
            }
        }
    }

    #[inline(always)]
    fn activations(&self, row: usize) -> Activations<'a> {
        let groups = self.x.k / GROUP_VALUES;
        let first = row * groups + self.first;
        Activations {
            q: &self.x.q.as_chunks().0[first..first + self.count],
            d: &self.x.d[first..first + self.count],
            sum16: &self.x.sum16.as_chunks().0[first..first + self.count],
        }
    }
}

/// The sums over one chain of sixteen weight rows (lanes) with each of R activation rows.
#[inline(always)]
fn chain_sums<S: Simd, F: Shape, const R: usize>(
    s: S,
    panel: &Panel,
    count: usize,
    activations: &[Activations<'_>; R],
) -> [S::F; R] {
    let mut acc = [s.splat(0.0); R];
    for g in 0..count {
        let (codes, _) = panel.codes[g].as_chunks::<4>();
        let d = [s.load(&panel.d[g][0]), s.load(&panel.d[g][1])];
        for r in 0..R {
            let d_a = s.splat(activations[r].d[g]);
            let sum16 = activations[r].sum16[g].map(i32::from);
            let (q, _) = activations[r].q[g].as_chunks::<16>();
            let bias = if F::SIGNED { -S::SIGNED_BIAS } else { 0 };
            if F::FLOAT_SCALE_PER_16 {
                for h in 0..2 {
                    let isum = s.dot16(F::SIGNED, s.splat_i(bias * sum16[h]), &codes[h], &q[h]);
                    acc[r] = s.add(acc[r], s.mul(s.to_f(isum), s.mul(d[h], d_a)));
                }
                continue;
            }
            let isum = if F::SCALES == 2 {
                let first = s.dot16(F::SIGNED, s.splat_i(bias * sum16[0]), &codes[0], &q[0]);
                let second = s.dot16(F::SIGNED, s.splat_i(bias * sum16[1]), &codes[1], &q[1]);
                let scaled = [s.load_i(&panel.s16[g][0]), s.load_i(&panel.s16[g][1])];
                s.add_i(s.mul_i(first, scaled[0]), s.mul_i(second, scaled[1]))
            } else {
                let isum = s.splat_i(bias * (sum16[0] + sum16[1]));
                let isum = s.dot16(F::SIGNED, isum, &codes[0], &q[0]);
                let isum = s.dot16(F::SIGNED, isum, &codes[1], &q[1]);
                if F::SCALES == 1 { s.mul_i(isum, s.load_i(&panel.s16[g][0])) } else { isum }
            };
            let mut t = s.mul(s.to_f(isum), s.mul(d[0], d_a));
            if F::HAS_MIN {
                let min = s.mul(s.load(&panel.min[g]), d_a);
                t = s.add(t, s.mul(minimum_sum::<S, F>(s, panel, g, sum16), min));
            }
            acc[r] = s.add(acc[r], t);
        }
    }
    acc
}

/// `f32(sum_i m16 * a(i))` of group g.
#[inline(always)]
fn minimum_sum<S: Simd, F: Shape>(s: S, panel: &Panel, g: usize, sum16: [i32; 2]) -> S::F {
    match F::SCALES {
        0 => s.splat((sum16[0] + sum16[1]) as f32),
        1 => s.to_f(s.mul_i(s.load_i(&panel.m16[g][0]), s.splat_i(sum16[0] + sum16[1]))),
        _ => {
            let first = s.mul_i(s.load_i(&panel.m16[g][0]), s.splat_i(sum16[0]));
            let second = s.mul_i(s.load_i(&panel.m16[g][1]), s.splat_i(sum16[1]));
            s.to_f(s.add_i(first, second))
        }
    }
}
