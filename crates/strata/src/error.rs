//! What can end a command, each with the exit code that scripts see.

use std::io;
use std::path::{Path, PathBuf};

use engine::memory::{Change, Refusal};
use engine::{LoadError, RequestError, StepError};

/// Why a command ended early. `Display` is the one sentence that the user reads.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Whoever read the standard output has gone, as `head` does: no fault.
    #[error("the reader of the output is gone")]
    ReaderGone,
    /// The model cannot be loaded.
    #[error("{}", load_sentence(path, source))]
    Load {
        /// As given.
        path: PathBuf,
        /// The cause.
        source: Box<LoadError>,
    },
    /// The file's tokenizer cannot be used.
    #[error("cannot use the tokenizer of {}: {source}", path.display())]
    Tokenizer {
        /// As given.
        path: PathBuf,
        /// The cause.
        source: Box<chat::Error>,
    },
    /// The chat template gives no prompt.
    #[error("{}", template_sentence(.0))]
    Template(Box<chat::Error>),
    /// Text that is not text.
    #[error("{what} is not UTF-8 text: byte {at} cannot be there")]
    NotText {
        /// Which text.
        what: String,
        /// The first byte that is wrong, from 0.
        at: usize,
    },
    /// More text than anything here can use.
    #[error("{what} holds more than {bytes_max} bytes, the most that are taken")]
    TextTooLong {
        /// Which text.
        what: String,
        /// The limit.
        bytes_max: u64,
    },
    /// Results that the memory cannot hold.
    #[error("the results for {tokens} tokens do not fit into the {available} bytes of memory that are free")]
    ResultsTooLarge {
        /// Tokens asked for.
        tokens: usize,
        /// What there is.
        available: u64,
    },
    /// The memory of this machine does not hold what is wanted.
    #[error("{}", refusal_sentence(path, .refusal))]
    DoesNotFit {
        /// As given.
        path: PathBuf,
        /// Both numbers, and what would fit.
        refusal: Box<Refusal>,
    },
    /// Too little to compute a perplexity from.
    #[error("the text has {found} tokens; one chunk needs {needed}: take a longer text or a smaller --ctx")]
    TextTooShort {
        /// Its tokens.
        found: usize,
        /// Tokens of one chunk.
        needed: usize,
    },
    /// Nothing to compute.
    #[error("the prompt is empty: there is nothing to go on from")]
    EmptyPrompt,
    /// More than the context holds.
    #[error("{found} tokens do not fit into the context of {context_tokens} tokens; --ctx sets another one")]
    TooLong {
        /// Tokens there would be.
        found: usize,
        /// Tokens there may be.
        context_tokens: usize,
    },
    /// A pass failed.
    #[error(transparent)]
    Step(StepError),
    /// A sampling option makes no sense.
    #[error(transparent)]
    Sampling(engine::SamplingError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(engine::sampler::SampleError),
    /// Threads or memory for a measurement cannot be had.
    #[error("cannot measure the memory's bandwidth: {0}")]
    Measure(String),
    /// A file or a stream failed.
    #[error("cannot {action} {what}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// 2 as for any wrong argument, 3 the model, 4 the text or tokens, 5 computing, 6 files and streams, 8 memory.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::ReaderGone => 0,
            Error::Load { source, .. } if matches!(**source, LoadError::InstructionSet { .. }) => 2,
            Error::Load { .. } | Error::Tokenizer { .. } => 3,
            Error::Template(_)
            | Error::NotText { .. }
            | Error::TextTooLong { .. }
            | Error::ResultsTooLarge { .. }
            | Error::TextTooShort { .. }
            | Error::EmptyPrompt
            | Error::TooLong { .. }
            | Error::Step(StepError::TokenOutOfRange { .. }) => 4,
            Error::Sampling(_) => 2,
            Error::Step(_) | Error::Sample(_) | Error::Measure(_) => 5,
            Error::Io { .. } => 6,
            Error::DoesNotFit { .. } => 8,
        }
    }
}

impl From<StepError> for Error {
    fn from(error: StepError) -> Error {
        match error {
            StepError::ContextFull { tokens, context_tokens } => {
                Error::TooLong { found: tokens, context_tokens }
            }
            error => Error::Step(error),
        }
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Error {
        match error {
            RequestError::EmptyPrompt => Error::EmptyPrompt,
            RequestError::PromptTooLong { prompt_tokens, context_tokens } => {
                // One more for the answer.
                Error::TooLong { found: prompt_tokens + 1, context_tokens }
            }
            RequestError::Sampling(error) => Error::Sampling(error),
            RequestError::Sample(error) => Error::Sample(error),
            RequestError::Step(error) => error.into(),
        }
    }
}

/// Errors of files name the file themselves.
fn load_sentence(path: &Path, error: &LoadError) -> String {
    match error {
        LoadError::File(_) | LoadError::Map(_) | LoadError::Read(_) => error.to_string(),
        LoadError::InstructionSet { .. } | LoadError::Threads { .. } => error.to_string(),
        error => format!("cannot load {}: {error}", path.display()),
    }
}

/// With the settings as the command line spells them.
fn refusal_sentence(path: &Path, refusal: &Refusal) -> String {
    let sentence = refusal.sentence(|change| match change {
        Change::Loading(loading) => format!("--weights {}", loading.name()),
        Change::Kv(kv) => format!("--kv {}", kv.name()),
        Change::Context(tokens) => format!("--ctx {tokens}"),
        Change::Sequences(sequences) => format!("--parallel {sequences}"),
        Change::Chunk(tokens) => format!("--chunk {tokens}"),
    });
    format!("{} does not fit: {sentence}", path.display())
}

/// A template that is missing says itself what to do.
fn template_sentence(error: &chat::Error) -> String {
    match error {
        chat::Error::NoTemplate => error.to_string(),
        error => format!("{error}; --raw gives the prompt as it is"),
    }
}
