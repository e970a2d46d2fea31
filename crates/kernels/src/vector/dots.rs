//! Sums of products on instruction sets that add four of them at once: what [`super::words::Words`] asks for.

use super::matmul_int8::Shape;
use super::simd::Dots;
use super::words::GROUP_WORDS;

/// See [`super::words::Words::add_half`].
#[inline(always)]
pub(super) fn add_half<S: Dots, Q: Shape>(
    s: S,
    sum: S::I,
    codes: &[S::B; 4],
    words: &[[i8; 4]; 4],
    scale: S::I,
) -> S::I {
    if Q::SCALES == 2 {
        let sum16 = s.dot16(Q::SIGNED, s.splat_i(0), codes, words);
        return s.add_i(sum, s.mul_i(sum16, scale));
    }
    s.dot16(Q::SIGNED, sum, codes, words)
}

/// See [`super::words::Words::scaled`].
#[inline(always)]
pub(super) fn scaled<S: Dots, Q: Shape>(s: S, sum: S::I, scale: S::I) -> S::I {
    if Q::SCALES == 1 { s.mul_i(sum, scale) } else { sum }
}

/// See [`super::words::Words::group_sums`].
#[inline(always)]
pub(super) fn group_sums<S: Dots, Q: Shape, const R: usize>(
    s: S,
    codes: &[S::B; GROUP_WORDS],
    scales: [S::I; 2],
    words: &[&[[i8; 4]; GROUP_WORDS]; R],
) -> [[S::I; 2]; R] {
    let zero = s.splat_i(0);
    let mut sums = [[zero; 2]; R];
    let (codes, _) = codes.as_chunks::<4>();
    // Unrolled by hand, so that the sums stay in registers.
    macro_rules! sum_of {
        ($($r:literal)*) => {$(
            if $r < R {
                let (words, _) = words[$r].as_chunks::<4>();
                let first = add_half::<S, Q>(s, zero, &codes[0], &words[0], scales[0]);
                sums[$r] = if Q::FLOAT_SCALE_PER_16 {
                    [first, add_half::<S, Q>(s, zero, &codes[1], &words[1], scales[1])]
                } else {
                    let sum = add_half::<S, Q>(s, first, &codes[1], &words[1], scales[1]);
                    [scaled::<S, Q>(s, sum, scales[0]), zero]
                };
            }
        )*};
    }
    const { assert!(R <= 8) };
    sum_of!(0 1 2 3 4 5 6 7);
    sums
}

/// The sums of [`super::words::Words`] on an instruction set that has [`Dots`].
macro_rules! dots_of_words {
    () => {
        #[inline(always)]
        fn add_half<Q: $crate::vector::matmul_int8::Shape>(
            self,
            sum: Self::I,
            codes: &[Self::B; 4],
            words: &[[i8; 4]; 4],
            scale: Self::I,
        ) -> Self::I {
            $crate::vector::dots::add_half::<Self, Q>(self, sum, codes, words, scale)
        }

        #[inline(always)]
        fn scaled<Q: $crate::vector::matmul_int8::Shape>(self, sum: Self::I, scale: Self::I) -> Self::I {
            $crate::vector::dots::scaled::<Self, Q>(self, sum, scale)
        }

        #[inline(always)]
        fn group_sums<Q: $crate::vector::matmul_int8::Shape, const R: usize>(
            self,
            codes: &[Self::B; 8],
            scales: [Self::I; 2],
            words: &[&[[i8; 4]; 8]; R],
        ) -> [[Self::I; 2]; R] {
            $crate::vector::dots::group_sums::<Self, Q, R>(self, codes, scales, words)
        }
    };
}
pub(super) use dots_of_words;
