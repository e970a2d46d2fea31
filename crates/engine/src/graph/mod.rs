//! The forward pass as data.
//!
//! A [`Graph`] is a list of typed operations over buffers, built once from a [`crate::models::ModelSpec`] and run by a
//! backend for every window. It is cut into segments: a segment never waits for the host, and ends where the host must
//! look at something (a router's choice) before the next can start. Each operation declares what it reads and writes.

mod build;
mod draft;
mod layers;
mod slots;

use std::sync::Arc;

pub use build::{Builder, trunk};
pub use draft::draft;

use crate::models::{Activation, DeltaNetSpec, ExpertsSpec, IndexerSpec, Linear, NgramSpec, TensorId};
use crate::state::TailSlot;

/// A buffer of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

/// Which rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Rows of the window.
    Window,
    /// Rows that want logits.
    Outputs,
    /// Pairs of a row and an expert, expert by expert.
    Assignments,
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// f32 values.
    Float,
    /// Codes in int8 with a scale per 32.
    Int8,
}

/// Shape of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Values per row.
    pub width: usize,
    /// Which rows.
    pub domain: Domain,
    /// Which values.
    pub content: Content,
    /// Which memory: buffers of one slot never hold something at the same time.
    pub slot: u16,
}

/// An input that products read: floats, and their int8 form where some weight wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// f32 rows.
    pub float: BufferId,
    /// The same rows in int8.
    pub int8: Option<BufferId>,
}

/// One of several products of the same rows: together they are one step for the threads of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The matrix, and what follows the product.
    pub linear: Linear,
    /// What is written.
    pub out: BufferId,
}

/// Neighbouring columns of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which of the operation's parts.
    pub part: usize,
    /// First column.
    pub first: usize,
    /// Number of columns.
    pub len: usize,
}

/// One operation. `x`, `y` and the like are buffers; shapes are per row.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the sentence of each operation names its buffers")]
pub enum Op {
    /// Embedding rows of the window's tokens, or the embeddings that came with it.
    Embed { table: TensorId, out: BufferId },
    /// The window's trunk residuals.
    Hidden { out: BufferId },
    /// `out[s] = x` for every stream s.
    Spread { x: BufferId, out: BufferId },
    /// Root-mean-square norm of `groups` equal parts of the row. Gamma covers the row, or each part if `shared`.
    Norm { x: BufferId, out: BufferId, gamma: TensorId, groups: usize, shared: bool, eps: f32 },
    /// The int8 form of the rows.
    Quantize { x: BufferId, out: BufferId },
    /// For every part `out = W x`, then scale, then bias. A row of `x` may hold several input rows side by side.
    Linear { x: Input, parts: Vec<Product> },
    /// `x = post * act(x * pre)`.
    Activate { x: BufferId, pre: f32, act: Activation, post: f32 },
    /// Gated mean over streams.
    MixStreams { gate: BufferId, x: BufferId, out: BufferId },
    /// `r[s] += w[s] * y` for every stream s.
    AddStreams { r: BufferId, y: BufferId, w: BufferId },
    /// `x += y`.
    Add { x: BufferId, y: BufferId },
    /// The runs of columns, side by side.
    Gather { parts: Vec<BufferId>, runs: Arc<[Run]>, out: BufferId },
    /// `out = [e, h_0, e, h_1, ...]`: the embedding in front of every stream of the hidden row.
    Pair { e: BufferId, h: BufferId, out: BufferId },
    /// Rotates every head of `head_dim` values by the row's position.
    Rope { x: BufferId, head_dim: usize },
    /// Stores keys and values of attention layer `layer` (its number among attention layers).
    StoreCells { layer: usize, k: BufferId, v: BufferId },
    /// Stores raw indexer keys, and pooled keys of blocks that become complete.
    StoreIndex { layer: usize, k: BufferId, indexer: IndexerSpec, eps: f32 },
    /// Chooses each row's blocks; fails the sequences of rows with a score that is NaN. `index` is the layer's number in
    /// the file.
    SelectBlocks { layer: usize, index: usize, q: BufferId, indexer: IndexerSpec },
    /// Attention over the cells of each row's sequence up to the row itself.
    Attend { layer: usize, q: BufferId, out: BufferId, heads: usize, sparse: bool },
    /// `x = x * act(gate)`.
    Multiply { x: BufferId, gate: BufferId, act: Activation },
    /// Depthwise causal convolution, then silu.
    Convolve { slot: TailSlot, x: BufferId, out: BufferId, weights: TensorId, taps: usize, dilation: usize },
    /// `beta = sigmoid(beta)`; `alpha = a * softplus(alpha + dt_bias)`, the logarithm of the decay.
    DeltaGates { beta: BufferId, alpha: BufferId, dt_bias: TensorId, a: TensorId },
    /// Scales each query and key head to length 1.
    NormalizeKeys { x: BufferId, heads: usize, head_dim: usize },
    /// The gated delta rule over the rows of each sequence.
    Delta {
        layer: usize,
        x: BufferId,
        beta: BufferId,
        decay: BufferId,
        out: BufferId,
        spec: Arc<DeltaNetSpec>,
    },
    /// `gate = silu(gate) * up`.
    SiluMultiply { gate: BufferId, up: BufferId },
    /// The same with gate and up in the halves of one row.
    SiluMultiplyHalves { x: BufferId, out: BufferId },
    /// Chooses each row's experts; fails the sequences of rows with a logit that is NaN. Ends a segment.
    Route { layer: usize, logits: BufferId, experts: ExpertsSpec },
    /// Products of the chosen experts. Reads window rows where `gather`, else its own assignment's row.
    ExpertLinear { x: Input, parts: Vec<Product>, gather: bool },
    /// `out = sum_e weight_e * x_e`, experts ascending.
    Combine { x: BufferId, out: BufferId },
    /// `y = fma(sigmoid(gate), x, y)`.
    AddGated { y: BufferId, x: BufferId, gate: BufferId },
    /// The rows that want logits.
    TakeOutputs { x: BufferId, out: BufferId },
    /// Table rows of the window's n-grams, side by side.
    NgramRows { out: BufferId, spec: Arc<NgramSpec> },
    /// `out[s] = sigma(signed root of (key[s] . query[s]) / sqrt(n)) * value`.
    NgramGate { key: BufferId, query: BufferId, value: BufferId, out: BufferId },
    /// Fails the sequences of rows with a value that is not finite.
    CheckFinite { x: BufferId, layer: usize, value: &'static str },
}

/// What an operation touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Buffers read.
    pub reads: Vec<BufferId>,
    /// Buffers written; one that is also read is changed in place.
    pub writes: Vec<BufferId>,
}

impl Op {
    /// What the operation reads and writes.
    pub fn access(&self) -> Access {
        let of = |reads: &[BufferId], writes: &[BufferId]| Access {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
        };
        let input = |x: &Input| x.int8.map_or(vec![x.float], |int8| vec![x.float, int8]);
        match self {
            Op::Embed { out, .. } | Op::Hidden { out } | Op::NgramRows { out, .. } => of(&[], &[*out]),
            Op::Spread { x, out }
            | Op::Quantize { x, out }
            | Op::SiluMultiplyHalves { x, out }
            | Op::Combine { x, out }
            | Op::TakeOutputs { x, out }
            | Op::Convolve { x, out, .. } => of(&[*x], &[*out]),
            Op::Norm { x, out, .. } => of(&[*x], &[*out]),
            Op::Linear { x, parts } | Op::ExpertLinear { x, parts, .. } => {
                Access { reads: input(x), writes: parts.iter().map(|part| part.out).collect() }
            }
            Op::Activate { x, .. } | Op::Rope { x, .. } | Op::NormalizeKeys { x, .. } => of(&[*x], &[*x]),
            Op::MixStreams { gate, x, out } => of(&[*gate, *x], &[*out]),
            Op::AddStreams { r, y, w } => of(&[*r, *y, *w], &[*r]),
            Op::Add { x, y } => of(&[*x, *y], &[*x]),
            Op::Gather { parts, out, .. } => of(parts, &[*out]),
            Op::Pair { e, h, out } => of(&[*e, *h], &[*out]),
            Op::StoreCells { k, v, .. } => of(&[*k, *v], &[]),
            Op::StoreIndex { k, .. } => of(&[*k], &[]),
            Op::SelectBlocks { q, .. } => of(&[*q], &[]),
            Op::Attend { q, out, .. } => of(&[*q], &[*out]),
            Op::Multiply { x, gate, .. } => of(&[*x, *gate], &[*x]),
            Op::DeltaGates { beta, alpha, .. } => of(&[*beta, *alpha], &[*beta, *alpha]),
            Op::Delta { x, beta, decay, out, .. } => of(&[*x, *beta, *decay], &[*out]),
            Op::SiluMultiply { gate, up } => of(&[*gate, *up], &[*gate]),
            Op::Route { logits, .. } => of(&[*logits], &[]),
            Op::AddGated { y, x, gate } => of(&[*y, *x, *gate], &[*y]),
            Op::NgramGate { key, query, value, out } => of(&[*key, *query, *value], &[*out]),
            Op::CheckFinite { x, .. } => of(&[*x], &[]),
        }
    }
}

/// A named intermediate, recorded after an operation when somebody asks for it.
#[derive(Clone, Debug)]
pub struct Tap {
    /// Name, as the oracle spells it.
    pub name: String,
    /// Where it is.
    pub source: TapSource,
}

/// Where a named intermediate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapSource {
    /// The rows of a buffer.
    Buffer(BufferId),
    /// Columns `first..first + width` of a buffer.
    Columns(BufferId, usize, usize),
    /// Expert ids of each row, ascending.
    ExpertIds,
    /// Routing weights in the same order.
    ExpertWeights,
    /// For each row the chosen cells as 0 and 1, one column per cell.
    SelectedCells,
    /// Table rows of the n-grams.
    NgramRows,
}

/// What an operation is for: where the time of a pass goes is told by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The rows' embeddings.
    Embedding,
    /// N-gram tables.
    Ngram,
    /// Reading the residual and writing to it: norms, hyper-connections.
    Residual,
    /// Attention with its projections, but for the indexer.
    Attention,
    /// Storing the indexer's keys and choosing blocks of cells.
    Indexer,
    /// Delta nets with their projections.
    DeltaNet,
    /// Dense feed-forward.
    FeedForward,
    /// Choosing experts.
    Router,
    /// The chosen experts.
    Experts,
    /// The expert that every row goes through.
    SharedExpert,
    /// From the residual to logits.
    Head,
}

impl Part {
    /// Every part, in the order of a pass.
    pub const ALL: [Part; 11] = [
        Part::Embedding,
        Part::Ngram,
        Part::Residual,
        Part::Attention,
        Part::Indexer,
        Part::DeltaNet,
        Part::FeedForward,
        Part::Router,
        Part::Experts,
        Part::SharedExpert,
        Part::Head,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Part::Embedding => "embedding",
            Part::Ngram => "n-grams",
            Part::Residual => "residual",
            Part::Attention => "attention",
            Part::Indexer => "indexer",
            Part::DeltaNet => "delta net",
            Part::FeedForward => "feed-forward",
            Part::Router => "router",
            Part::Experts => "experts",
            Part::SharedExpert => "shared expert",
            Part::Head => "head",
        }
    }
}

/// An operation and what can be recorded after it.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is for.
    pub part: Part,
    /// The operation.
    pub op: Op,
    /// Intermediates that are complete after it.
    pub taps: Vec<Tap>,
}

/// Operations that run without the host.
#[derive(Clone, Debug, Default)]
pub struct Segment {
    /// In order.
    pub nodes: Vec<Node>,
    /// The layer whose experts the host must provide before the next segment.
    pub experts_of: Option<usize>,
}

/// A whole forward pass.
#[derive(Clone, Debug)]
pub struct Graph {
    /// In order.
    pub segments: Vec<Segment>,
    /// Shapes of all buffers.
    pub buffers: Vec<BufferSpec>,
    /// Logits, one row per row that wants them.
    pub logits: BufferId,
    /// The residual before the head, one row per row that wants logits.
    pub residual: BufferId,
}
