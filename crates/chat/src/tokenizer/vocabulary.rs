//! What a model file says about its tokens.

/// The tokenizer's part of a model file, as plain data.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: the kind of tokenizer.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the text of each id, ordinary tokens in the byte alphabet of BPE.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. Empty: all normal.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`: two tokens with a space between, the first rank first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`
    pub bos: Option<u64>,
    /// `tokenizer.ggml.eos_token_id`
    pub eos: Option<u64>,
    /// `tokenizer.ggml.eot_token_id`
    pub eot: Option<u64>,
    /// `tokenizer.ggml.eom_token_id`
    pub eom: Option<u64>,
    /// `tokenizer.ggml.add_bos_token`; if absent the pre-tokenizer's name decides.
    pub add_bos: Option<bool>,
}
