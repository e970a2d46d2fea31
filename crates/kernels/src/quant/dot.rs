//! The numeric definition of a quantised product. Vector versions meet it bit for bit.

use super::{ActRow, Format, FormatVisitor, GROUP_VALUES, Group, assert_row, with_format};
use gguf::TensorType;

/// Values in a chain: the running sum restarts after this many.
pub const CHAIN_VALUES: usize = 512;

/// Dot product of a weight row in block format `dtype` with a quantised activation row.
///
/// In IEEE f32, nearest even, no fused operation, for groups of 32 values in ascending order:
///
/// ```text
/// isum = sum_i s16 * q(i) * a(i)                  exact, i32
/// t    = f32(isum) * (d * d_a)
/// msum = sum_i m16 * a(i)                         exact, i32          only formats with minima
/// t    = t + f32(msum) * (min * d_a)                                  only formats with minima
/// acc  = acc + t
/// ```
///
/// `acc` starts at 0 and restarts every 512 values; the chains' sums are added in ascending order,
/// `total = ((c0 + c1) + c2) + ..`, the last chain may be shorter. NVFP4 has a float scale per 16 values: the two
/// halves of a group are two terms `t`, each added to `acc`. `q`, `s16`, `m16`, `d`, `min` are those of [`Group`].
///
/// Panics when `dtype` is not in [`super::FORMATS`] or the lengths of row and activations do not agree.
pub fn dot_row(dtype: TensorType, row: &[u8], act: &ActRow) -> f32 {
    match with_format(dtype, Dot { row, act }) {
        Ok(total) => total,
        Err(error) => panic!("{error}"),
    }
}

/// [`dot_row`] for a format known at compile time.
pub fn dot_format<F: Format>(row: &[u8], act: &ActRow) -> f32 {
    const CHAIN_GROUPS: usize = CHAIN_VALUES / GROUP_VALUES;
    assert_row::<F>(row, act.q.len());
    assert_eq!(act.d.len(), act.q.len() / GROUP_VALUES, "one activation scale per 32 values");
    let mut total = 0.0;
    for chain in (0..act.d.len()).step_by(CHAIN_GROUPS) {
        let mut acc = 0.0;
        for g in chain..act.d.len().min(chain + CHAIN_GROUPS) {
            let codes = &act.q[GROUP_VALUES * g..GROUP_VALUES * (g + 1)];
            acc = add_group::<F>(acc, &F::row_group(row, g), codes, act.d[g]);
        }
        total += acc;
    }
    total
}

/// `acc` and the terms of one group.
#[inline]
fn add_group<F: Format>(acc: f32, weights: &Group, a: &[i8], d_a: f32) -> f32 {
    let (a0, a1) = a.split_at(16);
    let product0 = weights.s16[0] * sum_products(&weights.q[..16], a0);
    let product1 = weights.s16[1] * sum_products(&weights.q[16..], a1);
    if F::FLOAT_SCALE_PER_16 {
        let acc = acc + product0 as f32 * (weights.d[0] * d_a);
        return acc + product1 as f32 * (weights.d[1] * d_a);
    }
    let mut t = (product0 + product1) as f32 * (weights.d[0] * d_a);
    if F::HAS_MIN {
        let msum = weights.m16[0] * sum(a0) + weights.m16[1] * sum(a1);
        t += msum as f32 * (weights.min * d_a);
    }
    acc + t
}

fn sum_products(q: &[i8], a: &[i8]) -> i32 {
    q.iter().zip(a).map(|(&q, &a)| i32::from(q) * i32::from(a)).sum()
}

fn sum(a: &[i8]) -> i32 {
    a.iter().map(|&a| i32::from(a)).sum()
}

struct Dot<'a> {
    row: &'a [u8],
    act: &'a ActRow<'a>,
}

impl FormatVisitor for Dot<'_> {
    type Output = f32;

    fn visit<F: Format>(self) -> f32 {
        dot_format::<F>(self.row, self.act)
    }
}
