//! The operations of one layer.

use std::sync::Arc;

use super::build::Builder;
use super::{BufferId, Domain, Input, Op, Part, Product, TapSource};
use crate::models::{
    AttentionSpec, DeltaNetSpec, ExpertsSpec, FeedForward, GateUp, GatedMlp, IndexerSpec, LayerSpec, Linear,
    Mixer, NgramSpec, QkvProjection,
};
use crate::state::TailSlot;

/// How many layers of each kind came before.
#[derive(Default)]
pub(super) struct Slots {
    attention: usize,
    delta: usize,
}

impl Builder<'_> {
    /// One layer: mixer, then feed-forward, each read from and written to the residual.
    pub(super) fn layer(&mut self, residual: BufferId, layer: &LayerSpec, slots: &mut Slots) {
        let l = format!("L{}", layer.index);
        if let Some(spec) = &layer.ngram {
            self.ngram(residual, spec, &l);
        }
        if self.spec.streams > 1 {
            self.tap_buffer(format!("{l}.in"), residual);
        }
        self.part = Part::Residual;
        let (h, w) = self.read(residual, &layer.mixer_read, &format!("{l}.hc_attn"));
        let y = match &layer.mixer {
            Mixer::Attention(spec) => {
                slots.attention += 1;
                self.attention(h, spec, (layer.index, slots.attention - 1), &l)
            }
            Mixer::DeltaNet(spec) => {
                slots.delta += 1;
                self.delta_net(h, spec, slots.delta - 1, &l)
            }
        };
        self.part = Part::Residual;
        self.write(residual, y, w);
        if self.spec.streams > 1 {
            self.tap_buffer(format!("{l}.mid"), residual);
        }
        let (h, w) = self.read(residual, &layer.feed_forward_read, &format!("{l}.hc_ffn"));
        let y = match &layer.feed_forward {
            FeedForward::Dense(mlp) => {
                self.part = Part::FeedForward;
                let input = self.input(h, &[&mlp.gate, &mlp.up]);
                let y = self.mlp(input, mlp, "");
                self.tap_buffer(format!("{l}.ffn.out"), y);
                y
            }
            FeedForward::Experts(spec) => self.experts(h, spec, layer.index, &l),
        };
        self.part = Part::Residual;
        self.write(residual, y, w);
        self.tap_buffer(format!("{l}.out"), residual);
        self.push(Op::CheckFinite { x: residual, layer: layer.index, value: "the residual after the layer" });
    }

    fn attention(
        &mut self,
        h: BufferId,
        spec: &AttentionSpec,
        (index, slot): (usize, usize),
        l: &str,
    ) -> BufferId {
        self.part = Part::Attention;
        let (heads, kv_heads, d) = (spec.heads, spec.kv_heads, spec.head_dim);
        let q_width = heads * d;
        let mut consumers: Vec<&Linear> = match &spec.projection {
            QkvProjection::Separate { q, k, v } => vec![q, k, v],
            QkvProjection::Fused(qkv) => vec![qkv],
        };
        consumers.extend(spec.indexer.iter().flat_map(|indexer| [&indexer.q, &indexer.k]));
        let input = self.input(h, &consumers);
        let (q, k, v, gate) = self.queries_keys_values(input, spec);
        let eps = self.spec.norm_eps;
        for (x, norm, groups) in [(q, spec.q_norm, heads), (k, spec.k_norm, kv_heads)] {
            if let Some(gamma) = norm {
                self.push(Op::Norm { x, out: x, gamma, groups, shared: true, eps });
            }
        }
        self.push(Op::Rope { x: q, head_dim: d });
        self.tap_buffer(format!("{l}.attn.q"), q);
        self.push(Op::Rope { x: k, head_dim: d });
        self.tap_buffer(format!("{l}.attn.k"), k);
        self.tap_buffer(format!("{l}.attn.v"), v);
        if let Some(gate) = gate {
            self.tap_buffer(format!("{l}.attn.gate"), gate);
        }
        self.push(Op::StoreCells { layer: slot, k, v });
        if let Some(indexer) = &spec.indexer {
            self.part = Part::Indexer;
            self.index(input, indexer, (index, slot), l);
            self.part = Part::Attention;
        }
        let o = self.buffer("attended", self.domain(h), q_width);
        self.push(Op::Attend { layer: slot, q, out: o, heads, sparse: spec.indexer.is_some() });
        self.tap_buffer(format!("{l}.attn.o"), o);
        if let Some(gate) = gate {
            self.push(Op::Multiply { x: o, gate, act: crate::models::Activation::Sigmoid });
        }
        let input = self.input(o, &[&spec.output]);
        let out = self.linear(&spec.output, input, "mixer out");
        self.tap_buffer(format!("{l}.attn.out"), out);
        out
    }

    /// Queries, keys, values and, where the attention is gated, the gate, each head by head.
    fn queries_keys_values(
        &mut self,
        input: Input,
        spec: &AttentionSpec,
    ) -> (BufferId, BufferId, BufferId, Option<BufferId>) {
        let (heads, d) = (spec.heads, spec.head_dim);
        let (q_width, kv_width) = (heads * d, spec.kv_heads * d);
        let per_head = if spec.gated { 2 } else { 1 };
        let (mut q, k, v) = match &spec.projection {
            QkvProjection::Separate { q, k, v } => {
                let [q, k, v] = self.linears(input, [(q, "q"), (k, "k"), (v, "v")]);
                (q, k, v)
            }
            QkvProjection::Fused(qkv) => {
                let all = self.linear(qkv, input, "qkv");
                let part = |first: usize, len: usize| -> Vec<u32> {
                    (first..first + len).map(|c| c as u32).collect()
                };
                let q_rows = q_width * per_head;
                (
                    self.gather(&[all], &part(0, q_rows), "q"),
                    self.gather(&[all], &part(q_rows, kv_width), "k"),
                    self.gather(&[all], &part(q_rows + kv_width, kv_width), "v"),
                )
            }
        };
        let gate = spec.gated.then(|| {
            let half = |offset: usize| -> Vec<u32> {
                (0..heads).flat_map(|h| (0..d).map(move |i| (h * 2 * d + offset + i) as u32)).collect()
            };
            let gate = self.gather(&[q], &half(d), "q gate");
            q = self.gather(&[q], &half(0), "q of gated");
            gate
        });
        (q, k, v, gate)
    }

    /// Stores the indexer's keys and chooses every row's blocks.
    fn index(&mut self, input: Input, indexer: &IndexerSpec, (index, slot): (usize, usize), l: &str) {
        let eps = self.spec.norm_eps;
        let [raw, iq] = self.linears(input, [(&indexer.k, "index k"), (&indexer.q, "index q")]);
        self.tap_buffer(format!("{l}.idx.kraw"), raw);
        self.push(Op::StoreIndex { layer: slot, k: raw, indexer: *indexer, eps });
        self.push(Op::Norm {
            x: iq,
            out: iq,
            gamma: indexer.q_norm,
            groups: indexer.heads,
            shared: true,
            eps,
        });
        self.push(Op::Rope { x: iq, head_dim: indexer.head_dim });
        self.tap_buffer(format!("{l}.idx.q"), iq);
        self.push(Op::SelectBlocks { layer: slot, index, q: iq, indexer: *indexer });
        self.tap(format!("{l}.idx.selected"), TapSource::SelectedCells);
    }

    fn delta_net(&mut self, h: BufferId, spec: &DeltaNetSpec, slot: usize, l: &str) -> BufferId {
        self.part = Part::DeltaNet;
        let projection = &spec.projection;
        let consumers: Vec<&Linear> = projection.linears.iter().collect();
        let input = self.input(h, &consumers);
        let linears = projection.linears.iter().enumerate();
        let products: Vec<Product> =
            linears.map(|(i, linear)| self.product(linear, input, &format!("delta part {i}"))).collect();
        let parts: Vec<BufferId> = products.iter().map(|product| product.out).collect();
        self.push(Op::Linear { x: input, parts: products });
        let u = match &projection.channels {
            None => parts[0],
            Some(map) => self.gather(&parts, map, "delta channels"),
        };
        self.tap_buffer(format!("{l}.gdn.qkv"), u);
        let z = self.gather(&parts, &projection.gate, "delta z");
        self.tap_buffer(format!("{l}.gdn.z"), z);
        let beta = self.gather(&parts, &projection.beta, "delta beta");
        let alpha = self.gather(&parts, &projection.alpha, "delta alpha");
        self.push(Op::DeltaGates { beta, alpha, dt_bias: spec.dt_bias, a: spec.a });
        self.tap_buffer(format!("{l}.gdn.beta"), beta);
        self.tap_buffer(format!("{l}.gdn.g"), alpha);
        let domain = self.domain(h);
        let c = self.buffer("delta convolved", domain, spec.channels());
        self.push(Op::Convolve {
            slot: TailSlot::Delta(slot),
            x: u,
            out: c,
            weights: spec.convolution,
            taps: spec.taps,
            dilation: 1,
        });
        self.tap_buffer(format!("{l}.gdn.conv"), c);
        self.push(Op::NormalizeKeys { x: c, heads: 2 * spec.key_heads, head_dim: spec.key_dim });
        let keys = spec.key_heads * spec.key_dim;
        self.tap(format!("{l}.gdn.q"), TapSource::Columns(c, 0, keys));
        self.tap(format!("{l}.gdn.k"), TapSource::Columns(c, keys, keys));
        let o = self.buffer("delta out", domain, spec.value_heads * spec.value_dim);
        self.push(Op::Delta { layer: slot, x: c, beta, decay: alpha, out: o, spec: Arc::new(spec.clone()) });
        self.tap_buffer(format!("{l}.gdn.o"), o);
        let eps = self.spec.norm_eps;
        self.push(Op::Norm { x: o, out: o, gamma: spec.norm, groups: spec.value_heads, shared: true, eps });
        self.push(Op::Multiply { x: o, gate: z, act: spec.gate_activation });
        self.tap_buffer(format!("{l}.gdn.normed"), o);
        let input = self.input(o, &[&spec.output]);
        let out = self.linear(&spec.output, input, "mixer out");
        self.tap_buffer(format!("{l}.gdn.out"), out);
        out
    }

    fn mlp(&mut self, input: Input, mlp: &GatedMlp, name: &str) -> BufferId {
        let names = [format!("{name}gate"), format!("{name}up")];
        let [gate, up] = self.linears(input, [(&mlp.gate, &names[0]), (&mlp.up, &names[1])]);
        self.push(Op::SiluMultiply { gate, up });
        let input = self.input(gate, &[&mlp.down]);
        self.linear(&mlp.down, input, &format!("{name}down"))
    }

    fn experts(&mut self, h: BufferId, spec: &ExpertsSpec, layer: usize, l: &str) -> BufferId {
        self.part = Part::Router;
        let mut consumers = vec![&spec.router];
        match &spec.gate_up {
            GateUp::Separate { gate, up } => consumers.extend([gate, up]),
            GateUp::Fused(gate_up) => consumers.push(gate_up),
        }
        if let Some(shared) = &spec.shared {
            consumers.extend([&shared.gate, &shared.mlp.gate, &shared.mlp.up]);
        }
        let input = self.input(h, &consumers);
        let logits = self.linear(&spec.router, input, "router");
        self.tap_buffer(format!("{l}.moe.logits"), logits);
        self.push(Op::Route { layer, logits, experts: *spec });
        self.tap(format!("{l}.moe.ids"), TapSource::ExpertIds);
        self.tap(format!("{l}.moe.weights"), TapSource::ExpertWeights);
        self.end_segment(layer);
        self.part = Part::Experts;
        let inner = match &spec.gate_up {
            GateUp::Separate { gate, up } => {
                let parts = [(gate, "expert gate"), (up, "expert up")];
                let [gate, up] = self.expert_linears(input, parts, true);
                self.push(Op::SiluMultiply { gate, up });
                gate
            }
            GateUp::Fused(gate_up) => {
                let [x] = self.expert_linears(input, [(gate_up, "expert gate up")], true);
                let out = self.buffer("expert gate", Domain::Assignments, spec.expert_width);
                self.push(Op::SiluMultiplyHalves { x, out });
                out
            }
        };
        let inner = self.input(inner, &[&spec.down]);
        let [down] = self.expert_linears(inner, [(&spec.down, "expert down")], false);
        let out = self.buffer("experts out", self.domain(h), spec.down.outputs);
        self.push(Op::Combine { x: down, out });
        self.tap_buffer(format!("{l}.moe.routed"), out);
        if let Some(shared) = &spec.shared {
            self.part = Part::SharedExpert;
            let gate = self.linear(&shared.gate, input, "shared weight");
            let y = self.mlp(input, &shared.mlp, "shared ");
            self.push(Op::AddGated { y: out, x: y, gate });
        }
        self.tap_buffer(format!("{l}.moe.out"), out);
        out
    }

    fn expert_linears<const N: usize>(
        &mut self,
        x: Input,
        parts: [(&Linear, &str); N],
        gather: bool,
    ) -> [BufferId; N] {
        let parts = parts.map(|(linear, name)| {
            let out = self.buffer(name, Domain::Assignments, linear.outputs);
            Product { linear: *linear, out }
        });
        self.push(Op::ExpertLinear { x, parts: parts.to_vec(), gather });
        parts.map(|part| part.out)
    }

    fn ngram(&mut self, residual: BufferId, spec: &NgramSpec, l: &str) {
        self.part = Part::Ngram;
        let (domain, eps, streams) = (self.domain(residual), self.spec.norm_eps, self.spec.streams);
        let flat = self.width(residual);
        let rows = self.buffer("ngram rows", domain, spec.heads() * spec.row_width);
        self.push(Op::NgramRows { out: rows, spec: Arc::new(spec.clone()) });
        self.tap_buffer(format!("{l}.ple.emb"), rows);
        self.tap(format!("{l}.ple.rows"), TapSource::NgramRows);
        let input = self.input(rows, &[&spec.key, &spec.value]);
        let [key, value] = self.linears(input, [(&spec.key, "ngram key"), (&spec.value, "ngram value")]);
        let normed = self.buffer("ngram key normed", domain, flat);
        self.push(Op::Norm {
            x: key,
            out: normed,
            gamma: spec.norm_key,
            groups: streams,
            shared: false,
            eps,
        });
        let query = self.buffer("ngram query", domain, flat);
        self.push(Op::Norm {
            x: residual,
            out: query,
            gamma: spec.norm_query,
            groups: streams,
            shared: false,
            eps,
        });
        let gated = self.buffer("ngram gated", domain, flat);
        self.push(Op::NgramGate { key: normed, query, value, out: gated });
        self.tap_buffer(format!("{l}.ple.gated"), gated);
        let x = self.buffer("ngram normed", domain, flat);
        self.push(Op::Norm {
            x: gated,
            out: x,
            gamma: spec.norm_convolution,
            groups: streams,
            shared: false,
            eps,
        });
        let y = self.buffer("ngram convolved", domain, flat);
        self.push(Op::Convolve {
            slot: TailSlot::Ngram,
            x,
            out: y,
            weights: spec.convolution,
            taps: spec.taps,
            dilation: spec.dilation,
        });
        self.tap_buffer(format!("{l}.ple.conv"), y);
        self.push(Op::Add { x: gated, y });
        self.tap_buffer(format!("{l}.ple.out"), gated);
        self.push(Op::Add { x: residual, y: gated });
    }
}
