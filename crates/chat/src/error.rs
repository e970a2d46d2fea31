//! What can be wrong with a tokenizer or a chat template.

use thiserror::Error;

/// What can be wrong with a tokenizer or a chat template that comes out of a model file, or with the messages given to it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of the model file has the wrong type.
    #[error(transparent)]
    Metadata(#[from] gguf::Error),
    /// `tokenizer.ggml.model` names another kind of tokenizer.
    #[error(
        "the tokenizer model is `{found}`; only byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`) are supported"
    )]
    TokenizerModel {
        /// The name in the file.
        found: String,
    },
    /// `tokenizer.ggml.pre` names an unknown pre-tokenizer.
    #[error("the pre-tokenizer `{found}` is not known; known are: {known}")]
    PreTokenizer {
        /// The name in the file.
        found: String,
        /// The known names, separated by commas.
        known: String,
    },
    /// A key of the tokenizer is absent.
    #[error("the file has no `{key}`, which its tokenizer needs")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A key of the tokenizer has the wrong type or an impossible value.
    #[error("`{key}` cannot be used: {reason}")]
    BadKey {
        /// The metadata key.
        key: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// An array that has an item for each token has more or fewer.
    #[error("`{key}` has {found} values; expected one for each of the {wanted} tokens")]
    ArrayLength {
        /// The metadata key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// Number of tokens.
        wanted: usize,
    },
    /// The vocabulary is empty or larger than ids can count.
    #[error("the tokenizer has {found} tokens; expected 1 to {max}")]
    VocabularyLength {
        /// Length of the token list.
        found: usize,
        /// Largest length that is supported.
        max: usize,
    },
    /// One text has two ids, so that encoding would be ambiguous.
    #[error("the token `{text}` has two ids, {first} and {second}")]
    DuplicateToken {
        /// The text as in the file.
        text: String,
        /// The smaller id.
        first: u32,
        /// The larger id.
        second: u32,
    },
    /// A special token that is too long to look for in every text.
    #[error("the special token {id} is {bytes} bytes long; at most {max} are supported")]
    SpecialTooLong {
        /// Its id.
        id: u32,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A merge is not two tokens with one space between.
    #[error("merge {rank} is `{text}`; expected two tokens separated by a space")]
    MergeSyntax {
        /// Its place in the list.
        rank: usize,
        /// The text as in the file.
        text: String,
    },
    /// A merge speaks of a token that the vocabulary lacks.
    #[error("merge {rank} needs the token `{text}`, which the vocabulary lacks")]
    MergeToken {
        /// Its place in the list.
        rank: usize,
        /// The token that is missing.
        text: String,
    },
    /// A token id in the metadata is outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {len} tokens")]
    IdRange {
        /// The metadata key.
        key: &'static str,
        /// The id in the file.
        id: u64,
        /// Length of the vocabulary.
        len: usize,
    },
    /// The file has no chat template and its vocabulary suggests none.
    #[error("the model has no chat template; give the prompt as it is with --raw")]
    NoTemplate,
    /// The chat template is longer than any real one.
    #[error("the chat template is {bytes} bytes long; at most {max} are supported")]
    TemplateLength {
        /// Length of its source.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The chat template does not parse.
    #[error("the chat template does not parse (line {line}): {reason}")]
    TemplateSyntax {
        /// Line of the template, from 1; 0 if not known.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// The chat template failed while it ran.
    #[error("the chat template failed (line {line}): {reason}")]
    TemplateRun {
        /// Line of the template, from 1; 0 if not known.
        line: usize,
        /// What went wrong.
        reason: String,
    },
    /// The chat template itself refused the messages, by `raise_exception`.
    #[error("the chat template refuses these messages: {reason}")]
    TemplateRefused {
        /// The template's own words.
        reason: String,
    },
    /// There is nothing to render.
    #[error("there are no messages: a chat needs at least one")]
    NoMessages,
    /// The texts of the messages use up the characters that a rendering needs for itself.
    #[error("the messages contain every private-use character (U+E000 to U+F8FF): leave one of them out")]
    TemplateMarks,
    /// The chat template did more work than its budget allows.
    #[error("the chat template needs more than its budget of {fuel} steps")]
    TemplateBudget {
        /// The budget, in the template engine's units.
        fuel: u64,
    },
    /// The chat template took longer than anyone waits.
    #[error("the chat template takes more than {seconds} seconds")]
    TemplateTime {
        /// The limit.
        seconds: f64,
    },
    /// The system gives no thread to run the chat template on.
    #[error("the chat template cannot be run: {reason}")]
    TemplateThread {
        /// The system's answer.
        reason: String,
    },
    /// The chat template wrote more than allowed.
    #[error("the chat template writes more than {max} bytes")]
    TemplateOutput {
        /// The limit.
        max: usize,
    },
}
