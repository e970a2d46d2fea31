//! The vector operations the kernels are written in.

/// Sixteen lanes of an instruction set. Holding a value proves that this CPU can run it.
///
/// Sixteen on both sets (two registers on AVX2), since the definitions sum in sixteen lanes. "First n" operations take
/// n below 16 and touch no memory beyond n values.
pub(super) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// True with 32 registers of 16 lanes: algorithms then keep more in flight.
    const WIDE: bool;
    /// What [`Simd::dot16`] wants subtracted from its sum per unit of activation sum when codes are signed.
    const SIGNED_BIAS: i32;

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; 16]) -> Self::F;
    fn store(self, x: Self::F, out: &mut [f32; 16]);
    /// The first `x.len()` lanes from `x`, the others 0.
    fn load_first(self, x: &[f32]) -> Self::F;
    fn store_first(self, x: Self::F, out: &mut [f32]);
    /// Widens bits of half precision.
    fn load_f16(self, x: &[u16; 16]) -> Self::F;
    fn load_f16_first(self, x: &[u16]) -> Self::F;
    /// Rounds to bits of half precision, to nearest, ties to even.
    fn store_f16(self, x: Self::F, out: &mut [u16; 16]);
    /// Little-endian f32, f16 and bfloat16 without alignment, as they lie in files.
    fn load_f32_bytes(self, x: &[u8; 64]) -> Self::F;
    fn load_f16_bytes(self, x: &[u8; 32]) -> Self::F;
    fn load_bf16_bytes(self, x: &[u8; 32]) -> Self::F;

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b + c` in the first n lanes, `c` in the others.
    fn fma_first(self, n: usize, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a + b` in the first n lanes, `a` in the others.
    fn add_first(self, n: usize, a: Self::F, b: Self::F) -> Self::F;
    /// `b` where `a` is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn negate(self, x: Self::F) -> Self::F;
    /// `x` where `x` is NaN, else `y`.
    fn keep_nan(self, x: Self::F, y: Self::F) -> Self::F;
    /// `(a cos - b sin, b cos + a sin)` for the eight pairs of adjacent lanes, without fused steps.
    fn rotate_pairs(self, x: Self::F, cos: &[f32; 8], sin: &[f32; 8]) -> Self::F;
    /// The sum in the definition's order: lanes `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, x: Self::F) -> f32;
    /// Lane i is `sum(x[i])`.
    fn sum_each(self, x: &[Self::F; 16]) -> Self::F;
    /// The largest lane; no lane is NaN.
    fn max_lane(self, x: Self::F) -> f32;

    fn splat_i(self, x: i32) -> Self::I;
    fn load_i(self, x: &[i32; 16]) -> Self::I;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Arithmetic shift right by one.
    fn halve_i(self, x: Self::I) -> Self::I;
    /// Nearest integers, ties to even.
    fn to_i(self, x: Self::F) -> Self::I;
    fn to_f(self, x: Self::I) -> Self::F;
    /// 2^x for x in -126..=127.
    fn power_of_two(self, x: Self::I) -> Self::F;
    /// The bits without the sign.
    fn magnitude_bits(self, x: Self::F) -> Self::I;
    fn max_lane_i(self, x: Self::I) -> i32;
    fn sum_lanes_i(self, x: Self::I) -> i32;
    /// The low byte of each lane.
    fn store_i8(self, x: Self::I, out: &mut [i8; 16]);

    /// Transposes 16 rows of 16 groups of four bytes: `out[j]` holds bytes `4 j .. 4 j + 4` of every row.
    /// Signed codes come out as [`Simd::dot16`] wants them.
    fn interleave(self, signed: bool, rows: [&[u8; 64]; 16], out: &mut [[u8; 64]; 16]);
    /// `acc` plus, in lane r, the product of the 16 codes of row r with the 16 activations, exact.
    ///
    /// Signed codes: plus `SIGNED_BIAS` times the sum of the activations. Unsigned codes: at most 31.
    /// Activations: -127..=127.
    fn dot16(self, signed: bool, acc: Self::I, codes: &[[u8; 64]; 4], activations: &[i8; 16]) -> Self::I;
}
