//! The vector operations the kernels are written in.

/// Sixteen lanes of an instruction set. Holding a value proves that this CPU can run it.
///
/// Sixteen on every set (two registers on AVX2, four on NEON), since the definitions sum in sixteen lanes. "First n" operations take
/// n below 16 and touch no memory beyond n values.
pub(super) trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixty-four bytes.
    type B: Copy;
    /// True with 32 registers of 16 lanes: algorithms then keep more in flight.
    const WIDE: bool;
    /// What [`Dots::dot16`] wants subtracted from its sum per unit of activation sum when codes are signed.
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
    /// Lanes whose numbers differ in the bit `stride`, 1, 2, 4 or 8, exchanged.
    fn swap_lanes(self, x: Self::F, stride: usize) -> Self::F;
    /// The sum in the definition's order: lanes `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
    fn sum(self, x: Self::F) -> f32;
    /// Lane i is `sum(x[i])`.
    #[inline(always)]
    fn sum_each(self, x: &[Self::F; 16]) -> Self::F {
        let mut halves = [x[0]; 8];
        for i in 0..8 {
            let first = i / 4 * 8 + i % 4;
            halves[i] = self.add_halves(x[first], x[first + 4]);
        }
        self.sum_each_half(&halves)
    }
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
    /// Signed codes come out as [`Dots::dot16`] wants them.
    fn interleave(self, signed: bool, rows: [&[u8; 64]; 16], out: &mut [[u8; 64]; 16]);
    /// Transposes 16 rows of 16 values.
    fn transpose(self, x: &mut [Self::F; 16]);
    fn load_i8(self, x: &[i8; 16]) -> Self::I;
    /// `(c - 8) * scale` of the low four bits c of each byte, then of the high four; `scale` is the same in all lanes.
    fn scaled_nibbles(self, x: &[u8; 16], scale: Self::F) -> [Self::F; 2];

    /// Asks for the cache line of an address, which need not be one of ours.
    fn prefetch(self, at: *const u8);
    fn zero_b(self) -> Self::B;
    fn load_b(self, x: &[u8; 64]) -> Self::B;
    fn store_b(self, x: Self::B, out: &mut [u8; 64]);
    /// Four times sixteen bytes.
    fn gather_b(self, x: [&[u8; 16]; 4]) -> Self::B;
    /// The low four bits of each byte, then the high four.
    fn nibbles(self, x: Self::B) -> [Self::B; 2];
    /// Two bits of each byte of `x`, from `shift` on, then the next two of each. `shift` is at most 4.
    fn two_bits(self, x: &[u8; 32], shift: i32) -> Self::B;
    /// `x | value` in the bytes whose bit of `mask` is set.
    fn with_mask(self, x: Self::B, mask: u64, value: u8) -> Self::B;
    /// `table[x]`, for bytes below 16.
    fn lookup(self, x: Self::B, table: &[i8; 16]) -> Self::B;
    /// The first halves of a and b, then the last halves.
    fn join_halves(self, a: Self::B, b: Self::B) -> [Self::B; 2];
    /// Signed codes as [`Simd::dot_bytes`] wants them.
    fn signed_b(self, x: Self::B) -> Self::B;
    /// `acc` plus, in lane i, the product of codes `4 i .. 4 i + 4` with as many activations, exact.
    ///
    /// Signed codes: plus `SIGNED_BIAS` times the sum of the activations. Unsigned codes: at most 63.
    fn dot_bytes(self, signed: bool, acc: Self::I, codes: Self::B, activations: Self::B) -> Self::I;
    /// Lane `4 i + q` is the sum of lanes `4 q .. 4 q + 4` of `x[i]`.
    fn sum_quads(self, x: [Self::I; 4]) -> Self::I;
    /// The sums of adjacent lanes of x, then of y.
    fn sum_pairs(self, x: Self::I, y: Self::I) -> Self::I;
    /// Widens bits of bfloat16.
    fn load_bf16(self, x: &[u16; 16]) -> Self::F;
    /// The bytes of eight words, lowest first.
    fn entries_8(self, x: [u64; 8]) -> Self::B;
    /// The bytes of sixteen words, lowest first.
    fn entries_4(self, x: [u32; 16]) -> Self::B;
    /// Four sign codes of seven bits in each word of 32 bits, lowest first, as four bytes; see [`Simd::high_signs`].
    fn even_signs(self, x: Self::B) -> Self::B;
    /// The upper four bits of each word of 32 bits.
    fn top_nibbles(self, x: Self::B) -> Self::I;
    /// The upper seven bits of 64 little-endian words of 16 bits, as bytes whose eighth bit makes the number of set bits
    /// even: eight signs each.
    fn high_signs(self, x: [&[u8; 64]; 2]) -> Self::B;
    /// The words of 32 bits at odd places, of the first 64 bytes, then of the second.
    fn odd_words(self, x: [&[u8; 64]; 2]) -> Self::B;
    /// Lane `2 i + h` is the sum of lanes `8 h .. 8 h + 8` of `x[i]`.
    #[inline(always)]
    fn sum_halves(self, x: [Self::I; 8]) -> Self::I {
        let [a, b, c, d, e, f, g, h] = x;
        self.sum_pairs(self.sum_quads([a, b, c, d]), self.sum_quads([e, f, g, h]))
    }
    /// In each quarter of 16 bytes pairs of a byte of a and one of b: of the first eight, then of the last eight.
    fn zip_bytes(self, a: Self::B, b: Self::B) -> [Self::B; 2];
    /// `-x` in the bytes whose bit of `mask` is set.
    fn negate_masked(self, x: Self::B, mask: u64) -> Self::B;
    /// In each quarter of 16 bytes the first eight of a, then the first eight of b; then the last eight of both.
    fn zip_eights(self, a: Self::B, b: Self::B) -> [Self::B; 2];
    /// Two bits each: four from every byte, lowest first.
    fn four_each(self, x: &[u8; 16]) -> Self::B;
    /// Digits and rests of bytes that are fractions `x / 256` to base 3: `3 x >> 8`, `3 x & 255`.
    fn ternary(self, x: Self::B) -> [Self::B; 2];
    /// Lanes `l` and `l + 8` of a added, then those of b: the first step of [`Simd::sum`] for both.
    fn add_halves(self, a: Self::F, b: Self::F) -> Self::F;
    /// The other steps of [`Simd::sum`]. The halves of `x[i]` give lanes i and i + 4, from `x[4]` on i + 4 and i + 8.
    fn sum_each_half(self, x: &[Self::F; 8]) -> Self::F;
}

/// An instruction set that sums four products of bytes at once.
pub(super) trait Dots: Simd {
    /// `acc` plus, in lane r, the product of the 16 codes of row r with the 16 activations, exact.
    ///
    /// Signed codes: plus `SIGNED_BIAS` times the sum of the activations. Unsigned codes: at most 63.
    /// Activations: -127..=127.
    fn dot16(self, signed: bool, acc: Self::I, codes: &[Self::B; 4], activations: &[[i8; 4]; 4]) -> Self::I;
}

/// Up to 16 values and zeros behind them: what a set without masks loads for "first n".
#[inline(always)]
pub(super) fn padded<T: Copy + Default>(x: &[T]) -> [T; 16] {
    let mut whole = [T::default(); 16];
    whole[..x.len()].copy_from_slice(x);
    whole
}
