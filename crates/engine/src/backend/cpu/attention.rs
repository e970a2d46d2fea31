//! Attention: storing cells, choosing blocks, attending.

use std::ops::Range;

use kernels::{Attended, Cells, PARTITION_CELLS, Partition, Queries, Tile, quant, split_grid};

use super::{Cpu, row_of};
use crate::backend::{Buffers, Pass, Selection};
use crate::graph::BufferId;
use crate::models::{IndexerSpec, Pairing};
use crate::state::{AttentionCells, CellFormat, State};

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
        let attention = Attention { cpu: self, buffers, q };
        let tiles = tiles(pass, layer, heads, sparse, &mut target[..used], width);

        // Tiles of much more than their share of the work are cut at partitions; each leaves a record, merged afterwards.
        let work: usize = tiles.iter().map(|(_, task)| task.queries() * task.partitions).sum();
        let share = work.div_ceil(self.pool.threads() * ITEMS_PER_THREAD);
        let (mut cut, mut items, mut values) = (Vec::new(), Vec::new(), 0);
        for (tile, task) in tiles {
            let with_it = values + task.partitions * task.record_values();
            let small = task.queries() * task.partitions < 2 * share;
            if self.pool.threads() == 1 || small || with_it > RECORD_VALUES_MAX {
                items.push(Item {
                    task,
                    partitions: 0..task.partitions,
                    then: None,
                    target: Target::Rows(tile),
                });
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
            for first in (0..task.partitions).step_by(step) {
                let partitions = first..(first + step).min(task.partitions);
                let (mine, tail) = rest.split_at_mut(partitions.len() * task.record_values());
                rest = tail;
                items.push(Item { task, partitions, then: None, target: Target::Records(mine) });
            }
        }
        for i in 1..items.len() {
            items[i - 1].then = Some((items[i].task, items[i].partitions.start));
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
            let (mine, tail) = rest.split_at(task.partitions * task.record_values());
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

/// The output in tiles of some rows of a span by the query heads of one key head.
fn tiles<'a, 'b>(
    pass: &'a Pass<'_>,
    layer: usize,
    heads: usize,
    sparse: bool,
    mut rest: &'b mut [f32],
    width: usize,
) -> Vec<(Tile<'b>, Task<'a>)> {
    let mut tiles = Vec::new();
    for span in &pass.window.spans {
        let (rows, tail) = rest.split_at_mut(span.count * width);
        rest = tail;
        let state: &State = pass.states[span.state];
        let cells = &state.layout().attention[layer];
        let heads = heads / cells.kv_heads;
        let group = heads * cells.head_dim;
        let row_bounds: Vec<usize> = (0..span.count).step_by(TILE_ROWS_MAX).chain([span.count]).collect();
        let column_bounds: Vec<usize> = (0..=cells.kv_heads).map(|h| h * group).collect();
        tiles.extend(split_grid(rows, width, &row_bounds, &column_bounds).into_iter().map(|tile| {
            let (row, rows) = (span.first + tile.row0(), tile.rows());
            let first_cell = state.tokens() + tile.row0();
            let selections = if sparse { &pass.selections[row..row + rows] } else { &[] };
            // Where all rows attend to all they see, they share what is loaded.
            let all = selections.iter().zip(first_cell + 1..).all(|(chosen, seen)| chosen.cells() == seen);
            let selections = if all { &[] } else { selections };
            let cells_max = selections.iter().map(Selection::cells).max().unwrap_or(first_cell + rows);
            let (kv_head, partitions) = (tile.column0() / group, cells_max.div_ceil(PARTITION_CELLS));
            let task = Task { state, cells, row, rows, first_cell, kv_head, heads, selections, partitions };
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
    /// The cells that each row attends to; none where these are all it sees.
    selections: &'a [Selection],
    /// Those of the row with most cells.
    partitions: usize,
}

impl Task<'_> {
    /// Whether each row has cells of its own, wherever they lie.
    fn scattered(&self) -> bool {
        !self.selections.is_empty()
    }

    fn queries(&self) -> usize {
        self.rows * self.heads
    }

    /// Values of the records of a partition: per query what it accumulated, its largest score and its sum of weights.
    fn record_values(&self) -> usize {
        self.queries() * (self.cells.head_dim + 2)
    }

    /// Cells of a partition that row `row` attends to.
    fn cells_seen(&self, row: usize, partition: usize) -> usize {
        let all = self.selections.get(row).map_or(self.first_cell + row + 1, Selection::cells);
        all.saturating_sub(partition * PARTITION_CELLS).min(PARTITION_CELLS)
    }
}

/// Some partitions of a task.
struct Item<'a> {
    task: Task<'a>,
    partitions: Range<usize>,
    /// What the thread most likely works on next.
    then: Option<(Task<'a>, usize)>,
    target: Target<'a>,
}

enum Target<'a> {
    /// All partitions, merged one after the other.
    Rows(Tile<'a>),
    /// Records, partition by partition.
    Records(&'a mut [f32]),
}

/// A call of the kernel: some rows of a task, which go through a partition together.
struct Step<'a> {
    task: Task<'a>,
    partition: usize,
    rows: Range<usize>,
}

impl<'a> Step<'a> {
    /// Those of some partitions, in order: of each partition all rows, or, where every row has cells of its own there, one after
    /// the other. Neighbours chose much the same, so what one has read is still near for the next.
    fn all(task: Task<'a>, partitions: Range<usize>) -> impl Iterator<Item = Step<'a>> {
        let each = if task.scattered() { 1 } else { task.rows };
        partitions.flat_map(move |partition| {
            let rows = (0..task.rows)
                .step_by(each)
                .filter(move |&row| !task.scattered() || task.cells_seen(row, partition) > 0);
            rows.map(move |row| Step { task, partition, rows: row..row + each })
        })
    }

    /// Its keys, then its values, in pieces as they lie.
    fn find(&self, cells: &mut Vec<Cells<'a>>) {
        let Step { task, partition, .. } = *self;
        cells.clear();
        let start = partition * PARTITION_CELLS;
        for array in [task.cells.keys(task.kv_head), task.cells.values(task.kv_head)] {
            let mut push = |run: Range<usize>| {
                let mut first = run.start;
                while first < run.end {
                    let block = first / PARTITION_CELLS;
                    let start = block * PARTITION_CELLS;
                    let end = run.end.min(start + PARTITION_CELLS);
                    cells.push(task.state.block(block).cells(&array, first - start..end - start));
                    first = end;
                }
            };
            match task.selections.get(self.rows.start) {
                Some(selection) => selection.at_places(start..start + PARTITION_CELLS).for_each(push),
                None => push(start..start + task.cells_seen(task.rows - 1, partition)),
            }
        }
    }
}

struct Attention<'a> {
    cpu: &'a Cpu,
    buffers: &'a Buffers,
    q: BufferId,
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
        self.rotate_queries(&task, &mut scratch.rotated);
        let steps: Vec<Step<'_>> = Step::all(task, item.partitions.clone()).collect();
        let then = item.then.and_then(|(task, first)| Step::all(task, first..first + 1).next());
        let (mut here, mut next) = (Vec::new(), Vec::new());
        if let Some(first) = steps.first() {
            first.find(&mut here);
        }
        for (i, step) in steps.iter().enumerate() {
            next.clear();
            let following = steps.get(i + 1).or(then.as_ref());
            following.inspect(|step| step.find(&mut next));
            // What lies in one piece the kernel foresees by itself.
            let ahead = if following.is_some_and(|step| step.task.scattered()) { &next[..] } else { &[] };
            self.attend(step, &here, ahead, scratch);
            let at = (step.partition - item.partitions.start) * task.record_values();
            self.deliver(step, &scratch.attended, &mut scratch.running, &mut item.target, at);
            std::mem::swap(&mut here, &mut next);
        }
        if let Target::Rows(tile) = &mut item.target {
            for (i, &running) in scratch.running.iter().enumerate() {
                let out = &mut tile.row(i / task.heads)[i % task.heads * d..][..d];
                self.cpu.finish(&task, out, running);
            }
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

    /// The queries of a step against its keys and values, while memory is asked for those of `next`.
    fn attend(&self, step: &Step<'_>, cells: &[Cells<'_>], next: &[Cells<'_>], scratch: &mut Scratch) {
        let Step { task, partition, ref rows } = *step;
        let Scratch { rotated, counts, attended, .. } = scratch;
        let d = task.cells.head_dim;
        let (stride, q) = if rotated.is_empty() {
            let stride = self.buffers.width(self.q);
            let first = (task.row + rows.start) * stride + task.kv_head * task.heads * d;
            (stride, &self.buffers.float(self.q)[first..])
        } else {
            let stride = task.heads * d;
            (stride, &rotated[rows.start * stride..])
        };
        let queries = Queries { values: q, stride, rows: rows.len(), heads: task.heads, head_dim: d };
        counts.clear();
        counts.extend(rows.clone().map(|row| task.cells_seen(row, partition) as u16));
        let (keys, values) = cells.split_at(cells.len() / 2);
        let partition = Partition { keys, values, seen: counts, next };
        self.cpu.kernels.attend_partition(&queries, 1.0 / (d as f32).sqrt(), &partition, attended);
    }

    /// Merges what some rows got, or records it from value `at` on.
    fn deliver(
        &self,
        Step { task, rows, .. }: &Step<'_>,
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
        let first = partitions.start * self.per_partition();
        let keys: Vec<Cells<'_>> = partitions
            .map(|partition| {
                let count = (first + blocks - partition * self.per_partition()).min(self.per_partition());
                item.state.block(partition).cells(&pooled, 0..count)
            })
            .collect();
        self.cpu.kernels.score_blocks(&queries, &keys, scores, &mut scratch.attended);
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
