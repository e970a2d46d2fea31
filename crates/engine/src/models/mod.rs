//! Architectures as data.
//!
//! A [`ModelSpec`] is everything the forward pass needs to know about a file: shapes, layers, and which tensor plays
//! which role. One file per architecture reads its keys and names its tensors; the forward pass itself is shared and
//! knows no architecture.

mod hybrid;
mod keys;
mod llama;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen4exp;
mod rope;
mod rope_override;
mod tensors;

use gguf::ModelFile;

pub use rope::{Pairing, RopeSpec};
pub use rope_override::{RopeOverride, RopeScaling};
pub use tensors::{Binding, Form, TensorId};

use crate::error::LoadError;
use keys::Keys;
use tensors::Tensors;

/// A model, ready to be turned into a graph.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Name in `general.architecture`.
    pub architecture: &'static str,
    /// Tokens in the vocabulary (rows of the embedding).
    pub vocabulary: usize,
    /// Width n of the residual stream.
    pub width: usize,
    /// Longest context the model was trained for, tokens.
    pub context_tokens: usize,
    /// Epsilon of every root-mean-square norm.
    pub norm_eps: f32,
    /// Number of residual streams; 1 is the ordinary residual.
    pub streams: usize,
    /// Rotary positions, shared by all layers.
    pub rope: RopeSpec,
    /// Embedding table `{n, vocabulary}`.
    pub embedding: TensorId,
    /// The layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// How the hidden row before the head is read from the residual.
    pub output_read: ReadSpec,
    /// Head `{n, vocabulary}`; may be the embedding itself.
    pub output: Linear,
    /// The model's own draft layer, if the file has one.
    pub draft: Option<DraftSpec>,
    /// Every tensor named above, by [`TensorId`].
    pub tensors: Vec<Binding>,
    /// What is odd about the file without being a reason to refuse it.
    pub warnings: Vec<Warning>,
}

/// Something odd about a file that can be used all the same. The text is a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The file has the tensors of sparse attention, but its key asks for dense attention in every layer of the trunk.
    #[error(
        "key `{key}` names no block size although the indexer's tensors are there, as a known converter fault leaves \
         it; blocks of {block_cells} cells are used"
    )]
    IndexerBlocksAssumed {
        /// The key.
        key: String,
        /// Cells per block that are used instead.
        block_cells: usize,
    },
}

/// A linear layer `y = W x`, with what may follow it.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// `{in, out}`.
    pub weight: TensorId,
    /// Added to the product, `{out}`.
    pub bias: Option<TensorId>,
    /// The product is multiplied by this first, `{1}` or one value per expert.
    pub scale: Option<TensorId>,
    /// Values per input row.
    pub inputs: usize,
    /// Values per output row.
    pub outputs: usize,
}

/// How a sub-block reads the residual and, with several streams, writes to it.
#[derive(Clone, Copy, Debug)]
pub enum ReadSpec {
    /// `rms(x) * gamma`.
    Norm {
        /// `{n}`.
        gamma: TensorId,
    },
    /// Gated mean over the streams of a hyper-connection.
    Streams {
        /// Gamma of the norm per stream, `{S n}`.
        norm: TensorId,
        /// `{S n, rank}`.
        down: Linear,
        /// `{rank, S n}`.
        up: Linear,
        /// Write weights, `{S n, S}`; none where nothing is written back.
        inject: Option<Linear>,
    },
}

/// One layer.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Number in the file (`blk.<index>`).
    pub index: usize,
    /// The n-gram block in front of the mixer.
    pub ngram: Option<NgramSpec>,
    /// How the mixer reads the residual.
    pub mixer_read: ReadSpec,
    /// Mixing between tokens.
    pub mixer: Mixer,
    /// How the feed-forward block reads the residual.
    pub feed_forward_read: ReadSpec,
    /// Per-token block.
    pub feed_forward: FeedForward,
}

/// Mixing between tokens.
#[derive(Clone, Debug)]
pub enum Mixer {
    /// Softmax attention.
    Attention(AttentionSpec),
    /// Gated delta rule.
    DeltaNet(DeltaNetSpec),
}

/// Softmax attention with grouped heads.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values per head of query, key and value.
    pub head_dim: usize,
    /// The projections.
    pub projection: QkvProjection,
    /// Norm of each query head, `{head_dim}`.
    pub q_norm: Option<TensorId>,
    /// Norm of each key head, `{head_dim}`.
    pub k_norm: Option<TensorId>,
    /// True if each query head comes with a gate of the same width (rows query, gate per head).
    pub gated: bool,
    /// `{heads * head_dim, n}`.
    pub output: Linear,
    /// Block-sparse selection of cells.
    pub indexer: Option<IndexerSpec>,
}

/// Where queries, keys and values come from.
#[derive(Clone, Copy, Debug)]
pub enum QkvProjection {
    /// Three tensors.
    Separate {
        /// Queries (with gates where the attention is gated).
        q: Linear,
        /// Keys.
        k: Linear,
        /// Values.
        v: Linear,
    },
    /// One tensor with the rows of queries, keys and values.
    Fused(Linear),
}

/// The indexer of sparse attention: scores blocks of cells and keeps the best ones.
#[derive(Clone, Copy, Debug)]
pub struct IndexerSpec {
    /// Query heads of the indexer.
    pub heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Cells per block.
    pub block_cells: usize,
    /// Blocks that are kept.
    pub blocks_kept: usize,
    /// `{n, heads * head_dim}`.
    pub q: Linear,
    /// `{n, head_dim}`.
    pub k: Linear,
    /// `{head_dim}`.
    pub q_norm: TensorId,
    /// `{head_dim}`.
    pub k_norm: TensorId,
}

/// Gated delta rule.
#[derive(Clone, Debug)]
pub struct DeltaNetSpec {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Values per key head.
    pub key_dim: usize,
    /// Values per value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Projections of the layer's input.
    pub projection: DeltaProjection,
    /// `{taps, channels}`, stored tap by tap.
    pub convolution: TensorId,
    /// `{value_heads}`.
    pub dt_bias: TensorId,
    /// `-exp(A_log)`, `{value_heads}`.
    pub a: TensorId,
    /// `{value_dim}`.
    pub norm: TensorId,
    /// `{value_heads * value_dim, n}`.
    pub output: Linear,
    /// Activation of the output gate.
    pub gate_activation: Activation,
    /// Which key head serves value head j: j mod key_heads if tiled, else j div (value_heads / key_heads).
    pub tiled_heads: bool,
}

impl DeltaNetSpec {
    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The key head that serves value head `head`.
    pub fn key_head(&self, head: usize) -> usize {
        if self.tiled_heads { head % self.key_heads } else { head / (self.value_heads / self.key_heads) }
    }
}

/// How queries, keys, values, gate, beta and alpha come out of the input row.
#[derive(Clone, Debug)]
pub struct DeltaProjection {
    /// The products that are computed, in order.
    pub linears: Vec<Linear>,
    /// For channels (queries, keys, values): column in the concatenated products; none if `linears[0]` is exactly it.
    pub channels: Option<Vec<u32>>,
    /// Columns of the gate z in the concatenated products.
    pub gate: Vec<u32>,
    /// Columns of beta, one per value head.
    pub beta: Vec<u32>,
    /// Columns of alpha, one per value head.
    pub alpha: Vec<u32>,
}

/// A pointwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Logistic.
    Sigmoid,
    /// x times logistic.
    Silu,
}

/// Per-token block.
#[derive(Clone, Debug)]
pub enum FeedForward {
    /// `down(silu(gate x) * (up x))`.
    Dense(GatedMlp),
    /// Mixture of experts.
    Experts(ExpertsSpec),
}

/// A gated multilayer perceptron.
#[derive(Clone, Copy, Debug)]
pub struct GatedMlp {
    /// `{n, ff}`.
    pub gate: Linear,
    /// `{n, ff}`.
    pub up: Linear,
    /// `{ff, n}`.
    pub down: Linear,
}

/// A mixture of experts with an optional shared expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertsSpec {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts per token.
    pub used: usize,
    /// Width of an expert.
    pub expert_width: usize,
    /// Router, `{n, experts}`.
    pub router: Linear,
    /// Gate and up matrices of all experts.
    pub gate_up: GateUp,
    /// `{expert_width, n, experts}`.
    pub down: Linear,
    /// Every routing weight is multiplied by this.
    pub weight_scale: f32,
    /// The expert that every token uses.
    pub shared: Option<SharedExpert>,
}

/// Where the gate and up matrices of experts lie.
#[derive(Clone, Copy, Debug)]
pub enum GateUp {
    /// Two tensors `{n, expert_width, experts}`.
    Separate {
        /// Gate.
        gate: Linear,
        /// Up.
        up: Linear,
    },
    /// One tensor `{n, 2 * expert_width, experts}`, gate rows first.
    Fused(Linear),
}

/// The shared expert and its gate.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// The expert.
    pub mlp: GatedMlp,
    /// `{n, 1}`: its output is scaled by the sigmoid of this product.
    pub gate: Linear,
}

/// The n-gram block: hashed rows of a large table, gated into the residual streams.
#[derive(Clone, Debug)]
pub struct NgramSpec {
    /// The table, `{row_width, rows}`; read row by row.
    pub table: TensorId,
    /// Values per table row.
    pub row_width: usize,
    /// Longest n-gram.
    pub ngram: usize,
    /// Table rows per n-gram order.
    pub heads_per_ngram: usize,
    /// Hash multipliers, one per token of the n-gram.
    pub multipliers: Vec<u64>,
    /// Modulus of each head.
    pub head_sizes: Vec<u64>,
    /// First row of each head.
    pub head_offsets: Vec<u64>,
    /// Token that ends the history.
    pub reset_token: u32,
    /// Token hashed for embedding rows.
    pub image_token: u32,
    /// `{heads * row_width, S n}`.
    pub key: Linear,
    /// `{heads * row_width, n}`.
    pub value: Linear,
    /// `{S n}`.
    pub norm_key: TensorId,
    /// `{S n}`.
    pub norm_query: TensorId,
    /// `{S n}`.
    pub norm_convolution: TensorId,
    /// `{taps, S n}`, stored tap by tap.
    pub convolution: TensorId,
    /// Taps of the convolution.
    pub taps: usize,
    /// Distance between taps, rows.
    pub dilation: usize,
}

impl NgramSpec {
    /// Table rows per token.
    pub fn heads(&self) -> usize {
        (self.ngram - 1) * self.heads_per_ngram
    }
}

/// The model's own draft (multi-token prediction) layer.
#[derive(Clone, Debug)]
pub struct DraftSpec {
    /// `{2 n, n}`: columns of the embedding first, then of the hidden row.
    pub combine: Linear,
    /// `{n}`.
    pub embedding_norm: TensorId,
    /// `{S n}`; the norm goes over all streams at once.
    pub hidden_norm: TensorId,
    /// The layer.
    pub layer: LayerSpec,
    /// How the head reads the layer's residual.
    pub output_read: ReadSpec,
}

type ReadFile = fn(&Keys<'_>, &mut Tensors<'_>) -> Result<ModelSpec, LoadError>;

/// Every architecture, by its name in `general.architecture`.
const ARCHITECTURES: [(&str, ReadFile); 8] = [
    ("llama", llama::read),
    ("qwen2", qwen2::read),
    ("qwen3", qwen3::read),
    ("qwen3moe", qwen3moe::read),
    ("qwen3next", qwen3next::read),
    ("qwen35", qwen35::read),
    ("qwen35moe", qwen35moe::read),
    ("qwen4exp", qwen4exp::read),
];

/// Reads the spec of a file, checking every key and every tensor's shape.
pub fn read_spec(file: &ModelFile, draft_file: Option<&ModelFile>) -> Result<ModelSpec, LoadError> {
    let found = file.metadata.string("general.architecture")?.ok_or(LoadError::MissingKey {
        key: "general.architecture".into(),
        wanted: "the architecture's name",
    })?;
    if found == DRAFT_CONTAINER {
        return Err(LoadError::DraftContainer { found: found.to_owned() });
    }
    let Some((name, read)) = ARCHITECTURES.iter().find(|(name, _)| *name == found) else {
        let known = ARCHITECTURES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(LoadError::UnknownArchitecture { found: found.to_owned(), known });
    };
    if let Some(draft) = draft_file {
        check_draft_file(draft, name)?;
    }
    let keys = Keys::new(file, name);
    let mut tensors = Tensors::new(file, draft_file);
    let mut spec = read(&keys, &mut tensors)?;
    spec.tensors = tensors.into_bindings();
    Ok(spec)
}

/// Another engine's container for a draft layer: the checkpoint's names, norms stored less 1.
const DRAFT_CONTAINER: &str = "qwen4exp-mtp";

/// A draft layer's own file is of the model's architecture, and of one that has such layers.
fn check_draft_file(draft: &ModelFile, architecture: &'static str) -> Result<(), LoadError> {
    let found = draft.metadata.string("general.architecture")?.unwrap_or("none");
    if found == DRAFT_CONTAINER {
        return Err(LoadError::DraftContainer { found: found.to_owned() });
    }
    if architecture != "qwen4exp" || found != architecture {
        return Err(LoadError::DraftArchitecture { found: found.to_owned(), wanted: architecture });
    }
    Ok(())
}

/// How an architecture keeps its residual.
#[derive(Clone, Copy)]
enum Residual {
    Single,
    /// As many gated streams as `hyper_connection.count` says.
    Streams,
}

/// The part that all architectures share: embedding, head, positions, sizes.
fn frame(
    architecture: &'static str,
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    pairing: Pairing,
    residual: Residual,
) -> Result<ModelSpec, LoadError> {
    let width = keys.size("embedding_length")?;
    // First of all: once the embedding is there, the width is no more than the file can hold.
    let (embedding, vocabulary) = tensors.table("token_embd.weight", width)?;
    let (_, _, head_dim) = llama::heads(keys, width)?;
    let rope = RopeSpec::read(keys, pairing, head_dim)?;
    let output = match tensors.optional_linear("output", width, vocabulary)? {
        Some(output) => output,
        None => Linear { weight: embedding, bias: None, scale: None, inputs: width, outputs: vocabulary },
    };
    let (streams, output_read) = match residual {
        Residual::Single => (1, ReadSpec::Norm { gamma: tensors.vector("output_norm.weight", width)? }),
        Residual::Streams => (keys.streams()?, tensors.stream_read("output_hc", width, keys, false)?),
    };
    let norm_eps = keys.float("attention.layer_norm_rms_epsilon")?;
    keys.require("attention.layer_norm_rms_epsilon", norm_eps >= 0.0, "a number of at least 0", norm_eps)?;
    Ok(ModelSpec {
        architecture,
        vocabulary,
        width,
        context_tokens: keys.size("context_length")?,
        norm_eps,
        streams,
        rope,
        embedding,
        layers: Vec::new(),
        output_read,
        output,
        draft: None,
        tensors: Vec::new(),
        warnings: Vec::new(),
    })
}
