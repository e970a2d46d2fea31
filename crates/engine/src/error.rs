//! What can go wrong, as data.

use std::path::PathBuf;

use thiserror::Error;

/// A model cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file is no good as a GGUF file.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// A file cannot be mapped.
    #[error(transparent)]
    Map(#[from] sys::mmap::MapError),
    /// A file became another one between reading its header and mapping it.
    #[error(
        "{} has {found} bytes but had {wanted} when its header was read: it was changed meanwhile; load it again once \
         nothing writes to it", path.display()
    )]
    FileChanged {
        /// The file.
        path: PathBuf,
        /// Its bytes when it was mapped.
        found: u64,
        /// Its bytes when its header was read.
        wanted: u64,
    },
    /// No memory for what the model needs.
    #[error(transparent)]
    Memory(#[from] sys::memory::OutOfMemory),
    /// A part of a file cannot be read.
    #[error(transparent)]
    Read(#[from] sys::read::ReadError),
    /// No addresses for what the model needs.
    #[error(transparent)]
    Arena(#[from] sys::arena::ArenaError),
    /// The machine refuses what the engine needs from it.
    #[error("cannot start {threads} threads: {reason}")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// The system's answer.
        reason: String,
    },
    /// The architecture has no description here.
    #[error("architecture `{found}` is not known; known are {known}")]
    UnknownArchitecture {
        /// Name in the file.
        found: String,
        /// Names that would do.
        known: String,
    },
    /// A draft layer in a container that is not read here.
    #[error(
        "architecture `{found}` is another engine's container for a draft layer; use a GGUF file of architecture \
         `qwen4exp` that holds the layer (llama.cpp's converter writes one), or run without it"
    )]
    DraftContainer {
        /// Name in the file.
        found: String,
    },
    /// A draft layer that does not belong to the model.
    #[error("the draft file has architecture `{found}`, which gives no draft layer to a `{wanted}` model")]
    DraftArchitecture {
        /// Name in the draft file.
        found: String,
        /// The model's.
        wanted: &'static str,
    },
    /// A tensor holds values that cannot be used.
    #[error("tensor `{name}` holds {found}: {wanted} are needed")]
    TensorValues {
        /// The tensor.
        name: String,
        /// What it should hold.
        wanted: &'static str,
        /// A value it holds.
        found: f32,
    },
    /// A key is absent.
    #[error("key `{key}` is missing: {wanted} is needed")]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// A key holds something else.
    #[error("key `{key}` is {found}: {wanted} is needed")]
    BadKey {
        /// The key.
        key: String,
        /// What it should hold.
        wanted: String,
        /// What it holds.
        found: String,
    },
    /// A tensor is absent.
    #[error("tensor `{name}` of shape {wanted:?} is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Its shape in ggml order.
        wanted: Vec<usize>,
    },
    /// A tensor has another shape.
    #[error("tensor `{name}` has shape {found:?}: {wanted:?} is needed")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Shape in the file, ggml order.
        found: Vec<usize>,
        /// Shape needed.
        wanted: Vec<usize>,
    },
    /// A tensor's element type cannot be used in its role.
    #[error("tensor `{name}` has type {found}, which cannot be computed with")]
    TensorType {
        /// The tensor.
        name: String,
        /// Type in the file.
        found: &'static str,
    },
    /// The instruction set asked for is not there.
    #[error(
        "this CPU cannot run `{isa}` kernels; leave the choice to the program, or take one of {available}"
    )]
    InstructionSet {
        /// Name asked for.
        isa: String,
        /// Names that would do.
        available: String,
    },
}

/// A window cannot be computed.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum StepError {
    /// A value is not finite.
    #[error("layer {layer}: {value} is not a finite number{}", culprit(tensor))]
    NotFinite {
        /// Layer index in the file; the number of layers stands for the output.
        layer: usize,
        /// What was computed there.
        value: &'static str,
        /// A tensor of the layer that holds such a number itself.
        tensor: Option<String>,
    },
    /// A part of the model file could not be read while it was used.
    #[error("{} could not be read to its end: it was cut or its disk failed; load the model again", path.display())]
    FileDamaged {
        /// The file.
        path: PathBuf,
    },
    /// A token is outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {vocabulary} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// A sequence would grow past its limit.
    #[error("{tokens} tokens do not fit into a context of {context_tokens}")]
    ContextFull {
        /// Tokens that would be there.
        tokens: usize,
        /// Tokens that may be there.
        context_tokens: usize,
    },
    /// Memory ran out.
    #[error("no memory for {bytes} more bytes of {what}{}", budget(left_bytes))]
    OutOfMemory {
        /// What they are for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes of its budget that are left, where it has one and that was what ran out.
        left_bytes: Option<usize>,
    },
}

/// Stored state cannot be used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum StateError {
    /// Not a state file, or a damaged one.
    #[error("the stored state is damaged: {0}")]
    Damaged(&'static str),
    /// There is no memory for it now.
    #[error("there is no memory for the stored state")]
    NoMemory,
    /// More tokens than the context here.
    #[error("the stored state has {tokens} tokens, which do not fit into a context of {context_tokens}")]
    TooLong {
        /// Tokens of the state.
        tokens: u64,
        /// Tokens that may be there.
        context_tokens: usize,
    },
    /// A state of another model, precision or version.
    #[error("the stored state belongs to another {what}: {found}, wanted {wanted}")]
    Foreign {
        /// What differs.
        what: &'static str,
        /// In the file.
        found: String,
        /// Here.
        wanted: String,
    },
}

fn budget(left_bytes: &Option<usize>) -> String {
    match left_bytes {
        Some(left) => {
            format!(": {left} bytes of their budget are left; end another sequence or take a smaller context")
        }
        None => ": the system has not so many to give".into(),
    }
}

fn culprit(tensor: &Option<String>) -> String {
    match tensor {
        Some(name) => {
            format!("; tensor `{name}` of the model file holds such a number, so the file is damaged")
        }
        None => String::new(),
    }
}
