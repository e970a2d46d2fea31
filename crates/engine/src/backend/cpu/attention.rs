//! Attention: storing cells, choosing blocks, attending.

use std::ops::Range;

use kernels::{Attended, PARTITION_CELLS, Partition, Queries, Seen, Tile, quant, split_grid};

use super::{Cpu, row_of};
use crate::backend::{Buffers, Pass, Selection};
use crate::graph::BufferId;
use crate::models::{IndexerSpec, Pairing};
use crate::state::{AttentionCells, CellFormat, State};
use crate::window::Span;

/// Most rows that share one pass over a partition's keys and values.
const TILE_ROWS_MAX: usize = 16;
/// Items per thread, so that a thread that was held up does not hold up the others for long.
const ITEMS_PER_THREAD: usize = 4;
/// Most values of the records that partitions leave to be merged. Tiles beyond are not cut: threads may then wait for one
/// another, but a long context in a wide window takes no memory that nobody planned.
const RECORD_VALUES_MAX: usize = crate::memory::ATTENTION_RECORD_BYTES_MAX / size_of::<f32>();
/// Most scores of pooled keys that a thread holds, of one row at least.
const SCORES_MAX: usize = 1 << 18;

/// What a thread works with; made once and used again and again.
#[derive(Default)]
pub(super) struct Scratch {
    attended: Attended,
    /// Largest score and sum of weights of each query so far; without a sum before the first.
    running: Vec<(f32, f32)>,
    /// Cells of a partition that each row sees.
    counts: Vec<u16>,
    /// Cells of a partition that one row sees.
    listed: Vec<u8>,
    /// Scores of pooled keys.
    scores: Vec<f32>,
    chosen: Vec<i32>,
    /// Queries of a task, where keys are stored rotated.
    rotated: Vec<f32>,
}

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
        let mut room = Vec::new();
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
                    &mut room,
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
        let mut room = Vec::new();
        for span in &pass.window.spans {
            for row in span.first..span.first + span.count {
                let state = &mut pass.states[span.state];
                let mut raw = row_of(buffers, k, row).to_vec();
                if state.layout().kv.indexer_keys() == CellFormat::F16 {
                    raw.iter_mut().for_each(|v| *v = quant::f16_to_f32(quant::f32_to_f16(*v)));
                }
                let Some((block, keys, position)) = state.push_raw_key(layer, &raw) else { continue };
                mean.fill(0.0);
                keys.chunks_exact(indexer.head_dim).for_each(|key| self.kernels.add(&mut mean, key));
                mean.iter_mut().for_each(|v| *v *= 1.0 / indexer.block_cells as f32);
                self.kernels.rms_norm(&mean, Some(gamma), eps, &mut pooled);
                pass.rope.rotation(position, &mut cos, &mut sin);
                self.rotate(pass, &mut pooled, &cos, &sin);
                pass.states[span.state].store_pooled(&self.kernels, layer, block, &pooled, &mut room);
            }
        }
    }

    /// Chooses the blocks of every row. Returns the rows with a score that is NaN: their choice means nothing.
    pub(super) fn select_blocks(
        &mut self,
        buffers: &Buffers,
        pass: &mut Pass<'_>,
        layer: usize,
        q: BufferId,
        indexer: &IndexerSpec,
    ) -> Vec<usize> {
        let mut selections = std::mem::take(&mut pass.selections);
        selections.clear();
        selections.resize(pass.window.rows.len(), Selection::default());
        let mut scratch = std::mem::take(&mut self.scratch);
        let scan = Scan { cpu: self, buffers, layer, q, indexer };
        let rows = (selections.len() / (self.pool.threads() * ITEMS_PER_THREAD)).clamp(1, TILE_ROWS_MAX);
        let mut items = Vec::new();
        let mut rest = &mut selections[..];
        for span in &pass.window.spans {
            let (mine, tail) = rest.split_at_mut(span.count);
            rest = tail;
            let state: &State = pass.states[span.state];
            let blocks = (state.tokens() + span.count) / indexer.block_cells;
            let rows = rows.min(SCORES_MAX / blocks.max(1)).max(1);
            for (i, selections) in mine.chunks_mut(rows).enumerate() {
                let row = span.first + i * rows;
                items.push(ScanItem {
                    state,
                    row,
                    visible: state.tokens() + i * rows + 1,
                    selections,
                    nan: 0,
                });
            }
        }
        if items.len() < self.pool.threads() {
            items.iter_mut().for_each(|item| scan.shared(&mut scratch, item));
        } else {
            self.pool.for_each_with(&mut scratch, &mut items, |scratch, item| scan.alone(scratch, item));
        }
        let undecided = |item: &ScanItem<'_>| {
            let (row, nan) = (item.row, item.nan);
            (0..item.selections.len()).filter(move |i| nan >> i & 1 == 1).map(move |i| row + i)
        };
        let undecided = items.iter().flat_map(undecided).collect();
        self.scratch = scratch;
        pass.selections = selections;
        undecided
    }

    pub(super) fn attend(
        &mut self,
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
        let (mut scratch, mut records) =
            (std::mem::take(&mut self.scratch), std::mem::take(&mut self.records));
        let attention = Attention { cpu: self, buffers, pass, q, sparse };
        let seen = seen_partitions(pass, sparse);
        let tiles = tiles(pass, layer, heads, &seen, &mut target[..used], width);

        // Tiles of much more than their share of the work are cut at partitions; each leaves a record, merged afterwards.
        let work: usize = tiles.iter().map(|(_, task)| task.queries() * task.partitions.len()).sum();
        let share = work.div_ceil(self.pool.threads() * ITEMS_PER_THREAD);
        let (mut cut, mut items, mut values) = (Vec::new(), Vec::new(), 0);
        for (tile, task) in tiles {
            let with_it = values + task.partitions.len() * task.record_values();
            let small = task.queries() * task.partitions.len() < 2 * share;
            if self.pool.threads() == 1 || small || with_it > RECORD_VALUES_MAX {
                items.push(Item { task, partitions: task.partitions, target: Target::Rows(tile) });
            } else {
                cut.push((tile, task));
                values = with_it;
            }
        }
        if records.len() < values {
            records.resize(values, 0.0);
        }
        let mut rest = &mut records[..values];
        for &(_, task) in &cut {
            let step = share.div_ceil(task.queries());
            for partitions in task.partitions.chunks(step) {
                let (mine, tail) = rest.split_at_mut(partitions.len() * task.record_values());
                rest = tail;
                items.push(Item { task, partitions, target: Target::Records(mine) });
            }
        }
        self.pool.for_each_with(&mut scratch, &mut items, |scratch, item| attention.run(scratch, item));
        drop(items);
        self.merge_records(cut, &records[..values]);
        (self.scratch, self.records) = (scratch, records);
        buffers.put(out, target);
    }

    /// Folds the records of tiles that were cut.
    fn merge_records(&self, cut: Vec<(Tile<'_>, Task<'_>)>, records: &[f32]) {
        let mut rest = records;
        let mut items: Vec<(Tile<'_>, Task<'_>, &[f32])> = Vec::new();
        for (tile, task) in cut {
            let (mine, tail) = rest.split_at(task.partitions.len() * task.record_values());
            rest = tail;
            items.push((tile, task, mine));
        }
        let merge = |(tile, task, records): &mut (Tile<'_>, Task<'_>, &[f32])| {
            let d = task.cells.head_dim;
            for i in 0..task.queries() {
                let out = &mut tile.row(i / task.heads)[i % task.heads * d..][..d];
                let mut running = NOTHING;
                for records in records.chunks_exact(task.record_values()) {
                    let (values, max_sum) = records[i * (d + 2)..][..d + 2].split_at(d);
                    self.merge(&mut running, out, (max_sum[0], max_sum[1]), values);
                }
                self.finish(task, out, running);
            }
        };
        if records.len() < super::PARALLEL_VALUES_MIN {
            items.iter_mut().for_each(merge);
        } else {
            self.pool.for_each(&mut items, merge);
        }
    }

    /// Folds what a partition gave into what came before; nothing where none of its cells was seen.
    fn merge(&self, running: &mut (f32, f32), out: &mut [f32], later: (f32, f32), values: &[f32]) {
        if later == NOTHING {
            return;
        }
        if *running == NOTHING {
            out.copy_from_slice(values);
            *running = later;
        } else {
            *running = self.kernels.merge_partition(*running, out, later, values);
        }
    }

    /// Divides by the sum of weights and turns back what was summed of rotated values.
    fn finish(&self, task: &Task<'_>, out: &mut [f32], (_, sum): (f32, f32)) {
        assert!(sum != 0.0, "every row sees a cell");
        let inv = 1.0 / sum;
        out.iter_mut().for_each(|v| *v *= inv);
        if task.state.layout().kv.values().rotated() {
            self.kernels.hadamard(out);
        }
    }
}

/// Largest score and sum of weights of a query that has seen no cell: no other has a sum below 1.
const NOTHING: (f32, f32) = (f32::NEG_INFINITY, 0.0);

/// For each span, for every [`TILE_ROWS_MAX`] rows of it, the partitions that some row of them sees a cell of, ascending. Those
/// of a sparse layer are as many as its selections have, however long the context is.
fn seen_partitions(pass: &Pass<'_>, sparse: bool) -> Vec<Vec<Vec<u32>>> {
    let of_rows = |span: &Span, row: usize| {
        let rows = TILE_ROWS_MAX.min(span.count - row);
        let all = (pass.states[span.state].tokens() + row + rows).div_ceil(PARTITION_CELLS) as u32;
        if !sparse {
            return (0..all).collect();
        }
        let partition = |cell: u32| cell / PARTITION_CELLS as u32;
        let selections = &pass.selections[span.first + row..][..rows];
        let runs = selections.iter().flat_map(|selection| &selection.runs);
        let mut seen: Vec<u32> =
            runs.flat_map(|&(first, end)| partition(first)..partition(end - 1) + 1).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    };
    let of_span =
        |span: &Span| (0..span.count).step_by(TILE_ROWS_MAX).map(|row| of_rows(span, row)).collect();
    pass.window.spans.iter().map(of_span).collect()
}

/// The output in tiles of some rows of a span by the query heads of one key head. `seen` is what [`seen_partitions`] gave.
fn tiles<'a, 'b>(
    pass: &'a Pass<'_>,
    layer: usize,
    heads: usize,
    seen: &'a [Vec<Vec<u32>>],
    mut rest: &'b mut [f32],
    width: usize,
) -> Vec<(Tile<'b>, Task<'a>)> {
    let mut tiles = Vec::new();
    for (span, seen) in pass.window.spans.iter().zip(seen) {
        let (rows, tail) = rest.split_at_mut(span.count * width);
        rest = tail;
        let state: &State = pass.states[span.state];
        let cells = &state.layout().attention[layer];
        let heads = heads / cells.kv_heads;
        let group = heads * cells.head_dim;
        let row_bounds: Vec<usize> = (0..span.count).step_by(TILE_ROWS_MAX).chain([span.count]).collect();
        let column_bounds: Vec<usize> = (0..=cells.kv_heads).map(|h| h * group).collect();
        tiles.extend(split_grid(rows, width, &row_bounds, &column_bounds).into_iter().map(|tile| {
            let row = span.first + tile.row0();
            let first_cell = state.tokens() + tile.row0();
            let task = Task {
                state,
                cells,
                row,
                rows: tile.rows(),
                first_cell,
                kv_head: tile.column0() / group,
                heads,
                partitions: &seen[tile.row0() / TILE_ROWS_MAX],
            };
            (tile, task)
        }));
    }
    tiles
}

/// Some rows of a span, the query heads of one key head.
#[derive(Clone, Copy)]
struct Task<'a> {
    state: &'a State,
    cells: &'a AttentionCells,
    /// First row of the window.
    row: usize,
    rows: usize,
    /// Cell of the first row.
    first_cell: usize,
    kv_head: usize,
    /// Query heads.
    heads: usize,
    /// Those with a cell that some row sees, ascending.
    partitions: &'a [u32],
}

impl Task<'_> {
    fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// Values of the records of a partition: per query what it accumulated, its largest score and its sum of weights.
    fn record_values(&self) -> usize {
        self.queries() * (self.cells.head_dim + 2)
    }

    /// Cells from `start` on, in its partition, that row `row` may see.
    fn visible(&self, row: usize, start: usize) -> usize {
        (self.first_cell + row + 1).saturating_sub(start).min(PARTITION_CELLS)
    }
}

/// Some partitions of a task.
struct Item<'a> {
    task: Task<'a>,
    partitions: &'a [u32],
    target: Target<'a>,
}

enum Target<'a> {
    /// All partitions, merged one after the other.
    Rows(Tile<'a>),
    /// Records, partition by partition.
    Records(&'a mut [f32]),
}

struct Attention<'a> {
    cpu: &'a Cpu,
    buffers: &'a Buffers,
    pass: &'a Pass<'a>,
    q: BufferId,
    sparse: bool,
}

impl Attention<'_> {
    fn run(&self, scratch: &mut Scratch, item: &mut Item<'_>) {
        let task = item.task;
        let d = task.cells.head_dim;
        scratch.running.clear();
        scratch.running.resize(task.queries(), NOTHING);
        if let Target::Records(records) = &mut item.target {
            for record in records.chunks_exact_mut(d + 2) {
                (record[d], record[d + 1]) = NOTHING;
            }
        }
        // A selection of all that is visible is none.
        let sparse = self.sparse
            && (0..task.rows).any(|row| {
                self.pass.selections[task.row + row].runs != [(0, (task.first_cell + row + 1) as u32)]
            });
        self.rotate_queries(&task, &mut scratch.rotated);
        for (i, &partition) in item.partitions.iter().enumerate() {
            let partition = partition as usize;
            let start = partition * PARTITION_CELLS;
            let at = i * task.record_values();
            if sparse {
                for row in 0..task.rows {
                    self.list_cells(&task, row, start, &mut scratch.listed);
                    if !scratch.listed.is_empty() {
                        let seen = Seen::Listed(&scratch.listed);
                        let end = task.visible(row, start);
                        let (rotated, out) = (&scratch.rotated, &mut scratch.attended);
                        self.attend(&task, row..row + 1, rotated, partition, end, seen, out);
                        self.deliver(
                            &task,
                            row..row + 1,
                            &scratch.attended,
                            &mut scratch.running,
                            &mut item.target,
                            at,
                        );
                    }
                }
            } else {
                scratch.counts.clear();
                scratch.counts.extend((0..task.rows).map(|row| task.visible(row, start) as u16));
                let seen = Seen::First(&scratch.counts);
                let end = task.visible(task.rows - 1, start);
                let (rotated, out) = (&scratch.rotated, &mut scratch.attended);
                self.attend(&task, 0..task.rows, rotated, partition, end, seen, out);
                self.deliver(
                    &task,
                    0..task.rows,
                    &scratch.attended,
                    &mut scratch.running,
                    &mut item.target,
                    at,
                );
            }
        }
        if let Target::Rows(tile) = &mut item.target {
            for (i, &running) in scratch.running.iter().enumerate() {
                let out = &mut tile.row(i / task.heads)[i % task.heads * d..][..d];
                self.cpu.finish(&task, out, running);
            }
        }
    }

    /// The cells of the partition from cell `start` on that the selection of row `row` has.
    fn list_cells(&self, task: &Task<'_>, row: usize, start: usize, cells: &mut Vec<u8>) {
        cells.clear();
        let end = start + task.visible(row, start);
        for (first, end) in self.pass.selections[task.row + row].within(start, end) {
            cells.extend((first - start..end - start).map(|cell| cell as u8));
        }
    }

    /// Queries of a task, `[rows][heads][head_dim]`, rotated as its keys are; none where those are not.
    fn rotate_queries(&self, task: &Task<'_>, rotated: &mut Vec<f32>) {
        rotated.clear();
        if !task.state.layout().kv.keys().rotated() {
            return;
        }
        let width = task.heads * task.cells.head_dim;
        for row in task.row..task.row + task.rows {
            rotated.extend_from_slice(&row_of(self.buffers, self.q, row)[task.kv_head * width..][..width]);
        }
        for head in rotated.chunks_exact_mut(task.cells.head_dim) {
            self.cpu.kernels.hadamard(head);
        }
    }

    /// The queries of some rows against the first `end` cells of a partition.
    #[expect(clippy::too_many_arguments, reason = "a task's parts")]
    fn attend(
        &self,
        task: &Task<'_>,
        rows: Range<usize>,
        rotated: &[f32],
        partition: usize,
        end: usize,
        seen: Seen<'_>,
        out: &mut Attended,
    ) {
        let d = task.cells.head_dim;
        let (stride, values) = if rotated.is_empty() {
            let stride = self.buffers.width(self.q);
            let first = (task.row + rows.start) * stride + task.kv_head * task.heads * d;
            (stride, &self.buffers.float(self.q)[first..])
        } else {
            let stride = task.heads * d;
            (stride, &rotated[rows.start * stride..])
        };
        let queries = Queries { values, stride, rows: rows.len(), heads: task.heads, head_dim: d };
        let block = task.state.block(partition);
        let keys = block.cells(&task.cells.keys(task.kv_head), 0..end);
        let values = block.cells(&task.cells.values(task.kv_head), 0..end);
        let partition = Partition { keys, values, seen };
        self.cpu.kernels.attend_partition(&queries, 1.0 / (d as f32).sqrt(), &partition, out);
    }

    /// Merges what some rows got, or records it from value `at` on.
    fn deliver(
        &self,
        task: &Task<'_>,
        rows: Range<usize>,
        attended: &Attended,
        running: &mut [(f32, f32)],
        target: &mut Target<'_>,
        at: usize,
    ) {
        let (d, first) = (task.cells.head_dim, rows.start * task.heads);
        for i in 0..rows.len() * task.heads {
            let (query, later, values) = (first + i, attended.max_sum(i), attended.values(i));
            match target {
                Target::Rows(tile) => {
                    let out = &mut tile.row(query / task.heads)[query % task.heads * d..][..d];
                    self.cpu.merge(&mut running[query], out, later, values);
                }
                Target::Records(records) => {
                    let record = &mut records[at + query * (d + 2)..][..d + 2];
                    record[..d].copy_from_slice(values);
                    (record[d], record[d + 1]) = later;
                }
            }
        }
    }
}

/// Some rows of a span, one after the other, whose blocks are to be chosen.
struct ScanItem<'a> {
    state: &'a State,
    /// First row of the window.
    row: usize,
    /// Cells that the first row sees.
    visible: usize,
    selections: &'a mut [Selection],
    /// Bit i: row i has a score that is NaN.
    nan: u32,
}

struct Scan<'a> {
    cpu: &'a Cpu,
    buffers: &'a Buffers,
    layer: usize,
    q: BufferId,
    indexer: &'a IndexerSpec,
}

impl Scan<'_> {
    /// Complete blocks that row `row` of an item sees.
    fn blocks(&self, item: &ScanItem<'_>, row: usize) -> usize {
        (item.visible + row) / self.indexer.block_cells
    }

    /// All on one thread.
    fn alone(&self, scratch: &mut Scratch, item: &mut ScanItem<'_>) {
        let mut scores = std::mem::take(&mut scratch.scores);
        let blocks = self.blocks(item, item.selections.len() - 1);
        scores.resize(item.selections.len() * blocks, 0.0);
        if blocks > self.indexer.blocks_kept {
            self.score(item, 0..blocks.div_ceil(self.per_partition()), blocks, &mut scores, scratch);
        }
        self.choose(item, blocks, &scores, &mut scratch.chosen);
        scratch.scores = scores;
    }

    /// The threads share the partitions.
    fn shared(&self, scratch: &mut [Scratch], item: &mut ScanItem<'_>) {
        assert_eq!(item.selections.len(), 1, "several rows make several items");
        let mut scores = std::mem::take(&mut scratch[0].scores);
        let blocks = self.blocks(item, 0);
        scores.resize(blocks, 0.0);
        if blocks > self.indexer.blocks_kept {
            let partitions = blocks.div_ceil(self.per_partition());
            let step = partitions.div_ceil(self.cpu.pool.threads() * ITEMS_PER_THREAD);
            let mut parts: Vec<_> = scores.chunks_mut(step * self.per_partition()).enumerate().collect();
            self.cpu.pool.for_each_with(scratch, &mut parts, |scratch, (i, scores)| {
                let first = *i * step;
                let partitions = first..(first + step).min(partitions);
                self.score(item, partitions, scores.len(), scores, scratch);
            });
        }
        self.choose(item, blocks, &scores, &mut scratch[0].chosen);
        scratch[0].scores = scores;
    }

    /// Blocks that a partition holds.
    fn per_partition(&self) -> usize {
        PARTITION_CELLS / self.indexer.block_cells
    }

    /// Scores of the blocks of some partitions, `blocks` of them, `[rows][blocks]`.
    fn score(
        &self,
        item: &ScanItem<'_>,
        partitions: Range<usize>,
        blocks: usize,
        scores: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let pooled = item.state.layout().attention[self.layer].pooled().expect("a sparse layer");
        let stride = self.buffers.width(self.q);
        let values = &self.buffers.float(self.q)[item.row * stride..];
        let (rows, head_dim) = (item.selections.len(), self.indexer.head_dim);
        let queries = Queries { values, stride, rows, heads: self.indexer.heads, head_dim };
        let mut part = [0.0; PARTITION_CELLS * TILE_ROWS_MAX];
        for (i, partition) in partitions.enumerate() {
            let first = i * self.per_partition();
            let count = (blocks - first).min(self.per_partition());
            let keys = item.state.block(partition).cells(&pooled, 0..count);
            let part = &mut part[..rows * count];
            self.cpu.kernels.score_blocks(&queries, keys, part, &mut scratch.attended);
            for (scores, part) in scores.chunks_exact_mut(blocks).zip(part.chunks_exact(count)) {
                scores[first..first + count].copy_from_slice(part);
            }
        }
    }

    /// The selections of an item's rows by their scores, `[rows][blocks]`.
    fn choose(&self, item: &mut ScanItem<'_>, blocks: usize, scores: &[f32], room: &mut Vec<i32>) {
        for row in 0..item.selections.len() {
            let complete = self.blocks(item, row);
            // Blocks that are all kept need no scores.
            let kept = self.indexer.blocks_kept;
            let scores = &scores[row * blocks..][..complete];
            if complete > kept && scores.iter().fold(false, |nan, score| nan | score.is_nan()) {
                item.nan |= 1 << row;
            }
            item.selections[row] =
                Selection::best_blocks(scores, kept, self.indexer.block_cells, item.visible + row, room);
        }
    }
}
