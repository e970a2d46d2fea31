//! What a model asks of memory, from the headers of its files.

use gguf::ModelFile;

use crate::accounting;
use crate::error::LoadError;
use crate::graph::{self, BufferId, BufferSpec, Graph, Part};
use crate::models::{FeedForward, Form, GateUp, LayerSpec, ModelSpec, TensorId, read_spec};
use crate::state::{KvType, StateLayout};

/// Sizes of a model's parts. Made without reading a weight.
#[derive(Clone, Debug)]
pub struct Shapes {
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Longest context the model was trained for, tokens.
    pub context_tokens: usize,
    /// Bytes of matrices that are neither routed experts nor n-gram tables.
    pub dense_bytes: u64,
    /// Bytes of routed experts.
    pub expert_bytes: u64,
    /// Bytes of n-gram tables, of which a token reads a few rows.
    pub table_bytes: u64,
    /// Bytes of what is held as f32: norms, biases and the like.
    pub vector_bytes: u64,
    /// Bytes of weights that a token reads, but for those of routed experts.
    pub active_dense_bytes: u64,
    /// Bytes of routed experts that a token reads.
    pub active_expert_bytes: u64,
    /// Most experts that a row uses in a layer.
    pub experts_used: usize,
    /// Pairs of values that positions rotate.
    pub rotated_pairs: usize,
    /// The layers.
    pub trunk: PassShapes,
    /// The draft layer.
    pub draft: Option<PassShapes>,
}

/// Sizes of a forward pass.
#[derive(Clone, Debug)]
pub struct PassShapes {
    /// What a sequence keeps. Its type of cells and its context are those of the plan, whatever it says itself.
    pub layout: StateLayout,
    /// Scratch buffers, logits included.
    pub buffers: Vec<BufferSpec>,
    /// Which of them holds the logits.
    pub logits: BufferId,
}

impl Shapes {
    /// Of a model's file, and the one that holds its draft layer.
    ///
    /// # Errors
    /// [`LoadError`] names what is wrong with the file.
    pub fn of_file(file: &ModelFile, draft: Option<&ModelFile>) -> Result<Shapes, LoadError> {
        let spec = read_spec(file, draft)?;
        let info = |id: TensorId| {
            let binding = &spec.tensors[id.0 as usize];
            let file = draft.filter(|_| binding.in_draft_file).unwrap_or(file);
            file.tensor(&binding.name).expect("a bound tensor is in its file")
        };
        let dtype = |id: TensorId| info(id).dtype;
        let pass = |graph: Graph, layers: &[LayerSpec]| PassShapes {
            layout: StateLayout::new(layers.iter(), KvType::default(), spec.context_tokens),
            buffers: graph.buffers,
            logits: graph.logits,
        };
        let of_draft = |draft| pass(graph::draft(&spec, draft, &dtype), std::slice::from_ref(&draft.layer));
        let work = accounting::work(&spec, KvType::default(), 0, &|id| info(id).len as usize);
        let active = work.values().map(|work| work.weight_bytes as u64).sum::<u64>();
        let active_experts = work.get(&Part::Experts).map_or(0, |work| work.weight_bytes as u64);
        let mut shapes = Shapes {
            vocabulary: spec.vocabulary,
            context_tokens: spec.context_tokens,
            dense_bytes: 0,
            expert_bytes: 0,
            table_bytes: 0,
            vector_bytes: 0,
            active_dense_bytes: active - active_experts,
            active_expert_bytes: active_experts,
            experts_used: experts_used(&spec),
            rotated_pairs: spec.rope.frequencies.len(),
            trunk: pass(graph::trunk(&spec, &dtype), &spec.layers),
            draft: spec.draft.as_ref().map(of_draft),
        };
        let roles = Roles::of(&spec);
        for (i, binding) in spec.tensors.iter().enumerate() {
            let id = TensorId(i as u32);
            if binding.form != Form::Rows {
                let bytes = binding.row_values.saturating_mul(binding.rows).saturating_mul(4);
                shapes.vector_bytes += sys::memory::held_bytes(bytes) as u64;
                continue;
            }
            let sum = match () {
                () if roles.experts.contains(&id) => &mut shapes.expert_bytes,
                () if roles.tables.contains(&id) => &mut shapes.table_bytes,
                () => &mut shapes.dense_bytes,
            };
            *sum += info(id).len;
        }
        Ok(shapes)
    }

    /// Bytes of weights that a token reads.
    pub fn active_bytes(&self) -> u64 {
        self.active_dense_bytes + self.active_expert_bytes
    }

    /// The forward passes: the trunk's and the draft layer's.
    pub fn passes(&self) -> impl Iterator<Item = &PassShapes> {
        std::iter::once(&self.trunk).chain(&self.draft)
    }
}

/// Most experts that a row uses in a layer.
pub(crate) fn experts_used(spec: &ModelSpec) -> usize {
    let used = layers(spec).map(|layer| match &layer.feed_forward {
        FeedForward::Experts(experts) => experts.used,
        FeedForward::Dense(_) => 0,
    });
    used.max().unwrap_or(0)
}

/// Tables of which a token reads a few rows.
pub(crate) fn ngram_tables(spec: &ModelSpec) -> Vec<TensorId> {
    layers(spec).filter_map(|layer| layer.ngram.as_ref()).map(|ngram| ngram.table).collect()
}

fn layers(spec: &ModelSpec) -> impl Iterator<Item = &LayerSpec> {
    spec.layers.iter().chain(spec.draft.iter().map(|draft| &draft.layer))
}

/// Matrices that are not read whole for every token.
struct Roles {
    experts: Vec<TensorId>,
    tables: Vec<TensorId>,
}

impl Roles {
    fn of(spec: &ModelSpec) -> Roles {
        let mut roles = Roles { experts: Vec::new(), tables: ngram_tables(spec) };
        for layer in layers(spec) {
            if let FeedForward::Experts(experts) = &layer.feed_forward {
                roles.experts.push(experts.down.weight);
                match &experts.gate_up {
                    GateUp::Separate { gate, up } => roles.experts.extend([gate.weight, up.weight]),
                    GateUp::Fused(both) => roles.experts.push(both.weight),
                }
            }
        }
        roles
    }
}
