//! Sixteen weight rows on AVX2.
//!
//! `vpmaddubsw` adds two products of an unsigned and a signed byte in 16 bits. Small codes leave room to add several of
//! those before `vpmaddwd` widens them, and it multiplies by the integer scales on the way.

use core::arch::x86_64::*;

use gguf::TensorType;

use super::{Avx2, F, I};
use crate::vector::lie::Rows;
use crate::vector::matmul_int8::Shape;
use crate::vector::simd::Simd;
use crate::vector::words::{GROUP_WORDS, Products, Words};

impl Words for Avx2 {
    #[inline(always)]
    fn spread(self, x: I, byte: usize) -> I {
        self.pick(x, [byte as u8; 4])
    }

    #[inline(always)]
    fn scales(self, x: I, byte: usize) -> I {
        self.pairs(x, [byte; 2])
    }

    #[inline(always)]
    fn scales_signed(self, x: I, byte: usize) -> I {
        self.pairs_signed(x, [byte; 2], 0)
    }

    #[inline(always)]
    fn pairs(self, x: I, bytes: [usize; 2]) -> I {
        self.pick(x, [bytes[0] as u8, ZERO, bytes[1] as u8, ZERO])
    }

    operations! {
        fn transposed_words(self, rows: &Rows<'_>, at: usize) -> [I; 4] {
            let mut out = [[_mm256_setzero_si256(); 2]; 4];
            for h in 0..2 {
                let mut x = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    let low = _mm256_castsi128_si256(_mm_loadu_si128(rows.row::<16>(2 * h, i, at).cast()));
                    let high = _mm_loadu_si128(rows.row::<16>(2 * h + 1, i, at).cast());
                    x[i] = _mm256_inserti128_si256::<1>(low, high);
                }
                let (low01, high01) = (_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
                let (low23, high23) = (_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
                out[0][h] = _mm256_unpacklo_epi64(low01, low23);
                out[1][h] = _mm256_unpackhi_epi64(low01, low23);
                out[2][h] = _mm256_unpacklo_epi64(high01, high23);
                out[3][h] = _mm256_unpackhi_epi64(high01, high23);
            }
            out
        }
        fn straddling(self, a: I, b: I) -> I {
            let mut out = a;
            for h in 0..2 {
                out[h] = _mm256_or_si256(_mm256_srli_epi32::<16>(a[h]), _mm256_slli_epi32::<16>(b[h]));
            }
            out
        }
        fn floats_of_low(self, x: I) -> F {
            let low = _mm256_set1_epi32(0xffff);
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            [_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed))]
        }
        fn floats_of_high(self, x: I) -> F {
            self.floats_of_low([_mm256_srli_epi32::<16>(x[0]), _mm256_srli_epi32::<16>(x[1])])
        }
        fn bits(self, x: I, shift: i32, mask: u8) -> I {
            let (count, mask) = (_mm_cvtsi32_si128(shift.abs()), _mm256_set1_epi8(mask as i8));
            let mut out = x;
            for h in 0..2 {
                let moved =
                    if shift < 0 { _mm256_sll_epi16(x[h], count) } else { _mm256_srl_epi16(x[h], count) };
                out[h] = _mm256_and_si256(moved, mask);
            }
            out
        }
        fn or(self, a: I, b: I) -> I { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
        fn sub_bytes(self, a: I, b: u8) -> I {
            let b = _mm256_set1_epi8(b as i8);
            [_mm256_sub_epi8(a[0], b), _mm256_sub_epi8(a[1], b)]
        }
        fn with_fifth_bits(self, codes: [I; 4], high: I, h: usize) -> [I; 4] {
            let (halves, bits) = (self.nibbles(high), _mm256_set1_epi32(0x0804_0201));
            // Index 0 gives 0; 1, 2, 4 and 8 give 16.
            let sixteen = _mm256_broadcastsi128_si256(_mm_setr_epi32(0x0010_1000, 16, 16, 0));
            let mut out = codes;
            for j in 0..4 {
                let x = self.spread(halves[j % 2], 2 * h + j / 2);
                for i in 0..2 {
                    let fifth = _mm256_shuffle_epi8(sixteen, _mm256_and_si256(x[i], bits));
                    out[j][i] = _mm256_or_si256(codes[j][i], fifth);
                }
            }
            out
        }

        // A scale is the same number twice in 16 bits: products come in pairs of those.
        fn load_scales(self, x: &[i16; 16]) -> I {
            let mut out = [_mm256_setzero_si256(); 2];
            for h in 0..2 {
                let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(8 * h).cast()));
                out[h] = _mm256_or_si256(x, _mm256_slli_epi32::<16>(x));
            }
            out
        }
        fn pairs_signed(self, x: I, bytes: [usize; 2], shift: i32) -> I {
            let high = self.pick(x, [ZERO, bytes[0] as u8, ZERO, bytes[1] as u8]);
            let count = _mm_cvtsi32_si128(8 - shift);
            [_mm256_sra_epi16(high[0], count), _mm256_sra_epi16(high[1], count)]
        }
        fn load_pairs(self, x: &[i16; 32]) -> I {
            let x: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))]
        }
        fn splat_pair(self, x: i16) -> I { [_mm256_set1_epi16(x); 2] }
        fn pair_products(self, pairs: I, x: &[i16; 2]) -> I {
            self.products_16(pairs, [_mm256_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()); 2])
        }
    }
}

impl Products for Avx2 {
    #[inline(always)]
    fn add_half<Q: Shape>(self, sum: I, codes: &[I; 4], words: &[[i8; 4]; 4], scale: I) -> I {
        let mut sum = sum;
        let step = const { words_in_16_bits::<Q>() }.min(4);
        for first in (0..4).step_by(step) {
            let mut pairs = self.two_products(Q::SIGNED, codes[first], &words[first]);
            for w in first + 1..first + step {
                pairs = self.add_16(pairs, self.two_products(Q::SIGNED, codes[w], &words[w]));
            }
            sum = self.add_i(sum, self.products_16(pairs, scale));
        }
        sum
    }

    #[inline(always)]
    fn scaled<Q: Shape>(self, sum: I, _scale: I) -> I {
        sum
    }

    #[inline(always)]
    fn group_sums<Q: Shape, const R: usize>(
        self,
        codes: &[I; GROUP_WORDS],
        scales: [I; 2],
        words: &[&[[i8; 4]; GROUP_WORDS]; R],
    ) -> [[I; 2]; R] {
        let mut sums = [[self.splat_i(0); 2]; R];
        if Q::SCALES == 2 || Q::FLOAT_SCALE_PER_16 {
            self.add_words::<Q, R>(codes, 0..4, scales[0], words, &mut sums);
            self.add_words::<Q, R>(codes, 4..8, scales[1], words, &mut sums);
        } else {
            self.add_words::<Q, R>(codes, 0..8, scales[0], words, &mut sums);
        }
        sums
    }
}

/// What [`Avx2::pick`] makes a zero of.
const ZERO: u8 = 0x80;

impl Avx2 {
    operations! {
        /// These bytes of each word.
        fn pick(self, x: I, bytes: [u8; 4]) -> I {
            let words = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
            let order = _mm256_or_si256(words, _mm256_set1_epi32(i32::from_le_bytes(bytes)));
            [_mm256_shuffle_epi8(x[0], order), _mm256_shuffle_epi8(x[1], order)]
        }
        /// Sums of two products of adjacent codes and activations.
        fn two_products(self, signed: bool, codes: I, activations: &[i8; 4]) -> I {
            let a = _mm256_set1_epi32(activations.as_ptr().cast::<i32>().read_unaligned());
            let mut out = codes;
            for h in 0..2 {
                out[h] = if signed {
                    // |code| <= 128 and |activation| <= 127: a sum of two products fits 16 bits.
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes[h]), _mm256_sign_epi8(a, codes[h]))
                } else {
                    _mm256_maddubs_epi16(codes[h], a)
                };
            }
            out
        }
        fn add_16(self, a: I, b: I) -> I { [_mm256_add_epi16(a[0], b[0]), _mm256_add_epi16(a[1], b[1])] }
        /// Sums of two products of adjacent numbers of 16 bits.
        fn products_16(self, a: I, b: I) -> I { [_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[1], b[1])] }
    }

    /// Adds the products of some words of a group, times their scale.
    #[inline(always)]
    fn add_words<Q: Shape, const R: usize>(
        self,
        codes: &[I; GROUP_WORDS],
        these: std::ops::Range<usize>,
        scale: I,
        words: &[&[[i8; 4]; GROUP_WORDS]; R],
        sums: &mut [[I; 2]; R],
    ) {
        let i = if Q::FLOAT_SCALE_PER_16 { these.start / 4 } else { 0 };
        let step = const { words_in_16_bits::<Q>() }.min(these.len());
        for first in these.step_by(step) {
            let mut pairs = [self.splat_i(0); R];
            for w in first..first + step {
                for r in 0..R {
                    let products = self.two_products(Q::SIGNED, codes[w], &words[r][w]);
                    pairs[r] = if w == first { products } else { self.add_16(pairs[r], products) };
                }
            }
            for r in 0..R {
                sums[r][i] = self.add_i(sums[r][i], self.products_16(pairs[r], scale));
            }
        }
    }
}

/// Words whose sums of pairs of products fit 16 bits together, each at most twice 127 times the largest code.
const fn words_in_16_bits<Q: Shape>() -> usize {
    use TensorType::*;
    match Q::TYPE {
        _ if Q::SIGNED => 1,
        Q4_0 | Q4_1 | Q4_K | Q2_K | Q3_K | Q2_0 | Q1_0 | TQ1_0 | TQ2_0 => 8,
        Q5_0 | Q5_1 | Q5_K | MXFP4 | NVFP4 | IQ1_S | IQ1_M => 4,
        // At most 63; see [`Shape::OFFSET`].
        _ => 2,
    }
}
