//! Building graphs: buffers, products, the frame of a forward pass.

use std::collections::HashMap;

use gguf::TensorType;
use kernels::Kernels;

use super::{
    BufferId, BufferSpec, Content, Domain, Graph, Input, Node, Op, Part, Product, Run, Segment, Tap,
    TapSource,
};
use crate::models::{Activation, Linear, ModelSpec, ReadSpec, TensorId};

/// Collects operations and buffers.
pub struct Builder<'a> {
    pub(super) spec: &'a ModelSpec,
    /// What operations are for that are pushed now.
    pub(super) part: Part,
    dtype: &'a dyn Fn(TensorId) -> TensorType,
    segments: Vec<Segment>,
    buffers: Vec<BufferSpec>,
    by_name: HashMap<(String, Domain, usize), BufferId>,
}

impl<'a> Builder<'a> {
    /// `dtype` answers with a tensor's element type.
    pub fn new(spec: &'a ModelSpec, dtype: &'a dyn Fn(TensorId) -> TensorType) -> Builder<'a> {
        Builder {
            spec,
            part: Part::Embedding,
            dtype,
            segments: vec![Segment::default()],
            buffers: Vec::new(),
            by_name: HashMap::new(),
        }
    }

    /// The scratch buffer of that name and shape; the same call gives the same buffer, so layers share it.
    pub(super) fn buffer(&mut self, name: &str, domain: Domain, width: usize) -> BufferId {
        self.buffer_of(name, domain, width, Content::Float)
    }

    fn buffer_of(&mut self, name: &str, domain: Domain, width: usize, content: Content) -> BufferId {
        let next = BufferId(self.buffers.len() as u16);
        let id = *self.by_name.entry((name.to_owned(), domain, width)).or_insert(next);
        if id == next {
            self.buffers.push(BufferSpec { width, domain, content, slot: 0 });
        }
        id
    }

    pub(super) fn width(&self, buffer: BufferId) -> usize {
        self.buffers[buffer.0 as usize].width
    }

    pub(super) fn domain(&self, buffer: BufferId) -> Domain {
        self.buffers[buffer.0 as usize].domain
    }

    pub(super) fn push(&mut self, op: Op) {
        self.segments.last_mut().expect("a segment").nodes.push(Node {
            part: self.part,
            op,
            taps: Vec::new(),
        });
    }

    /// Names what the last operation completed.
    pub(super) fn tap(&mut self, name: impl Into<String>, source: TapSource) {
        let node = self.segments.last_mut().and_then(|s| s.nodes.last_mut()).expect("an operation");
        node.taps.push(Tap { name: name.into(), source });
    }

    pub(super) fn tap_buffer(&mut self, name: impl Into<String>, buffer: BufferId) {
        self.tap(name, TapSource::Buffer(buffer));
    }

    /// Ends the segment: the host must provide the chosen experts of `layer`.
    pub(super) fn end_segment(&mut self, layer: usize) {
        self.segments.last_mut().expect("a segment").experts_of = Some(layer);
        self.segments.push(Segment::default());
    }

    /// Makes `x` ready for products with these weights: quantises it if one of them wants that.
    pub(super) fn input(&mut self, x: BufferId, linears: &[&Linear]) -> Input {
        let int8 = linears.iter().any(|linear| !Kernels::takes_float((self.dtype)(linear.weight)));
        let int8 = int8.then(|| {
            let (width, domain) = (self.width(x), self.domain(x));
            let out = self.buffer_of(&format!("int8 of {}", x.0), domain, width, Content::Int8);
            self.push(Op::Quantize { x, out });
            out
        });
        Input { float: x, int8 }
    }

    /// `W x` into the scratch buffer `name`.
    pub(super) fn linear(&mut self, linear: &Linear, x: Input, name: &str) -> BufferId {
        let [out] = self.linears(x, [(linear, name)]);
        out
    }

    /// `W x` for several matrices, each into the scratch buffer of its name.
    pub(super) fn linears<const N: usize>(&mut self, x: Input, parts: [(&Linear, &str); N]) -> [BufferId; N] {
        let parts = parts.map(|(linear, name)| self.product(linear, x, name));
        self.push(Op::Linear { x, parts: parts.to_vec() });
        parts.map(|part| part.out)
    }

    /// The product `W x` into the scratch buffer `name`, to be part of an operation.
    pub(super) fn product(&mut self, linear: &Linear, x: Input, name: &str) -> Product {
        let factor = self.width(x.float) / linear.inputs;
        let out = self.buffer(name, self.domain(x.float), factor * linear.outputs);
        Product { linear: *linear, out }
    }

    /// Reads the residual for a sub-block: its input and, with several streams, the write weights.
    pub(super) fn read(
        &mut self,
        residual: BufferId,
        read: &ReadSpec,
        name: &str,
    ) -> (BufferId, Option<BufferId>) {
        let (domain, eps) = (self.domain(residual), self.spec.norm_eps);
        match read {
            ReadSpec::Norm { gamma } => {
                let out = self.buffer("normed", domain, self.width(residual));
                self.push(Op::Norm { x: residual, out, gamma: *gamma, groups: 1, shared: false, eps });
                (out, None)
            }
            ReadSpec::Streams { norm, down, up, inject } => {
                let streams = self.spec.streams;
                let normed = self.buffer("stream normed", domain, self.width(residual));
                self.push(Op::Norm {
                    x: residual,
                    out: normed,
                    gamma: *norm,
                    groups: streams,
                    shared: false,
                    eps,
                });
                self.tap_buffer(format!("{name}.normed"), normed);
                let consumers: Vec<&Linear> = std::iter::once(down).chain(inject).collect();
                let input = self.input(normed, &consumers);
                let mean = 1.0 / streams as f32;
                let (low, weights) = match inject {
                    None => (self.linear(down, input, "stream low"), None),
                    Some(inject) => {
                        let [low, w] = self.linears(input, [(down, "stream low"), (inject, "stream write")]);
                        self.push(Op::Activate { x: w, pre: mean, act: Activation::Sigmoid, post: 2.0 });
                        self.tap_buffer(format!("{name}.inject"), w);
                        (low, Some(w))
                    }
                };
                self.push(Op::Activate { x: low, pre: mean, act: Activation::Silu, post: 1.0 });
                let low = self.input(low, &[up]);
                let gate = self.linear(up, low, "stream gate");
                self.push(Op::Activate { x: gate, pre: 1.0, act: Activation::Sigmoid, post: 1.0 });
                self.tap_buffer(format!("{name}.gate"), gate);
                let out = self.buffer("mixed", domain, self.width(residual) / streams);
                self.push(Op::MixStreams { gate, x: normed, out });
                self.tap_buffer(format!("{name}.mixed"), out);
                (out, weights)
            }
        }
    }

    /// Writes a sub-block's output to the residual.
    pub(super) fn write(&mut self, residual: BufferId, y: BufferId, weights: Option<BufferId>) {
        match weights {
            Some(w) => self.push(Op::AddStreams { r: residual, y, w }),
            None => self.push(Op::Add { x: residual, y }),
        }
    }

    /// Columns of the parts, numbered as if these lay side by side. A part that is just that is not copied.
    pub(super) fn gather(&mut self, parts: &[BufferId], columns: &[u32], name: &str) -> BufferId {
        let runs = self.runs(parts, columns);
        if let [Run { part, first: 0, len }] = runs[..]
            && len == self.width(parts[part])
        {
            return parts[part];
        }
        let out = self.buffer(name, self.domain(parts[0]), columns.len());
        self.push(Op::Gather { parts: parts.to_vec(), runs: runs.into(), out });
        out
    }

    fn runs(&self, parts: &[BufferId], columns: &[u32]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for &column in columns {
            let (mut part, mut first) = (0, column as usize);
            while first >= self.width(parts[part]) {
                first -= self.width(parts[part]);
                part += 1;
            }
            match runs.last_mut() {
                Some(run) if run.part == part && run.first + run.len == first => run.len += 1,
                _ => runs.push(Run { part, first, len: 1 }),
            }
        }
        runs
    }

    /// The head: from the residual of the rows that want logits to logits.
    pub(super) fn head(mut self, residual: BufferId, read: &ReadSpec, name: &str) -> Graph {
        self.part = Part::Head;
        let (x, _) = self.read(residual, read, name);
        if matches!(read, ReadSpec::Norm { .. }) {
            self.tap_buffer(format!("{name}.normed"), x);
        }
        let output = self.spec.output;
        let input = self.input(x, &[&output]);
        let logits = self.linear(&output, input, "logits");
        self.tap_buffer("logits", logits);
        self.push(Op::CheckFinite { x: logits, layer: self.spec.layers.len(), value: "a logit" });
        let used = crate::memory::experts_used(self.spec);
        super::slots::assign(&self.segments, &mut self.buffers, &[logits, residual], used);
        Graph { segments: self.segments, buffers: self.buffers, logits, residual }
    }
}

/// The forward pass of the trunk.
pub fn trunk(spec: &ModelSpec, dtype: &dyn Fn(TensorId) -> TensorType) -> Graph {
    let mut b = Builder::new(spec, dtype);
    let x = b.buffer("embedding", Domain::Window, spec.width);
    b.push(Op::Embed { table: spec.embedding, out: x });
    b.tap_buffer("embed", x);
    let residual = match spec.streams {
        1 => x,
        streams => {
            let residual = b.buffer("residual", Domain::Window, streams * spec.width);
            b.push(Op::Spread { x, out: residual });
            residual
        }
    };
    let mut slots = super::layers::Slots::default();
    for layer in &spec.layers {
        b.layer(residual, layer, &mut slots);
    }
    let outputs = b.buffer("output residual", Domain::Outputs, b.width(residual));
    b.part = Part::Head;
    b.push(Op::TakeOutputs { x: residual, out: outputs });
    b.head(outputs, &spec.output_read, "final")
}
