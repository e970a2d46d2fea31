//! Where the weights of routed experts are: the one door through which a pass gets them.
//!
//! Between the segment that ends with a router and the next one, the pass asks for the experts that were chosen and
//! holds what it got until the step ends. Today all of them are in RAM, in a mapped file or read from it, so nothing
//! waits; whoever computes with an expert sees its matrices only, and not where they came from.

mod layout;

use std::sync::Arc;

use kernels::{Layout, WeightRows};

pub use layout::{ExpertPart, LayerExperts, PARTS_MAX, Role};

use crate::models::{ModelSpec, TensorId};
use crate::weights::Weights;

/// Answers for `(layer, expert)`.
pub struct ExpertStore {
    weights: Arc<Weights>,
    /// Ascending by layer.
    layers: Vec<LayerExperts>,
}

/// Experts of a layer, held while this lives.
pub struct Acquired<'a> {
    layer: &'a LayerExperts,
    /// In the order they were asked for: the bytes of each of the layer's parts.
    experts: Vec<[&'a [u8]; PARTS_MAX]>,
    /// How the rows of each part lie.
    layouts: [Layout; PARTS_MAX],
}

impl ExpertStore {
    /// The experts of a model whose weights are in RAM.
    pub fn new(spec: &ModelSpec, weights: Arc<Weights>) -> ExpertStore {
        let layers = layout::layers(spec, |id| weights.dtype(id));
        ExpertStore { weights, layers }
    }

    /// What is routed in each layer, ascending.
    pub fn layers(&self) -> &[LayerExperts] {
        &self.layers
    }

    /// The experts `ids` of the layer with this number in the file.
    pub fn acquire(&self, layer: usize, ids: impl Iterator<Item = u32>) -> Acquired<'_> {
        let at = self.layers.binary_search_by_key(&layer, |experts| experts.layer);
        let layer = &self.layers[at.expect("a layer with experts")];
        let (mut stacks, mut layouts): ([&[u8]; PARTS_MAX], _) =
            ([&[]; PARTS_MAX], [Layout::Rows; PARTS_MAX]);
        for (i, part) in layer.parts.iter().enumerate() {
            // Once for both: a matrix may move at any time.
            let rows = self.weights.rows(part.tensor);
            (stacks[i], layouts[i]) = (rows.bytes, rows.layout());
        }
        let expert = |id: u32| {
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            for (i, part) in layer.parts.iter().enumerate() {
                parts[i] = &stacks[i][part.range(id as usize)];
            }
            parts
        };
        Acquired { layer, experts: ids.map(expert).collect(), layouts }
    }
}

impl<'a> Acquired<'a> {
    /// How many experts are held, and their bytes.
    pub fn counts(&self) -> (usize, usize) {
        (self.experts.len(), self.experts.iter().flatten().map(|part| part.len()).sum())
    }

    /// A matrix of the expert that was asked for as number `index`: its part of the stacked tensor `tensor`.
    pub fn rows(&self, tensor: TensorId, index: usize) -> WeightRows<'a> {
        let at = self.layer.parts.iter().position(|part| part.tensor == tensor);
        let at = at.expect("a tensor of the layer whose experts are held");
        let part = &self.layer.parts[at];
        WeightRows::laid_out(part.dtype, part.row_values, self.experts[index][at], self.layouts[at])
    }
}
