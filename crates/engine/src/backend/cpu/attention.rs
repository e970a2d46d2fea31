//! Attention: storing cells, choosing blocks, attending.

use kernels::{PARTITION_CELLS, Tile, quant, split_grid};

use super::{Cpu, row_of};
use crate::backend::{Buffers, Pass, Selection};
use crate::graph::BufferId;
use crate::models::{IndexerSpec, Pairing};
use crate::state::{AttentionCells, KvType, State};
use crate::window::Span;

/// Rows that share one pass over a partition's keys and values.
const ROWS_PER_TILE: usize = 16;

impl Cpu {
    pub(super) fn rotate(&self, pass: &Pass<'_>, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        match pass.rope.pairing {
            Pairing::Halves => self.kernels.apply_rope_halves(head, cos, sin),
            Pairing::Adjacent => self.kernels.apply_rope_adjacent(head, cos, sin),
        }
    }

    pub(super) fn store_cells(
        &self,
        buffers: &Buffers,
        pass: &mut Pass<'_>,
        layer: usize,
        k: BufferId,
        v: BufferId,
    ) {
        for span in &pass.window.spans {
            let state = &mut pass.states[span.state];
            let first = state.tokens();
            for i in 0..span.count {
                let row = span.first + i;
                state.store_cell(
                    &self.kernels,
                    layer,
                    first + i,
                    row_of(buffers, k, row),
                    row_of(buffers, v, row),
                );
            }
        }
    }

    /// Rounds raw keys as they are stored, and pools each block that becomes complete: the mean of its raw keys
    /// (added in ascending order, then times `1 / cells`), normed, rotated to the position of its first token.
    pub(super) fn store_index(
        &self,
        buffers: &Buffers,
        pass: &mut Pass<'_>,
        layer: usize,
        k: BufferId,
        indexer: &IndexerSpec,
        eps: f32,
    ) {
        let gamma = pass.weights.vector(indexer.k_norm);
        let pairs = pass.rope.frequencies.len();
        let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
        let (mut mean, mut pooled) = (vec![0.0; indexer.head_dim], vec![0.0; indexer.head_dim]);
        for span in &pass.window.spans {
            for row in span.first..span.first + span.count {
                let state = &mut pass.states[span.state];
                let mut raw = row_of(buffers, k, row).to_vec();
                if state.layout().kv == KvType::F16 {
                    raw.iter_mut().for_each(|v| *v = quant::f16_to_f32(quant::f32_to_f16(*v)));
                }
                let Some((block, keys, position)) = state.push_raw_key(layer, &raw) else { continue };
                mean.fill(0.0);
                keys.chunks_exact(indexer.head_dim).for_each(|key| self.kernels.add(&mut mean, key));
                mean.iter_mut().for_each(|v| *v *= 1.0 / indexer.block_cells as f32);
                self.kernels.rms_norm(&mean, Some(gamma), eps, &mut pooled);
                pass.rope.rotation(position, &mut cos, &mut sin);
                self.rotate(pass, &mut pooled, &cos, &sin);
                pass.states[span.state].store_pooled(&self.kernels, layer, block, &pooled);
            }
        }
    }

    /// The score of a block is `sum_h max(0, q_h . p)`, heads ascending from +0; a NaN stays one. Returns the rows with a
    /// score that is NaN: their choice means nothing.
    pub(super) fn select_blocks(
        &self,
        buffers: &Buffers,
        pass: &mut Pass<'_>,
        layer: usize,
        q: BufferId,
        indexer: &IndexerSpec,
    ) -> Vec<usize> {
        let mut selections = std::mem::take(&mut pass.selections);
        selections.clear();
        selections.resize(pass.window.rows.len(), Selection::default());
        let mut undecided = Vec::new();
        for span in &pass.window.spans {
            let state: &State = pass.states[span.state];
            let first = state.tokens();
            let mut items: Vec<(usize, &mut Selection, bool)> = selections[span.first..][..span.count]
                .iter_mut()
                .enumerate()
                .map(|(i, selection)| (i, selection, false))
                .collect();
            self.pool.for_each(&mut items, |(i, selection, nan)| {
                let visible = first + *i + 1;
                let q = row_of(buffers, q, span.first + *i);
                let scores = self.block_scores(state, layer, q, indexer, visible / indexer.block_cells);
                *nan = scores.iter().any(|score| score.is_nan());
                **selection =
                    Selection::best_blocks(&scores, indexer.blocks_kept, indexer.block_cells, visible);
            });
            undecided.extend(items.iter().filter(|(_, _, nan)| *nan).map(|(i, _, _)| span.first + i));
        }
        pass.selections = selections;
        undecided
    }

    fn block_scores(
        &self,
        state: &State,
        layer: usize,
        q: &[f32],
        indexer: &IndexerSpec,
        blocks: usize,
    ) -> Vec<f32> {
        let mut scores = vec![0.0f32; blocks];
        if blocks <= indexer.blocks_kept {
            return scores;
        }
        let cells = state.layout().attention[layer].indexer.expect("a sparse layer");
        let per_partition = PARTITION_CELLS / indexer.block_cells;
        let mut dots = [0.0f32; PARTITION_CELLS];
        for (partition, scores) in scores.chunks_mut(per_partition).enumerate() {
            let keys = state.block(partition).cells(cells.first..cells.first + scores.len() * cells.head_dim);
            for head in q.chunks_exact(indexer.head_dim) {
                let dots = &mut dots[..scores.len()];
                self.kernels.score_keys(head, keys, 1.0, dots);
                for (score, &dot) in scores.iter_mut().zip(&*dots) {
                    *score += if dot < 0.0 { 0.0 } else { dot };
                }
            }
        }
        scores
    }

    pub(super) fn attend(
        &self,
        buffers: &mut Buffers,
        pass: &Pass<'_>,
        layer: usize,
        q: BufferId,
        out: BufferId,
        heads: usize,
        sparse: bool,
    ) {
        let width = buffers.width(out);
        let mut target = buffers.take(out);
        let used = buffers.rows(out) * width;
        let mut rest = &mut target[..used];
        let mut items: Vec<(Tile<'_>, Span)> = Vec::new();
        for span in &pass.window.spans {
            let (rows, tail) = rest.split_at_mut(span.count * width);
            rest = tail;
            let cells = &pass.states[span.state].layout().attention[layer];
            let group = heads / cells.kv_heads * cells.head_dim;
            let row_bounds: Vec<usize> = (0..span.count).step_by(ROWS_PER_TILE).chain([span.count]).collect();
            let column_bounds: Vec<usize> = (0..=cells.kv_heads).map(|h| h * group).collect();
            items
                .extend(split_grid(rows, width, &row_bounds, &column_bounds).into_iter().map(|t| (t, *span)));
        }
        let buffers_read: &Buffers = buffers;
        self.pool.for_each(&mut items, |(tile, span)| {
            let state: &State = pass.states[span.state];
            let task = Task { state, cells: &state.layout().attention[layer], span, sparse };
            self.attend_tile(buffers_read, pass, &task, q, tile);
        });
        buffers.put(out, target);
    }

    /// Some rows of a span, the query heads of one key head.
    fn attend_tile(
        &self,
        buffers: &Buffers,
        pass: &Pass<'_>,
        task: &Task<'_>,
        q: BufferId,
        tile: &mut Tile<'_>,
    ) {
        let Task { state, cells, span, sparse } = *task;
        let d = cells.head_dim;
        let heads = tile.columns() / d;
        let kv_head = tile.column0() / tile.columns();
        let first_cell = state.tokens() + tile.row0();
        let scale = 1.0 / (d as f32).sqrt();
        let mut running = vec![None; tile.rows() * heads];
        let mut part = vec![0.0f32; d];
        let mut scores = [0.0f32; PARTITION_CELLS];
        let last_visible = first_cell + tile.rows();
        for partition in 0..last_visible.div_ceil(PARTITION_CELLS) {
            let start = partition * PARTITION_CELLS;
            let block = state.block(partition);
            let (keys, values) = (cells.keys(kv_head), cells.values(kv_head));
            for r in 0..tile.rows() {
                let row = span.first + tile.row0() + r;
                let visible = (first_cell + r + 1).saturating_sub(start).min(PARTITION_CELLS);
                if visible == 0 {
                    continue;
                }
                let selection = sparse.then(|| &pass.selections[row]);
                if selection.is_some_and(|s| s.within(start, start + visible).next().is_none()) {
                    continue;
                }
                let q = &row_of(buffers, q, row)[tile.column0()..][..heads * d];
                let values = block.cells(values.start..values.start + visible * d);
                for head in 0..heads {
                    let scores = &mut scores[..visible];
                    let q = &q[head * d..][..d];
                    let keys =
                        |from: usize, to: usize| block.cells(keys.start + from * d..keys.start + to * d);
                    match selection {
                        None => self.kernels.score_keys(q, keys(0, visible), scale, scores),
                        Some(selection) => {
                            scores.fill(f32::NEG_INFINITY);
                            for (from, to) in selection.within(start, start + visible) {
                                let (from, to) = (from - start, to - start);
                                self.kernels.score_keys(q, keys(from, to), scale, &mut scores[from..to]);
                            }
                        }
                    }
                    let (max, sum) = self.kernels.softmax_partition(scores);
                    part.fill(0.0);
                    self.kernels.accumulate_values(scores, values, &mut part);
                    let out = &mut tile.row(r)[head * d..][..d];
                    let slot = &mut running[r * heads + head];
                    *slot = Some(match *slot {
                        None => {
                            out.copy_from_slice(&part);
                            (max, sum)
                        }
                        Some(before) => self.kernels.merge_partition(before, out, (max, sum), &part),
                    });
                }
            }
        }
        for (i, partition) in running.into_iter().enumerate() {
            let (_, sum) = partition.expect("every row sees a cell");
            let inv = 1.0 / sum;
            tile.row(i / heads)[i % heads * d..][..d].iter_mut().for_each(|v| *v *= inv);
        }
    }
}

#[derive(Clone, Copy)]
struct Task<'a> {
    state: &'a State,
    cells: &'a AttentionCells,
    span: &'a Span,
    sparse: bool,
}
