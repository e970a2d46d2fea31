//! Products of weights with rows.

use kernels::{INTERLEAVED_ROWS, Kernels, Tile, WeightRows, can_interleave, split_grid};

use super::Cpu;
use crate::backend::{Buffers, Pass};
use crate::graph::{BufferId, Input, Node, Op, Product};

/// Columns of a tile are a multiple of this, so that kernels that work on several weight rows stay full.
const TILE_COLUMNS: usize = 16;
/// Most columns of a tile when there are many rows: their weights stay in the second-level cache.
const TILE_COLUMNS_MAX: usize = 128;
/// Tiles per thread when there are many rows, so that a thread that was held up does not hold up the others for long.
const TILES_PER_THREAD: usize = 4;
/// Bytes of weights in a tile of one row: few, so that no thread waits long for the last one of another.
const TILE_BYTES: usize = 64 * 1024;

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

    /// Runs a [`Op::Linear`] or [`Op::ExpertLinear`]; `later` are the nodes after it.
    pub(super) fn products(&mut self, buffers: &mut Buffers, pass: &Pass<'_>, op: &Op, later: &[Node]) {
        let step = Step::new(op, buffers, pass, self.pool.threads()).expect("an operation of products");
        if step.is_empty() {
            return;
        }
        let rows = step.row_bounds[step.row_bounds.len() - 1];
        self.grow_identity(rows);
        let mut targets: Vec<_> = step.parts.iter().map(|part| buffers.take(part.out)).collect();
        let mut weights = step.items();
        self.chain(
            &mut weights,
            // The next one of products; nothing is known of experts that are not chosen yet.
            later
                .iter()
                .find(|node| matches!(node.op, Op::Linear { .. } | Op::ExpertLinear { .. }))
                .and_then(|node| Step::new(&node.op, buffers, pass, self.pool.threads())),
        );
        let mut weights = weights.into_iter();
        let mut items = Vec::with_capacity(weights.len());
        for ((part, target), bounds) in step.parts.iter().zip(&mut targets).zip(&step.bounds) {
            let outputs = part.linear.outputs;
            let grid = split_grid(&mut target[..rows * outputs], outputs, &step.row_bounds, bounds);
            items.extend(
                grid.into_iter().zip(&mut weights).map(|(tile, weights)| (&part.linear, weights, tile)),
            );
        }
        assert!(weights.next().is_none(), "an item of weights for each tile");
        let of_inputs = match op {
            Op::ExpertLinear { gather: true, .. } => &pass.routing.rows,
            _ => &self.identity,
        };
        let (x, experts) = (step.x, matches!(op, Op::ExpertLinear { .. }));
        let matrix = |tile: &Tile<'_>| if experts { pass.routing.expert_of(tile.row0()) as usize } else { 0 };
        self.pool.for_each(&mut items, |(linear, weights, tile)| {
            let rows = &of_inputs[tile.row0()..][..tile.rows()];
            self.product(buffers, weights, linear.inputs, x, rows, tile);
            let scale = linear.scale.map(|id| match pass.weights.vector(id) {
                &[one] => one,
                each => each[matrix(tile)],
            });
            finish(tile, scale, linear.bias.map(|id| pass.weights.vector(id)));
        });
        step.parts.iter().zip(targets).for_each(|(part, target)| buffers.put(part.out, target));
    }

    /// Tells each item's weights what its thread reads before and after them: the neighbour in its run, or what it had been
    /// told to ask for at the end of the step before; and at the end the first of `next`, the step that follows.
    fn chain<'w>(&mut self, items: &mut [WeightRows<'w>], next: Option<Step<'w, '_>>) {
        let next = next.map_or(Vec::new(), |step| step.items());
        let asked = std::mem::take(&mut self.asked);
        let starts: Vec<usize> = self.pool.runs(items.len()).chain([items.len()]).collect();
        for (thread, next_start) in self.pool.runs(next.len()).enumerate() {
            let run = starts[thread]..starts[thread + 1];
            self.pool.foresee(thread, next.iter().skip(next_start).map(|weights| weights.bytes));
            let next: &[u8] = next.get(next_start).map_or(&[], |weights| weights.bytes);
            let mut before = asked.get(thread).copied();
            for i in run.clone() {
                let asked = before == Some(items[i].bytes.as_ptr().addr());
                let after = if i + 1 < run.end { items[i + 1].bytes } else { next };
                // Of some types nothing is asked for in advance.
                before = can_interleave(items[i].dtype, INTERLEAVED_ROWS).then(|| after.as_ptr().addr());
                items[i] = items[i].continued(asked, after);
            }
            self.asked.push(before.unwrap_or_default());
        }
    }

    fn product(
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
}

/// Products that the threads share: for every part, for every group of rows, from band to band of columns.
struct Step<'w, 'n> {
    parts: &'n [Product],
    x: Input,
    /// Between the groups, which have a matrix each.
    row_bounds: Vec<usize>,
    /// Of each part, of each group.
    matrices: Vec<Vec<WeightRows<'w>>>,
    /// Of each part.
    bounds: Vec<Vec<usize>>,
}

impl<'w, 'n> Step<'w, 'n> {
    /// None if the operation is none of products, or experts are not there yet.
    fn new(op: &'n Op, buffers: &Buffers, pass: &Pass<'w>, threads: usize) -> Option<Step<'w, 'n>> {
        let (x, parts, row_bounds, matrices): (_, &[Product], Vec<usize>, Vec<Vec<WeightRows<'w>>>) = match op
        {
            Op::Linear { x, parts } => {
                let values = buffers.rows(parts[0].out) * buffers.width(parts[0].out);
                let matrices = parts.iter().map(|part| vec![pass.weights.rows(part.linear.weight)]).collect();
                (x, parts, vec![0, values / parts[0].linear.outputs], matrices)
            }
            Op::ExpertLinear { x, parts, .. } => {
                let (routing, experts) = (&pass.routing, pass.experts.as_ref()?);
                let of = |part: &Product| {
                    (0..routing.groups.len()).map(|group| experts.rows(part.linear.weight, group)).collect()
                };
                let firsts = routing.groups.iter().map(|&(_, first)| first);
                (x, parts, firsts.chain([routing.len()]).collect(), parts.iter().map(of).collect())
            }
            _ => return None,
        };
        let mut step = Step { parts, x: *x, row_bounds, matrices, bounds: Vec::new() };
        if !step.is_empty() {
            step.bounds = step.column_bounds(threads);
        }
        Some(step)
    }

    fn is_empty(&self) -> bool {
        self.row_bounds.last() == Some(&0)
    }

    /// The weights of each item, in order.
    fn items(&self) -> Vec<WeightRows<'w>> {
        let mut items = Vec::new();
        for (matrices, bounds) in self.matrices.iter().zip(&self.bounds) {
            for matrix in matrices {
                items.extend(bounds.windows(2).map(|band| matrix.slice(band[0], band[1] - band[0])));
            }
        }
        items
    }

    /// Bounds of bands of columns, for each part.
    fn column_bounds(&self, threads: usize) -> Vec<Vec<usize>> {
        let groups = self.row_bounds.len() - 1;
        let rows = self.row_bounds[groups].div_ceil(groups);
        let outputs = |part: &Product| part.linear.outputs;
        let columns: usize = self.parts.iter().map(outputs).sum();
        let row_bytes = |part: usize| self.matrices[part][0].row_bytes();
        let bytes: usize = (0..self.parts.len()).map(|i| outputs(&self.parts[i]) * row_bytes(i)).sum();
        // With one row a number of items that the threads can share evenly.
        let item_bytes =
            bytes.div_ceil((groups * bytes).div_ceil(TILE_BYTES).next_multiple_of(threads).div_ceil(groups));
        let step = |i: usize| {
            let columns_of_part = outputs(&self.parts[i]);
            if rows > 1 {
                let step = columns.div_ceil(threads * TILES_PER_THREAD).next_multiple_of(TILE_COLUMNS);
                return step.min(TILE_COLUMNS_MAX);
            }
            if threads == 1 {
                return columns_of_part;
            }
            let items = (columns_of_part * row_bytes(i) + item_bytes / 2) / item_bytes;
            columns_of_part.div_ceil(items.max(1)).next_multiple_of(TILE_COLUMNS)
        };
        let bounds =
            |i| (0..outputs(&self.parts[i])).step_by(step(i)).chain([outputs(&self.parts[i])]).collect();
        (0..self.parts.len()).map(bounds).collect()
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
