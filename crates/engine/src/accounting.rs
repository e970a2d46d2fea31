//! How many bytes a token costs.

use crate::models::{
    DeltaNetSpec, FeedForward, GateUp, LayerSpec, Linear, Mixer, ModelSpec, QkvProjection, ReadSpec,
};
use crate::weights::Weights;

/// Bytes of weights that one token's forward pass reads.
pub(crate) fn active_bytes(spec: &ModelSpec, weights: &Weights) -> usize {
    let mut count = Count { weights, bytes: 0 };
    for layer in &spec.layers {
        count.layer(layer);
    }
    count.read(&spec.output_read);
    count.linear(&spec.output);
    count.bytes + weights.rows(spec.embedding).row_bytes()
}

struct Count<'a> {
    weights: &'a Weights,
    bytes: usize,
}

impl Count<'_> {
    fn linear(&mut self, linear: &Linear) {
        self.bytes += self.weights.held_bytes(linear.weight);
    }

    /// `used` of `experts` stacked matrices.
    fn part(&mut self, linear: &Linear, used: usize, experts: usize) {
        self.bytes += self.weights.held_bytes(linear.weight) / experts * used;
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
