//! State that moves with every token: the short convolution and the gated delta rule.

/// Depthwise causal convolution at one position: `out[c] = sum_k fma(weights[k][c], taps[k][c], ...)`, k ascending from
/// +0. `taps[k]` is the row that tap k sees (the last one is the current row); `weights` is `[taps][channels]`.
pub fn convolve(taps: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    let channels = out.len();
    assert_eq!(weights.len(), taps.len() * channels);
    out.fill(0.0);
    for (k, tap) in taps.iter().enumerate() {
        assert_eq!(tap.len(), channels);
        for c in 0..channels {
            out[c] = weights[k * channels + c].mul_add(tap[c], out[c]);
        }
    }
}

/// One token of the gated delta rule (Yang, Kautz and Hatamizadeh 2024) for one value head, on a block of its columns.
///
/// `state` is `[keys][columns]` (row i belongs to key dimension i), `k` and `q` have `keys` values, `v` and `out` one
/// value per column; `out` is left alone when it is `None` (replay of an accepted token).
/// For each column c, i ascending, from +0:
/// `S[i][c] = decay * S[i][c]`; `r = fma(S[i][c], k[i], r)`; then `d = beta * (v[c] - r)`;
/// `S[i][c] = fma(k[i], d, S[i][c])`; `o = fma(S[i][c], q[i], o)`; `out[c] = o * q_scale`.
pub fn delta_step(
    state: &mut [f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: f32,
    query: Option<(&[f32], f32, &mut [f32])>,
) {
    let (keys, columns) = (k.len(), v.len());
    assert_eq!(state.len(), keys * columns);
    let mut read = vec![0.0f32; columns];
    for i in 0..keys {
        for c in 0..columns {
            let s = decay * state[i * columns + c];
            state[i * columns + c] = s;
            read[c] = s.mul_add(k[i], read[c]);
        }
    }
    for c in 0..columns {
        read[c] = beta * (v[c] - read[c]);
    }
    for i in 0..keys {
        for c in 0..columns {
            state[i * columns + c] = k[i].mul_add(read[c], state[i * columns + c]);
        }
    }
    if let Some((q, q_scale, out)) = query {
        assert!(q.len() == keys && out.len() == columns);
        out.fill(0.0);
        for i in 0..keys {
            for c in 0..columns {
                out[c] = state[i * columns + c].mul_add(q[i], out[c]);
            }
        }
        for value in out {
            *value *= q_scale;
        }
    }
}
