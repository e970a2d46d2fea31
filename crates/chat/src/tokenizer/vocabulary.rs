//! What a model file says about its tokens.

/// The tokenizer's part of a model file, as plain data.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer; for byte-level BPE only.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the text of each id, ordinary tokens in the byte alphabet of BPE or with
    /// U+2581 for a space.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all normal.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.scores`: of each token the higher the sooner a pair becomes it; for SentencePiece only.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`: two tokens with a space between, the first rank first; for byte-level BPE only.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`
    pub bos: Option<u64>,
    /// `tokenizer.ggml.eos_token_id`
    pub eos: Option<u64>,
    /// `tokenizer.ggml.eot_token_id`
    pub eot: Option<u64>,
    /// `tokenizer.ggml.eom_token_id`
    pub eom: Option<u64>,
    /// `tokenizer.ggml.unknown_token_id`
    pub unknown: Option<u64>,
    /// `tokenizer.ggml.add_bos_token`; if absent the pre-tokenizer's name decides, and SentencePiece has it.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; if absent none is added.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`: whether a text begins with a space that is not written; if absent SentencePiece
    /// has it, and byte-level BPE never does.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.ggml.remove_extra_whitespaces`: whether runs of spaces count as one; if absent they do not.
    pub remove_extra_whitespaces: Option<bool>,
}
