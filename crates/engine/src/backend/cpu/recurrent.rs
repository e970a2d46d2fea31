//! Delta-net layers and the n-gram block: what depends on the rows before.

use kernels::{Tile, math, quant, split_grid};

use super::{Cpu, row_of};
use crate::backend::{Buffers, Pass};
use crate::graph::BufferId;
use crate::models::{DeltaNetSpec, NgramSpec, TensorId};
use crate::state::{DeltaState, PendingRows, TailSlot};
use crate::window::Span;

impl Cpu {
    pub(super) fn convolve(
        &self,
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
        slot: TailSlot,
        x: BufferId,
        out: BufferId,
        weights: TensorId,
        taps: usize,
        dilation: usize,
    ) {
        let weights = pass.weights.vector(weights);
        let width = buffers.width(out);
        let mut target = buffers.take(out);
        for span in &pass.window.spans {
            let tail = pass.states[span.state].tail_mut(slot);
            let x = &buffers.float(x)[span.first * width..][..span.count * width];
            let before = &*tail;
            let rows = &mut target[span.first * width..][..span.count * width];
            self.for_rows(rows, width, |row, out| {
                let seen: Vec<&[f32]> = (0..taps)
                    .map(|k| {
                        let back = (taps - 1 - k) * dilation;
                        match row.checked_sub(back) {
                            Some(row) => &x[row * width..][..width],
                            None => before.before(back - row),
                        }
                    })
                    .collect();
                self.kernels.convolve(&seen, weights, out);
                self.kernels.silu(out);
            });
            tail.push(x, span.tentative);
        }
        buffers.put(out, target);
    }

    pub(super) fn delta_gates(
        &self,
        buffers: &mut Buffers,
        pass: &Pass<'_>,
        beta: BufferId,
        alpha: BufferId,
        dt_bias: TensorId,
        a: TensorId,
    ) {
        self.write_rows(buffers, beta, |_, _, beta| self.kernels.sigmoid(beta));
        let (dt_bias, a) = (pass.weights.vector(dt_bias), pass.weights.vector(a));
        self.write_rows(buffers, alpha, |_, _, alpha| {
            for (j, value) in alpha.iter_mut().enumerate() {
                *value = a[j] * math::softplus(*value + dt_bias[j]);
            }
        });
    }

    /// Replays what the last span left pending, then runs the window's rows. Where the span is tentative the matrices
    /// stay as they were before its rows, and the rows' inputs become pending.
    pub(super) fn delta(
        &self,
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
        layer: usize,
        x: BufferId,
        beta: BufferId,
        log_decay: BufferId,
        out: BufferId,
        spec: &DeltaNetSpec,
    ) {
        let width = buffers.width(out);
        let used = buffers.rows(out) * width;
        let mut target = buffers.take(out);
        let rows: Vec<PendingRows> =
            pass.window.spans.iter().map(|span| inputs(buffers, span, x, beta, log_decay, spec)).collect();
        let matrix = spec.key_dim * spec.value_dim;
        let heads: Vec<usize> = (0..=spec.value_heads).map(|h| h * spec.value_dim).collect();
        let mut items = Vec::new();
        let mut rest = &mut target[..used];
        let mut states: Vec<Option<_>> = pass.states.iter_mut().map(|s| Some(s.delta_mut(layer))).collect();
        for (span, rows) in pass.window.spans.iter().zip(&rows) {
            let (mine, tail) = rest.split_at_mut(span.count * width);
            rest = tail;
            let DeltaState { matrices, pending, .. } =
                states[span.state].take().expect("one span per sequence");
            let tiles = split_grid(mine, width, &[0, span.count], &heads);
            let pending = &*pending;
            items.extend(tiles.into_iter().zip(matrices.chunks_exact_mut(matrix)).map(|(tile, matrix)| {
                let head = tile.column0() / spec.value_dim;
                Head { tile, matrix, head, pending, rows, span }
            }));
        }
        let q = buffers.float(x);
        self.pool.for_each(&mut items, |head| self.delta_head(head, q, spec));
        buffers.put(out, target);
        for (span, rows) in pass.window.spans.iter().zip(rows) {
            pass.states[span.state].delta_mut(layer).finish_span(rows, span.tentative);
        }
    }

    fn delta_head(&self, item: &mut Head<'_>, x: &[f32], spec: &DeltaNetSpec) {
        for row in 0..item.pending.rows {
            self.delta_row(item.matrix, item.pending, row, item.head, spec, None);
        }
        let mut scratch;
        let matrix: &mut [f32] = match item.span.tentative {
            false => item.matrix,
            true => {
                scratch = item.matrix.to_vec();
                &mut scratch
            }
        };
        let q_scale = 1.0 / (spec.key_dim as f32).sqrt();
        let q_first = spec.key_head(item.head) * spec.key_dim;
        for row in 0..item.rows.rows {
            let q = &x[(item.span.first + row) * spec.channels() + q_first..][..spec.key_dim];
            let query = Some((q, q_scale, item.tile.row(row)));
            self.delta_row(matrix, item.rows, row, item.head, spec, query);
        }
    }

    fn delta_row(
        &self,
        matrix: &mut [f32],
        rows: &PendingRows,
        row: usize,
        head: usize,
        spec: &DeltaNetSpec,
        query: Option<(&[f32], f32, &mut [f32])>,
    ) {
        let keys = spec.key_heads * spec.key_dim;
        let k = &rows.k[row * keys + spec.key_head(head) * spec.key_dim..][..spec.key_dim];
        let v = &rows.v[(row * spec.value_heads + head) * spec.value_dim..][..spec.value_dim];
        let at = row * spec.value_heads + head;
        self.kernels.delta_step(matrix, k, v, rows.decay[at], rows.beta[at], query);
    }

    /// Hashes each row's n-grams and reads their table rows.
    ///
    /// Going back from a row, a reset token (or the start) hides itself and everything before it; a row's own token
    /// never hides its context. Order m xors the products of the last m tokens with their multipliers, in 64 bits.
    pub(super) fn ngram_rows(
        &self,
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
        out: BufferId,
        spec: &NgramSpec,
    ) {
        let window = pass.window;
        pass.ngram_rows.clear();
        for span in &window.spans {
            let tokens = window.rows[span.first..span.first + span.count].iter().map(|row| row.ngram_token);
            let mut history = pass.states[span.state].push_ngram_tokens(tokens.clone());
            for token in tokens {
                hash_row(spec, token, &history, &mut pass.ngram_rows);
                history.push(token);
                history.remove(0);
            }
        }
        let table = pass.weights.rows(spec.table);
        let rows = &pass.ngram_rows;
        let heads = spec.heads();
        self.write_rows(buffers, out, |_, row, out| {
            for (head, out) in out.chunks_exact_mut(spec.row_width).enumerate() {
                quant::dequantize_row(
                    table.dtype,
                    &table.row_of_file(rows[row * heads + head] as usize),
                    out,
                )
                .expect("types are checked when the model is loaded");
            }
        });
    }

    /// Per stream s: `a = (key[s] . query[s]) / sqrt(n)`; its root with its sign kept, through the logistic function,
    /// weighs the value.
    pub(super) fn ngram_gate(
        &self,
        buffers: &mut Buffers,
        key: BufferId,
        query: BufferId,
        value: BufferId,
        out: BufferId,
    ) {
        self.write_rows(buffers, out, |b, row, out| {
            let (key, query, value) = (row_of(b, key, row), row_of(b, query, row), row_of(b, value, row));
            let n = value.len();
            let root = (n as f32).sqrt();
            for (s, out) in out.chunks_exact_mut(n).enumerate() {
                let a = self.kernels.dot(&key[s * n..][..n], &query[s * n..][..n]) / root;
                let magnitude = a.abs().max(1e-6).sqrt();
                let signed = if a > 0.0 {
                    magnitude
                } else if a < 0.0 {
                    -magnitude
                } else {
                    a
                };
                let gate = math::sigmoid(signed);
                for (out, &v) in out.iter_mut().zip(value) {
                    *out = gate * v;
                }
            }
        });
    }
}

/// Table rows of one token; `history` is oldest first.
fn hash_row(spec: &NgramSpec, token: u32, history: &[u32], rows: &mut Vec<u64>) {
    let mut hash = u64::from(token).wrapping_mul(spec.multipliers[0]);
    let mut hidden = false;
    for order in 2..=spec.ngram {
        let before = history[history.len() - (order - 1)];
        hidden |= before == spec.reset_token;
        let before = if hidden { spec.reset_token } else { before };
        hash ^= u64::from(before).wrapping_mul(spec.multipliers[order - 1]);
        for e in 0..spec.heads_per_ngram {
            let head = (order - 2) * spec.heads_per_ngram + e;
            rows.push(hash % spec.head_sizes[head] + spec.head_offsets[head]);
        }
    }
}

/// One value head of one span.
struct Head<'a> {
    tile: Tile<'a>,
    matrix: &'a mut [f32],
    head: usize,
    pending: &'a PendingRows,
    rows: &'a PendingRows,
    span: &'a Span,
}

/// The recurrence's inputs for the rows of a span.
fn inputs(
    buffers: &Buffers,
    span: &Span,
    x: BufferId,
    beta: BufferId,
    log_decay: BufferId,
    spec: &DeltaNetSpec,
) -> PendingRows {
    let keys = spec.key_heads * spec.key_dim;
    let mut rows = PendingRows { rows: span.count, ..PendingRows::default() };
    for row in span.first..span.first + span.count {
        let x = row_of(buffers, x, row);
        rows.k.extend_from_slice(&x[keys..2 * keys]);
        rows.v.extend_from_slice(&x[2 * keys..]);
        rows.beta.extend_from_slice(row_of(buffers, beta, row));
        rows.decay.extend(row_of(buffers, log_decay, row).iter().map(|&g| math::exp(g)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Linear, TensorId};

    /// The hash with the real model's constants: any slip in 64-bit arithmetic shows here and in no tiny model.
    #[test]
    fn table_rows_of_the_real_model_equal_the_oracle() {
        let real = oracle::json("ple_real.json");
        let numbers = |value: &serde_json::Value| -> Vec<u64> {
            value.as_array().expect("an array").iter().map(|n| n.as_u64().expect("a number")).collect()
        };
        let none = TensorId(0);
        let linear = Linear { weight: none, bias: None, scale: None, inputs: 1, outputs: 1 };
        let spec = NgramSpec {
            table: none,
            row_width: 160,
            ngram: 3,
            heads_per_ngram: 8,
            multipliers: numbers(&real["multipliers"]),
            head_sizes: numbers(&real["head_vocab_sizes"]),
            head_offsets: numbers(&real["head_offsets"]),
            reset_token: real["eos"].as_u64().expect("an id") as u32,
            image_token: 248_056,
            key: linear,
            value: linear,
            norm_key: none,
            norm_query: none,
            norm_convolution: none,
            convolution: none,
            taps: 4,
            dilation: 3,
        };
        let mut history = vec![spec.reset_token; 2];
        for (token, wanted) in
            numbers(&real["tokens"]).into_iter().zip(real["rows"].as_array().expect("rows"))
        {
            let mut rows = Vec::new();
            hash_row(&spec, token as u32, &history, &mut rows);
            assert_eq!(rows, numbers(wanted), "token {token} after {history:?}");
            history = vec![history[1], token as u32];
        }
    }
}
