//! What a request says about how its tokens are chosen, and what of it makes sense.

use thiserror::Error;

/// Highest temperature: from here on all tokens are nearly alike.
pub const TEMPERATURE_MAX: f32 = 100.0;

/// Most tokens of a vocabulary: so many relative probabilities can be summed in 64 bits.
pub(super) const VOCABULARY_MAX: usize = 1 << 24;

/// How a token is chosen. The default is neutral: the likeliest token, nothing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the best score; otherwise scores are divided by this. 0 to 100.
    pub temperature: f32,
    /// Only this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability; 1 keeps all. 0 to 1.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the likeliest; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Only the tokens nearest to the expected information that together exceed this probability; 1 keeps all. 0 to 1.
    pub typical_p: f32,
    /// Positive scores of tokens in the window are divided by this, others multiplied; 1 changes nothing. 0.01 to 100.
    pub repetition_penalty: f32,
    /// Taken from the score of each token in the window. -100 to 100.
    pub presence_penalty: f32,
    /// Taken from the score of each token in the window as often as it is there. -100 to 100.
    pub frequency_penalty: f32,
    /// The window of these three: this many last tokens of prompt and answer.
    pub penalty_last_n: usize,
    /// Against repetitions of sequences.
    pub dry: Option<Dry>,
    /// Added to the scores of tokens; every number is finite.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same position, same logits: same token.
    pub seed: u64,
    /// Whether log probabilities are wanted, and of how many of the likeliest tokens besides the chosen one.
    pub log_probabilities: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            // That of llama.cpp.
            penalty_last_n: 64,
            dry: None,
            logit_bias: Vec::new(),
            seed: 0,
            log_probabilities: None,
        }
    }
}

/// A penalty that grows with the length of the sequence that a token would repeat.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Scale of the penalty; 0 turns it off. 0 to 100.
    pub multiplier: f32,
    /// The penalty grows by this factor with each further token. 1 to 100.
    pub base: f32,
    /// Tokens that may be repeated; from this length on, the next one is penalised.
    pub allowed_length: usize,
    /// The window: this many last tokens of prompt and answer.
    pub last_n: usize,
    /// Tokens over which no repetition reaches.
    pub sequence_breakers: Vec<u32>,
}

impl Default for Dry {
    /// llama.cpp's numbers, but for a multiplier that turns it on.
    fn default() -> Dry {
        Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            last_n: usize::MAX,
            sequence_breakers: Vec::new(),
        }
    }
}

/// A sampling that makes no sense.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A number outside its range.
    #[error("`{field}` is {found}: a number from {min} to {max} is needed")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What came.
        found: f32,
        /// Least that would do.
        min: f32,
        /// Most that would do.
        max: f32,
    },
    /// A count outside its range.
    #[error("`{field}` is {found}: at most {max} is possible")]
    TooMany {
        /// The field.
        field: &'static str,
        /// What came.
        found: usize,
        /// Most that would do.
        max: usize,
    },
    /// A token that the model does not have.
    #[error("`{field}` names token {token}: a token below {vocabulary} is needed")]
    TokenAbsent {
        /// The field.
        field: &'static str,
        /// The token.
        token: u32,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// A bias that is no number.
    #[error("`logit_bias` of token {token} is {found}: a finite number is needed")]
    BiasNotFinite {
        /// The token.
        token: u32,
        /// What came.
        found: f32,
    },
}

impl Sampling {
    /// Checks every number, for a model of `vocabulary` tokens.
    ///
    /// # Errors
    /// See [`SamplingError`]; the first one found.
    pub fn validate(mut self, vocabulary: usize) -> Result<ValidSampling, SamplingError> {
        if vocabulary > VOCABULARY_MAX {
            return Err(SamplingError::TooMany {
                field: "vocabulary",
                found: vocabulary,
                max: VOCABULARY_MAX,
            });
        }
        in_range("temperature", self.temperature, 0.0, TEMPERATURE_MAX)?;
        in_range("top_p", self.top_p, 0.0, 1.0)?;
        in_range("min_p", self.min_p, 0.0, 1.0)?;
        in_range("typical_p", self.typical_p, 0.0, 1.0)?;
        in_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        in_range("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        in_range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        let present = |field, token: u32| match (token as usize) < vocabulary {
            true => Ok(()),
            false => Err(SamplingError::TokenAbsent { field, token, vocabulary }),
        };
        if let Some(dry) = &mut self.dry {
            in_range("dry_multiplier", dry.multiplier, 0.0, 100.0)?;
            in_range("dry_base", dry.base, 1.0, 100.0)?;
            dry.sequence_breakers.iter().try_for_each(|&token| present("dry_sequence_breakers", token))?;
            // Looked up for every token of the window.
            dry.sequence_breakers.sort_unstable();
            dry.sequence_breakers.dedup();
        }
        for &(token, bias) in &self.logit_bias {
            present("logit_bias", token)?;
            if !bias.is_finite() {
                return Err(SamplingError::BiasNotFinite { token, found: bias });
            }
        }
        if let Some(found) = self.log_probabilities.filter(|&n| n > vocabulary) {
            return Err(SamplingError::TooMany { field: "log_probabilities", found, max: vocabulary });
        }
        Ok(ValidSampling { sampling: self, vocabulary })
    }
}

/// A [`Sampling`] of which every number was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidSampling {
    sampling: Sampling,
    vocabulary: usize,
}

impl ValidSampling {
    /// The numbers.
    pub fn get(&self) -> &Sampling {
        &self.sampling
    }

    /// Tokens of the model it was checked for.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }
}

fn in_range(field: &'static str, found: f32, min: f32, max: f32) -> Result<(), SamplingError> {
    // False for what is not a number.
    match (min..=max).contains(&found) {
        true => Ok(()),
        false => Err(SamplingError::OutOfRange { field, found, min, max }),
    }
}
