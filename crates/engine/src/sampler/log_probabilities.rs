//! How likely the model holds a token to be.

use super::candidates::{Candidate, top_k};
use kernels::math;

/// Natural logarithms of probabilities: of the softmax of the logits as the model gave them.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbabilities {
    /// Of the token itself.
    pub token: f32,
    /// The likeliest tokens and theirs, the likeliest first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

impl LogProbabilities {
    /// Of `token` and the `top_n` likeliest. The logits are finite.
    pub(super) fn new(logits: &[f32], token: u32, top_n: usize) -> LogProbabilities {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(math::exp(logit - best))).sum();
        let log_sum = f64::from(best) + libm::log(sum);
        let of = |token: u32| (f64::from(logits[token as usize]) - log_sum) as f32;
        let mut top: Vec<Candidate> = Vec::new();
        if top_n > 0 {
            top.extend(logits.iter().zip(0..).map(|(&logit, token)| Candidate::new(logit, token)));
            top_k(&mut top, top_n);
            top.sort_unstable();
        }
        LogProbabilities { token: of(token), top: top.iter().map(|c| (c.token(), of(c.token()))).collect() }
    }
}
