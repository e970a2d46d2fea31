//! See `scalar::reduce`.

use super::elementwise::{scale, zip};
use super::simd::Simd;

#[inline(always)]
pub(super) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sum = s.splat(0.0);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks(), b.as_chunks());
    for (a, b) in a.iter().zip(b) {
        sum = s.fma(s.load(a), s.load(b), sum);
    }
    if !a_rest.is_empty() {
        sum = s.fma_first(a_rest.len(), s.load_first(a_rest), s.load_first(b_rest), sum);
    }
    s.sum(sum)
}

#[inline(always)]
pub(super) fn rms_norm<S: Simd>(s: S, x: &[f32], gamma: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    let inv = 1.0 / (dot(s, x, x) / x.len() as f32 + eps).sqrt();
    out.copy_from_slice(x);
    match gamma {
        Some(gamma) => {
            let inv = s.splat(inv);
            zip!(s, out, gamma, (x, gamma) => s.mul(s.mul(x, inv), gamma));
        }
        None => scale(s, out, inv),
    }
}

#[inline(always)]
pub(super) fn l2_norm<S: Simd>(s: S, x: &mut [f32], eps: f32) {
    let inv = 1.0 / (dot(s, x, x) + eps).sqrt();
    scale(s, x, inv);
}
