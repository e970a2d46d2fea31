//! Sums of products on instruction sets that add four of them at once.

use super::matmul_int8::Shape;
use super::simd::Dots;
use super::words::{GROUP_WORDS, Products};

impl<S: Dots> Products for S {
    #[inline(always)]
    fn add_half<Q: Shape>(self, sum: S::I, codes: &[S::B; 4], words: &[[i8; 4]; 4], scale: S::I) -> S::I {
        if Q::SCALES == 2 {
            let sum16 = self.dot16(Q::SIGNED, self.splat_i(0), codes, words);
            return self.add_i(sum, self.mul_i(sum16, scale));
        }
        self.dot16(Q::SIGNED, sum, codes, words)
    }

    #[inline(always)]
    fn scaled<Q: Shape>(self, sum: S::I, scale: S::I) -> S::I {
        if Q::SCALES == 1 { self.mul_i(sum, scale) } else { sum }
    }

    #[inline(always)]
    fn group_sums<Q: Shape, const R: usize>(
        self,
        codes: &[S::B; GROUP_WORDS],
        scales: [S::I; 2],
        words: &[&[[i8; 4]; GROUP_WORDS]; R],
    ) -> [[S::I; 2]; R] {
        const { assert!(R <= 8) };
        let zero = self.splat_i(0);
        let mut sums = [[zero; 2]; R];
        let (codes, _) = codes.as_chunks::<4>();
        each!(r in 0 1 2 3 4 5 6 7 => {
            if r < R {
                let (words, _) = words[r].as_chunks::<4>();
                let first = self.add_half::<Q>(zero, &codes[0], &words[0], scales[0]);
                sums[r] = if Q::FLOAT_SCALE_PER_16 {
                    [first, self.add_half::<Q>(zero, &codes[1], &words[1], scales[1])]
                } else {
                    let sum = self.add_half::<Q>(first, &codes[1], &words[1], scales[1]);
                    [self.scaled::<Q>(sum, scales[0]), zero]
                };
            }
        });
        sums
    }
}
