//! What a token costs.

use std::collections::BTreeMap;

use crate::graph::Part;
use crate::models::{
    DeltaNetSpec, FeedForward, GateUp, LayerSpec, Linear, Mixer, ModelSpec, QkvProjection, ReadSpec, TensorId,
};
use crate::state::KvType;

/// What a part of the forward pass costs a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights that are read.
    pub weight_bytes: usize,
    /// Bytes of state that are read: keys and values, of a sparse layer those it may keep and all pooled keys, and the
    /// matrices of delta nets.
    pub state_bytes: usize,
    /// Multiplications by weights.
    pub products: usize,
}

/// What one token's forward pass costs behind `cells` others; `bytes_of` answers with a tensor's bytes.
pub(crate) fn work(
    spec: &ModelSpec,
    kv: KvType,
    cells: usize,
    bytes_of: &dyn Fn(TensorId) -> usize,
) -> BTreeMap<Part, Work> {
    let mut count = Count { bytes_of, parts: BTreeMap::new() };
    count.part(Part::Embedding).weight_bytes = bytes_of(spec.embedding) / spec.vocabulary;
    for layer in &spec.layers {
        count.layer(layer);
        count.state(&layer.mixer, kv, cells);
    }
    count.read(Part::Head, &spec.output_read);
    count.linear(Part::Head, &spec.output);
    count.parts
}

struct Count<'a> {
    bytes_of: &'a dyn Fn(TensorId) -> usize,
    parts: BTreeMap<Part, Work>,
}

impl Count<'_> {
    fn part(&mut self, part: Part) -> &mut Work {
        self.parts.entry(part).or_default()
    }

    fn linear(&mut self, part: Part, linear: &Linear) {
        self.stacked(part, linear, 1, 1);
    }

    /// `used` of `experts` stacked matrices.
    fn stacked(&mut self, part: Part, linear: &Linear, used: usize, experts: usize) {
        let bytes = (self.bytes_of)(linear.weight) / experts * used;
        let work = self.part(part);
        work.weight_bytes += bytes;
        work.products += linear.inputs * linear.outputs * used;
    }

    fn read(&mut self, part: Part, read: &ReadSpec) {
        if let ReadSpec::Streams { down, up, inject, .. } = read {
            [down, up].into_iter().chain(inject).for_each(|linear| self.linear(part, linear));
        }
    }

    fn layer(&mut self, layer: &LayerSpec) {
        self.read(Part::Residual, &layer.mixer_read);
        self.read(Part::Residual, &layer.feed_forward_read);
        match &layer.mixer {
            Mixer::Attention(spec) => {
                let projection = match &spec.projection {
                    QkvProjection::Separate { q, k, v } => vec![q, k, v],
                    QkvProjection::Fused(qkv) => vec![qkv],
                };
                projection
                    .into_iter()
                    .chain([&spec.output])
                    .for_each(|linear| self.linear(Part::Attention, linear));
                if let Some(indexer) = &spec.indexer {
                    [&indexer.q, &indexer.k].into_iter().for_each(|l| self.linear(Part::Indexer, l));
                }
            }
            Mixer::DeltaNet(DeltaNetSpec { projection, output, .. }) => {
                let linears = projection.linears.iter().chain([output]);
                linears.for_each(|linear| self.linear(Part::DeltaNet, linear));
            }
        }
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => {
                [&mlp.gate, &mlp.up, &mlp.down].into_iter().for_each(|l| self.linear(Part::FeedForward, l));
            }
            FeedForward::Experts(spec) => {
                self.linear(Part::Router, &spec.router);
                let gate_up = match &spec.gate_up {
                    GateUp::Separate { gate, up } => vec![gate, up],
                    GateUp::Fused(both) => vec![both],
                };
                for linear in gate_up.into_iter().chain([&spec.down]) {
                    self.stacked(Part::Experts, linear, spec.used, spec.experts);
                }
                if let Some(shared) = &spec.shared {
                    let mlp = &shared.mlp;
                    let linears = [&mlp.gate, &mlp.up, &mlp.down, &shared.gate];
                    linears.into_iter().for_each(|linear| self.linear(Part::SharedExpert, linear));
                }
            }
        }
        if let Some(ngram) = &layer.ngram {
            [&ngram.key, &ngram.value].into_iter().for_each(|linear| self.linear(Part::Ngram, linear));
        }
    }

    fn state(&mut self, mixer: &Mixer, kv: KvType, cells: usize) {
        match mixer {
            Mixer::Attention(attention) => {
                let mut read = cells;
                if let Some(indexer) = &attention.indexer {
                    read = cells.min(indexer.blocks_kept * indexer.block_cells);
                    let pooled = cells / indexer.block_cells;
                    self.part(Part::Indexer).state_bytes +=
                        pooled * kv.indexer_keys().bytes(indexer.head_dim);
                }
                let of_head = [kv.keys(), kv.values()].map(|format| format.bytes(attention.head_dim));
                self.part(Part::Attention).state_bytes +=
                    read * attention.kv_heads * (of_head[0] + of_head[1]);
            }
            Mixer::DeltaNet(delta) => {
                self.part(Part::DeltaNet).state_bytes +=
                    delta.value_heads * delta.key_dim * delta.value_dim * size_of::<f32>();
            }
        }
    }
}
