//! AVX-512 with VNNI: sixteen lanes are one register.

use core::arch::asm;
use core::arch::x86_64::*;

use super::lie::Rows;
use super::simd::{Dots, Simd};
use super::words::Words;

/// Exists only where the CPU has AVX2, FMA, F16C and AVX-512 F, BW, VL, DQ, VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

impl Avx512 {
    /// # Safety
    ///
    /// The CPU has the features named above.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Avx512 {
        Avx512(())
    }
}

/// The first n of sixteen lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n < 16);
    ((1u32 << n) - 1) as __mmask16
}

impl Dots for Avx512 {
    operations! {
        fn dot16(self, _signed: bool, acc: __m512i, codes: &[__m512i; 4], activations: &[[i8; 4]; 4]) -> __m512i {
            let mut acc = acc;
            for j in 0..4 {
                acc = _mm512_dpbusd_epi32(acc, codes[j], _mm512_set1_epi32(i32::from_ne_bytes(activations[j].map(|a| a as u8))));
            }
            acc
        }
    }
}

impl Words for Avx512 {
    operations! {
        fn transposed_words(self, rows: &Rows<'_>, at: usize) -> [__m512i; 4] {
            let mut x = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                // Rows i, 4 + i, 8 + i, 12 + i. By halves: where registers of 512 bits are loaded in two steps, an insertion
                // into one takes both whatever it loads.
                let mut halves = [_mm256_setzero_si256(); 2];
                for h in 0..2 {
                    let low = _mm_loadu_si128(rows.row::<16>(2 * h, i, at).cast());
                    let high = _mm_loadu_si128(rows.row::<16>(2 * h + 1, i, at).cast());
                    halves[h] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
                }
                x[i] = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves[0]), halves[1]);
            }
            let (low01, high01) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
            let (low23, high23) = (_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
            [
                _mm512_unpacklo_epi64(low01, low23),
                _mm512_unpackhi_epi64(low01, low23),
                _mm512_unpacklo_epi64(high01, high23),
                _mm512_unpackhi_epi64(high01, high23),
            ]
        }
        fn straddling(self, a: __m512i, b: __m512i) -> __m512i {
            _mm512_or_si512(_mm512_srli_epi32::<16>(a), _mm512_slli_epi32::<16>(b))
        }
        fn floats_of_low(self, x: __m512i) -> __m512 { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)) }
        fn floats_of_high(self, x: __m512i) -> __m512 {
            _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(x)))
        }
        fn bits(self, x: __m512i, shift: i32, mask: u8) -> __m512i {
            let count = _mm_cvtsi32_si128(shift.abs());
            let moved = if shift < 0 { _mm512_sll_epi16(x, count) } else { _mm512_srl_epi16(x, count) };
            _mm512_and_si512(moved, _mm512_set1_epi8(mask as i8))
        }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn sub_bytes(self, a: __m512i, b: u8) -> __m512i { _mm512_sub_epi8(a, _mm512_set1_epi8(b as i8)) }
        fn spread(self, x: __m512i, byte: usize) -> __m512i { pick(x, [byte as u8; 4]) }
        fn with_fifth_bits(self, codes: [__m512i; 4], high: __m512i, h: usize) -> [__m512i; 4] {
            let (low, sixteen) = (_mm512_set1_epi32(0x0804_0201), _mm512_set1_epi8(16));
            let mut out = codes;
            for j in 0..4 {
                // A byte has the bits of two words of codes.
                let bits = if j % 2 == 0 { low } else { _mm512_slli_epi32::<4>(low) };
                let set = _mm512_test_epi8_mask(self.spread(high, 2 * h + j / 2), bits);
                out[j] = _mm512_mask_add_epi8(codes[j], set, codes[j], sixteen);
            }
            out
        }
        fn scales(self, x: __m512i, byte: usize) -> __m512i { pick(x, [byte as u8, ZERO, ZERO, ZERO]) }
        fn scales_signed(self, x: __m512i, byte: usize) -> __m512i {
            _mm512_srai_epi32::<24>(_mm512_sll_epi32(x, _mm_cvtsi32_si128(24 - 8 * byte as i32)))
        }
        fn load_scales(self, x: &[i16; 16]) -> __m512i {
            _mm512_cvtepi16_epi32(_mm256_loadu_si256(x.as_ptr().cast()))
        }
        fn pairs(self, x: __m512i, bytes: [usize; 2]) -> __m512i {
            pick(x, [bytes[0] as u8, ZERO, bytes[1] as u8, ZERO])
        }
        fn pairs_signed(self, x: __m512i, bytes: [usize; 2], shift: i32) -> __m512i {
            let high = pick(x, [ZERO, bytes[0] as u8, ZERO, bytes[1] as u8]);
            _mm512_sra_epi16(high, _mm_cvtsi32_si128(8 - shift))
        }
        fn load_pairs(self, x: &[i16; 32]) -> __m512i { _mm512_loadu_si512(x.as_ptr().cast()) }
        fn splat_pair(self, x: i16) -> __m512i { _mm512_set1_epi16(x) }
        fn pair_products(self, pairs: __m512i, x: &[i16; 2]) -> __m512i {
            _mm512_madd_epi16(pairs, _mm512_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()))
        }
    }
}

/// What [`pick`] makes a zero of.
const ZERO: u8 = 0x80;

/// These bytes of each word.
///
/// # Safety
///
/// The CPU has AVX-512 F and BW.
#[inline(always)]
unsafe fn pick(x: __m512i, bytes: [u8; 4]) -> __m512i {
    // SAFETY: AVX-512 F and BW, as the caller promises.
    unsafe {
        let words = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
        _mm512_shuffle_epi8(x, _mm512_or_si512(words, _mm512_set1_epi32(i32::from_le_bytes(bytes))))
    }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const WIDE: bool = true;
    // VPDPBUSD multiplies unsigned by signed bytes, so signed codes are stored plus 128.
    const SIGNED_BIAS: i32 = 128;

    operations! {
        fn splat(self, x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(self, x: &[f32; 16]) -> __m512 { _mm512_loadu_ps(x.as_ptr()) }
        fn store(self, x: __m512, out: &mut [f32; 16]) -> () { _mm512_storeu_ps(out.as_mut_ptr(), x) }
        fn load_first(self, x: &[f32]) -> __m512 { _mm512_maskz_loadu_ps(first(x.len()), x.as_ptr()) }
        fn store_first(self, x: __m512, out: &mut [f32]) -> () {
            _mm512_mask_storeu_ps(out.as_mut_ptr(), first(out.len()), x)
        }
        fn load_f16(self, x: &[u16; 16]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn load_f16_first(self, x: &[u16]) -> __m512 {
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(x.len()), x.as_ptr().cast()))
        }
        fn store_f16(self, x: __m512, out: &mut [u16; 16]) -> () {
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x))
        }
        fn load_f32_bytes(self, x: &[u8; 64]) -> __m512 { _mm512_loadu_ps(x.as_ptr().cast()) }
        fn load_f16_bytes(self, x: &[u8; 32]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn load_bf16_bytes(self, x: &[u8; 32]) -> __m512 {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }

        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn fma_first(self, n: usize, a: __m512, b: __m512, c: __m512) -> __m512 {
            _mm512_mask3_fmadd_ps(a, b, c, first(n))
        }
        fn add_first(self, n: usize, a: __m512, b: __m512) -> __m512 { _mm512_mask_add_ps(a, first(n), a, b) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn negate(self, x: __m512) -> __m512 { _mm512_xor_ps(x, _mm512_set1_ps(-0.0)) }
        fn keep_nan(self, x: __m512, y: __m512) -> __m512 {
            _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x), x)
        }
        fn rotate_pairs(self, x: __m512, cos: &[f32; 8], sin: &[f32; 8]) -> __m512 {
            let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
            let cos = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos.as_ptr())));
            let sin = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin.as_ptr())));
            let straight = _mm512_mul_ps(x, cos);
            let crossed = _mm512_mul_ps(_mm512_permute_ps::<0b10_11_00_01>(x), sin);
            _mm512_mask_sub_ps(_mm512_add_ps(straight, crossed), 0x5555, straight, crossed)
        }
        fn swap_lanes(self, x: __m512, stride: usize) -> __m512 {
            match stride {
                1 => _mm512_permute_ps::<0b10_11_00_01>(x),
                2 => _mm512_permute_ps::<0b01_00_11_10>(x),
                4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(x, x),
                _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(x, x),
            }
        }
        fn sum(self, x: __m512) -> f32 {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
        fn add_halves(self, a: __m512, b: __m512) -> __m512 {
            _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
            )
        }
        fn sum_each_half(self, x: &[__m512; 8]) -> __m512 { sum_each_half(x) }
        fn max_lane(self, x: __m512) -> f32 { _mm512_reduce_max_ps(x) }

        fn splat_i(self, x: i32) -> __m512i { _mm512_set1_epi32(x) }
        fn load_i(self, x: &[i32; 16]) -> __m512i { _mm512_loadu_epi32(x.as_ptr()) }
        fn add_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        fn sub_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        fn mul_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_mullo_epi32(a, b) }
        fn max_i(self, a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }
        fn halve_i(self, x: __m512i) -> __m512i { _mm512_srai_epi32::<1>(x) }
        fn to_i(self, x: __m512) -> __m512i { _mm512_cvtps_epi32(x) }
        fn to_f(self, x: __m512i) -> __m512 { _mm512_cvtepi32_ps(x) }
        fn power_of_two(self, x: __m512i) -> __m512 {
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(x, _mm512_set1_epi32(127))))
        }
        fn magnitude_bits(self, x: __m512) -> __m512i {
            _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff))
        }
        fn max_lane_i(self, x: __m512i) -> i32 { _mm512_reduce_max_epi32(x) }
        fn sum_lanes_i(self, x: __m512i) -> i32 { _mm512_reduce_add_epi32(x) }
        fn store_i8(self, x: __m512i, out: &mut [i8; 16]) -> () {
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x))
        }

        fn interleave(self, signed: bool, rows: [&[u8; 64]; 16], out: &mut [[u8; 64]; 16]) -> () {
            let bias = _mm512_set1_epi8(if signed { -128 } else { 0 });
            let mut columns = [_mm512_setzero_si512(); 16];
            for i in 0..16 {
                columns[i] = _mm512_xor_si512(_mm512_loadu_si512(rows[i].as_ptr().cast()), bias);
            }
            transpose(&mut columns);
            for j in 0..16 {
                _mm512_storeu_si512(out[j].as_mut_ptr().cast(), columns[j]);
            }
        }
        fn transpose(self, x: &mut [__m512; 16]) -> () {
            let mut bits = [_mm512_setzero_si512(); 16];
            for i in 0..16 {
                bits[i] = _mm512_castps_si512(x[i]);
            }
            transpose(&mut bits);
            for i in 0..16 {
                x[i] = _mm512_castsi512_ps(bits[i]);
            }
        }
        fn load_i8(self, x: &[i8; 16]) -> __m512i { _mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())) }
        fn scaled_nibbles(self, x: &[u8; 16], scale: __m512) -> [__m512; 2] {
            // A lookup takes the low four bits of a lane and leaves the others.
            let codes = _mm512_setr_ps(-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0);
            let table = _mm512_mul_ps(codes, scale);
            let x = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            [_mm512_permutexvar_ps(x, table), _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(x), table)]
        }

        fn prefetch(self, at: *const u8) -> () {
            asm!("prefetcht1 [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags));
        }
        fn zero_b(self) -> __m512i { _mm512_setzero_si512() }
        fn load_b(self, x: &[u8; 64]) -> __m512i { _mm512_loadu_si512(x.as_ptr().cast()) }
        fn store_b(self, x: __m512i, out: &mut [u8; 64]) -> () { _mm512_storeu_si512(out.as_mut_ptr().cast(), x) }
        fn gather_b(self, x: [&[u8; 16]; 4]) -> __m512i {
            let out = _mm512_castsi128_si512(_mm_loadu_si128(x[0].as_ptr().cast()));
            let out = _mm512_inserti32x4::<1>(out, _mm_loadu_si128(x[1].as_ptr().cast()));
            let out = _mm512_inserti32x4::<2>(out, _mm_loadu_si128(x[2].as_ptr().cast()));
            _mm512_inserti32x4::<3>(out, _mm_loadu_si128(x[3].as_ptr().cast()))
        }
        fn nibbles(self, x: __m512i) -> [__m512i; 2] {
            let low_bits = _mm512_set1_epi8(15);
            [_mm512_and_si512(x, low_bits), _mm512_and_si512(_mm512_srli_epi16::<4>(x), low_bits)]
        }
        fn two_bits(self, x: &[u8; 32], shift: i32) -> __m512i {
            let x = _mm512_broadcast_i64x4(_mm256_loadu_si256(x.as_ptr().cast()));
            let shifts = _mm512_inserti64x4::<1>(_mm512_set1_epi16(shift as i16), _mm256_set1_epi16(shift as i16 + 2));
            _mm512_and_si512(_mm512_srlv_epi16(x, shifts), _mm512_set1_epi8(3))
        }
        fn with_mask(self, x: __m512i, mask: u64, value: u8) -> __m512i {
            _mm512_or_si512(x, _mm512_maskz_set1_epi8(mask, value as i8))
        }
        fn lookup(self, x: __m512i, table: &[i8; 16]) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x)
        }
        fn join_halves(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_inserti64x4::<1>(a, _mm512_castsi512_si256(b)), _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b)]
        }
        fn signed_b(self, x: __m512i) -> __m512i { _mm512_xor_si512(x, _mm512_set1_epi8(-128)) }
        fn dot_bytes(self, _signed: bool, acc: __m512i, codes: __m512i, activations: __m512i) -> __m512i {
            _mm512_dpbusd_epi32(acc, codes, activations)
        }
        fn sum_quads(self, x: [__m512i; 4]) -> __m512i {
            let mut pairs = [_mm512_setzero_si512(); 2];
            for i in 0..2 {
                let (u, v) = (x[2 * i], x[2 * i + 1]);
                pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(u, v), _mm512_unpackhi_epi64(u, v));
            }
            let (u, v) = (_mm512_castsi512_ps(pairs[0]), _mm512_castsi512_ps(pairs[1]));
            // Lane 4 q + i is the sum of quarter q of x[i].
            let sums = _mm512_add_epi32(
                _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(u, v)),
                _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(u, v)),
            );
            _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums)
        }
        fn sum_pairs(self, x: __m512i, y: __m512i) -> __m512i {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            _mm512_add_epi32(_mm512_permutex2var_epi32(x, even, y), _mm512_permutex2var_epi32(x, odd, y))
        }
        fn load_bf16(self, x: &[u16; 16]) -> __m512 {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
        fn entries_8(self, x: [u64; 8]) -> __m512i {
            let x = x.map(|x| x as i64);
            _mm512_setr_epi64(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7])
        }
        fn entries_4(self, x: [u32; 16]) -> __m512i {
            let x = x.map(|x| x as i32);
            _mm512_setr_epi32(
                x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], x[12], x[13], x[14], x[15],
            )
        }
        fn negate_masked(self, x: __m512i, mask: u64) -> __m512i {
            _mm512_mask_sub_epi8(x, mask, _mm512_setzero_si512(), x)
        }
        fn even_signs(self, x: __m512i) -> __m512i {
            let first = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
            let second = _mm512_and_si512(_mm512_slli_epi32::<1>(x), _mm512_set1_epi32(0x7f00));
            let third = _mm512_and_si512(_mm512_slli_epi32::<2>(x), _mm512_set1_epi32(0x7f_0000));
            let fourth = _mm512_and_si512(_mm512_slli_epi32::<3>(x), _mm512_set1_epi32(0x7f00_0000));
            with_parity(_mm512_or_si512(_mm512_or_si512(first, second), _mm512_or_si512(third, fourth)))
        }
        fn high_signs(self, x: [&[u8; 64]; 2]) -> __m512i {
            let [a, b] = [self.load_b(x[0]), self.load_b(x[1])];
            // Bytes of 64 words of 16 bits.
            let low = _mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(a));
            let high = _mm512_cvtepi16_epi8(_mm512_srli_epi16::<9>(b));
            with_parity(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high))
        }
        fn odd_words(self, x: [&[u8; 64]; 2]) -> __m512i {
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            _mm512_permutex2var_epi32(self.load_b(x[0]), odd, self.load_b(x[1]))
        }
        fn top_nibbles(self, x: __m512i) -> __m512i { _mm512_srli_epi32::<28>(x) }
        fn zip_bytes(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)]
        }
        fn zip_eights(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
            [_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)]
        }
        fn four_each(self, x: &[u8; 16]) -> __m512i {
            let x = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            // Bits 4, 5 to 16; then 2, 3 to 8 and 6, 7 to 24.
            let x = _mm512_or_si512(x, _mm512_slli_epi32::<12>(x));
            let x = _mm512_or_si512(x, _mm512_slli_epi32::<6>(x));
            _mm512_and_si512(x, _mm512_set1_epi8(3))
        }
        fn ternary(self, x: __m512i) -> [__m512i; 2] {
            // 3 x reaches 256 at 86, 512 at 171.
            let one = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86));
            let two = _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(171u8 as i8));
            let digits = _mm512_mask_mov_epi8(_mm512_maskz_set1_epi8(one, 1), two, _mm512_set1_epi8(2));
            [digits, _mm512_add_epi8(x, _mm512_add_epi8(x, x))]
        }
    }
}

/// Bytes below 128, with the eighth bit set where the number of set bits was odd.
///
/// # Safety
///
/// The CPU has AVX-512 F and BW.
#[inline(always)]
unsafe fn with_parity(x: __m512i) -> __m512i {
    // SAFETY: AVX-512 F and BW, as the caller promises.
    unsafe {
        // Shifts cross bytes, but bit 0 takes in only its own.
        let parity = _mm512_xor_si512(x, _mm512_srli_epi16::<4>(x));
        let parity = _mm512_xor_si512(parity, _mm512_srli_epi16::<2>(parity));
        let parity = _mm512_xor_si512(parity, _mm512_srli_epi16::<1>(parity));
        let eighth = _mm512_and_si512(_mm512_slli_epi16::<7>(parity), _mm512_set1_epi8(-128));
        _mm512_or_si512(x, eighth)
    }
}

/// Transposes a matrix of 16 x 16 i32.
///
/// # Safety
///
/// The CPU has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn transpose(m: &mut [__m512i; 16]) {
    // SAFETY: AVX-512 F, as the caller promises.
    unsafe {
        // Within each 128-bit quarter of four rows: 4 x 4.
        for i in (0..16).step_by(4) {
            let (ab_low, ab_high) =
                (_mm512_unpacklo_epi32(m[i], m[i + 1]), _mm512_unpackhi_epi32(m[i], m[i + 1]));
            let (cd_low, cd_high) =
                (_mm512_unpacklo_epi32(m[i + 2], m[i + 3]), _mm512_unpackhi_epi32(m[i + 2], m[i + 3]));
            m[i] = _mm512_unpacklo_epi64(ab_low, cd_low);
            m[i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
            m[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
            m[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
        }
        // Then the quarters: register 4 r + j holds in quarter q column 4 q + j of rows 4 r .. 4 r + 4.
        for j in 0..4 {
            let (a, b, c, d) = (m[j], m[4 + j], m[8 + j], m[12 + j]);
            let (ab02, ab13) =
                (_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b));
            let (cd02, cd13) =
                (_mm512_shuffle_i32x4::<0b10_00_10_00>(c, d), _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d));
            m[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab02, cd02);
            m[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab13, cd13);
            m[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab02, cd02);
            m[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab13, cd13);
        }
    }
}

/// See [`Simd::sum_each_half`]: halves the lanes of two vectors at a time, so that every addition fills a register.
///
/// # Safety
///
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn sum_each_half(x: &[__m512; 8]) -> __m512 {
    // SAFETY: AVX-512 F, as the caller promises.
    unsafe {
        // Quarter q of b[i] belongs to lane 4 q + i: four lanes, after adding l + 4.
        let mut b = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            let (u, v) = (x[i], x[4 + i]);
            b[i] = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(u, v),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(u, v),
            );
        }
        // Pairs of lanes of i and i + 1, after adding l + 2; then l + 1.
        let (u, v) = (sum_halves(b[0], b[1]), sum_halves(b[2], b[3]));
        _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(u, v), _mm512_shuffle_ps::<0b11_01_11_01>(u, v))
    }
}

/// In each quarter: lanes `l` and `l + 2` of u added, then those of v.
///
/// # Safety
///
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn sum_halves(u: __m512, v: __m512) -> __m512 {
    // SAFETY: AVX-512 F, as the caller promises.
    unsafe {
        let (u, v) = (_mm512_castps_pd(u), _mm512_castps_pd(v));
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(u, v)), _mm512_castpd_ps(_mm512_unpackhi_pd(u, v)))
    }
}
