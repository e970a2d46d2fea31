//! See `scalar::attention`.
//!
//! Queries are worked on a few at a time against a chunk of cells that the first-level cache holds, so that each vector of
//! a key or value is loaded once for all queries of a tile. Half precision is widened as it is loaded, for many queries once
//! for all of them.

use super::cells::{Cell, Reader, widen_row};
use super::elementwise::{exp, exp_differences, zip};
use super::simd::Simd;
use crate::PARTITION_CELLS;
use crate::attention::{Attended, Cells, LINE, Partition, Queries, int4_bytes};

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
    let (keys, values, count) = (partition.keys, partition.values, partition.end());
    pack(s, queries, out);
    let mut ahead = Ahead::new(s, partition, queries, count);
    score(s, keys, count, scale, out, &mut ahead);
    soften(s, queries, partition, out);
    accumulate(s, values, count, out, &mut ahead);
    for i in 0..queries.len() {
        // A weight of zero adds a zero: that changes no sum, except that it can turn a zero of the other sign and that the
        // product with a value that is not finite is NaN.
        if out.max_sum[i].1 == 0.0 {
            out.values_mut(i).fill(0.0);
        } else if out.values(i).iter().fold(false, |any, &v| any | (v == 0.0) | v.is_nan()) {
            accumulate_exactly(s, values, count, i, out);
        }
    }
}

/// Some cells of whole vectors, ready to be loaded.
#[derive(Clone, Copy)]
struct Rows<'a, C> {
    all: &'a [[C; LINE]],
    count: usize,
    lines: usize,
}

impl<'a, C: Cell> Rows<'a, C> {
    /// The i-th cell, or the last.
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [[C; LINE]] {
        &self.all[i.min(self.count - 1) * self.lines..][..self.lines]
    }
}

/// What is asked for while cells are worked on: pieces from front to back, some lines with each cell and tile of queries. Evenly:
/// a core keeps track of some dozens of lines that it waits for, and asking for more holds up everything else.
struct Ahead<'a> {
    /// Of the piece that is asked for now.
    at: *const u8,
    end: *const u8,
    /// Pieces after it, then others.
    rest: &'a [Cells<'a>],
    then: &'a [Cells<'a>],
    /// For each cell and tile.
    lines: usize,
}

impl<'a> Ahead<'a> {
    /// What is read next, if that is said; else the partition's own cells, a chunk ahead.
    #[inline(always)]
    fn new<S: Simd>(_: S, partition: &Partition<'a>, queries: &Queries<'_>, count: usize) -> Ahead<'a> {
        let tiles = tiles::<S>(queries);
        if let [_, ..] = partition.next {
            let mut ahead = Ahead::from_start([partition.next, &[]]);
            let lines: usize = partition.next.iter().map(|piece| codes(piece).1.div_ceil(LINE_BYTES)).sum();
            ahead.lines = lines.div_ceil(2 * count.max(1) * tiles);
            return ahead;
        }
        let mut ahead = Ahead::behind_first_chunk([partition.keys, partition.values], queries.head_dim);
        // Scattered cells came next once.
        ahead.lines = if partition.keys.len() > 1 { 0 } else { ahead.lines.div_ceil(tiles) };
        ahead
    }

    #[inline(always)]
    fn from_start([pieces, then]: [&'a [Cells<'a>]; 2]) -> Ahead<'a> {
        let nothing = std::ptr::null();
        Ahead { at: nothing, end: nothing, rest: pieces, then, lines: 0 }
    }

    /// All but the first chunk of cells of `width` values, a cell's lines with each cell.
    #[inline(always)]
    fn behind_first_chunk(pieces: [&'a [Cells<'a>]; 2], width: usize) -> Ahead<'a> {
        let mut ahead = Ahead::from_start(pieces);
        if let Some(piece) = pieces[0].first() {
            let cell_bytes = match piece {
                Cells::F32(_) => 4 * width,
                Cells::F16(_) => 2 * width,
                Cells::Int8 { .. } => width,
                Cells::Int4 { .. } => int4_bytes(width),
            };
            ahead.advance();
            ahead.lines = cell_bytes.div_ceil(LINE_BYTES);
            ahead.at = ahead.at.wrapping_add(chunk_cells(width.div_ceil(LINE)) * cell_bytes);
        }
        ahead
    }

    /// Goes on to the next piece; false if there is none.
    #[inline(always)]
    fn advance(&mut self) -> bool {
        if self.rest.is_empty() {
            self.rest = std::mem::take(&mut self.then);
        }
        let Some((piece, rest)) = self.rest.split_first() else { return false };
        let (start, bytes) = codes(piece);
        (self.at, self.end, self.rest) = (start, start.wrapping_add(bytes), rest);
        true
    }

    /// Asks for what goes with so many cells.
    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S, cells: usize) {
        for _ in 0..cells * self.lines {
            if self.at >= self.end && !self.advance() {
                return;
            }
            s.prefetch(self.at);
            self.at = self.at.wrapping_add(LINE_BYTES);
        }
    }
}

/// Tiles of queries that a cell meets, or a little more.
#[inline(always)]
fn tiles<S: Simd>(queries: &Queries<'_>) -> usize {
    queries.len().div_ceil(if S::WIDE { 4 } else { 3 })
}

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Where the numbers or codes of a piece lie, and how many bytes they are. Scales are few.
#[inline(always)]
fn codes(piece: &Cells<'_>) -> (*const u8, usize) {
    match *piece {
        Cells::F32(all) => (all.as_ptr().cast(), size_of_val(all)),
        Cells::F16(all) => (all.as_ptr().cast(), size_of_val(all)),
        Cells::Int8 { codes, .. } => (codes.as_ptr().cast(), codes.len()),
        Cells::Int4 { codes, .. } => (codes.as_ptr(), codes.len()),
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

/// Calls `$run` for each chunk of the first `$count` cells with the number of its first one and its rows: as they lie if they
/// are one piece of whole vectors of floats (of half precision only where `$few` queries read them), else in single precision
/// and padded with zeros.
macro_rules! for_chunks {
    ($s:ident, $few:expr, $pieces:expr, $count:ident, $width:expr, $chunk:expr, |$first:ident, $rows:ident| $run:expr) => {{
        let (lines, whole) = ($width.div_ceil(LINE), $width.is_multiple_of(LINE));
        let step = chunk_cells(lines);
        let mut reader = Reader::new($pieces, $width);
        for $first in (0..$count).step_by(step) {
            let count = step.min($count - $first);
            match $pieces {
                &[Cells::F32(all)] if whole => {
                    let all = &all.as_chunks::<LINE>().0[$first * lines..];
                    let $rows = Rows { all, count, lines };
                    $run
                }
                &[Cells::F16(all)] if whole && $few => {
                    let all = &all.as_chunks::<LINE>().0[$first * lines..];
                    let $rows = Rows { all, count, lines };
                    $run
                }
                _ => {
                    reader.widen($s, &mut $chunk[..count * lines]);
                    let $rows = Rows { all: &$chunk[..], count, lines };
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

/// Scores of the first `count` cells; up to the next multiple of 16 they are not specified.
#[inline(always)]
fn score<S: Simd>(
    s: S,
    keys: &[Cells<'_>],
    count: usize,
    scale: f32,
    out: &mut Attended,
    ahead: &mut Ahead<'_>,
) {
    let width = out.head_dim;
    let Attended { queries, weights, chunk, lines, max_sum, .. } = out;
    let (lines, n) = (*lines, max_sum.len());
    let mut sums = [[s.splat(0.0); LINE / 2]; TILE_QUERIES_MAX];
    for_chunks!(s, n < QUERIES_MANY, keys, count, width, chunk, |first, rows| {
        for at in (0..rows.count).step_by(LINE) {
            let mut keys = [rows.row(at); LINE];
            for i in 1..LINE {
                keys[i] = rows.row(at + i);
            }
            let mut i = 0;
            while i < n {
                let tile = tile_queries(n - i, if S::WIDE { 4 } else { 3 });
                let q = &queries[i * lines..][..tile * lines];
                let scores = &mut weights[i * SCORE_LINES..][..tile * SCORE_LINES][(first + at) / LINE..];
                macro_rules! tile {
                    ($q:literal, $k:literal) => {
                        score_tile::<S, _, $q, $k>(s, q, &keys, lines, scale, scores, &mut sums, ahead)
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

/// Scores of sixteen keys for Q queries, 2 K keys at a time; `sums` is room.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "a loop's state")]
fn score_tile<S: Simd, C: Cell, const Q: usize, const K: usize>(
    s: S,
    queries: &[[f32; LINE]],
    keys: &[&[[C; LINE]]; LINE],
    lines: usize,
    scale: f32,
    scores: &mut [[f32; LINE]],
    sums: &mut [[S::F; LINE / 2]; TILE_QUERIES_MAX],
    ahead: &mut Ahead<'_>,
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
        ahead.fetch(s, 2 * K);
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

/// Turns scores into weights, their largest and their sum.
#[inline(always)]
fn soften<S: Simd>(s: S, queries: &Queries<'_>, partition: &Partition<'_>, out: &mut Attended) {
    let lines = partition.end().div_ceil(LINE);
    for i in 0..queries.len() {
        let scores = out.weights[i * SCORE_LINES..][..lines].as_flattened_mut();
        let seen = usize::from(partition.seen[i / queries.heads]);
        if seen == 0 {
            scores.fill(0.0);
            out.max_sum[i] = (f32::NEG_INFINITY, 0.0);
            continue;
        }
        scores[seen..].fill(f32::NEG_INFINITY);
        let max = largest(s, scores);
        let lanes = exp_differences(s, scores, max);
        out.max_sum[i] = (max, s.sum(lanes));
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

/// Sums of the values of the first `count` cells times their weights, from zeros.
#[inline(always)]
fn accumulate<S: Simd>(s: S, values: &[Cells<'_>], count: usize, out: &mut Attended, ahead: &mut Ahead<'_>) {
    let width = out.head_dim;
    let Attended { values: sums, weights, chunk, lines, max_sum, .. } = out;
    let (lines, n) = (*lines, max_sum.len());
    sums[..n * lines].as_flattened_mut().fill(0.0);
    for_chunks!(s, n < QUERIES_MANY, values, count, width, chunk, |first, rows| {
        let mut i = 0;
        while i < n {
            let tile = tile_queries(n - i, if S::WIDE { 4 } else { 6 });
            let weights = (&weights.as_flattened().as_chunks().0[i..], first);
            let sums = &mut sums[i * lines..][..tile * lines];
            match (S::WIDE, tile) {
                (false, 1) => accumulate_tile::<S, _, 1, 4>(s, weights, rows, sums, ahead),
                (false, 2) => accumulate_tile::<S, _, 2, 2>(s, weights, rows, sums, ahead),
                (false, 3) => accumulate_tile::<S, _, 3, 1>(s, weights, rows, sums, ahead),
                (false, 4) => accumulate_tile::<S, _, 4, 1>(s, weights, rows, sums, ahead),
                (false, 5) => accumulate_tile::<S, _, 5, 1>(s, weights, rows, sums, ahead),
                (false, _) => accumulate_tile::<S, _, 6, 1>(s, weights, rows, sums, ahead),
                (true, 1) => accumulate_tile::<S, _, 1, 8>(s, weights, rows, sums, ahead),
                (true, 2) => accumulate_tile::<S, _, 2, 8>(s, weights, rows, sums, ahead),
                (true, 3) => accumulate_tile::<S, _, 3, 4>(s, weights, rows, sums, ahead),
                (true, _) => accumulate_tile::<S, _, 4, 4>(s, weights, rows, sums, ahead),
            }
            i += tile;
        }
    });
}

/// Weights of queries by cell, and the first cell that counts.
type Weights<'a> = (&'a [[f32; PARTITION_CELLS]], usize);

/// All columns of Q queries, N vectors at a time.
#[inline(always)]
fn accumulate_tile<S: Simd, C: Cell, const Q: usize, const N: usize>(
    s: S,
    weights: Weights<'_>,
    values: Rows<'_, C>,
    sums: &mut [[f32; LINE]],
    ahead: &mut Ahead<'_>,
) {
    let lines = values.lines;
    let mut ahead = Some(ahead);
    let mut line = 0;
    while line < lines {
        // Once is enough.
        let ahead = ahead.take();
        if line + N <= lines {
            accumulate_columns::<S, C, Q, N>(s, weights, values, line, sums, ahead);
            line += N;
        } else {
            accumulate_columns::<S, C, Q, 1>(s, weights, values, line, sums, ahead);
            line += 1;
        }
    }
}

/// Vectors `line .. line + N` of Q queries.
#[inline(always)]
fn accumulate_columns<S: Simd, C: Cell, const Q: usize, const N: usize>(
    s: S,
    (weights, first): Weights<'_>,
    values: Rows<'_, C>,
    line: usize,
    sums: &mut [[f32; LINE]],
    mut ahead: Option<&mut Ahead<'_>>,
) {
    let lines = values.lines;
    let mut tile = [[s.splat(0.0); N]; Q];
    for q in 0..Q {
        for n in 0..N {
            tile[q][n] = s.load(&sums[q * lines + line + n]);
        }
    }
    let weights: &[[f32; PARTITION_CELLS]; Q] = weights.first_chunk().expect("weights of Q queries");
    for (i, j) in (0..values.count).zip(first..PARTITION_CELLS) {
        if let Some(ahead) = &mut ahead {
            ahead.fetch(s, 1);
        }
        let values = &values.all[i * lines + line..][..N];
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
fn accumulate_exactly<S: Simd>(s: S, values: &[Cells<'_>], count: usize, i: usize, out: &mut Attended) {
    let Attended { head_dim, values: sums, weights, chunk, lines, .. } = out;
    let sums = &mut sums[i * *lines..][..*lines];
    sums.as_flattened_mut().fill(0.0);
    let weights = weights[i * SCORE_LINES..].as_flattened();
    let mut reader = Reader::new(values, *head_dim);
    for &weight in &weights[..count] {
        let cell = &mut chunk[..*lines];
        reader.widen(s, cell);
        if weight != 0.0 {
            for (sum, value) in sums.iter_mut().zip(cell) {
                s.store(s.fma(s.splat(weight), s.load(value), s.load(sum)), sum);
            }
        }
    }
}

#[inline(always)]
pub(super) fn score_blocks<S: Simd>(
    s: S,
    queries: &Queries<'_>,
    keys: &[Cells<'_>],
    scores: &mut [f32],
    room: &mut Attended,
) {
    let (blocks, width) = (scores.len() / queries.rows, queries.head_dim);
    pack(s, queries, room);
    let mut ahead = Ahead::behind_first_chunk([keys, &[]], width);
    ahead.lines = ahead.lines.div_ceil(tiles::<S>(queries));
    let mut first = 0;
    for piece in keys {
        let count = piece.cells_of(width).expect("whole cells");
        score(s, std::slice::from_ref(piece), count, 1.0, room, &mut ahead);
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
        first += count;
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
