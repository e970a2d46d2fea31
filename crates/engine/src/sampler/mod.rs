//! From logits to a token.
//!
//! The steps, in the order of llama.cpp's default chain where it has them:
//!
//! 1. logit bias: added;
//! 2. repetition, presence and frequency penalties over the last tokens of prompt and answer;
//! 3. DRY: a penalty for what would go on with a repetition;
//! 4. top-k, 5. typical, 6. top-p, 7. min-p: each over the probabilities of what the earlier ones left;
//! 8. temperature, then a draw. Temperature 0 takes the best score after step 3, whatever the cut-offs.
//!
//! Probabilities are whole multiples of 2^-39 of the likeliest, so that their sums do not depend on an order; what is less
//! likely than that is never drawn. Among equal scores the lower token id comes first.
//!
//! Log probabilities are those of the model: of the softmax of the logits as they came, before all steps and before a
//! mask, as clients of the OpenAI API know them.

mod candidates;
mod log_probabilities;
mod penalties;
mod random;
mod sampling;
#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::policy::TokenMask;
use candidates::{Candidate, draw, min_p, top_k, top_p, typical};
pub use log_probabilities::LogProbabilities;
use penalties::Penalties;
pub use sampling::{Dry, Sampling, SamplingError, TEMPERATURE_MAX, ValidSampling};

/// A token with what is told about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// If wanted.
    pub log_probabilities: Option<LogProbabilities>,
}

/// No token can be chosen.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SampleError {
    /// The model gave a score that is not a number.
    #[error("the model's score of token {token} is {found}: there is nothing to choose by")]
    NotFinite {
        /// The first such token.
        token: u32,
        /// Its score.
        found: f32,
    },
    /// The constraints of the request leave no token.
    #[error("no token of the vocabulary may come next: the constraints of the request cannot be met")]
    NothingAllowed,
}

/// Chooses the tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: ValidSampling,
    penalties: Penalties,
    /// Room for the logits after penalties.
    scores: Vec<f32>,
    /// Room for what is left to choose from.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler; it keeps room for one row of logits.
    pub fn new(sampling: ValidSampling) -> Sampler {
        Sampler { sampling, penalties: Penalties::default(), scores: Vec::new(), candidates: Vec::new() }
    }

    /// The token for the place `position` of a sequence.
    ///
    /// `logits` has one number per token of the vocabulary; `history` is the sequence so far, prompt included; `mask` are
    /// the tokens that may come, all if absent. Randomness is a counter, not a stream: what is drawn depends on the seed
    /// and the position alone, so a sequence goes on in the same way whatever else was sampled in between.
    ///
    /// # Errors
    /// See [`SampleError`].
    ///
    /// # Panics
    /// If the number of logits is not that of the tokens the sampling was validated for.
    pub fn sample(
        &mut self,
        logits: &[f32],
        history: &[u32],
        position: u64,
        mask: Option<&TokenMask>,
    ) -> Result<Sampled, SampleError> {
        let sampling = &self.sampling;
        assert_eq!(logits.len(), sampling.vocabulary(), "one logit per token of the vocabulary");
        if let Some(token) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(SampleError::NotFinite { token: token as u32, found: logits[token] });
        }
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        self.penalties.apply(sampling, history, &mut self.scores);
        self.candidates.clear();
        let scored = self.scores.iter().zip(0..);
        match mask {
            None => self.candidates.extend(scored.map(|(&score, token)| Candidate::new(score, token))),
            Some(mask) => self.candidates.extend(
                scored
                    .filter(|&(_, token)| mask.contains(token))
                    .map(|(&score, token)| Candidate::new(score, token)),
            ),
        }
        let token = choose(&mut self.candidates, sampling, position).ok_or(SampleError::NothingAllowed)?;
        Ok(self.told(logits, token))
    }

    /// A token that is not chosen but given, with what is wanted to be told about it.
    ///
    /// # Panics
    /// If `token` is outside the vocabulary.
    pub fn told(&self, logits: &[f32], token: u32) -> Sampled {
        let log_probabilities =
            self.sampling.get().log_probabilities.map(|top_n| LogProbabilities::new(logits, token, top_n));
        Sampled { token, log_probabilities }
    }
}

/// Index of the largest value, the lower one among equals. The values are finite.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// Steps 4 to 8; nothing only if there are no candidates. Their order does not matter.
fn choose(candidates: &mut Vec<Candidate>, sampling: &ValidSampling, position: u64) -> Option<u32> {
    let sampling = sampling.get();
    if sampling.temperature == 0.0 {
        return candidates.iter().min().map(Candidate::token);
    }
    top_k(candidates, sampling.top_k);
    typical(candidates, sampling.typical_p);
    top_p(candidates, sampling.top_p);
    min_p(candidates, sampling.min_p);
    draw(candidates, sampling.temperature, random::bits(sampling.seed, position))
}
