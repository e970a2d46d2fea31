//! NEON with its dot product: sixteen lanes are four registers.

use core::arch::aarch64::*;
use core::arch::asm;

use super::lie::Rows;
use super::simd::{Dots, Simd, padded};
use super::words::Words;

/// Exists only where the CPU has NEON and its dot product.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

impl Neon {
    /// # Safety
    ///
    /// The CPU has the features named above.
    #[inline(always)]
    pub(super) unsafe fn assume() -> Neon {
        Neon(())
    }
}

/// Quarter q holds lanes `4 q .. 4 q + 4`.
type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type B = [uint8x16_t; 4];

/// The four quarters of a vector, `$q` being the number of each.
macro_rules! quarters {
    ($q:ident => $value:expr) => {
        [
            {
                const $q: usize = 0;
                $value
            },
            {
                const $q: usize = 1;
                $value
            },
            {
                const $q: usize = 2;
                $value
            },
            {
                const $q: usize = 3;
                $value
            },
        ]
    };
}

impl Dots for Neon {
    operations! {
        fn dot16(self, _signed: bool, acc: I, codes: &[B; 4], activations: &[[i8; 4]; 4]) -> I {
            let activations = vld1q_s8(activations.as_ptr().cast());
            quarters!(Q => self.dot_each(acc[Q], [codes[0][Q], codes[1][Q], codes[2][Q], codes[3][Q]], activations))
        }
    }
}

impl Words for Neon {
    #[inline(always)]
    fn spread(self, x: B, byte: usize) -> B {
        self.pick(x, [byte as u8; 4])
    }

    operations! {
        fn transposed_words(self, rows: &Rows<'_>, at: usize) -> [B; 4] {
            let mut out = [[vdupq_n_u8(0); 4]; 4];
            for q in 0..4 {
                let mut block = [vdupq_n_s32(0); 4];
                for i in 0..4 {
                    block[i] = vreinterpretq_s32_u8(vld1q_u8(rows.row::<16>(q, i, at)));
                }
                let block = self.transpose4(block);
                for w in 0..4 {
                    out[w][q] = vreinterpretq_u8_s32(block[w]);
                }
            }
            out
        }
        fn straddling(self, a: B, b: B) -> B {
            quarters!(Q => {
                let (a, b) = (vreinterpretq_u32_u8(a[Q]), vreinterpretq_u32_u8(b[Q]));
                vreinterpretq_u8_u32(vorrq_u32(vshrq_n_u32::<16>(a), vshlq_n_u32::<16>(b)))
            })
        }
        fn floats_of_low(self, x: B) -> F { quarters!(Q => self.widen_f16(vmovn_u32(vreinterpretq_u32_u8(x[Q])))) }
        fn floats_of_high(self, x: B) -> F {
            quarters!(Q => self.widen_f16(vshrn_n_u32::<16>(vreinterpretq_u32_u8(x[Q]))))
        }
        fn bits(self, x: B, shift: i32, mask: u8) -> B {
            quarters!(Q => vandq_u8(vshlq_u8(x[Q], vdupq_n_s8(-shift as i8)), vdupq_n_u8(mask)))
        }
        fn or(self, a: B, b: B) -> B { quarters!(Q => vorrq_u8(a[Q], b[Q])) }
        fn sub_bytes(self, a: B, b: u8) -> B { quarters!(Q => vsubq_u8(a[Q], vdupq_n_u8(b))) }
        fn with_fifth_bits(self, codes: [B; 4], high: B, h: usize) -> [B; 4] {
            let low = vdupq_n_u32(0x0804_0201);
            let mut out = codes;
            for j in 0..4 {
                // A byte has the bits of two words of codes.
                let bits = vreinterpretq_u8_u32(if j % 2 == 0 { low } else { vshlq_n_u32::<4>(low) });
                let x = self.spread(high, 2 * h + j / 2);
                out[j] = quarters!(Q => vorrq_u8(codes[j][Q], vandq_u8(vtstq_u8(x[Q], bits), vdupq_n_u8(16))));
            }
            out
        }
        fn scales(self, x: B, byte: usize) -> I {
            let x = self.pick(x, [byte as u8, ZERO, ZERO, ZERO]);
            quarters!(Q => vreinterpretq_s32_u8(x[Q]))
        }
        fn scales_signed(self, x: B, byte: usize) -> I {
            let x = self.pick(x, [ZERO, ZERO, ZERO, byte as u8]);
            quarters!(Q => vshrq_n_s32::<24>(vreinterpretq_s32_u8(x[Q])))
        }
        fn load_scales(self, x: &[i16; 16]) -> I { quarters!(Q => vmovl_s16(vld1_s16(four(x, Q).as_ptr()))) }
        fn pairs(self, x: B, bytes: [usize; 2]) -> I {
            let x = self.pick(x, [bytes[0] as u8, ZERO, bytes[1] as u8, ZERO]);
            quarters!(Q => vreinterpretq_s32_u8(x[Q]))
        }
        fn pairs_signed(self, x: B, bytes: [usize; 2], shift: i32) -> I {
            let x = self.pick(x, [ZERO, bytes[0] as u8, ZERO, bytes[1] as u8]);
            let right = vdupq_n_s16((shift - 8) as i16);
            quarters!(Q => vreinterpretq_s32_s16(vshlq_s16(vreinterpretq_s16_u8(x[Q]), right)))
        }
        fn load_pairs(self, x: &[i16; 32]) -> I {
            quarters!(Q => vreinterpretq_s32_s16(vld1q_s16(x[8 * Q..8 * Q + 8].as_ptr())))
        }
        fn splat_pair(self, x: i16) -> I { [vreinterpretq_s32_s16(vdupq_n_s16(x)); 4] }
        fn pair_products(self, pairs: I, x: &[i16; 2]) -> I {
            let two = vreinterpret_s16_s32(vdup_n_s32(x.as_ptr().cast::<i32>().read_unaligned()));
            quarters!(Q => {
                let pairs = vreinterpretq_s16_s32(pairs[Q]);
                vpaddq_s32(vmull_s16(vget_low_s16(pairs), two), vmull_s16(vget_high_s16(pairs), two))
            })
        }
    }
}

/// What [`Neon::pick`] makes a zero of: beyond every table.
const ZERO: u8 = 0x80;

impl Simd for Neon {
    type F = F;
    type I = I;
    type B = B;
    const WIDE: bool = false;
    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    fn load_first(self, x: &[f32]) -> F {
        self.load(&padded(x))
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

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> B {
        quarters!(Q => self.load16(sixteen(x, Q)))
    }

    #[inline(always)]
    fn gather_b(self, x: [&[u8; 16]; 4]) -> B {
        quarters!(Q => self.load16(x[Q]))
    }

    #[inline(always)]
    fn dot_bytes(self, _signed: bool, acc: I, codes: B, activations: B) -> I {
        quarters!(Q => self.dot(acc[Q], codes[Q], activations[Q]))
    }

    #[inline(always)]
    fn join_halves(self, a: B, b: B) -> [B; 2] {
        [[a[0], a[1], b[0], b[1]], [a[2], a[3], b[2], b[3]]]
    }

    #[inline(always)]
    fn signed_b(self, x: B) -> B {
        x
    }

    operations! {
        fn splat(self, x: f32) -> F { [vdupq_n_f32(x); 4] }
        fn load(self, x: &[f32; 16]) -> F { quarters!(Q => vld1q_f32(four(x, Q).as_ptr())) }
        fn store(self, x: F, out: &mut [f32; 16]) -> () {
            for q in 0..4 {
                vst1q_f32(out[4 * q..4 * q + 4].as_mut_ptr(), x[q]);
            }
        }
        fn load_f16(self, x: &[u16; 16]) -> F { quarters!(Q => self.widen_f16(vld1_u16(four(x, Q).as_ptr()))) }
        fn store_f16(self, x: F, out: &mut [u16; 16]) -> () {
            for q in 0..4 {
                let bits = vreinterpret_u16_f16(vcvt_f16_f32(x[q]));
                vst1_u16(out[4 * q..4 * q + 4].as_mut_ptr(), bits);
            }
        }
        fn load_f32_bytes(self, x: &[u8; 64]) -> F { quarters!(Q => vreinterpretq_f32_u8(self.load16(sixteen(x, Q)))) }
        fn load_f16_bytes(self, x: &[u8; 32]) -> F {
            let halves = [vreinterpretq_u16_u8(self.load16(sixteen(x, 0))), vreinterpretq_u16_u8(self.load16(sixteen(x, 1)))];
            [
                self.widen_f16(vget_low_u16(halves[0])),
                self.widen_f16(vget_high_u16(halves[0])),
                self.widen_f16(vget_low_u16(halves[1])),
                self.widen_f16(vget_high_u16(halves[1])),
            ]
        }
        fn load_bf16_bytes(self, x: &[u8; 32]) -> F {
            let halves = [vreinterpretq_u16_u8(self.load16(sixteen(x, 0))), vreinterpretq_u16_u8(self.load16(sixteen(x, 1)))];
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(halves[0]))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(halves[0]))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(halves[1]))),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_high_u16(halves[1]))),
            ]
        }

        fn add(self, a: F, b: F) -> F { quarters!(Q => vaddq_f32(a[Q], b[Q])) }
        fn sub(self, a: F, b: F) -> F { quarters!(Q => vsubq_f32(a[Q], b[Q])) }
        fn mul(self, a: F, b: F) -> F { quarters!(Q => vmulq_f32(a[Q], b[Q])) }
        fn div(self, a: F, b: F) -> F { quarters!(Q => vdivq_f32(a[Q], b[Q])) }
        fn fma(self, a: F, b: F, c: F) -> F { quarters!(Q => vfmaq_f32(c[Q], a[Q], b[Q])) }
        fn fma_first(self, n: usize, a: F, b: F, c: F) -> F {
            let (mask, sum) = (self.first(n), self.fma(a, b, c));
            quarters!(Q => vbslq_f32(mask[Q], sum[Q], c[Q]))
        }
        fn add_first(self, n: usize, a: F, b: F) -> F {
            let (mask, sum) = (self.first(n), self.add(a, b));
            quarters!(Q => vbslq_f32(mask[Q], sum[Q], a[Q]))
        }
        // Not FMAX, whose result is NaN where a is, nor FMAXNM, whose result is a where b is NaN.
        fn max(self, a: F, b: F) -> F { quarters!(Q => vbslq_f32(vcgtq_f32(a[Q], b[Q]), a[Q], b[Q])) }
        fn min(self, a: F, b: F) -> F { quarters!(Q => vbslq_f32(vcltq_f32(a[Q], b[Q]), a[Q], b[Q])) }
        fn negate(self, x: F) -> F { quarters!(Q => vnegq_f32(x[Q])) }
        fn keep_nan(self, x: F, y: F) -> F { quarters!(Q => vbslq_f32(vceqq_f32(x[Q], x[Q]), y[Q], x[Q])) }
        fn rotate_pairs(self, x: F, cos: &[f32; 8], sin: &[f32; 8]) -> F {
            let even = vreinterpretq_u32_u64(vdupq_n_u64(0xffff_ffff));
            let mut out = x;
            for h in 0..2 {
                let (cos, sin) = (vld1q_f32(four(cos, h).as_ptr()), vld1q_f32(four(sin, h).as_ptr()));
                let cos = [vzip1q_f32(cos, cos), vzip2q_f32(cos, cos)];
                let sin = [vzip1q_f32(sin, sin), vzip2q_f32(sin, sin)];
                for i in 0..2 {
                    let x = x[2 * h + i];
                    let (straight, crossed) = (vmulq_f32(x, cos[i]), vmulq_f32(vrev64q_f32(x), sin[i]));
                    out[2 * h + i] =
                        vbslq_f32(even, vsubq_f32(straight, crossed), vaddq_f32(straight, crossed));
                }
            }
            out
        }
        fn swap_lanes(self, x: F, stride: usize) -> F {
            match stride {
                1 => quarters!(Q => vrev64q_f32(x[Q])),
                2 => quarters!(Q => vextq_f32::<2>(x[Q], x[Q])),
                4 => [x[1], x[0], x[3], x[2]],
                _ => [x[2], x[3], x[0], x[1]],
            }
        }
        fn sum(self, x: F) -> f32 {
            let x = self.sum_quarters(x);
            let x = vadd_f32(vget_low_f32(x), vget_high_f32(x));
            vget_lane_f32::<0>(x) + vget_lane_f32::<1>(x)
        }
        fn max_lane(self, x: F) -> f32 { vmaxvq_f32(vmaxq_f32(vmaxq_f32(x[0], x[1]), vmaxq_f32(x[2], x[3]))) }

        fn splat_i(self, x: i32) -> I { [vdupq_n_s32(x); 4] }
        fn load_i(self, x: &[i32; 16]) -> I { quarters!(Q => vld1q_s32(four(x, Q).as_ptr())) }
        fn add_i(self, a: I, b: I) -> I { quarters!(Q => vaddq_s32(a[Q], b[Q])) }
        fn sub_i(self, a: I, b: I) -> I { quarters!(Q => vsubq_s32(a[Q], b[Q])) }
        fn mul_i(self, a: I, b: I) -> I { quarters!(Q => vmulq_s32(a[Q], b[Q])) }
        fn max_i(self, a: I, b: I) -> I { quarters!(Q => vmaxq_s32(a[Q], b[Q])) }
        fn halve_i(self, x: I) -> I { quarters!(Q => vshrq_n_s32::<1>(x[Q])) }
        fn to_i(self, x: F) -> I { quarters!(Q => vcvtnq_s32_f32(x[Q])) }
        fn to_f(self, x: I) -> F { quarters!(Q => vcvtq_f32_s32(x[Q])) }
        fn power_of_two(self, x: I) -> F {
            let biased = self.add_i(x, self.splat_i(127));
            quarters!(Q => vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased[Q])))
        }
        fn magnitude_bits(self, x: F) -> I {
            quarters!(Q => vandq_s32(vreinterpretq_s32_f32(x[Q]), vdupq_n_s32(0x7fff_ffff)))
        }
        fn max_lane_i(self, x: I) -> i32 { vmaxvq_s32(vmaxq_s32(vmaxq_s32(x[0], x[1]), vmaxq_s32(x[2], x[3]))) }
        fn sum_lanes_i(self, x: I) -> i32 { vaddvq_s32(vaddq_s32(vaddq_s32(x[0], x[1]), vaddq_s32(x[2], x[3]))) }
        fn store_i8(self, x: I, out: &mut [i8; 16]) -> () {
            let low = vcombine_s16(vmovn_s32(x[0]), vmovn_s32(x[1]));
            let high = vcombine_s16(vmovn_s32(x[2]), vmovn_s32(x[3]));
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }

        fn interleave(self, _signed: bool, rows: [&[u8; 64]; 16], out: &mut [[u8; 64]; 16]) -> () {
            for r in 0..4 {
                for c in 0..4 {
                    let mut block = [vdupq_n_s32(0); 4];
                    for i in 0..4 {
                        block[i] = vreinterpretq_s32_u8(self.load16(sixteen(rows[4 * r + i], c)));
                    }
                    let block = self.transpose4(block);
                    for j in 0..4 {
                        let out = &mut out[4 * c + j][16 * r..16 * r + 16];
                        vst1q_u8(out.as_mut_ptr(), vreinterpretq_u8_s32(block[j]));
                    }
                }
            }
        }
        fn transpose(self, x: &mut [F; 16]) -> () {
            let mut out = *x;
            for r in 0..4 {
                for c in 0..4 {
                    let mut block = [vdupq_n_s32(0); 4];
                    for i in 0..4 {
                        block[i] = vreinterpretq_s32_f32(x[4 * r + i][c]);
                    }
                    let block = self.transpose4(block);
                    for j in 0..4 {
                        out[4 * c + j][r] = vreinterpretq_f32_s32(block[j]);
                    }
                }
            }
            *x = out;
        }
        fn load_i8(self, x: &[i8; 16]) -> I { self.widen_i8(vld1q_s8(x.as_ptr())) }
        fn scaled_nibbles(self, x: &[u8; 16], scale: F) -> [F; 2] {
            let x = self.load16(x);
            let halves = [vandq_u8(x, vdupq_n_u8(15)), vshrq_n_u8::<4>(x)];
            let mut out = [scale; 2];
            for h in 0..2 {
                let codes = vsubq_s8(vreinterpretq_s8_u8(halves[h]), vdupq_n_s8(8));
                out[h] = self.mul(self.to_f(self.widen_i8(codes)), scale);
            }
            out
        }

        fn prefetch(self, at: *const u8) -> () {
            asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(readonly, nostack, preserves_flags));
        }
        fn zero_b(self) -> B { [vdupq_n_u8(0); 4] }
        fn store_b(self, x: B, out: &mut [u8; 64]) -> () {
            for q in 0..4 {
                vst1q_u8(out[16 * q..16 * q + 16].as_mut_ptr(), x[q]);
            }
        }
        fn nibbles(self, x: B) -> [B; 2] {
            [quarters!(Q => vandq_u8(x[Q], vdupq_n_u8(15))), quarters!(Q => vshrq_n_u8::<4>(x[Q]))]
        }
        fn two_bits(self, x: &[u8; 32], shift: i32) -> B {
            quarters!(Q => {
                let left = vdupq_n_s8(-(shift + 2 * (Q as i32 / 2)) as i8);
                vandq_u8(vshlq_u8(self.load16(sixteen(x, Q % 2)), left), vdupq_n_u8(3))
            })
        }
        fn with_mask(self, x: B, mask: u64, value: u8) -> B {
            let set = self.set_bytes(mask);
            quarters!(Q => vorrq_u8(x[Q], vandq_u8(set[Q], vdupq_n_u8(value))))
        }
        fn lookup(self, x: B, table: &[i8; 16]) -> B {
            let table = vreinterpretq_u8_s8(vld1q_s8(table.as_ptr()));
            quarters!(Q => vqtbl1q_u8(table, x[Q]))
        }
        fn sum_quads(self, x: [I; 4]) -> I {
            quarters!(Q => vpaddq_s32(vpaddq_s32(x[Q][0], x[Q][1]), vpaddq_s32(x[Q][2], x[Q][3])))
        }
        fn sum_pairs(self, x: I, y: I) -> I {
            [vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]), vpaddq_s32(y[0], y[1]), vpaddq_s32(y[2], y[3])]
        }
        fn load_bf16(self, x: &[u16; 16]) -> F {
            quarters!(Q => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(four(x, Q).as_ptr()))))
        }
        fn entries_8(self, x: [u64; 8]) -> B {
            quarters!(Q => vcombine_u8(vcreate_u8(x[2 * Q]), vcreate_u8(x[2 * Q + 1])))
        }
        fn entries_4(self, x: [u32; 16]) -> B {
            quarters!(Q => vreinterpretq_u8_u32(vld1q_u32(four(&x, Q).as_ptr())))
        }
        fn negate_masked(self, x: B, mask: u64) -> B {
            let set = self.set_bytes(mask);
            quarters!(Q => vsubq_u8(veorq_u8(x[Q], set[Q]), set[Q]))
        }
        fn even_signs(self, x: B) -> B {
            quarters!(Q => {
                let x = vreinterpretq_u32_u8(x[Q]);
                let second = vandq_u32(vshlq_n_u32::<1>(x), vdupq_n_u32(0x7f00));
                let third = vandq_u32(vshlq_n_u32::<2>(x), vdupq_n_u32(0x7f_0000));
                let fourth = vandq_u32(vshlq_n_u32::<3>(x), vdupq_n_u32(0x7f00_0000));
                let low = vorrq_u32(vandq_u32(x, vdupq_n_u32(0x7f)), second);
                self.with_parity(vreinterpretq_u8_u32(vorrq_u32(low, vorrq_u32(third, fourth))))
            })
        }
        fn high_signs(self, x: [&[u8; 64]; 2]) -> B {
            quarters!(Q => {
                let (low, high) = (sixteen(x[Q / 2], Q % 2 * 2), sixteen(x[Q / 2], Q % 2 * 2 + 1));
                let upper = vuzp2q_u8(self.load16(low), self.load16(high));
                self.with_parity(vshrq_n_u8::<1>(upper))
            })
        }
        fn odd_words(self, x: [&[u8; 64]; 2]) -> B {
            quarters!(Q => {
                let (low, high) = (sixteen(x[Q / 2], Q % 2 * 2), sixteen(x[Q / 2], Q % 2 * 2 + 1));
                let (low, high) = (vreinterpretq_u32_u8(self.load16(low)), vreinterpretq_u32_u8(self.load16(high)));
                vreinterpretq_u8_u32(vuzp2q_u32(low, high))
            })
        }
        fn top_nibbles(self, x: B) -> I {
            quarters!(Q => vreinterpretq_s32_u32(vshrq_n_u32::<28>(vreinterpretq_u32_u8(x[Q]))))
        }
        fn zip_bytes(self, a: B, b: B) -> [B; 2] {
            [quarters!(Q => vzip1q_u8(a[Q], b[Q])), quarters!(Q => vzip2q_u8(a[Q], b[Q]))]
        }
        fn zip_eights(self, a: B, b: B) -> [B; 2] {
            let (a, b) = (quarters!(Q => vreinterpretq_u64_u8(a[Q])), quarters!(Q => vreinterpretq_u64_u8(b[Q])));
            [
                quarters!(Q => vreinterpretq_u8_u64(vzip1q_u64(a[Q], b[Q]))),
                quarters!(Q => vreinterpretq_u8_u64(vzip2q_u64(a[Q], b[Q]))),
            ]
        }
        fn four_each(self, x: &[u8; 16]) -> B {
            const RIGHT: [i8; 16] = [0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6];
            let (x, right) = (self.load16(x), vld1q_s8(RIGHT.as_ptr()));
            let each = [vzip1q_u8(x, x), vzip2q_u8(x, x)];
            quarters!(Q => {
                let twice = each[Q / 2];
                let four = if Q % 2 == 0 { vzip1q_u8(twice, twice) } else { vzip2q_u8(twice, twice) };
                vandq_u8(vshlq_u8(four, right), vdupq_n_u8(3))
            })
        }
        fn ternary(self, x: B) -> [B; 2] {
            // 3 x reaches 256 at 86, 512 at 171.
            let digits = quarters!(Q => {
                let (one, two) = (vcgeq_u8(x[Q], vdupq_n_u8(86)), vcgeq_u8(x[Q], vdupq_n_u8(171)));
                vaddq_u8(vshrq_n_u8::<7>(one), vshrq_n_u8::<7>(two))
            });
            [digits, quarters!(Q => vaddq_u8(x[Q], vaddq_u8(x[Q], x[Q])))]
        }
        fn add_halves(self, a: F, b: F) -> F {
            [vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]), vaddq_f32(b[0], b[2]), vaddq_f32(b[1], b[3])]
        }
        fn sum_each_half(self, x: &[F; 8]) -> F {
            quarters!(Q => {
                let (x, h) = (&x[Q / 2 * 4..], Q % 2 * 2);
                let mut sums = [x[0][h]; 4];
                for i in 0..4 {
                    sums[i] = vaddq_f32(x[i][h], x[i][h + 1]);
                }
                vpaddq_f32(self.fold(sums[0], sums[1]), self.fold(sums[2], sums[3]))
            })
        }
    }
}

impl Neon {
    operations! {
        // The intrinsics of SDOT are not stable yet. It multiplies signed bytes; unsigned codes are at most 63, so they
        // are the same bytes.

        /// Lane i: `acc` plus the product of bytes `4 i .. 4 i + 4` of a and b, signed.
        fn dot(self, acc: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
            let mut acc = acc;
            asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags));
            acc
        }
        /// Plus in lane i the product of bytes `4 i .. 4 i + 4` of the four codes with activations 0 .. 4, 4 .. 8 and so
        /// on.
        fn dot_each(self, acc: int32x4_t, codes: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
            let mut acc = acc;
            asm!(
                "sdot {acc:v}.4s, {a:v}.16b, {x:v}.4b[0]",
                "sdot {acc:v}.4s, {b:v}.16b, {x:v}.4b[1]",
                "sdot {acc:v}.4s, {c:v}.16b, {x:v}.4b[2]",
                "sdot {acc:v}.4s, {d:v}.16b, {x:v}.4b[3]",
                acc = inout(vreg) acc, a = in(vreg) codes[0], b = in(vreg) codes[1], c = in(vreg) codes[2],
                d = in(vreg) codes[3], x = in(vreg) activations, options(pure, nomem, nostack, preserves_flags),
            );
            acc
        }

        /// These bytes of each word.
        fn pick(self, x: B, bytes: [u8; 4]) -> B {
            let words = vreinterpretq_u8_u32(vld1q_u32([0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c].as_ptr()));
            let order = vorrq_u8(words, vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(bytes))));
            quarters!(Q => vqtbl1q_u8(x[Q], order))
        }
        /// All bits set in the first n of sixteen lanes.
        fn first(self, n: usize) -> [uint32x4_t; 4] {
            const LANES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
            quarters!(Q => vcltq_u32(vld1q_u32(four(&LANES, Q).as_ptr()), vdupq_n_u32(n as u32)))
        }
        /// Lane l is the sum of lanes l, l + 4, l + 8 and l + 12: first `l + 8`, then `l + 4`.
        fn sum_quarters(self, x: F) -> float32x4_t { vaddq_f32(vaddq_f32(x[0], x[2]), vaddq_f32(x[1], x[3])) }
        /// Lanes l and l + 2 of u added, then those of v.
        fn fold(self, u: float32x4_t, v: float32x4_t) -> float32x4_t {
            let (u, v) = (vreinterpretq_f64_f32(u), vreinterpretq_f64_f32(v));
            vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(u, v)), vreinterpretq_f32_f64(vzip2q_f64(u, v)))
        }
        fn widen_f16(self, bits: uint16x4_t) -> float32x4_t { vcvt_f32_f16(vreinterpret_f16_u16(bits)) }
        fn widen_i8(self, x: int8x16_t) -> I {
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x)));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_s16(vget_high_s16(low)),
                vmovl_s16(vget_low_s16(high)),
                vmovl_s16(vget_high_s16(high)),
            ]
        }
        fn load16(self, x: &[u8; 16]) -> uint8x16_t { vld1q_u8(x.as_ptr()) }
        /// Bytes below 128, with the eighth bit set where the number of set bits is odd.
        fn with_parity(self, x: uint8x16_t) -> uint8x16_t { vorrq_u8(x, vshlq_n_u8::<7>(vcntq_u8(x))) }
        /// All bits of the bytes whose bit of the mask is set.
        fn set_bytes(self, mask: u64) -> B {
            let bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let mask = mask.to_le_bytes();
            quarters!(Q => vtstq_u8(vcombine_u8(vdup_n_u8(mask[2 * Q]), vdup_n_u8(mask[2 * Q + 1])), bits))
        }
        /// Transposes a matrix of 4 x 4.
        fn transpose4(self, m: [int32x4_t; 4]) -> [int32x4_t; 4] {
            let mut pairs = [vdupq_n_s64(0); 4];
            for i in 0..2 {
                // Columns 0 and 2, then 1 and 3, of two rows.
                pairs[2 * i] = vreinterpretq_s64_s32(vtrn1q_s32(m[2 * i], m[2 * i + 1]));
                pairs[2 * i + 1] = vreinterpretq_s64_s32(vtrn2q_s32(m[2 * i], m[2 * i + 1]));
            }
            [
                vreinterpretq_s32_s64(vzip1q_s64(pairs[0], pairs[2])),
                vreinterpretq_s32_s64(vzip1q_s64(pairs[1], pairs[3])),
                vreinterpretq_s32_s64(vzip2q_s64(pairs[0], pairs[2])),
                vreinterpretq_s32_s64(vzip2q_s64(pairs[1], pairs[3])),
            ]
        }
    }
}

/// Elements `4 q .. 4 q + 4`.
#[inline(always)]
fn four<T, const N: usize>(x: &[T; N], q: usize) -> &[T; 4] {
    x[4 * q..].first_chunk().expect("a quarter of the vector")
}

/// Bytes `16 q .. 16 q + 16`.
#[inline(always)]
fn sixteen<const N: usize>(x: &[u8; N], q: usize) -> &[u8; 16] {
    x[16 * q..].first_chunk().expect("a part of the vector")
}
