//! Products of weights with rows.

use kernels::{Kernels, Tile, WeightRows, split_grid};

use super::Cpu;
use crate::backend::{Buffers, Pass};
use crate::graph::{BufferId, Input};
use crate::models::Linear;

/// Columns of a tile are a multiple of this, so that kernels that work on several weight rows stay full.
const TILE_COLUMNS: usize = 16;
/// Most columns of a tile when there are many rows: their weights stay in the second-level cache.
const TILE_COLUMNS_MAX: usize = 128;
/// Tiles per thread, so that a thread that was held up does not hold up the others for long.
const TILES_PER_THREAD: usize = 4;
/// Fewest bytes of weights in a tile of one row: the first bytes of a tile come as slowly as memory answers, the later ones
/// while the earlier are multiplied.
const TILE_BYTES_MIN: usize = 128 * 1024;

impl Cpu {
    pub(super) fn quantize(&self, buffers: &mut Buffers, x: BufferId, out: BufferId) {
        let width = buffers.width(x);
        let (x, out) = buffers.float_and_int8_mut(x, out);
        let out = out.rows_mut(x.len(), width);
        let rows = x.len() / width;
        let band = if x.len() < super::PARALLEL_VALUES_MIN {
            rows.max(1)
        } else {
            rows.div_ceil(self.pool.threads() * 4)
        };
        let mut bands: Vec<_> = x
            .chunks(band * width)
            .zip(out.q.chunks_mut(band * width))
            .zip(out.d.chunks_mut(band * width / 32))
            .zip(out.sum16.chunks_mut(band * width / 16))
            .collect();
        self.pool.for_each(&mut bands, |(((x, q), d), sum16)| self.kernels.quantize_row(x, q, d, sum16));
    }

    pub(super) fn linear(
        &mut self,
        buffers: &mut Buffers,
        pass: &Pass<'_>,
        linear: &Linear,
        x: Input,
        out: BufferId,
    ) {
        let mut target = buffers.take(out);
        let values = buffers.rows(out) * buffers.width(out);
        let rows = values / linear.outputs;
        self.grow_identity(rows);
        let weights = pass.weights.rows(linear.weight);
        let bounds = self.column_bounds(linear.outputs, weights.row_bytes(), rows);
        let mut tiles = split_grid(&mut target[..values], linear.outputs, &[0, rows], &bounds);
        let scale = linear.scale.map(|id| pass.weights.vector(id)[0]);
        let bias = linear.bias.map(|id| pass.weights.vector(id));
        self.pool.for_each(&mut tiles, |tile| {
            let rows_of_weights = weights.slice(tile.column0(), tile.columns());
            self.tile(buffers, &rows_of_weights, linear.inputs, x, &self.identity[..rows], tile);
            finish(tile, scale, bias);
        });
        buffers.put(out, target);
    }

    pub(super) fn expert_linear(
        &mut self,
        buffers: &mut Buffers,
        pass: &Pass<'_>,
        linear: &Linear,
        x: Input,
        out: BufferId,
        gather: bool,
    ) {
        let routing = &pass.routing;
        if routing.groups.is_empty() {
            return;
        }
        let mut target = buffers.take(out);
        let values = routing.len() * linear.outputs;
        self.grow_identity(routing.len());
        let mut row_bounds: Vec<usize> = routing.groups.iter().map(|&(_, first)| first).collect();
        row_bounds.push(routing.len());
        let rows_per_expert = routing.len().div_ceil(routing.groups.len());
        let experts = pass.experts.as_ref().expect("experts are acquired after their router");
        let row_bytes = experts.rows(linear.weight, 0).row_bytes();
        let bounds = self.column_bounds(linear.outputs, row_bytes, rows_per_expert);
        let mut tiles = split_grid(&mut target[..values], linear.outputs, &row_bounds, &bounds);
        let scales = linear.scale.map(|id| pass.weights.vector(id));
        let rows = if gather { &routing.rows } else { &self.identity };
        self.pool.for_each(&mut tiles, |tile| {
            let group = routing.groups.partition_point(|&(_, first)| first <= tile.row0()) - 1;
            let expert = routing.groups[group].0 as usize;
            let weights = experts.rows(linear.weight, group);
            let rows_of_weights = weights.slice(tile.column0(), tile.columns());
            let rows = &rows[tile.row0()..][..tile.rows()];
            self.tile(buffers, &rows_of_weights, linear.inputs, x, rows, tile);
            finish(tile, scales.map(|s| s[if s.len() == 1 { 0 } else { expert }]), None);
        });
        buffers.put(out, target);
    }

    fn tile(
        &self,
        buffers: &Buffers,
        weights: &WeightRows<'_>,
        inputs: usize,
        x: Input,
        rows: &[u32],
        tile: &mut Tile<'_>,
    ) {
        if Kernels::takes_float(weights.dtype) {
            self.kernels.matmul_float(weights, buffers.float(x.float), rows, tile);
        } else {
            let int8 = x.int8.expect("the graph quantises inputs of quantised weights");
            self.kernels.matmul_int8(weights, &buffers.int8(int8, inputs), rows, tile);
        }
    }

    fn grow_identity(&mut self, rows: usize) {
        let have = self.identity.len();
        self.identity.extend(have as u32..rows.max(have) as u32);
    }

    fn column_bounds(&self, columns: usize, row_bytes: usize, rows: usize) -> Vec<usize> {
        let threads = self.pool.threads();
        let mut tiles = threads * TILES_PER_THREAD;
        if rows == 1 {
            // A multiple of the threads, so that none has one more than another.
            tiles = tiles.min(columns * row_bytes / TILE_BYTES_MIN / threads * threads).max(threads);
        }
        let mut step = columns.div_ceil(tiles).next_multiple_of(TILE_COLUMNS);
        if rows > 1 {
            step = step.min(TILE_COLUMNS_MAX);
        }
        if threads == 1 && rows == 1 {
            step = columns;
        }
        (0..columns).step_by(step).chain([columns]).collect()
    }
}

/// What follows a product: a scale, then a bias.
fn finish(tile: &mut Tile<'_>, scale: Option<f32>, bias: Option<&[f32]>) {
    if scale.is_none() && bias.is_none() {
        return;
    }
    let first = tile.column0();
    for row in 0..tile.rows() {
        let values = tile.row(row);
        if let Some(scale) = scale {
            values.iter_mut().for_each(|v| *v *= scale);
        }
        if let Some(bias) = bias {
            values.iter_mut().zip(&bias[first..]).for_each(|(v, b)| *v += b);
        }
    }
}
