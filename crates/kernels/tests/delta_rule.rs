//! The gated delta rule against an independent implementation's numbers.

use kernels::{Isa, Kernels};

/// Seventy tokens, two key heads, six value heads of 32 values, value head j served by key head j div 3.
#[test]
fn seventy_tokens_equal_the_oracle() {
    let golden = oracle::npz("delta_rule");
    let [tokens, heads, d]: [usize; 3] = golden["v"].shape[..].try_into().unwrap();
    let key_heads = golden["k"].shape[1];
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::new) {
        let mut state = golden["S0"].f32().to_vec();
        let (mut q, mut k) = (golden["q"].f32().to_vec(), golden["k"].f32().to_vec());
        q.chunks_exact_mut(d).chain(k.chunks_exact_mut(d)).for_each(|head| kernels.l2_norm(head, 1e-6));
        let (v, g, beta) = (golden["v"].f32(), golden["g"].f32(), golden["beta"].f32());
        let mut out = vec![0.0; d];
        for t in 0..tokens {
            for j in 0..heads {
                let key = (t * key_heads + j / (heads / key_heads)) * d;
                let at = t * heads + j;
                let matrix = &mut state[j * d * d..][..d * d];
                let query = Some((&q[key..][..d], 1.0 / (d as f32).sqrt(), &mut out[..]));
                let decay = ::kernels::math::exp(g[at]);
                kernels.delta_step(matrix, &k[key..][..d], &v[at * d..][..d], decay, beta[at], query);
                let wanted = &golden["o"].f32()[at * d..][..d];
                for (found, wanted) in out.iter().zip(wanted) {
                    assert!((found - wanted).abs() < 2e-6, "{} token {t} head {j}", kernels.isa());
                }
            }
        }
        for (found, wanted) in state.iter().zip(golden["S"].f32()) {
            assert!((found - wanted).abs() < 5e-6, "{}: {found} {wanted}", kernels.isa());
        }
    }
}
