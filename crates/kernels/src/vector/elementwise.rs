//! See `scalar::elementwise` and `math`: the same steps, sixteen values at a time.

use super::simd::Simd;
use crate::math;

#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let c = s.min(s.max(x, s.splat(math::EXP_LOWEST)), s.splat(math::EXP_HIGHEST));
    let magic = s.splat(math::ROUND_MAGIC);
    let n = s.sub(s.add(s.mul(c, s.splat(math::LOG2_E)), magic), magic);
    let r = s.fma(n, s.splat(-math::LN2_HIGH), c);
    let r = s.fma(n, s.splat(-math::LN2_LOW), r);
    let mut p = s.splat(math::EXP_COEFFICIENTS[0]);
    for coefficient in &math::EXP_COEFFICIENTS[1..] {
        p = s.fma(p, r, s.splat(*coefficient));
    }
    let n = s.to_i(n);
    let half = s.halve_i(n);
    let scaled = s.mul(s.mul(p, s.power_of_two(half)), s.power_of_two(s.sub_i(n, half)));
    s.keep_nan(x, scaled)
}

/// `exp(x - max)` in place; returns the sums of the sixteen lanes.
#[inline(always)]
pub(super) fn exp_differences<S: Simd>(s: S, x: &mut [f32], max: f32) -> S::F {
    let max = s.splat(max);
    let mut sums = s.splat(0.0);
    let (whole, rest) = x.as_chunks_mut();
    for x in whole {
        let e = exp(s, s.sub(s.load(x), max));
        s.store(e, x);
        sums = s.add(sums, e);
    }
    if !rest.is_empty() {
        let e = exp(s, s.sub(s.load_first(rest), max));
        s.store_first(e, rest);
        sums = s.add_first(rest.len(), sums, e);
    }
    sums
}

#[inline(always)]
fn one_plus_exp_negative<S: Simd>(s: S, x: S::F) -> S::F {
    s.add(s.splat(1.0), exp(s, s.negate(x)))
}

#[inline(always)]
fn sigmoid_of<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), one_plus_exp_negative(s, x))
}

#[inline(always)]
fn silu_of<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(x, one_plus_exp_negative(s, x))
}

// Macros and not functions of closures: a closure is compiled without the instruction set's features, and nothing forces
// it into a function that has them.

/// `y = value`, for every vector `$v` of `y`.
macro_rules! map {
    ($s:ident, $y:expr, $v:ident => $value:expr) => {{
        let (whole, rest) = $y.as_chunks_mut();
        for y in whole {
            let $v = $s.load(y);
            $s.store($value, y);
        }
        if !rest.is_empty() {
            let $v = $s.load_first(rest);
            $s.store_first($value, rest);
        }
    }};
}

/// `y = value`, for all vectors `$v` of `y` and `$w` of `x`.
macro_rules! zip {
    ($s:ident, $y:expr, $x:expr, ($v:ident, $w:ident) => $value:expr) => {{
        assert_eq!($y.len(), $x.len());
        let (y_whole, y_rest) = $y.as_chunks_mut();
        let (x_whole, x_rest) = $x.as_chunks();
        for (y, x) in y_whole.iter_mut().zip(x_whole) {
            let ($v, $w) = ($s.load(y), $s.load(x));
            $s.store($value, y);
        }
        if !y_rest.is_empty() {
            let ($v, $w) = ($s.load_first(y_rest), $s.load_first(x_rest));
            $s.store_first($value, y_rest);
        }
    }};
}

pub(super) use zip;

#[inline(always)]
pub(super) fn add<S: Simd>(s: S, y: &mut [f32], x: &[f32]) {
    zip!(s, y, x, (y, x) => s.add(y, x));
}

#[inline(always)]
pub(super) fn add_scaled<S: Simd>(s: S, y: &mut [f32], scale: f32, x: &[f32]) {
    let scale = s.splat(scale);
    zip!(s, y, x, (y, x) => s.fma(scale, x, y));
}

#[inline(always)]
pub(super) fn scale<S: Simd>(s: S, y: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    map!(s, y, y => s.mul(y, factor));
}

#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: &mut [f32]) {
    map!(s, x, x => silu_of(s, x));
}

#[inline(always)]
pub(super) fn sigmoid<S: Simd>(s: S, x: &mut [f32]) {
    map!(s, x, x => sigmoid_of(s, x));
}

#[inline(always)]
pub(super) fn silu_multiply<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    zip!(s, gate, up, (gate, up) => s.mul(silu_of(s, gate), up));
}

#[inline(always)]
pub(super) fn multiply_sigmoid<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    zip!(s, x, gate, (x, gate) => s.mul(x, sigmoid_of(s, gate)));
}

#[inline(always)]
pub(super) fn multiply_silu<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    zip!(s, x, gate, (x, gate) => s.mul(x, silu_of(s, gate)));
}

#[inline(always)]
pub(super) fn mix_streams<S: Simd>(s: S, gate: &[f32], x: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert!(gate.len() == x.len() && n > 0 && x.len().is_multiple_of(n));
    out.fill(0.0);
    for (gate, x) in gate.chunks_exact(n).zip(x.chunks_exact(n)) {
        add_products(s, gate, x, out);
    }
    let mean = s.splat(1.0 / (x.len() / n) as f32);
    map!(s, out, sum => s.mul(mean, sum));
}

/// `sum = fma(a, b, sum)`.
#[inline(always)]
pub(super) fn add_products<S: Simd>(s: S, a: &[f32], b: &[f32], sum: &mut [f32]) {
    assert!(a.len() == sum.len() && b.len() == sum.len());
    let (sums, sum_rest) = sum.as_chunks_mut();
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks(), b.as_chunks());
    for ((a, b), sum) in a.iter().zip(b).zip(sums) {
        s.store(s.fma(s.load(a), s.load(b), s.load(sum)), sum);
    }
    if !sum_rest.is_empty() {
        let (a, b, sum) = (s.load_first(a_rest), s.load_first(b_rest), s.load_first(sum_rest));
        s.store_first(s.fma(a, b, sum), sum_rest);
    }
}

#[inline(always)]
fn rotate<S: Simd>(s: S, a: S::F, b: S::F, cos: S::F, sin: S::F) -> (S::F, S::F) {
    (s.sub(s.mul(a, cos), s.mul(b, sin)), s.add(s.mul(b, cos), s.mul(a, sin)))
}

#[inline(always)]
pub(super) fn apply_rope_halves<S: Simd>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let h = cos.len();
    assert!(sin.len() == h && x.len() >= 2 * h);
    let (a, b) = x[..2 * h].split_at_mut(h);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks_mut(), b.as_chunks_mut());
    let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks(), sin.as_chunks());
    for i in 0..a.len() {
        let (first, second) = rotate(s, s.load(&a[i]), s.load(&b[i]), s.load(&cos[i]), s.load(&sin[i]));
        s.store(first, &mut a[i]);
        s.store(second, &mut b[i]);
    }
    if !a_rest.is_empty() {
        let (cos, sin) = (s.load_first(cos_rest), s.load_first(sin_rest));
        let (first, second) = rotate(s, s.load_first(a_rest), s.load_first(b_rest), cos, sin);
        s.store_first(first, a_rest);
        s.store_first(second, b_rest);
    }
}

#[inline(always)]
pub(super) fn apply_rope_adjacent<S: Simd>(s: S, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let h = cos.len();
    assert!(sin.len() == h && x.len() >= 2 * h);
    let (x, x_rest) = x[..2 * h].as_chunks_mut();
    let ((cos, cos_rest), (sin, sin_rest)) = (cos.as_chunks(), sin.as_chunks());
    for ((x, cos), sin) in x.iter_mut().zip(cos).zip(sin) {
        s.store(s.rotate_pairs(s.load(x), cos, sin), x);
    }
    if !x_rest.is_empty() {
        let (mut cos, mut sin) = ([0.0; 8], [0.0; 8]);
        cos[..cos_rest.len()].copy_from_slice(cos_rest);
        sin[..sin_rest.len()].copy_from_slice(sin_rest);
        s.store_first(s.rotate_pairs(s.load_first(x_rest), &cos, &sin), x_rest);
    }
}

#[inline(always)]
pub(super) fn narrow_f16<S: Simd>(s: S, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len());
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks(), out.as_chunks_mut());
    for (x, out) in x.iter().zip(out) {
        s.store_f16(s.load(x), out);
    }
    if !x_rest.is_empty() {
        let mut whole = [0; 16];
        s.store_f16(s.load_first(x_rest), &mut whole);
        out_rest.copy_from_slice(&whole[..x_rest.len()]);
    }
}

/// See [`crate::quant::quantize_row`].
#[inline(always)]
pub(super) fn quantize_row<S: Simd>(s: S, x: &[f32], q: &mut [i8], d: &mut [f32], sum16: &mut [i16]) {
    assert!(x.len().is_multiple_of(32) && q.len() == x.len() && d.len() == x.len() / 32);
    assert_eq!(sum16.len(), x.len() / 16);
    let ((x, _), (q, _), (sum16, _)) =
        (x.as_chunks::<32>(), q.as_chunks_mut::<32>(), sum16.as_chunks_mut::<2>());
    for (((x, q), d), sum16) in x.iter().zip(q).zip(d).zip(sum16) {
        let halves: [&[f32; 16]; 2] =
            [x[..16].try_into().expect("16 values"), x[16..].try_into().expect("16 values")];
        let values = [s.load(halves[0]), s.load(halves[1])];
        let bits = s.max_lane_i(s.max_i(s.magnitude_bits(values[0]), s.magnitude_bits(values[1])));
        let amax = f32::from_bits(bits as u32);
        if amax.is_nan() || amax.is_infinite() || amax < 1e-30 {
            q.fill(0);
            *sum16 = [0; 2];
            *d = if amax < 1e-30 { 0.0 } else { f32::NAN };
            continue;
        }
        *d = amax / 127.0;
        let inv = s.splat(127.0 / amax);
        for h in 0..2 {
            // |x * inv| is at most 127 (1 + 2^-23), so rounding already clamps to 127.
            let codes = s.to_i(s.mul(values[h], inv));
            let out = (&mut q[16 * h..16 * h + 16]).try_into().expect("16 codes");
            s.store_i8(codes, out);
            sum16[h] = s.sum_lanes_i(codes) as i16;
        }
    }
}
