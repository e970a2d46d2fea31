//! AVX2 with FMA and F16C: sixteen lanes are two registers.

use core::arch::asm;
use core::arch::x86_64::*;

use super::simd::{Simd, padded};

mod words;

/// Exists only where the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    /// # Safety
    ///
    /// The CPU has the features named above.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Avx2 {
        Avx2(())
    }
}

/// Lanes 0..8 and 8..16.
type F = [__m256; 2];
type I = [__m256i; 2];

/// All bits set in the first n of sixteen lanes.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> F {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        let n = _mm256_set1_epi32(n as i32);
        let low = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        let high = _mm256_cmpgt_epi32(n, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
        [_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)]
    }
}

impl Simd for Avx2 {
    type F = F;
    type I = I;
    type B = I;
    const WIDE: bool = false;
    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    fn load_first(self, x: &[f32]) -> F {
        self.load(&padded(x))
    }

    #[inline(always)]
    fn join_halves(self, a: I, b: I) -> [I; 2] {
        [[a[0], b[0]], [a[1], b[1]]]
    }

    #[inline(always)]
    fn signed_b(self, x: I) -> I {
        x
    }

    #[inline(always)]
    fn store_first(self, x: F, out: &mut [f32]) {
        let mut whole = [0.0; 16];
        self.store(x, &mut whole);
        out.copy_from_slice(&whole[..out.len()]);
    }

    #[inline(always)]
    fn load_f16_first(self, x: &[u16]) -> F {
        self.load_f16(&padded(x))
    }

    operations! {
        fn splat(self, x: f32) -> F { [_mm256_set1_ps(x); 2] }
        fn load(self, x: &[f32; 16]) -> F { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
        fn store(self, x: F, out: &mut [f32; 16]) -> () {
            _mm256_storeu_ps(out.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), x[1]);
        }
        fn load_f16(self, x: &[u16; 16]) -> F {
            let x: *const __m128i = x.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1)))]
        }
        fn store_f16(self, x: F, out: &mut [u16; 16]) -> () {
            let out: *mut __m128i = out.as_mut_ptr().cast();
            _mm_storeu_si128(out, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]));
            _mm_storeu_si128(out.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]));
        }
        fn load_f32_bytes(self, x: &[u8; 64]) -> F {
            let x: *const f32 = x.as_ptr().cast();
            [_mm256_loadu_ps(x), _mm256_loadu_ps(x.add(8))]
        }
        fn load_f16_bytes(self, x: &[u8; 32]) -> F {
            let x: *const __m128i = x.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(x)), _mm256_cvtph_ps(_mm_loadu_si128(x.add(1)))]
        }
        fn load_bf16_bytes(self, x: &[u8; 32]) -> F {
            let x: *const __m128i = x.as_ptr().cast();
            let mut out = [_mm256_setzero_ps(); 2];
            for h in 0..2 {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.add(h)));
                out[h] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
            }
            out
        }

        fn add(self, a: F, b: F) -> F { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(self, a: F, b: F) -> F { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(self, a: F, b: F) -> F { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(self, a: F, b: F) -> F { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn fma(self, a: F, b: F, c: F) -> F {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn fma_first(self, n: usize, a: F, b: F, c: F) -> F {
            let (mask, sum) = (first(n), self.fma(a, b, c));
            [_mm256_blendv_ps(c[0], sum[0], mask[0]), _mm256_blendv_ps(c[1], sum[1], mask[1])]
        }
        fn add_first(self, n: usize, a: F, b: F) -> F {
            let (mask, sum) = (first(n), self.add(a, b));
            [_mm256_blendv_ps(a[0], sum[0], mask[0]), _mm256_blendv_ps(a[1], sum[1], mask[1])]
        }
        fn max(self, a: F, b: F) -> F { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(self, a: F, b: F) -> F { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn negate(self, x: F) -> F {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_xor_ps(x[0], sign), _mm256_xor_ps(x[1], sign)]
        }
        fn keep_nan(self, x: F, y: F) -> F {
            let mut out = y;
            for h in 0..2 {
                out[h] = _mm256_blendv_ps(y[h], x[h], _mm256_cmp_ps::<_CMP_UNORD_Q>(x[h], x[h]));
            }
            out
        }
        fn rotate_pairs(self, x: F, cos: &[f32; 8], sin: &[f32; 8]) -> F {
            let mut out = x;
            let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
            for h in 0..2 {
                let cos = _mm256_castps128_ps256(_mm_loadu_ps(cos.as_ptr().add(4 * h)));
                let sin = _mm256_castps128_ps256(_mm_loadu_ps(sin.as_ptr().add(4 * h)));
                let straight = _mm256_mul_ps(x[h], _mm256_permutevar8x32_ps(cos, twice));
                let swapped = _mm256_permute_ps::<0b10_11_00_01>(x[h]);
                let crossed = _mm256_mul_ps(swapped, _mm256_permutevar8x32_ps(sin, twice));
                out[h] = _mm256_addsub_ps(straight, crossed);
            }
            out
        }
        fn swap_lanes(self, x: F, stride: usize) -> F {
            match stride {
                1 => [_mm256_permute_ps::<0b10_11_00_01>(x[0]), _mm256_permute_ps::<0b10_11_00_01>(x[1])],
                2 => [_mm256_permute_ps::<0b01_00_11_10>(x[0]), _mm256_permute_ps::<0b01_00_11_10>(x[1])],
                4 => [_mm256_permute2f128_ps::<1>(x[0], x[0]), _mm256_permute2f128_ps::<1>(x[1], x[1])],
                _ => [x[1], x[0]],
            }
        }
        fn sum(self, x: F) -> f32 {
            let x = _mm256_add_ps(x[0], x[1]);
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
        fn add_halves(self, a: F, b: F) -> F { [_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1])] }
        fn sum_each_half(self, x: &[F; 8]) -> F {
            [sum_each_8(&[x[0], x[1], x[2], x[3]]), sum_each_8(&[x[4], x[5], x[6], x[7]])]
        }
        fn max_lane(self, x: F) -> f32 {
            let x = _mm256_max_ps(x[0], x[1]);
            let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        }

        fn splat_i(self, x: i32) -> I { [_mm256_set1_epi32(x); 2] }
        fn load_i(self, x: &[i32; 16]) -> I {
            let x: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))]
        }
        fn add_i(self, a: I, b: I) -> I { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
        fn sub_i(self, a: I, b: I) -> I { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
        fn mul_i(self, a: I, b: I) -> I { [_mm256_mullo_epi32(a[0], b[0]), _mm256_mullo_epi32(a[1], b[1])] }
        fn max_i(self, a: I, b: I) -> I { [_mm256_max_epi32(a[0], b[0]), _mm256_max_epi32(a[1], b[1])] }
        fn halve_i(self, x: I) -> I { [_mm256_srai_epi32::<1>(x[0]), _mm256_srai_epi32::<1>(x[1])] }
        fn to_i(self, x: F) -> I { [_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])] }
        fn to_f(self, x: I) -> F { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
        fn power_of_two(self, x: I) -> F {
            let biased = self.add_i(x, self.splat_i(127));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased[0])),
             _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased[1]))]
        }
        fn magnitude_bits(self, x: F) -> I {
            let mask = _mm256_set1_epi32(0x7fff_ffff);
            [_mm256_and_si256(_mm256_castps_si256(x[0]), mask), _mm256_and_si256(_mm256_castps_si256(x[1]), mask)]
        }
        fn max_lane_i(self, x: I) -> i32 {
            let x = _mm256_max_epi32(x[0], x[1]);
            let x = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        }
        fn sum_lanes_i(self, x: I) -> i32 {
            let x = _mm256_add_epi32(x[0], x[1]);
            let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            let x = _mm_add_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
            _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x)))
        }
        fn store_i8(self, x: I, out: &mut [i8; 16]) -> () {
            let low_bytes = _mm256_set1_epi32(0xff);
            let words = _mm256_packus_epi32(_mm256_and_si256(x[0], low_bytes), _mm256_and_si256(x[1], low_bytes));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }

        fn interleave(self, _signed: bool, rows: [&[u8; 64]; 16], out: &mut [[u8; 64]; 16]) -> () {
            for h in 0..2 {
                for part in 0..2 {
                    let mut block = [_mm256_setzero_si256(); 8];
                    for i in 0..8 {
                        block[i] = _mm256_loadu_si256(rows[8 * h + i].as_ptr().add(32 * part).cast());
                    }
                    transpose(&mut block);
                    for j in 0..8 {
                        _mm256_storeu_si256(out[8 * part + j].as_mut_ptr().add(32 * h).cast(), block[j]);
                    }
                }
            }
        }
        fn transpose(self, x: &mut [F; 16]) -> () {
            let mut quadrants = [[[_mm256_setzero_si256(); 8]; 2]; 2];
            for i in 0..16 {
                for h in 0..2 {
                    quadrants[i / 8][h][i % 8] = _mm256_castps_si256(x[i][h]);
                }
            }
            for half in &mut quadrants {
                transpose(&mut half[0]);
                transpose(&mut half[1]);
            }
            for i in 0..16 {
                for h in 0..2 {
                    x[i][h] = _mm256_castsi256_ps(quadrants[h][i / 8][i % 8]);
                }
            }
        }
        fn scaled_nibbles(self, x: &[u8; 16], scale: F) -> [F; 2] {
            let (x, low_bits) = (_mm_loadu_si128(x.as_ptr().cast()), _mm_set1_epi8(15));
            let halves = [_mm_and_si128(x, low_bits), _mm_and_si128(_mm_srli_epi16::<4>(x), low_bits)];
            let mut out = [scale; 2];
            for h in 0..2 {
                let codes = _mm_sub_epi8(halves[h], _mm_set1_epi8(8));
                let codes = [_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes))];
                out[h] = self.mul(self.to_f(codes), scale);
            }
            out
        }
        fn load_i8(self, x: &[i8; 16]) -> I {
            let x = _mm_loadu_si128(x.as_ptr().cast());
            [_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(x))]
        }

        fn prefetch(self, at: *const u8) -> () {
            asm!("prefetcht1 [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags));
        }
        fn zero_b(self) -> I { [_mm256_setzero_si256(); 2] }
        fn load_b(self, x: &[u8; 64]) -> I {
            let x: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))]
        }
        fn store_b(self, x: I, out: &mut [u8; 64]) -> () {
            let out: *mut __m256i = out.as_mut_ptr().cast();
            _mm256_storeu_si256(out, x[0]);
            _mm256_storeu_si256(out.add(1), x[1]);
        }
        fn gather_b(self, x: [&[u8; 16]; 4]) -> I {
            let mut out = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                let low = _mm256_castsi128_si256(_mm_loadu_si128(x[2 * h].as_ptr().cast()));
                out[h] = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(x[2 * h + 1].as_ptr().cast()));
            }
            out
        }
        fn nibbles(self, x: I) -> [I; 2] {
            let low_bits = _mm256_set1_epi8(15);
            let mut out = [x; 2];
            for h in 0..2 {
                out[0][h] = _mm256_and_si256(x[h], low_bits);
                out[1][h] = _mm256_and_si256(_mm256_srli_epi16::<4>(x[h]), low_bits);
            }
            out
        }
        fn two_bits(self, x: &[u8; 32], shift: i32) -> I {
            let (x, bits) = (_mm256_loadu_si256(x.as_ptr().cast()), _mm256_set1_epi8(3));
            [
                _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(shift)), bits),
                _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(shift + 2)), bits),
            ]
        }
        fn with_mask(self, x: I, mask: u64, value: u8) -> I {
            let (set, value) = (set_bytes(mask), _mm256_set1_epi8(value as i8));
            let mut out = x;
            for h in 0..2 {
                out[h] = _mm256_or_si256(x[h], _mm256_and_si256(set[h], value));
            }
            out
        }
        fn lookup(self, x: I, table: &[i8; 16]) -> I {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, x[0]), _mm256_shuffle_epi8(table, x[1])]
        }
        fn dot_bytes(self, signed: bool, acc: I, codes: I, activations: I) -> I {
            let mut acc = acc;
            for h in 0..2 {
                let two = if signed {
                    let signed = _mm256_sign_epi8(activations[h], codes[h]);
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes[h]), signed)
                } else {
                    _mm256_maddubs_epi16(codes[h], activations[h])
                };
                acc[h] = _mm256_add_epi32(acc[h], _mm256_madd_epi16(two, _mm256_set1_epi16(1)));
            }
            acc
        }
        fn sum_quads(self, x: [I; 4]) -> I {
            // Quarters 0, 1 of x[i] are x[i][0], quarters 2, 3 are x[i][1].
            let low = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0][0], x[1][0]), _mm256_hadd_epi32(x[2][0], x[3][0]));
            let high = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0][1], x[1][1]), _mm256_hadd_epi32(x[2][1], x[3][1]));
            // Halves of low: quarter 0 of x[0..4], quarter 1 of x[0..4]. Wanted: lane 4 i + q.
            let (a, b) = (_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high));
            // a: quarters 0, 2; b: quarters 1, 3.
            let (first, second) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            // first: q01 of x[0], q01 of x[1] | q23 of x[0], q23 of x[1]
            [_mm256_permute4x64_epi64::<0b11_01_10_00>(first), _mm256_permute4x64_epi64::<0b11_01_10_00>(second)]
        }
        fn sum_pairs(self, x: I, y: I) -> I {
            let (x, y) = (_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(y[0], y[1]));
            [_mm256_permute4x64_epi64::<0b11_01_10_00>(x), _mm256_permute4x64_epi64::<0b11_01_10_00>(y)]
        }
        fn load_bf16(self, x: &[u16; 16]) -> F {
            let x: *const __m128i = x.as_ptr().cast();
            let mut out = [_mm256_setzero_ps(); 2];
            for h in 0..2 {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.add(h)));
                out[h] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
            }
            out
        }
        fn entries_8(self, x: [u64; 8]) -> I {
            // As floats, since only those are loaded into the upper half of a register by one instruction.
            let x = x.map(f64::from_bits);
            [
                _mm256_castpd_si256(_mm256_setr_pd(x[0], x[1], x[2], x[3])),
                _mm256_castpd_si256(_mm256_setr_pd(x[4], x[5], x[6], x[7])),
            ]
        }
        fn entries_4(self, x: [u32; 16]) -> I {
            let x = x.map(|x| x as i32);
            [
                _mm256_setr_epi32(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]),
                _mm256_setr_epi32(x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15]),
            ]
        }
        fn negate_masked(self, x: I, mask: u64) -> I {
            let set = set_bytes(mask);
            let mut out = x;
            for h in 0..2 {
                out[h] = _mm256_sub_epi8(_mm256_xor_si256(x[h], set[h]), set[h]);
            }
            out
        }
        fn even_signs(self, x: I) -> I {
            let mut out = x;
            for h in 0..2 {
                let mut sevens = _mm256_and_si256(x[h], _mm256_set1_epi32(0x7f));
                let second = _mm256_and_si256(_mm256_slli_epi32::<1>(x[h]), _mm256_set1_epi32(0x7f00));
                let third = _mm256_and_si256(_mm256_slli_epi32::<2>(x[h]), _mm256_set1_epi32(0x7f_0000));
                let fourth = _mm256_and_si256(_mm256_slli_epi32::<3>(x[h]), _mm256_set1_epi32(0x7f00_0000));
                sevens = _mm256_or_si256(sevens, second);
                out[h] = with_parity(_mm256_or_si256(sevens, _mm256_or_si256(third, fourth)));
            }
            out
        }
        fn high_signs(self, x: [&[u8; 64]; 2]) -> I {
            let mut out = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                let [a, b] = self.load_b(x[h]);
                let sevens = _mm256_packus_epi16(_mm256_srli_epi16::<9>(a), _mm256_srli_epi16::<9>(b));
                out[h] = with_parity(_mm256_permute4x64_epi64::<0b11_01_10_00>(sevens));
            }
            out
        }
        fn odd_words(self, x: [&[u8; 64]; 2]) -> I {
            let mut out = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                let [a, b] = self.load_b(x[h]);
                let words = _mm256_shuffle_ps::<0b11_01_11_01>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
                out[h] = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(words));
            }
            out
        }
        fn top_nibbles(self, x: I) -> I { [_mm256_srli_epi32::<28>(x[0]), _mm256_srli_epi32::<28>(x[1])] }
        fn sum_halves(self, x: [I; 8]) -> I {
            [sum_each_8_i([x[0], x[1], x[2], x[3]]), sum_each_8_i([x[4], x[5], x[6], x[7]])]
        }
        fn zip_bytes(self, a: I, b: I) -> [I; 2] {
            [
                [_mm256_unpacklo_epi8(a[0], b[0]), _mm256_unpacklo_epi8(a[1], b[1])],
                [_mm256_unpackhi_epi8(a[0], b[0]), _mm256_unpackhi_epi8(a[1], b[1])],
            ]
        }
        fn zip_eights(self, a: I, b: I) -> [I; 2] {
            [
                [_mm256_unpacklo_epi64(a[0], b[0]), _mm256_unpacklo_epi64(a[1], b[1])],
                [_mm256_unpackhi_epi64(a[0], b[0]), _mm256_unpackhi_epi64(a[1], b[1])],
            ]
        }
        fn four_each(self, x: &[u8; 16]) -> I {
            let mut out = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                let x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().add(8 * h).cast()));
                // Bits 4, 5 to 16; then 2, 3 to 8 and 6, 7 to 24.
                let x = _mm256_or_si256(x, _mm256_slli_epi32::<12>(x));
                let x = _mm256_or_si256(x, _mm256_slli_epi32::<6>(x));
                out[h] = _mm256_and_si256(x, _mm256_set1_epi8(3));
            }
            out
        }
        fn ternary(self, x: I) -> [I; 2] {
            let mut out = [x; 2];
            for h in 0..2 {
                // 3 x reaches 256 at 86, 512 at 171.
                let one = _mm256_cmpeq_epi8(_mm256_max_epu8(x[h], _mm256_set1_epi8(86)), x[h]);
                let two = _mm256_cmpeq_epi8(_mm256_max_epu8(x[h], _mm256_set1_epi8(171u8 as i8)), x[h]);
                out[0][h] = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(one, two));
                out[1][h] = _mm256_add_epi8(x[h], _mm256_add_epi8(x[h], x[h]));
            }
            out
        }
    }
}

/// All bits of the bytes whose bit of the mask is set.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn set_bytes(mask: u64) -> I {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        // Byte i of the mask to the eight bytes whose bits it holds.
        let spread =
            _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
        let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let mut out = [bits; 2];
        for h in 0..2 {
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((mask >> (32 * h)) as i32), spread);
            out[h] = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits);
        }
        out
    }
}

/// Bytes below 128, with the eighth bit set where the number of set bits was odd.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn with_parity(x: __m256i) -> __m256i {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        // Shifts cross bytes, but bit 0 takes in only its own.
        let parity = _mm256_xor_si256(x, _mm256_srli_epi16::<4>(x));
        let parity = _mm256_xor_si256(parity, _mm256_srli_epi16::<2>(parity));
        let parity = _mm256_xor_si256(parity, _mm256_srli_epi16::<1>(parity));
        let eighth = _mm256_and_si256(_mm256_slli_epi16::<7>(parity), _mm256_set1_epi8(-128));
        _mm256_or_si256(x, eighth)
    }
}

/// Lane `2 i + h` is the sum of `x[i][h]`.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn sum_each_8_i(x: [I; 4]) -> __m256i {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        // The halves of four[i] belong to register i of the eight and to register 4 + i.
        let mut four = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            let (a, b) = (x[i / 2][i % 2], x[2 + i / 2][i % 2]);
            let (same, crossed) = (_mm256_blend_epi32::<0xf0>(a, b), _mm256_permute2x128_si256::<0x21>(a, b));
            four[i] = _mm256_add_epi32(same, crossed);
        }
        _mm256_hadd_epi32(_mm256_hadd_epi32(four[0], four[1]), _mm256_hadd_epi32(four[2], four[3]))
    }
}

/// Transposes a matrix of 8 x 8 i32.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn transpose(m: &mut [__m256i; 8]) {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        // Within each 128-bit half of four rows: 4 x 4.
        for i in [0, 4] {
            let (ab_low, ab_high) =
                (_mm256_unpacklo_epi32(m[i], m[i + 1]), _mm256_unpackhi_epi32(m[i], m[i + 1]));
            let (cd_low, cd_high) =
                (_mm256_unpacklo_epi32(m[i + 2], m[i + 3]), _mm256_unpackhi_epi32(m[i + 2], m[i + 3]));
            m[i] = _mm256_unpacklo_epi64(ab_low, cd_low);
            m[i + 1] = _mm256_unpackhi_epi64(ab_low, cd_low);
            m[i + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
            m[i + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
        }
        for j in 0..4 {
            let (a, b) = (m[j], m[4 + j]);
            m[j] = _mm256_permute2x128_si256::<0x20>(a, b);
            m[4 + j] = _mm256_permute2x128_si256::<0x31>(a, b);
        }
    }
}

/// Lane i is the sum of the first of `x[i]`, lane `4 + i` that of the last: lanes `l + 4`, then `l + 2`, `l + 1`.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn sum_each_8(x: &[F; 4]) -> __m256 {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        // Halves of a[i] belong to the two of x[i].
        let mut a = [_mm256_setzero_ps(); 4];
        for i in 0..4 {
            let [u, v] = x[i];
            a[i] = _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(u, v), _mm256_permute2f128_ps::<0x31>(u, v));
        }
        let (u, v) = (sum_halves(a[0], a[1]), sum_halves(a[2], a[3]));
        _mm256_add_ps(_mm256_shuffle_ps::<0b10_00_10_00>(u, v), _mm256_shuffle_ps::<0b11_01_11_01>(u, v))
    }
}

/// In each half: lanes `l` and `l + 2` of u added, then those of v.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn sum_halves(u: __m256, v: __m256) -> __m256 {
    // SAFETY: AVX2, as the caller promises.
    unsafe {
        let (u, v) = (_mm256_castps_pd(u), _mm256_castps_pd(v));
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(u, v)), _mm256_castpd_ps(_mm256_unpackhi_pd(u, v)))
    }
}
