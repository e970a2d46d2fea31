//! What can end a command, each with the exit code that scripts see.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chat::{ChatError, ConstraintError};
use engine::memory::{Change, Refusal};
use engine::{LoadError, RequestError, SavedName, StepError, SubmitError};

use crate::repl::WrongCommand;

use crate::pull::fault::Fault;

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
    /// Neither a file nor a name.
    #[error(
        "there is no file `{name}`, and no model of that name in {}{}; strata pull hf:OWNER/REPO gets one",
        folder.display(),
        nearest_sentence(nearest)
    )]
    UnknownModel {
        /// As given.
        name: String,
        /// Where models are looked for.
        folder: PathBuf,
        /// Names that may have been meant, nearest first.
        nearest: Vec<String>,
    },
    /// No file, and nowhere to look for names.
    #[error("there is no file `{name}`, and to look for models by name HOME or STRATA_HOME must be set")]
    UnknownModelNoData {
        /// As given.
        name: String,
    },
    /// A name that stands for nothing in the data folder, where no file would do.
    #[error("no model in {} is called `{name}`{}; strata list prints the names", folder.display(), nearest_sentence(nearest))]
    NotStored {
        /// As given.
        name: String,
        /// Where models are looked for.
        folder: PathBuf,
        /// Names that may have been meant, nearest first.
        nearest: Vec<String>,
    },
    /// No conversation of that name.
    #[error("no conversation {name} is in {}; strata saved list prints the names", folder.display())]
    NotSaved {
        /// As given.
        name: SavedName,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// A model of which the first file has not come whole.
    #[error("only a part of {name} is here; pull it again, which goes on from there")]
    InPart {
        /// Its name.
        name: String,
    },
    /// Several models of a name.
    #[error("`{name}` fits {count} models, of which one must be named: {}", names.join(", "))]
    AmbiguousModel {
        /// As given.
        name: String,
        /// How many.
        count: usize,
        /// The first of them.
        names: Vec<String>,
    },
    /// Nowhere to keep models.
    #[error("there is no home folder to keep models in: set HOME, or STRATA_HOME to a folder for them")]
    NoDataFolder,
    /// Nothing was pulled.
    #[error(transparent)]
    Pull(#[from] Fault),
    /// Nothing was removed.
    #[error("{names} stays: say y when asked, or give --yes")]
    NotConfirmed {
        /// What would have been removed.
        names: String,
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
    Template(Arc<chat::Error>),
    /// The chat template gives no prompt, and a conversation is nothing without one.
    #[error("{}", conversation_sentence(.0))]
    NoConversation(Arc<chat::Error>),
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
    #[error("{}", refusal_sentence(path, .refusal, flags))]
    DoesNotFit {
        /// As given.
        path: PathBuf,
        /// Both numbers, and what would fit.
        refusal: Box<Refusal>,
        /// Of `--ctx`, `--parallel` and `--chunk` those that the command takes.
        flags: &'static [&'static str],
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
    /// A conversation that the context cannot hold any more.
    #[error(
        "the conversation would have {found} tokens, more than the context of {context_tokens}: /reset begins a new \
         one, --ctx sets another context"
    )]
    ConversationTooLong {
        /// Tokens there would be.
        found: usize,
        /// Tokens there may be.
        context_tokens: usize,
    },
    /// A file that holds no conversation.
    #[error("{} holds no conversation: {reason}", path.display())]
    Conversation {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No such command in a conversation.
    #[error(transparent)]
    Command(#[from] WrongCommand),
    /// A pass failed.
    #[error(transparent)]
    Step(StepError),
    /// The request cannot be met.
    #[error(transparent)]
    Constraint(ConstraintError),
    /// The engine takes no request, or has broken down.
    #[error("{0}")]
    Engine(String),
    /// A sampling option makes no sense.
    #[error(transparent)]
    Sampling(engine::SamplingError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(engine::sampler::SampleError),
    /// Threads or memory for a measurement cannot be had.
    #[error("cannot measure: {0}")]
    Measure(String),
    /// What is to be measured against does not exist.
    #[error("cannot measure against {peer}: {problem}")]
    Peer {
        /// Its name.
        peer: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nobody can connect.
    #[error(transparent)]
    Listen(#[from] server::ListenError),
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
    /// 2 as for any wrong argument, 3 the model, 4 the text or tokens, 5 computing, 6 files and streams, 7 the
    /// network, 8 memory, 9 the address to serve at.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::ReaderGone => 0,
            Error::Load { source, .. } if matches!(**source, LoadError::InstructionSet { .. }) => 2,
            Error::NoDataFolder
            | Error::NotConfirmed { .. }
            | Error::NotSaved { .. }
            | Error::Peer { .. } => 2,
            Error::Pull(fault) => fault.exit_code(),
            Error::Load { .. }
            | Error::Tokenizer { .. }
            | Error::UnknownModel { .. }
            | Error::UnknownModelNoData { .. }
            | Error::NotStored { .. }
            | Error::InPart { .. }
            | Error::AmbiguousModel { .. } => 3,
            Error::Template(_)
            | Error::NoConversation(_)
            | Error::NotText { .. }
            | Error::TextTooLong { .. }
            | Error::ResultsTooLarge { .. }
            | Error::TextTooShort { .. }
            | Error::EmptyPrompt
            | Error::TooLong { .. }
            | Error::ConversationTooLong { .. }
            | Error::Conversation { .. }
            | Error::Command(_)
            | Error::Step(StepError::TokenOutOfRange { .. }) => 4,
            Error::Sampling(_) | Error::Constraint(_) => 2,
            Error::Step(_) | Error::Sample(_) | Error::Engine(_) | Error::Measure(_) => 5,
            Error::Io { .. } => 6,
            Error::Listen(_) => 9,
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
            RequestError::AnswerTooLong { prompt_tokens, tokens_max, context_tokens } => {
                Error::TooLong { found: prompt_tokens.saturating_add(tokens_max), context_tokens }
            }
            RequestError::TokenOutOfRange { token, vocabulary, .. } => {
                Error::Step(StepError::TokenOutOfRange { token, vocabulary })
            }
            RequestError::EngineGone => Error::Engine(error.to_string()),
            RequestError::Sampling(error) => Error::Sampling(error),
            RequestError::Sample(error) => Error::Sample(error),
            RequestError::Step(error) => error.into(),
        }
    }
}

impl From<ChatError> for Error {
    fn from(error: ChatError) -> Error {
        match error {
            ChatError::Prompt(error) => Error::Template(error),
            ChatError::Constraint(error) => Error::Constraint(error),
            ChatError::Submit(SubmitError::Request(error)) => error.into(),
            ChatError::Submit(error) => Error::Engine(error.to_string()),
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

/// With the settings as the command line spells them. One that the command has no flag for is no advice; where there is no
/// other, it is told in words.
fn refusal_sentence(path: &Path, refusal: &Refusal, flags: &[&str]) -> String {
    let is_advice = |change: &Change| match change {
        Change::Loading(_) | Change::Kv(_) | Change::Context(_) => true,
        Change::Sequences(_) => flags.contains(&"--parallel"),
        Change::Chunk(_) => flags.contains(&"--chunk"),
        Change::PrefixBytes(_) => flags.contains(&"--prefix-cache"),
    };
    let mut advised = refusal.clone();
    advised.suggestions.retain(|suggestion| suggestion.changes.iter().all(is_advice));
    let sentence = match advised.suggestions.is_empty() {
        true => refusal.to_string(),
        false => advised.sentence(|change| match change {
            Change::Loading(loading) => format!("--weights {}", loading.name()),
            Change::Kv(kv) => format!("--kv {}", kv.name()),
            Change::Context(tokens) if flags.contains(&"--ctx") => format!("--ctx {tokens}"),
            Change::Context(tokens) => format!("a context of {tokens} tokens"),
            Change::Sequences(sequences) => format!("--parallel {sequences}"),
            Change::Chunk(tokens) => format!("--chunk {tokens}"),
            Change::PrefixBytes(bytes) => format!("--prefix-cache {}M", bytes >> 20),
        }),
    };
    format!("{} does not fit: {sentence}", path.display())
}

/// A template that is missing says itself what to do.
fn template_sentence(error: &chat::Error) -> String {
    match error {
        chat::Error::NoTemplate => error.to_string(),
        error => format!("{error}; --raw gives the prompt as it is"),
    }
}

/// There is no `--raw` in a conversation.
fn conversation_sentence(error: &chat::Error) -> String {
    match error {
        chat::Error::NoTemplate => {
            "the model has no chat template; strata run --raw goes on with a text as it is".into()
        }
        error => format!("{error}; strata run --raw goes on with a text without the template"),
    }
}

fn nearest_sentence(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; the nearest are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use engine::memory::{Machine, PlanOptions, Shapes, plan};
    use gguf::ModelFile;

    use super::*;

    /// `strata bench` was advised to take `--ctx` and `--parallel`, and `strata run` a `--chunk`, which they do not have.
    #[test]
    fn only_flags_of_the_command_are_advised() {
        let file = ModelFile::open(&oracle::model("q3-tiny-F32")).expect("a model");
        let shapes = Shapes::of_file(&file, None).expect("shapes");
        let wanted = PlanOptions { context_tokens: Some(1 << 20), sequences: 2, ..PlanOptions::default() };
        let refusal = plan(&shapes, &Machine::invented(1 << 30), &wanted).expect_err("too little memory");
        let said = |flags| {
            Error::DoesNotFit { path: "m".into(), refusal: Box::new((*refusal).clone()), flags }.to_string()
        };
        let all = said(&["--ctx", "--parallel", "--chunk"]);
        assert!(all.contains("--ctx ") && all.contains("--parallel 1"), "{all}");
        let none = said(&[]);
        let none = none.replace("with --kv int8, or ", "");
        assert!(none.contains("it fits with a context of ") && !none.contains("--"), "{none}");
        let context = said(&["--ctx"]);
        assert!(context.contains("--ctx ") && !context.contains("--parallel"), "{context}");
    }
}
