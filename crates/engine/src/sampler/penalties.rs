//! Steps that change scores by what was said before.

use super::sampling::{Dry, ValidSampling};

/// Bias and penalties, with room to count in.
#[derive(Clone, Debug, Default)]
pub struct Penalties {
    /// How often each token of the vocabulary is in the window; all 0 between calls.
    counts: Vec<u32>,
    /// Per place of the reversed window: tokens from there that equal its beginning.
    matches: Vec<usize>,
    /// Tokens that would go on with a repetition, and its length.
    repeats: Vec<(u32, usize)>,
}

impl Penalties {
    /// Steps 1 to 3 on the scores of all tokens. Finite scores stay finite.
    pub fn apply(&mut self, sampling: &ValidSampling, history: &[u32], scores: &mut [f32]) {
        let sampling = sampling.get();
        for &(token, bias) in &sampling.logit_bias {
            change(&mut scores[token as usize], |score| score + bias);
        }
        if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
            != (1.0, 0.0, 0.0)
        {
            let window = last(history, sampling.penalty_last_n);
            let (repetition, presence, frequency) =
                (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty);
            self.count(window, scores, |score, count| {
                let divided = if score <= 0.0 { score * repetition } else { score / repetition };
                divided - count as f32 * frequency - presence
            });
        }
        if let Some(dry) = sampling.dry.as_ref().filter(|dry| dry.multiplier > 0.0) {
            self.dry(dry, last(history, dry.last_n), scores);
        }
    }

    /// Changes the score of each token of the window once, by how often it is there.
    fn count(&mut self, window: &[u32], scores: &mut [f32], changed: impl Fn(f32, u32) -> f32) {
        self.counts.resize(scores.len(), 0);
        for &token in window {
            self.counts[token as usize] += 1;
        }
        for &token in window {
            let count = std::mem::take(&mut self.counts[token as usize]);
            if count > 0 {
                change(&mut scores[token as usize], |score| changed(score, count));
            }
        }
    }

    /// DRY ("don't repeat yourself", by p-e-w, with the details of llama.cpp's `llama_sampler_dry_apply`): where the end
    /// of the window, of length n, is also found earlier, the token that came after it there loses
    /// `multiplier * base^(n - allowed_length)`. A repetition does not reach back over a sequence breaker.
    fn dry(&mut self, dry: &Dry, window: &[u32], scores: &mut [f32]) {
        let len = window.len();
        let back = |i: usize| window[len - 1 - i];
        let limit = (0..len).find(|&i| dry.sequence_breakers.binary_search(&back(i)).is_ok()).unwrap_or(len);
        if limit < dry.allowed_length {
            return;
        }
        self.match_ends(window);
        self.repeats.clear();
        for i in 1..len {
            let repeated = self.matches[i].min(limit);
            if repeated >= dry.allowed_length {
                self.repeats.push((back(i - 1), repeated));
            }
        }
        self.repeats.sort_unstable();
        for (i, &(token, repeated)) in self.repeats.iter().enumerate() {
            let longest = self.repeats.get(i + 1).is_none_or(|next| next.0 != token);
            if longest {
                let exponent = (repeated - dry.allowed_length) as f64;
                let penalty = f64::from(dry.multiplier) * libm::pow(f64::from(dry.base), exponent);
                change(&mut scores[token as usize], |score| score - penalty.min(f64::from(f32::MAX)) as f32);
            }
        }
    }

    /// The Z function (Gusfield 1997) of the reversed window: `matches[i]` is how long the window's end is also an end of
    /// the window without its last `i` tokens. Linear in the window.
    fn match_ends(&mut self, window: &[u32]) {
        let len = window.len();
        let back = |i: usize| window[len - 1 - i];
        self.matches.clear();
        self.matches.resize(len, 0);
        // The match that reaches farthest: from `start` up to `end`.
        let (mut start, mut end) = (0, 0);
        for i in 1..len {
            let mut known = if i < end { self.matches[i - start].min(end - i) } else { 0 };
            while i + known < len && back(known) == back(i + known) {
                known += 1;
            }
            self.matches[i] = known;
            if i + known > end {
                (start, end) = (i, i + known);
            }
        }
    }
}

fn last(history: &[u32], n: usize) -> &[u32] {
    &history[history.len().saturating_sub(n)..]
}

fn change(score: &mut f32, changed: impl Fn(f32) -> f32) {
    *score = changed(*score).clamp(f32::MIN, f32::MAX);
}
