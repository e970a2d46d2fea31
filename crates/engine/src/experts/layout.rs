//! How the matrices of an expert lie: within the stacked tensors of a file, and side by side in a slot.

use std::ops::Range;

use gguf::TensorType;

use crate::models::{ExpertsSpec, FeedForward, GateUp, Linear, ModelSpec, TensorId};

/// The routed experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerExperts {
    /// Number of the layer in the file.
    pub layer: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Their matrices, in the order in which a slot holds them.
    pub parts: Vec<ExpertPart>,
}

/// One matrix of every expert of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertPart {
    /// What it does.
    pub role: Role,
    /// The tensor that holds it for all experts, one after the other.
    pub tensor: TensorId,
    /// Element type.
    pub dtype: TensorType,
    /// Values per row.
    pub row_values: usize,
    /// Bytes of one expert's matrix.
    pub bytes: usize,
    /// Where it begins in a slot.
    pub slot_offset: usize,
}

/// What a matrix of an expert does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `{n, expert_width}`.
    Gate,
    /// `{n, expert_width}`.
    Up,
    /// Gate rows, then up rows: `{n, 2 * expert_width}`.
    GateUp,
    /// `{expert_width, n}`.
    Down,
}

/// Most matrices of an expert.
pub const PARTS_MAX: usize = 3;

/// Matrices of a slot begin at multiples of this: a cache line.
const PART_ALIGNMENT_BYTES: usize = 64;

impl ExpertPart {
    /// The bytes of expert `expert` within the tensor.
    pub fn range(&self, expert: usize) -> Range<usize> {
        expert * self.bytes..(expert + 1) * self.bytes
    }
}

impl LayerExperts {
    /// Bytes of a slot that holds any one expert of the layer.
    pub fn slot_bytes(&self) -> usize {
        let last = self.parts.last().expect("an expert has matrices");
        (last.slot_offset + last.bytes).next_multiple_of(PART_ALIGNMENT_BYTES)
    }
}

/// The layers with routed experts, the draft layer's included, ascending by number.
pub(super) fn layers(spec: &ModelSpec, dtype: impl Fn(TensorId) -> TensorType) -> Vec<LayerExperts> {
    let layers = spec.layers.iter().chain(spec.draft.iter().map(|draft| &draft.layer));
    let mut layers: Vec<LayerExperts> = layers
        .filter_map(|layer| match &layer.feed_forward {
            FeedForward::Experts(experts) => Some(of_layer(layer.index, experts, &dtype)),
            FeedForward::Dense(_) => None,
        })
        .collect();
    layers.sort_by_key(|layer| layer.layer);
    assert!(layers.windows(2).all(|pair| pair[0].layer < pair[1].layer), "two layers of one number");
    layers
}

fn of_layer(layer: usize, spec: &ExpertsSpec, dtype: &dyn Fn(TensorId) -> TensorType) -> LayerExperts {
    let mut matrices: Vec<(Role, &Linear)> = match &spec.gate_up {
        GateUp::Separate { gate, up } => vec![(Role::Gate, gate), (Role::Up, up)],
        GateUp::Fused(both) => vec![(Role::GateUp, both)],
    };
    matrices.push((Role::Down, &spec.down));
    let mut slot_offset = 0;
    let parts = matrices
        .into_iter()
        .map(|(role, linear)| {
            let dtype = dtype(linear.weight);
            let row_bytes = dtype.row_bytes(linear.inputs).expect("types are checked when loaded");
            let part = ExpertPart {
                role,
                tensor: linear.weight,
                dtype,
                row_values: linear.inputs,
                bytes: row_bytes * linear.outputs,
                slot_offset,
            };
            slot_offset = (slot_offset + part.bytes).next_multiple_of(PART_ALIGNMENT_BYTES);
            part
        })
        .collect();
    LayerExperts { layer, experts: spec.experts, parts }
}
