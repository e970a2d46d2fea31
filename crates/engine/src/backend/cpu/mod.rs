//! The CPU backend: operations over a thread pool.
//!
//! Every output value is computed whole by one thread in the order its definition fixes, so neither the number of
//! threads nor the way rows are shared among them can change a bit.

mod attention;
mod products;
mod recurrent;

use kernels::{Kernels, math, quant};
use sys::pool::Pool;

use super::{Backend, Buffers, Pass};
use crate::error::StepError;
use crate::graph::{BufferId, Domain, Node, Op};
use crate::models::{Activation, TensorId};
use crate::window::Input;

/// Runs operations on the CPU.
pub struct Cpu {
    kernels: Kernels,
    pool: Pool,
    /// `0, 1, 2, ...`: the row list of products that take all rows.
    identity: Vec<u32>,
    /// Per thread where the weights begin that it was told to ask for when it was done with the last products.
    asked: Vec<usize>,
    /// Per thread.
    scratch: Vec<attention::Scratch>,
    /// What partitions gave that are merged later.
    records: Vec<f32>,
}

/// Below this many values an operation over rows runs on one thread: waking others would cost more.
const PARALLEL_VALUES_MIN: usize = 16 * 1024;

impl Cpu {
    /// A backend over these kernels and threads.
    pub fn new(kernels: Kernels, pool: Pool) -> Cpu {
        let scratch = std::iter::repeat_with(Default::default).take(pool.threads()).collect();
        Cpu { kernels, pool, identity: Vec::new(), asked: Vec::new(), scratch, records: Vec::new() }
    }

    /// The kernels it runs.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The threads it runs on.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Calls `f(row, values)` for every row of `out`.
    fn for_rows(&self, out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = out.len() / width;
        if out.len() < PARALLEL_VALUES_MIN || rows < 2 || self.pool.threads() == 1 {
            for (row, values) in out.chunks_exact_mut(width).enumerate() {
                f(row, values);
            }
            return;
        }
        let band = rows.div_ceil(self.pool.threads() * 4);
        let mut bands: Vec<(usize, &mut [f32])> =
            out.chunks_mut(band * width).enumerate().map(|(i, rows)| (i * band, rows)).collect();
        self.pool.for_each(&mut bands, |(first, rows)| {
            for (i, values) in rows.chunks_exact_mut(width).enumerate() {
                f(*first + i, values);
            }
        });
    }

    /// [`Cpu::for_rows`] over a buffer that is written (and perhaps read in place) while others are read.
    fn write_rows(
        &self,
        buffers: &mut Buffers,
        id: BufferId,
        f: impl Fn(&Buffers, usize, &mut [f32]) + Sync,
    ) {
        let (rows, width) = (buffers.rows(id), buffers.width(id));
        let mut out = buffers.take(id);
        self.for_rows(&mut out[..rows * width], width, |row, values| f(buffers, row, values));
        buffers.put(id, out);
    }
}

impl Backend for Cpu {
    fn run(
        &mut self,
        node: &Node,
        later: &[Node],
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError> {
        match &node.op {
            Op::Embed { table, out } => self.embed(buffers, pass, *table, *out),
            Op::Hidden { out } => {
                self.write_rows(buffers, *out, |_, row, out| {
                    out.copy_from_slice(&pass.window.hidden[row * out.len()..][..out.len()]);
                });
            }
            Op::Linear { .. } | Op::ExpertLinear { .. } => self.products(buffers, pass, &node.op, later),
            Op::Quantize { x, out } => self.quantize(buffers, *x, *out),
            Op::StoreCells { layer, k, v } => self.store_cells(buffers, pass, *layer, *k, *v),
            Op::StoreIndex { layer, k, indexer, eps } => {
                self.store_index(buffers, pass, *layer, *k, indexer, *eps)
            }
            Op::SelectBlocks { layer, index, q, indexer } => {
                let undecided = self.select_blocks(buffers, pass, *layer, *q, indexer);
                pass.not_finite(&undecided, *index, "a score of the indexer")?;
            }
            Op::Attend { layer, q, out, heads, sparse } => {
                self.attend(buffers, pass, *layer, *q, *out, *heads, *sparse);
            }
            Op::Convolve { slot, x, out, weights, taps, dilation } => {
                self.convolve(buffers, pass, *slot, *x, *out, *weights, *taps, *dilation);
            }
            Op::DeltaGates { beta, alpha, dt_bias, a } => {
                self.delta_gates(buffers, pass, *beta, *alpha, *dt_bias, *a);
            }
            Op::Delta { layer, x, beta, decay, out, spec } => {
                self.delta(buffers, pass, *layer, *x, *beta, *decay, *out, spec);
            }
            Op::NgramGate { key, query, value, out } => self.ngram_gate(buffers, *key, *query, *value, *out),
            Op::NgramRows { out, spec } => self.ngram_rows(buffers, pass, *out, spec),
            Op::Route { layer, logits, experts } => {
                let logits = buffers.float(*logits);
                let undecided =
                    pass.routing.choose(logits, experts.experts, experts.used, experts.weight_scale);
                pass.not_finite(&undecided, *layer, "a router logit")?;
            }
            Op::TakeOutputs { x, out } => {
                self.write_rows(buffers, *out, |b, row, out| {
                    let from = pass.outputs[row] as usize;
                    out.copy_from_slice(&b.float(*x)[from * out.len()..][..out.len()]);
                });
            }
            Op::CheckFinite { x, layer, value } => {
                let rows = not_finite_rows(buffers, pass, *x);
                pass.not_finite(&rows, *layer, value)?;
            }
            op => self.row_operation(buffers, pass, op),
        }
        Ok(())
    }
}

impl Cpu {
    fn embed(&self, buffers: &mut Buffers, pass: &Pass<'_>, table: TensorId, out: BufferId) {
        let table = pass.weights.rows(table);
        self.write_rows(buffers, out, |_, row, out| match pass.window.rows[row].input {
            Input::Token(token) => {
                quant::dequantize_row(table.dtype, &table.row_of_file(token as usize), out)
                    .expect("types are checked when the model is loaded");
            }
            Input::Embedding(i) => {
                out.copy_from_slice(&pass.window.embeddings[i as usize * out.len()..][..out.len()]);
            }
        });
    }

    /// Operations that treat rows one by one.
    fn row_operation(&self, buffers: &mut Buffers, pass: &Pass<'_>, op: &Op) {
        let kernels = &self.kernels;
        match op {
            Op::Norm { x, out, gamma, groups, shared, eps } => {
                let gamma = pass.weights.vector(*gamma);
                let in_place = x == out;
                self.write_rows(buffers, *out, |b, row, out| {
                    let width = out.len() / groups;
                    let copy = in_place.then(|| out.to_vec());
                    let x = copy.as_deref().unwrap_or_else(|| row_of(b, *x, row));
                    for g in 0..*groups {
                        let gamma = if *shared { gamma } else { &gamma[g * width..][..width] };
                        let range = g * width..(g + 1) * width;
                        kernels.rms_norm(&x[range.clone()], Some(gamma), *eps, &mut out[range]);
                    }
                });
            }
            Op::Activate { x, pre, act, post } => self.write_rows(buffers, *x, |_, _, x| {
                if *pre != 1.0 {
                    x.iter_mut().for_each(|v| *v *= pre);
                }
                match act {
                    Activation::Silu => kernels.silu(x),
                    Activation::Sigmoid => kernels.sigmoid(x),
                }
                if *post != 1.0 {
                    x.iter_mut().for_each(|v| *v *= post);
                }
            }),
            Op::Add { x, y } => self.write_rows(buffers, *x, |b, row, x| kernels.add(x, row_of(b, *y, row))),
            Op::Rope { x, head_dim } => self.write_rows(buffers, *x, |_, row, x| {
                let (cos, sin) = pass.rotations.row(row);
                x.chunks_exact_mut(*head_dim).for_each(|head| self.rotate(pass, head, cos, sin));
            }),
            Op::Multiply { x, gate, act } => self.write_rows(buffers, *x, |b, row, x| match act {
                Activation::Sigmoid => kernels.multiply_sigmoid(x, row_of(b, *gate, row)),
                Activation::Silu => kernels.multiply_silu(x, row_of(b, *gate, row)),
            }),
            Op::NormalizeKeys { x, heads, head_dim } => self.write_rows(buffers, *x, |_, _, x| {
                for head in x.chunks_exact_mut(*head_dim).take(*heads) {
                    kernels.l2_norm(head, KEY_NORM_EPS);
                }
            }),
            Op::SiluMultiply { gate, up } => self.write_rows(buffers, *gate, |b, row, gate| {
                kernels.silu_multiply(gate, row_of(b, *up, row));
            }),
            Op::SiluMultiplyHalves { x, out } => self.write_rows(buffers, *out, |b, row, out| {
                let (gate, up) = row_of(b, *x, row).split_at(out.len());
                out.copy_from_slice(gate);
                kernels.silu_multiply(out, up);
            }),
            op => self.combining_operation(buffers, pass, op),
        }
    }

    /// Operations that spread, join or weigh rows.
    fn combining_operation(&self, buffers: &mut Buffers, pass: &Pass<'_>, op: &Op) {
        let kernels = &self.kernels;
        match op {
            Op::Spread { x, out } => self.write_rows(buffers, *out, |b, row, out| {
                let x = row_of(b, *x, row);
                out.chunks_exact_mut(x.len()).for_each(|stream| stream.copy_from_slice(x));
            }),
            Op::MixStreams { gate, x, out } => self.write_rows(buffers, *out, |b, row, out| {
                kernels.mix_streams(row_of(b, *gate, row), row_of(b, *x, row), out);
            }),
            Op::AddStreams { r, y, w } => self.write_rows(buffers, *r, |b, row, r| {
                let (y, w) = (row_of(b, *y, row), row_of(b, *w, row));
                for (stream, &weight) in r.chunks_exact_mut(y.len()).zip(w) {
                    kernels.add_scaled(stream, weight, y);
                }
            }),
            Op::Gather { parts, runs, out } => self.write_rows(buffers, *out, |b, row, out| {
                let mut first = 0;
                for run in &runs[..] {
                    let values = &row_of(b, parts[run.part], row)[run.first..][..run.len];
                    out[first..first + run.len].copy_from_slice(values);
                    first += run.len;
                }
            }),
            Op::Pair { e, h, out } => self.write_rows(buffers, *out, |b, row, out| {
                let (e, h) = (row_of(b, *e, row), row_of(b, *h, row));
                for (pair, stream) in out.chunks_exact_mut(2 * e.len()).zip(h.chunks_exact(e.len())) {
                    pair[..e.len()].copy_from_slice(e);
                    pair[e.len()..].copy_from_slice(stream);
                }
            }),
            Op::Combine { x, out } => self.write_rows(buffers, *out, |b, row, out| {
                let used = pass.routing.used;
                out.fill(0.0);
                for &assignment in &pass.routing.by_row[row * used..][..used] {
                    let weight = pass.routing.weights[assignment as usize];
                    kernels.add_scaled(out, weight, row_of(b, *x, assignment as usize));
                }
            }),
            Op::AddGated { y, x, gate } => self.write_rows(buffers, *y, |b, row, y| {
                let weight = math::sigmoid(row_of(b, *gate, row)[0]);
                kernels.add_scaled(y, weight, row_of(b, *x, row));
            }),
            other => unreachable!("{other:?} is handled elsewhere"),
        }
    }
}

/// Epsilon inside the root when query and key heads of a delta-net layer are scaled to length 1.
const KEY_NORM_EPS: f32 = 1e-6;

/// The window rows whose row of a buffer holds a number that is not finite.
fn not_finite_rows(buffers: &Buffers, pass: &Pass<'_>, id: BufferId) -> Vec<usize> {
    // Bits without their sign, as integers: such a row's largest is at least infinity's. Maxima of integers, unlike sums
    // of floats, may be taken in any order, so this becomes vector code.
    let largest = |row: &[f32]| row.iter().fold(0, |max, x| (x.to_bits() as i32 & i32::MAX).max(max));
    let finite = |row: &[f32]| largest(row) < f32::INFINITY.to_bits() as i32;
    let rows = buffers.float(id).chunks_exact(buffers.width(id)).enumerate();
    let rows = rows.filter(|(_, values)| !finite(values)).map(|(row, _)| row);
    match buffers.spec(id).domain {
        Domain::Window => rows.collect(),
        Domain::Outputs => rows.map(|row| pass.outputs[row] as usize).collect(),
        Domain::Assignments => rows.map(|row| pass.routing.rows[row] as usize).collect(),
    }
}

fn row_of(buffers: &Buffers, id: BufferId, row: usize) -> &[f32] {
    let width = buffers.width(id);
    &buffers.float(id)[row * width..][..width]
}
