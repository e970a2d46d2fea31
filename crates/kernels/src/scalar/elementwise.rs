//! Operations on single values and on pairs of values.

use crate::math;

/// `y = y + x`.
pub fn add(y: &mut [f32], x: &[f32]) {
    assert_eq!(y.len(), x.len());
    for i in 0..y.len() {
        y[i] += x[i];
    }
}

/// `y = fma(scale, x, y)`.
pub fn add_scaled(y: &mut [f32], scale: f32, x: &[f32]) {
    assert_eq!(y.len(), x.len());
    for i in 0..y.len() {
        y[i] = scale.mul_add(x[i], y[i]);
    }
}

/// `x = silu(x)`.
pub fn silu(x: &mut [f32]) {
    for value in x {
        *value = math::silu(*value);
    }
}

/// `x = sigmoid(x)`.
pub fn sigmoid(x: &mut [f32]) {
    for value in x {
        *value = math::sigmoid(*value);
    }
}

/// The gated activation of a feed-forward block: `gate = silu(gate) * up`.
pub fn silu_multiply(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for i in 0..gate.len() {
        gate[i] = math::silu(gate[i]) * up[i];
    }
}

/// `x = x * sigmoid(gate)`.
pub fn multiply_sigmoid(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len());
    for i in 0..x.len() {
        x[i] *= math::sigmoid(gate[i]);
    }
}

/// `x = x * silu(gate)`.
pub fn multiply_silu(x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len());
    for i in 0..x.len() {
        x[i] *= math::silu(gate[i]);
    }
}

/// The gated mean over residual streams: `out[c] = (1 / S) * sum_s fma(gate[s][c], x[s][c], ...)`, s ascending from +0.
///
/// `gate` and `x` are `[S][n]`, `out` is `[n]`.
pub fn mix_streams(gate: &[f32], x: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert_eq!(gate.len(), x.len());
    assert!(n > 0 && x.len().is_multiple_of(n));
    let streams = x.len() / n;
    let mean = 1.0 / streams as f32;
    for c in 0..n {
        let mut sum = 0.0f32;
        for s in 0..streams {
            sum = gate[s * n + c].mul_add(x[s * n + c], sum);
        }
        out[c] = mean * sum;
    }
}

/// Rotates the pairs `(x[j], x[j + h])`, h = `cos.len()`, leaving values from 2 h on as they are:
/// `(a, b) -> (a cos - b sin, b cos + a sin)` with one rounding per product and one per sum (no fused step).
pub fn apply_rope_halves(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let h = cos.len();
    assert!(sin.len() == h && x.len() >= 2 * h);
    for j in 0..h {
        let (a, b) = (x[j], x[j + h]);
        x[j] = a * cos[j] - b * sin[j];
        x[j + h] = b * cos[j] + a * sin[j];
    }
}

/// The same for adjacent pairs `(x[2 j], x[2 j + 1])`.
pub fn apply_rope_adjacent(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let h = cos.len();
    assert!(sin.len() == h && x.len() >= 2 * h);
    for j in 0..h {
        let (a, b) = (x[2 * j], x[2 * j + 1]);
        x[2 * j] = a * cos[j] - b * sin[j];
        x[2 * j + 1] = b * cos[j] + a * sin[j];
    }
}
