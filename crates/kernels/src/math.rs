//! Elementary functions by our own polynomials.
//!
//! A system's math library may differ from machine to machine; these are a fixed sequence of IEEE operations, so every
//! instruction set and every machine gives the same bits. Errors stay within two units in the last place.

/// log2(e), rounded.
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The leading bits of ln 2: few enough that `n * LN2_HIGH` is exact for every exponent `n`.
pub const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 - `LN2_HIGH`.
pub const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting 1.5 * 2^23 rounds a small float to an integer, ties to even.
pub const ROUND_MAGIC: f32 = 12_582_912.0;
/// Below this e^x rounds to 0.
pub const EXP_LOWEST: f32 = -105.0;
/// Above this e^x overflows to infinity.
pub const EXP_HIGHEST: f32 = 89.0;
/// Taylor coefficients of e^r, highest power first: 1/7!, 1/6!, ... 1/1!, 1/0!. For |r| <= ln(2)/2 the rest is 5e-9.
pub const EXP_COEFFICIENTS: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// e^x.
///
/// Definition: `c = min(max(x, -105), 89)`; `n = round(c * log2 e)` by the magic addition; `r = fma(n, -LN2_HIGH, c)`,
/// `r = fma(n, -LN2_LOW, r)`; Horner's scheme over [`EXP_COEFFICIENTS`] with fused steps; then two multiplications by
/// powers of two, `2^(n >> 1)` and `2^(n - (n >> 1))`, so that subnormal results round once. NaN gives NaN.
pub fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let c = x.clamp(EXP_LOWEST, EXP_HIGHEST);
    let n = (c * LOG2_E + ROUND_MAGIC) - ROUND_MAGIC;
    let r = n.mul_add(-LN2_HIGH, c);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = EXP_COEFFICIENTS[0];
    for &coefficient in &EXP_COEFFICIENTS[1..] {
        p = p.mul_add(r, coefficient);
    }
    let n = n as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// The logistic function, `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x / (1 + exp(-x))`, also called swish.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + exp(x))`, as `max(x, 0) + log1p(exp(-|x|))`.
pub fn softplus(x: f32) -> f32 {
    x.max(0.0) + log1p_unit(exp(-x.abs()))
}

/// `ln(1 + t)` for t in [0, 1]: twice the inverse hyperbolic tangent of `t / (2 + t)` by its series up to the 15th power.
fn log1p_unit(t: f32) -> f32 {
    let s = t / (2.0 + t);
    let s2 = s * s;
    let mut p = 1.0 / 15.0;
    for denominator in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0f32] {
        p = s2.mul_add(p, 1.0 / denominator);
    }
    2.0 * s * p
}
