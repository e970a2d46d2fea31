//! What is asked of an engine, and how a request ends.

use std::time::Duration;

use thiserror::Error;

use crate::error::StepError;
use crate::policy::{RowPolicy, StopReason};
use crate::sampler::{SampleError, Sampled, Sampling, SamplingError};

/// What is wanted of an engine.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate; as many as the context holds if absent.
    pub tokens_max: Option<usize>,
    /// How many tokens of the prompt lie before the end of each message, ascending: where other prompts are likely to part
    /// from this one, so that a beginning up to there is kept if it can be. May be empty.
    pub message_ends: Vec<usize>,
    /// What may come next, and when the answer ends.
    pub policy: Box<dyn RowPolicy + Send>,
}

/// What a request hears of itself, in this order: admitted, reading, tokens, and one end. After the end nothing follows.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestEvent {
    /// It has left the queue and has a place among the running.
    Admitted {
        /// Tokens of the prompt, from its beginning, that need not be read since they were before.
        reused_tokens: usize,
    },
    /// So many tokens of the prompt have been read.
    Read {
        /// Of the prompt, from its beginning.
        tokens: usize,
    },
    /// The next token of the answer, chosen or forced.
    Token(Sampled),
    /// Nothing more comes.
    Ended(Ended),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub enum EndReason {
    /// The policy stopped it.
    Stop(StopReason),
    /// As many tokens as were wanted, or as the context holds.
    Length,
    /// The caller had enough.
    Cancelled,
    /// It could not be answered to its end.
    Failed(RequestError),
}

/// How an answer ended, with its own figures. The times add up to the time between submission and end.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were not read, since they had been before.
    pub reused_tokens: usize,
    /// Tokens of the prompt that were read: the others, or fewer if the request ended before.
    pub read_tokens: usize,
    /// Tokens generated; a stop token is not counted.
    pub generated_tokens: usize,
    /// Time until it was admitted.
    pub queue_time: Duration,
    /// Time to read the prompt.
    pub read_time: Duration,
    /// Time to write the answer.
    pub write_time: Duration,
}

/// A request that could not be answered.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum RequestError {
    /// A prompt without tokens.
    #[error("the prompt is empty: there is nothing to go on from")]
    EmptyPrompt,
    /// More than the context holds.
    #[error(
        "the prompt has {prompt_tokens} tokens; the context holds {context_tokens}, one of them for the answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// Prompt and answer together are more than the context holds.
    #[error(
        "the prompt has {prompt_tokens} tokens and the answer may have {tokens_max}: together {}, where the context holds \
         {context_tokens}; ask for fewer, or for no number at all",
        prompt_tokens.saturating_add(*tokens_max)
    )]
    AnswerTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens wanted.
        tokens_max: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {token} at place {at} of the prompt is outside the vocabulary of {vocabulary} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Its place in the prompt, from 0.
        at: usize,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// The sampling makes no sense.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A pass failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The engine broke down; it has said why where it did.
    #[error("the engine has stopped before the answer was whole")]
    EngineGone,
}
