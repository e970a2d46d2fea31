//! How many bytes a token costs.

use crate::models::{
    DeltaNetSpec, FeedForward, GateUp, LayerSpec, Linear, Mixer, ModelSpec, QkvProjection, ReadSpec, TensorId,
};
use crate::state::KvType;

/// Bytes of weights that one token's forward pass reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveBytes {
    /// By every token: all that is not a routed expert, and a row of the embedding table.
    pub dense: usize,
    /// Of routed experts.
    pub experts: usize,
}

/// What one token's forward pass reads; `bytes_of` answers with a tensor's bytes.
pub(crate) fn active_bytes(spec: &ModelSpec, bytes_of: &dyn Fn(TensorId) -> usize) -> ActiveBytes {
    let mut count = Count::layers(spec, bytes_of);
    count.linear(&spec.output);
    ActiveBytes {
        dense: count.bytes - count.expert_bytes + bytes_of(spec.embedding) / spec.vocabulary,
        experts: count.expert_bytes,
    }
}

/// How many times as many experts `sequences` tokens choose as one does, if each chooses by chance: those that no other
/// has chosen count.
pub(crate) fn distinct_experts(spec: &ModelSpec, sequences: usize) -> f64 {
    let routed = spec.layers.iter().find_map(|layer| match &layer.feed_forward {
        FeedForward::Experts(experts) => Some(experts),
        FeedForward::Dense(_) => None,
    });
    routed.map_or(1.0, |experts| {
        let share = experts.used as f64 / experts.experts as f64;
        let missed = (0..sequences).fold(1.0, |missed, _| missed * (1.0 - share));
        (1.0 - missed) / share
    })
}

/// Multiplications by weights that one token's forward pass makes before the head.
pub(crate) fn layer_products(spec: &ModelSpec) -> usize {
    Count::layers(spec, &|_| 0).products
}

/// Bytes of state that the pass of the token after `cells` others reads: keys and values, of a sparse layer those it may
/// keep and all pooled keys, and the matrices of delta nets.
pub(crate) fn state_bytes_read(spec: &ModelSpec, kv: KvType, cells: usize) -> usize {
    let layer = |layer: &LayerSpec| match &layer.mixer {
        Mixer::Attention(attention) => {
            let (read, pooled) = attention.indexer.as_ref().map_or((cells, 0), |indexer| {
                let kept = indexer.blocks_kept * indexer.block_cells;
                let pooled = cells / indexer.block_cells;
                (cells.min(kept), pooled * kv.indexer_keys().bytes(indexer.head_dim))
            });
            let of_head = [kv.keys(), kv.values()].map(|format| format.bytes(attention.head_dim));
            read * attention.kv_heads * (of_head[0] + of_head[1]) + pooled
        }
        Mixer::DeltaNet(delta) => delta.value_heads * delta.key_dim * delta.value_dim * size_of::<f32>(),
    };
    spec.layers.iter().map(layer).sum()
}

struct Count<'a> {
    bytes_of: &'a dyn Fn(TensorId) -> usize,
    bytes: usize,
    /// The part of `bytes` that is routed experts'.
    expert_bytes: usize,
    products: usize,
}

impl Count<'_> {
    /// Everything between the embedding and the head.
    fn layers<'a>(spec: &ModelSpec, bytes_of: &'a dyn Fn(TensorId) -> usize) -> Count<'a> {
        let mut count = Count { bytes_of, bytes: 0, expert_bytes: 0, products: 0 };
        spec.layers.iter().for_each(|layer| count.layer(layer));
        count.read(&spec.output_read);
        count
    }

    fn linear(&mut self, linear: &Linear) {
        self.bytes += (self.bytes_of)(linear.weight);
        self.products += linear.inputs * linear.outputs;
    }

    /// `used` of `experts` stacked matrices.
    fn part(&mut self, linear: &Linear, used: usize, experts: usize) {
        let bytes = (self.bytes_of)(linear.weight) / experts * used;
        self.bytes += bytes;
        self.expert_bytes += bytes;
        self.products += linear.inputs * linear.outputs * used;
    }

    fn read(&mut self, read: &ReadSpec) {
        if let ReadSpec::Streams { down, up, inject, .. } = read {
            self.linear(down);
            self.linear(up);
            if let Some(inject) = inject {
                self.linear(inject);
            }
        }
    }

    fn layer(&mut self, layer: &LayerSpec) {
        self.read(&layer.mixer_read);
        self.read(&layer.feed_forward_read);
        match &layer.mixer {
            Mixer::Attention(spec) => {
                match &spec.projection {
                    QkvProjection::Separate { q, k, v } => [q, k, v].into_iter().for_each(|l| self.linear(l)),
                    QkvProjection::Fused(qkv) => self.linear(qkv),
                }
                self.linear(&spec.output);
                if let Some(indexer) = &spec.indexer {
                    self.linear(&indexer.q);
                    self.linear(&indexer.k);
                }
            }
            Mixer::DeltaNet(DeltaNetSpec { projection, output, .. }) => {
                projection.linears.iter().for_each(|l| self.linear(l));
                self.linear(output);
            }
        }
        match &layer.feed_forward {
            FeedForward::Dense(mlp) => {
                [&mlp.gate, &mlp.up, &mlp.down].into_iter().for_each(|l| self.linear(l))
            }
            FeedForward::Experts(spec) => {
                self.linear(&spec.router);
                match &spec.gate_up {
                    GateUp::Separate { gate, up } => {
                        self.part(gate, spec.used, spec.experts);
                        self.part(up, spec.used, spec.experts);
                    }
                    GateUp::Fused(both) => self.part(both, spec.used, spec.experts),
                }
                self.part(&spec.down, spec.used, spec.experts);
                if let Some(shared) = &spec.shared {
                    let mlp = &shared.mlp;
                    [&mlp.gate, &mlp.up, &mlp.down, &shared.gate].into_iter().for_each(|l| self.linear(l));
                }
            }
        }
        if let Some(ngram) = &layer.ngram {
            self.linear(&ngram.key);
            self.linear(&ngram.value);
        }
    }
}
