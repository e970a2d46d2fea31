//! See `scalar::attention`.
//!
//! Queries are worked on a few at a time against a chunk of cells that the first-level cache holds, so that each vector of
//! a key or value is loaded once for all queries of a tile. Half precision is widened as it is loaded, for many queries once
//! for all of them.

use std::ops::Range;

use super::cells::{Cell, widen, widen_row};
use super::elementwise::{exp, exp_differences, zip};
use super::simd::Simd;
use crate::PARTITION_CELLS;
use crate::attention::{Attended, Cells, LINE, Partition, Queries, Seen, int4_bytes};

/// Scores of a query in `Attended::weights`.
const SCORE_LINES: usize = PARTITION_CELLS / LINE;
/// Lines of widened cells: half of a first-level cache.
const CHUNK_LINES: usize = 256;
/// So many queries read cells often enough that widening half precision once, into the cache, is less work than widening
/// it with every load: prompts gain a quarter with AVX-512 and a tenth with AVX2 (on a Xeon; `cargo bench --bench attention`).
/// With fewer it costs as much as it gains.
const QUERIES_MANY: usize = 16;
/// Most queries of a tile of scores.
const TILE_QUERIES_MAX: usize = 4;

#[inline(always)]
pub(super) fn attend_partition<S: Simd>(
    s: S,
    queries: &Queries<'_>,
    scale: f32,
    partition: &Partition<'_>,
    out: &mut Attended,
) {
    pack(s, queries, out);
    match partition.seen {
        Seen::First(_) => {
            attend_cells(s, queries, scale, partition, Span { first: 0, count: partition.end() }, out)
        }
        Seen::Listed(cells) => attend_cells(s, queries, scale, partition, cells, out),
    }
    for i in 0..queries.len() {
        // A weight of zero adds a zero: that changes no sum, except that it can turn a zero of the other sign and that the
        // product with a value that is not finite is NaN.
        if out.max_sum[i].1 == 0.0 {
            out.values_mut(i).fill(0.0);
        } else if out.values(i).iter().fold(false, |any, &v| any | (v == 0.0) | v.is_nan()) {
            accumulate_exactly(s, partition, i, out);
        }
    }
}

#[inline(always)]
fn attend_cells<S: Simd, L: CellList>(
    s: S,
    queries: &Queries<'_>,
    scale: f32,
    partition: &Partition<'_>,
    cells: L,
    out: &mut Attended,
) {
    score(s, partition.keys, cells, scale, out, Some(partition.values));
    soften(s, queries, partition, cells.count(), out);
    accumulate(s, partition.values, cells, out);
}

/// Cells of a partition, ascending.
pub(super) trait CellList: Copy {
    fn count(self) -> usize;
    fn cell(self, i: usize) -> usize;
    fn part(self, first: usize, count: usize) -> Self;
    /// The first cell, if the others lie behind it.
    fn adjacent(self) -> Option<usize>;
    /// Asks for cells of `bytes` bytes: those of `these` that there are.
    fn fetch<S: Simd>(self, s: S, all: *const u8, bytes: usize, these: Range<usize>);
}

#[derive(Clone, Copy)]
struct Span {
    first: usize,
    count: usize,
}

impl CellList for Span {
    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }
    #[inline(always)]
    fn cell(self, i: usize) -> usize {
        self.first + i
    }
    #[inline(always)]
    fn part(self, first: usize, count: usize) -> Span {
        Span { first: self.first + first, count }
    }
    #[inline(always)]
    fn adjacent(self) -> Option<usize> {
        Some(self.first)
    }
    #[inline(always)]
    fn fetch<S: Simd>(self, s: S, all: *const u8, bytes: usize, these: Range<usize>) {
        let mut at = (self.first + these.start) * bytes;
        let end = (self.first + these.end.min(self.count)) * bytes;
        while at < end {
            s.prefetch(all.wrapping_add(at));
            at += 64;
        }
    }
}

impl CellList for &[u8] {
    #[inline(always)]
    fn count(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn cell(self, i: usize) -> usize {
        usize::from(self[i])
    }
    #[inline(always)]
    fn part(self, first: usize, count: usize) -> Self {
        &self[first..first + count]
    }
    #[inline(always)]
    fn adjacent(self) -> Option<usize> {
        None
    }
    #[inline(always)]
    fn fetch<S: Simd>(self, s: S, all: *const u8, bytes: usize, these: Range<usize>) {
        for &cell in self.get(these.start..these.end.min(self.len())).unwrap_or_default() {
            Span { first: usize::from(cell), count: 1 }.fetch(s, all, bytes, 0..1);
        }
    }
}

/// Some cells of whole vectors, ready to be loaded.
#[derive(Clone, Copy)]
struct Rows<'a, C, L> {
    all: &'a [[C; LINE]],
    cells: L,
    lines: usize,
}

impl<'a, C: Cell, L: CellList> Rows<'a, C, L> {
    /// The i-th cell, or the last.
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [[C; LINE]] {
        &self.all[self.cells.cell(i.min(self.cells.count() - 1)) * self.lines..][..self.lines]
    }
}

/// Cells that are asked for while the chunk before is worked on.
#[derive(Clone, Copy)]
struct Ahead<L> {
    all: *const u8,
    bytes: usize,
    cells: L,
    /// Cells of a chunk.
    chunk: usize,
}

impl<L: CellList> Ahead<L> {
    #[inline(always)]
    fn new(source: Cells<'_>, cells: L, width: usize) -> Ahead<L> {
        let (all, bytes) = match source {
            Cells::F32(all) => (all.as_ptr().cast(), 4 * width),
            Cells::F16(all) => (all.as_ptr().cast(), 2 * width),
            Cells::Int8 { codes, .. } => (codes.as_ptr().cast(), width),
            Cells::Int4 { codes, .. } => (codes.as_ptr().cast(), int4_bytes(width)),
        };
        Ahead { all, bytes, cells, chunk: chunk_cells(width.div_ceil(LINE)) }
    }

    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, these: Range<usize>) {
        self.cells.fetch(s, self.all, self.bytes, these);
    }
}

/// Sizes `out` and copies the queries into it, padded with zeros to whole vectors.
#[inline(always)]
fn pack<S: Simd>(s: S, queries: &Queries<'_>, out: &mut Attended) {
    let lines = queries.head_dim.div_ceil(LINE);
    out.set_shape(queries.len(), queries.head_dim, CHUNK_LINES.max(LINE * lines));
    for i in 0..queries.len() {
        widen_row(s, queries.query(i), &mut out.queries[i * lines..][..lines]);
    }
}

/// Calls `$run` for each chunk of the cells with the number of its first one and its rows: as they lie if they are whole
/// vectors of floats (of half precision only where `$few` queries read them), else in single precision and padded with zeros.
macro_rules! for_chunks {
    ($s:ident, $few:expr, $source:expr, $cells:ident, $width:expr, $chunk:expr, |$first:ident, $rows:ident| $run:expr) => {{
        let (lines, whole) = ($width.div_ceil(LINE), $width.is_multiple_of(LINE));
        let step = chunk_cells(lines);
        for $first in (0..$cells.count()).step_by(step) {
            let cells = $cells.part($first, step.min($cells.count() - $first));
            match $source {
                Cells::F32(all) if whole => {
                    let $rows = Rows { all: all.as_chunks::<LINE>().0, cells, lines };
                    $run
                }
                Cells::F16(all) if whole && $few => {
                    let $rows = Rows { all: all.as_chunks::<LINE>().0, cells, lines };
                    $run
                }
                source => {
                    widen($s, source, cells, $width, $chunk);
                    let $rows =
                        Rows { all: &$chunk[..], cells: Span { first: 0, count: cells.count() }, lines };
                    $run
                }
            }
        }
    }};
}

/// Cells of a chunk.
#[inline(always)]
fn chunk_cells(lines: usize) -> usize {
    (CHUNK_LINES / lines / LINE * LINE).max(LINE)
}

/// Scores of `cells`, the i-th at place i; up to the next multiple of 16 they are not specified. `then` is read next.
#[inline(always)]
fn score<S: Simd, L: CellList>(
    s: S,
    keys: Cells<'_>,
    cells: L,
    scale: f32,
    out: &mut Attended,
    then: Option<Cells<'_>>,
) {
    let width = out.head_dim;
    let Attended { queries, weights, chunk, lines, max_sum, .. } = out;
    let (lines, n) = (*lines, max_sum.len());
    let mut sums = [[s.splat(0.0); LINE / 2]; TILE_QUERIES_MAX];
    let ahead = Ahead::new(keys, cells, width);
    let then = then.map(|values| Ahead::new(values, cells, width));
    for_chunks!(s, n < QUERIES_MANY, keys, cells, width, chunk, |first, rows| {
        for at in (0..rows.cells.count()).step_by(LINE) {
            let next = first + at + ahead.chunk;
            let later = match &then {
                Some(then) if next >= cells.count() => (then, at),
                _ => (&ahead, next),
            };
            let mut keys = [rows.row(at); LINE];
            for i in 1..LINE {
                keys[i] = rows.row(at + i);
            }
            let mut i = 0;
            while i < n {
                let tile = tile_queries(n - i, if S::WIDE { 4 } else { 3 });
                let q = &queries[i * lines..][..tile * lines];
                let scores = &mut weights[i * SCORE_LINES..][..tile * SCORE_LINES][(first + at) / LINE..];
                let ask = (i == 0).then_some(later);
                macro_rules! tile {
                    ($q:literal, $k:literal) => {
                        score_tile::<S, _, _, $q, $k>(s, q, &keys, lines, scale, scores, &mut sums, ask)
                    };
                }
                match (S::WIDE, tile) {
                    (false, 1) => tile!(1, 2),
                    (false, 2) => tile!(2, 1),
                    (false, _) => tile!(3, 1),
                    (true, 1) => tile!(1, 4),
                    (true, 2) => tile!(2, 4),
                    (true, 3) => tile!(3, 2),
                    (true, _) => tile!(4, 2),
                }
                i += tile;
            }
        }
    });
}

/// Queries of the next tile of at most `most`, of so many that are left: all tiles are about alike.
#[inline(always)]
fn tile_queries(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most))
}

/// Cells to ask for, and the first of them.
type Ask<'a, L> = Option<(&'a Ahead<L>, usize)>;

/// Scores of sixteen keys for Q queries, 2 K keys at a time; `sums` is room.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a loop's state")]
fn score_tile<S: Simd, C: Cell, L: CellList, const Q: usize, const K: usize>(
    s: S,
    queries: &[[f32; LINE]],
    keys: &[&[[C; LINE]]; LINE],
    lines: usize,
    scale: f32,
    scores: &mut [[f32; LINE]],
    sums: &mut [[S::F; LINE / 2]; TILE_QUERIES_MAX],
    ask: Ask<'_, L>,
) {
    let mut q = [queries; Q];
    for n in 0..Q {
        q[n] = &queries[n * lines..][..lines];
    }
    for i in (0..LINE / 2).step_by(K) {
        // Two keys four apart: as `sum_each_half` takes them.
        let mut rows = [[keys[0]; 2]; K];
        for k in 0..K {
            let key = (i + k) / 4 * 8 + (i + k) % 4;
            rows[k] = [&keys[key][..lines], &keys[key + 4][..lines]];
        }
        // A few at a time: more than the processor keeps track of would hold it up.
        if let Some((ahead, first)) = ask {
            ahead.fetch(s, first + 2 * i..first + 2 * (i + K));
        }
        let mut tile = [[[s.splat(0.0); 2]; K]; Q];
        for l in 0..lines {
            let mut key = [[s.splat(0.0); 2]; K];
            for k in 0..K {
                key[k] = [C::load(s, &rows[k][0][l]), C::load(s, &rows[k][1][l])];
            }
            for n in 0..Q {
                let q = s.load(&q[n][l]);
                for k in 0..K {
                    for h in 0..2 {
                        tile[n][k][h] = s.fma(q, key[k][h], tile[n][k][h]);
                    }
                }
            }
        }
        for n in 0..Q {
            for k in 0..K {
                sums[n][i + k] = s.add_halves(tile[n][k][0], tile[n][k][1]);
            }
        }
    }
    for n in 0..Q {
        s.store(s.mul(s.sum_each_half(&sums[n]), s.splat(scale)), &mut scores[n * SCORE_LINES]);
    }
}

/// Turns the scores of `count` cells into weights, their largest and their sum.
#[inline(always)]
fn soften<S: Simd>(s: S, queries: &Queries<'_>, partition: &Partition<'_>, count: usize, out: &mut Attended) {
    for i in 0..queries.len() {
        let scores = out.weights[i * SCORE_LINES..][..count.div_ceil(LINE)].as_flattened_mut();
        let seen = match partition.seen {
            Seen::First(counts) => usize::from(counts[i / queries.heads]),
            Seen::Listed(cells) => cells.len(),
        };
        if seen == 0 {
            scores.fill(0.0);
            out.max_sum[i] = (f32::NEG_INFINITY, 0.0);
            continue;
        }
        scores[seen..].fill(f32::NEG_INFINITY);
        let max = largest(s, scores);
        let lanes = exp_differences(s, scores, max);
        let sum = match partition.seen {
            Seen::First(_) => s.sum(lanes),
            Seen::Listed(cells) => {
                let mut lanes = [0.0; LINE];
                for (&weight, &cell) in scores.iter().zip(cells) {
                    lanes[usize::from(cell) % LINE] += weight;
                }
                s.sum(s.load(&lanes))
            }
        };
        out.max_sum[i] = (max, sum);
    }
}

/// The largest of whole vectors of scores, as the definition has it.
#[inline(always)]
fn largest<S: Simd>(s: S, scores: &[f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    for scores in scores.as_chunks().0 {
        max = s.max(s.load(scores), max);
    }
    s.max_lane(max) + 0.0
}

/// Sums of the values of `cells`, the i-th times the weight at place i, from zeros.
#[inline(always)]
fn accumulate<S: Simd, L: CellList>(s: S, values: Cells<'_>, cells: L, out: &mut Attended) {
    let width = out.head_dim;
    let Attended { values: sums, weights, chunk, lines, max_sum, .. } = out;
    let (lines, n) = (*lines, max_sum.len());
    sums[..n * lines].as_flattened_mut().fill(0.0);
    let ahead = Ahead::new(values, cells, width);
    for_chunks!(s, n < QUERIES_MANY, values, cells, width, chunk, |first, rows| {
        let mut i = 0;
        while i < n {
            let tile = tile_queries(n - i, if S::WIDE { 4 } else { 6 });
            let weights = (&weights.as_flattened().as_chunks().0[i..], first);
            let sums = &mut sums[i * lines..][..tile * lines];
            let ahead = if i == 0 { Some(&ahead) } else { None };
            match (S::WIDE, tile) {
                (false, 1) => accumulate_tile::<S, _, _, _, 1, 4>(s, weights, rows, sums, ahead),
                (false, 2) => accumulate_tile::<S, _, _, _, 2, 2>(s, weights, rows, sums, ahead),
                (false, 3) => accumulate_tile::<S, _, _, _, 3, 1>(s, weights, rows, sums, ahead),
                (false, 4) => accumulate_tile::<S, _, _, _, 4, 1>(s, weights, rows, sums, ahead),
                (false, 5) => accumulate_tile::<S, _, _, _, 5, 1>(s, weights, rows, sums, ahead),
                (false, _) => accumulate_tile::<S, _, _, _, 6, 1>(s, weights, rows, sums, ahead),
                (true, 1) => accumulate_tile::<S, _, _, _, 1, 8>(s, weights, rows, sums, ahead),
                (true, 2) => accumulate_tile::<S, _, _, _, 2, 8>(s, weights, rows, sums, ahead),
                (true, 3) => accumulate_tile::<S, _, _, _, 3, 4>(s, weights, rows, sums, ahead),
                (true, _) => accumulate_tile::<S, _, _, _, 4, 4>(s, weights, rows, sums, ahead),
            }
            i += tile;
        }
    });
}

/// Weights of queries by cell, and the first cell that counts.
type Weights<'a> = (&'a [[f32; PARTITION_CELLS]], usize);

/// All columns of Q queries, N vectors at a time.
#[inline(always)]
fn accumulate_tile<S: Simd, C: Cell, L: CellList, A: CellList, const Q: usize, const N: usize>(
    s: S,
    weights: Weights<'_>,
    values: Rows<'_, C, L>,
    sums: &mut [[f32; LINE]],
    ahead: Option<&Ahead<A>>,
) {
    let lines = values.lines;
    let mut line = 0;
    while line < lines {
        let ask = ahead.filter(|_| line == 0).map(|ahead| (ahead, weights.1 + ahead.chunk));
        if line + N <= lines {
            accumulate_columns::<S, C, L, A, Q, N>(s, weights, values, line, sums, ask);
            line += N;
        } else {
            accumulate_columns::<S, C, L, A, Q, 1>(s, weights, values, line, sums, ask);
            line += 1;
        }
    }
}

/// Vectors `line .. line + N` of Q queries.
#[inline(always)]
fn accumulate_columns<S: Simd, C: Cell, L: CellList, A: CellList, const Q: usize, const N: usize>(
    s: S,
    (weights, first): Weights<'_>,
    values: Rows<'_, C, L>,
    line: usize,
    sums: &mut [[f32; LINE]],
    ask: Ask<'_, A>,
) {
    let lines = values.lines;
    let mut tile = [[s.splat(0.0); N]; Q];
    for q in 0..Q {
        for n in 0..N {
            tile[q][n] = s.load(&sums[q * lines + line + n]);
        }
    }
    let weights: &[[f32; PARTITION_CELLS]; Q] = weights.first_chunk().expect("weights of Q queries");
    for (i, j) in (0..values.cells.count()).zip(first..PARTITION_CELLS) {
        if let Some((ahead, first)) = ask {
            ahead.fetch(s, first + i..first + i + 1);
        }
        let values = &values.all[values.cells.cell(i) * lines + line..][..N];
        let mut value = [s.splat(0.0); N];
        for n in 0..N {
            value[n] = C::load(s, &values[n]);
        }
        for q in 0..Q {
            let weight = s.splat(weights[q][j]);
            for n in 0..N {
                tile[q][n] = s.fma(weight, value[n], tile[q][n]);
            }
        }
    }
    for q in 0..Q {
        for n in 0..N {
            s.store(tile[q][n], &mut sums[q * lines + line + n]);
        }
    }
}

/// The sum of query `i` again, cells of weight zero passed over.
#[inline(always)]
fn accumulate_exactly<S: Simd>(s: S, partition: &Partition<'_>, i: usize, out: &mut Attended) {
    let width = out.head_dim;
    let Attended { values: sums, weights, chunk, lines, .. } = out;
    let sums = &mut sums[i * *lines..][..*lines];
    sums.as_flattened_mut().fill(0.0);
    let weights = weights[i * SCORE_LINES..].as_flattened();
    let count = match partition.seen {
        Seen::First(_) => partition.end(),
        Seen::Listed(cells) => cells.len(),
    };
    for (j, &weight) in weights[..count].iter().enumerate() {
        let cell = match partition.seen {
            Seen::First(_) => j,
            Seen::Listed(cells) => usize::from(cells[j]),
        };
        if weight != 0.0 {
            widen(s, partition.values, Span { first: cell, count: 1 }, width, chunk);
            for (sum, value) in sums.iter_mut().zip(&chunk[..]) {
                s.store(s.fma(s.splat(weight), s.load(value), s.load(sum)), sum);
            }
        }
    }
}

#[inline(always)]
pub(super) fn score_blocks<S: Simd>(
    s: S,
    queries: &Queries<'_>,
    keys: Cells<'_>,
    scores: &mut [f32],
    room: &mut Attended,
) {
    let blocks = scores.len() / queries.rows;
    pack(s, queries, room);
    for first in (0..blocks).step_by(PARTITION_CELLS) {
        let count = (blocks - first).min(PARTITION_CELLS);
        score(s, keys, Span { first, count }, 1.0, room, None);
        for (row, scores) in scores.chunks_exact_mut(blocks).enumerate() {
            let (whole, rest) = scores[first..first + count].as_chunks_mut();
            let dots = &room.weights[row * queries.heads * SCORE_LINES..];
            for (i, out) in whole.iter_mut().enumerate() {
                s.store(rectified_sum(s, &dots[i..], queries.heads), out);
            }
            if !rest.is_empty() {
                s.store_first(rectified_sum(s, &dots[whole.len()..], queries.heads), rest);
            }
        }
    }
}

/// The sum of what is positive or NaN in the scores of each head.
#[inline(always)]
fn rectified_sum<S: Simd>(s: S, dots: &[[f32; LINE]], heads: usize) -> S::F {
    let zero = s.splat(0.0);
    let mut sum = zero;
    for h in 0..heads {
        let dot = s.load(&dots[h * SCORE_LINES]);
        sum = s.add(sum, s.keep_nan(dot, s.max(dot, zero)));
    }
    sum
}

#[inline(always)]
pub(super) fn merge_partition<S: Simd>(
    s: S,
    running: (f32, f32),
    values: &mut [f32],
    later: (f32, f32),
    later_values: &[f32],
) -> (f32, f32) {
    let max = if later.0 > running.0 { later.0 } else { running.0 };
    let mut factors = [0.0; 2];
    s.store_first(exp(s, s.load_first(&[running.0 - max, later.0 - max])), &mut factors);
    let [f0, f1] = factors;
    let (all_f0, all_f1) = (s.splat(f0), s.splat(f1));
    zip!(s, values, later_values, (value, later) => s.fma(later, all_f1, s.mul(value, all_f0)));
    (max, later.1.mul_add(f1, running.1 * f0))
}
