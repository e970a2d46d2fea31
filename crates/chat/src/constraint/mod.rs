//! Where an answer's thinking ends, where the answer ends, and what of it is certain.
//!
//! Rules, on the bytes of the tokens:
//!
//! - Thinking is opened by the prompt, or by the opening mark at the very beginning of the answer; it ends with the closing
//!   mark. Later marks are text. The marks are never shown, nor is white space before the thinking, or before the answer
//!   of a model that thinks.
//! - A budget counts the tokens after the opening mark. When it is spent, the closing mark is forced: by its own tokens,
//!   without those that the model has just written of it. 0 closes at once.
//! - Stop strings are looked for in the answer as it is shown, not in the thinking. The one that is complete first ends it;
//!   of those complete with the same byte, the longest. The answer ends before it.
//! - Control tokens are no text. A stop string that is the text of one stops at that token.

mod channels;
mod matcher;
mod policy;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use engine::StopReason;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Specials, Tokenizer};
pub(crate) use channels::{Channel, State};
use matcher::Matcher;
pub use policy::TextPolicy;

/// Most stop strings of a request.
const STOPS_MAX: usize = 256;

/// Most bytes of all stop strings of a request together.
const STOP_BYTES_MAX: usize = 1 << 16;

/// What a request wants of its answer, as plain data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstraintSpec {
    /// Texts that end the answer, at most 256 of at most 64 KiB together.
    pub stop_strings: Vec<String>,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// For a model that thinks before it answers.
    pub thinking: Option<ThinkingSpec>,
}

/// How a model thinks, and how long it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingSpec {
    /// Begins the thinking.
    pub open: Marker,
    /// Ends it.
    pub close: Marker,
    /// Whether the prompt ends within the thinking already.
    pub opened_by_prompt: bool,
    /// Most tokens of thinking, marks not counted; 0 is none, absent is no limit.
    pub budget_tokens: Option<usize>,
}

/// A mark in the text of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// By this text it is known.
    pub text: String,
    /// With these tokens it is written.
    pub tokens: Vec<u32>,
}

impl Marker {
    /// A mark in the tokens that a template would give it: a special token if there is one.
    pub fn new(tokenizer: &Tokenizer, text: &str) -> Marker {
        Marker { text: text.to_owned(), tokens: tokenizer.encode_continuation(text, Specials::Parse) }
    }

    /// Whether its tokens give its text.
    pub fn is_written_by(&self, tokenizer: &Tokenizer) -> bool {
        let written = self.tokens.iter().flat_map(|&token| tokenizer.token_bytes(token));
        !self.text.is_empty() && written.eq(self.text.as_bytes())
    }
}

/// A constraint that cannot be met.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ConstraintError {
    /// A stop string without text.
    #[error("stop string {index} is empty: it would end every answer before it begins")]
    EmptyStop {
        /// Its place in the request, from 0.
        index: usize,
    },
    /// Too many stop strings.
    #[error("there are {found} stop strings: at most {max} are possible")]
    TooManyStops {
        /// How many came.
        found: usize,
        /// How many may.
        max: usize,
    },
    /// Too long ones.
    #[error("the stop strings have {found} bytes together: at most {max} are possible")]
    StopsTooLong {
        /// Their bytes.
        found: usize,
        /// Bytes there may be.
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
    /// A mark whose tokens do not write its text.
    #[error("the mark `{text}` has tokens that write `{written}`")]
    Marker {
        /// Its text.
        text: String,
        /// The text of its tokens.
        written: String,
    },
}

/// A [`ConstraintSpec`] that was checked, for one model's tokens; shared by what steers an answer and what shows it.
#[derive(Debug)]
pub struct Constraint {
    tokenizer: Arc<Tokenizer>,
    stops: Matcher,
    stop_tokens: HashMap<u32, StopReason>,
    thinking: Option<Thinking>,
}

#[derive(Debug)]
struct Thinking {
    spec: ThinkingSpec,
    close: Matcher,
}

impl Constraint {
    /// Checks a request's constraints.
    ///
    /// # Errors
    /// See [`ConstraintError`]; the first one found.
    pub fn new(spec: ConstraintSpec, tokenizer: Arc<Tokenizer>) -> Result<Constraint, ConstraintError> {
        let ConstraintSpec { stop_strings, stop_tokens, thinking } = spec;
        if stop_strings.len() > STOPS_MAX {
            return Err(ConstraintError::TooManyStops { found: stop_strings.len(), max: STOPS_MAX });
        }
        let bytes = stop_strings.iter().map(String::len).sum();
        if bytes > STOP_BYTES_MAX {
            return Err(ConstraintError::StopsTooLong { found: bytes, max: STOP_BYTES_MAX });
        }
        if let Some(index) = stop_strings.iter().position(String::is_empty) {
            return Err(ConstraintError::EmptyStop { index });
        }
        let mut reasons = HashMap::new();
        for (index, text) in stop_strings.iter().enumerate() {
            if let Some(token) = tokenizer.id_of(text).filter(|&token| tokenizer.is_control(token)) {
                reasons.entry(token).or_insert(StopReason::Sequence(index));
            }
        }
        for token in stop_tokens {
            present(&tokenizer, "stop_tokens", token)?;
            reasons.insert(token, StopReason::Token(token));
        }
        let thinking = thinking.map(|spec| Thinking::new(spec, &tokenizer)).transpose()?;
        let stops = Matcher::new(stop_strings.into_iter().map(String::into_bytes).collect());
        Ok(Constraint { tokenizer, stops, stop_tokens: reasons, thinking })
    }
}

impl Thinking {
    fn new(spec: ThinkingSpec, tokenizer: &Tokenizer) -> Result<Thinking, ConstraintError> {
        for (field, marker) in [("thinking.open", &spec.open), ("thinking.close", &spec.close)] {
            marker.tokens.iter().try_for_each(|&token| present(tokenizer, field, token))?;
            if !marker.is_written_by(tokenizer) {
                let written: Vec<u8> =
                    marker.tokens.iter().flat_map(|&token| tokenizer.token_bytes(token)).copied().collect();
                return Err(ConstraintError::Marker {
                    text: marker.text.clone(),
                    written: String::from_utf8_lossy(&written).into_owned(),
                });
            }
        }
        let close = Matcher::new(vec![spec.close.text.clone().into_bytes()]);
        Ok(Thinking { spec, close })
    }
}

fn present(tokenizer: &Tokenizer, field: &'static str, token: u32) -> Result<(), ConstraintError> {
    let vocabulary = tokenizer.vocabulary_len();
    match (token as usize) < vocabulary {
        true => Ok(()),
        false => Err(ConstraintError::TokenAbsent { field, token, vocabulary }),
    }
}
