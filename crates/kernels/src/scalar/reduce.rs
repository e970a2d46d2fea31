//! Sums over a row: dot products and norms.

/// Lanes of every sum over f32 values: value `i` goes to lane `i % 16`.
pub const LANES: usize = 16;

/// Adds the lanes by halving: `l + 8`, then `l + 4`, `l + 2`, `l + 1`.
pub fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

/// Dot product: sixteen lanes, each a chain of fused multiply-adds in ascending index from +0, then [`sum_lanes`].
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut lanes = [0.0; LANES];
    for i in 0..a.len() {
        lanes[i % LANES] = a[i].mul_add(b[i], lanes[i % LANES]);
    }
    sum_lanes(lanes)
}

/// Root-mean-square norm (Zhang and Sennrich 2019): `inv = 1 / sqrt(dot(x, x) / n + eps)`, `out = (x * inv) * gamma`.
///
/// `x`, `gamma` and `out` have n values; without `gamma` the last product is left out.
pub fn rms_norm(x: &[f32], gamma: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    let inv = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    match gamma {
        Some(gamma) => {
            assert_eq!(x.len(), gamma.len());
            for i in 0..x.len() {
                out[i] = (x[i] * inv) * gamma[i];
            }
        }
        None => {
            for i in 0..x.len() {
                out[i] = x[i] * inv;
            }
        }
    }
}

/// Scales `x` to length 1: `x * (1 / sqrt(dot(x, x) + eps))`.
pub fn l2_norm(x: &mut [f32], eps: f32) {
    let inv = 1.0 / (dot(x, x) + eps).sqrt();
    for value in x {
        *value *= inv;
    }
}
