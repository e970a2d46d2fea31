//! Quantised products: sixteen weight rows against one activation row while they are unpacked, or against several at a
//! time once they are.

use std::marker::PhantomData;
use std::ops::Range;

use super::few_rows::{self, FEW_ROWS, add_chain};
use super::lie::{AHEAD, InRows, Lie, SideBySide};
use super::matmul_int8::{CHAIN_GROUPS, LANES, Shape, offset};
use super::packed::Packed;
use super::simd::Simd;
use super::words::{Codes, GROUP_WORDS, Heads, OCTET, Sink, Unpack, Words, block_of};
use crate::GROUP_VALUES;
use crate::interleave::Layout;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;

/// Products of a format that is unpacked sixteen rows at once; see [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul<S: Words, Q: Unpack>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    let &[row] = rows else { return matmul_rows::<S, Q>(s, weights, x, rows, out) };
    match weights.layout() {
        Layout::Rows => matmul_row::<S, Q, InRows>(s, weights, x, row, out),
        Layout::Interleaved => matmul_row::<S, Q, SideBySide<true>>(s, weights, x, row, out),
    }
}

/// Products of a format that is unpacked row by row; see [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul_by_row<S: Words, Q: Packed>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    if rows.len() <= FEW_ROWS {
        few_rows::matmul::<S, Q>(s, weights, x, rows, out);
    } else {
        matmul_rows::<S, Q>(s, weights, x, rows, out);
    }
}

/// One activation row.
#[inline(always)]
fn matmul_row<S: Words, Q: Unpack, L: Lie>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    row: u32,
    out: &mut Tile<'_>,
) {
    assert!(out.rows() == 1 && weights.rows() == out.columns() && weights.k == x.k);
    L::prefetch(s, weights);
    let (mut heads, mut padded) = (Heads::zeroed(s), Vec::new());
    for c in (0..out.columns()).step_by(LANES) {
        Product::new(weights, x, c, &mut padded).one_row::<S, Q, L>(s, row, &mut heads, out);
    }
}

/// Several activation rows.
#[inline(always)]
fn matmul_rows<S: Words, Q: Unpack>(
    s: S,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    assert!(rows.len() == out.rows() && weights.rows() == out.columns() && weights.k == x.k);
    if rows.is_empty() {
        return;
    }
    match weights.layout() {
        Layout::Rows => InRows::prefetch(s, weights),
        Layout::Interleaved => SideBySide::<false>::prefetch(s, weights),
    }
    let (mut panel, mut padded) = (Panel::zeroed(s), Vec::new());
    for c in (0..out.columns()).step_by(LANES) {
        Product::new(weights, x, c, &mut padded).rows::<S, Q>(s, rows, &mut panel, out);
    }
}

/// Sixteen weight rows.
struct Product<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    layout: Layout,
    x: &'a Int8Rows<'a>,
    /// First column of the tile.
    c: usize,
    /// Columns, at most sixteen.
    lanes: usize,
    /// What is read sixteen times [`AHEAD`] rows later, if that is known.
    later: Option<*const u8>,
}

/// A chain of a product of several rows.
struct Part {
    chain: Range<usize>,
    /// What is unpacked next.
    next: *const u8,
    /// Lines of that to ask for with each group. While a chain is multiplied its bytes are not needed, so the next ones can come:
    /// asked for only while others are unpacked, they came at the memory's speed and were then multiplied at the core's.
    lines: usize,
}

/// Up to eight groups of an activation row.
#[derive(Clone, Copy)]
struct Octet<'a> {
    q: &'a [[[i8; 4]; GROUP_WORDS]],
    d: &'a [f32],
    sums: &'a [[i16; 2]],
}

/// Calls `$run` with the number of groups from group `$first` of `$groups` on, at most eight: usually a constant.
macro_rules! with_count {
    ($format:ident, $first:expr, $groups:expr, |$count:ident| $run:expr) => {
        if $format::BLOCK_VALUES == OCTET * GROUP_VALUES || $groups - $first >= OCTET {
            let $count = OCTET;
            $run
        } else {
            let $count = $groups - $first;
            $run
        }
    };
}

impl<'a> Product<'a> {
    /// Columns from `c` on; where there are fewer than sixteen left, `padded` gets them and zeros.
    #[inline(always)]
    fn new(weights: &WeightRows<'a>, x: &'a Int8Rows<'a>, c: usize, padded: &'a mut Vec<u8>) -> Product<'a> {
        let lanes = LANES.min(weights.rows() - c);
        let mut bytes = weights.slice(c, lanes).bytes;
        if lanes < LANES {
            padded.extend_from_slice(bytes);
            padded.resize(LANES * weights.row_bytes(), 0);
            bytes = padded;
        }
        Product {
            bytes,
            row_bytes: weights.row_bytes(),
            layout: weights.layout(),
            x,
            c,
            lanes,
            later: weights.later(c + AHEAD * LANES),
        }
    }

    fn groups(&self) -> usize {
        self.x.k / GROUP_VALUES
    }

    /// One activation row: codes are multiplied as they are unpacked.
    #[inline(always)]
    fn one_row<S: Words, Q: Unpack, L: Lie>(&self, s: S, row: u32, heads: &mut Heads<S>, out: &mut Tile<'_>) {
        let mut acc = s.splat(0.0);
        for first in (0..self.groups()).step_by(OCTET) {
            if first.is_multiple_of(CHAIN_GROUPS) {
                acc = s.splat(0.0);
            }
            with_count!(Q, first, self.groups(), |count| {
                let octet = self.octet(row, first, count);
                let mut sink = OneRow::<S, Q> { octet, acc, format: PhantomData };
                Q::unpack(s, &self.weights::<S, Q, L>(first, count), count, heads, &mut sink);
                acc = sink.acc;
            });
            let next = first + OCTET;
            if next.is_multiple_of(CHAIN_GROUPS) || next >= self.groups() {
                let out = &mut out.row(0)[self.c..self.c + self.lanes];
                add_chain(s, first < CHAIN_GROUPS, acc, out);
            }
        }
    }

    /// Several activation rows: codes are unpacked once for all.
    #[inline(always)]
    fn rows<S: Words, Q: Unpack>(&self, s: S, rows: &[u32], panel: &mut Panel<S>, out: &mut Tile<'_>) {
        for chain in (0..self.groups()).step_by(CHAIN_GROUPS) {
            let groups = self.groups().min(chain + CHAIN_GROUPS);
            for (first, (heads, codes)) in (chain..groups).step_by(OCTET).zip(&mut panel.octets) {
                with_count!(Q, first, groups, |count| {
                    match self.layout {
                        Layout::Rows => {
                            Q::unpack(s, &self.weights::<S, Q, InRows>(first, count), count, heads, codes);
                        }
                        Layout::Interleaved => {
                            Q::unpack(
                                s,
                                &self.weights::<S, Q, SideBySide<false>>(first, count),
                                count,
                                heads,
                                codes,
                            );
                        }
                    }
                });
            }
            // Batches of eight where there are registers for them, then of four, then single rows.
            let (mut done, part) = (0, self.part::<Q>(chain..groups));
            if S::WIDE {
                done = self.batches::<S, Q, 8>(s, panel, &part, rows, done, out);
            }
            done = self.batches::<S, Q, 4>(s, panel, &part, rows, done, out);
            self.batches::<S, Q, 1>(s, panel, &part, rows, done, out);
        }
    }

    /// Multiplies rows from `done` on, R at a time as long as there are so many; how many are done then.
    #[inline(always)]
    fn batches<S: Words, Q: Shape, const R: usize>(
        &self,
        s: S,
        panel: &Panel<S>,
        part: &Part,
        rows: &[u32],
        done: usize,
        out: &mut Tile<'_>,
    ) -> usize {
        let (batches, _) = rows[done..].as_chunks::<R>();
        for (b, batch) in batches.iter().enumerate() {
            // Apart: the loop that asks costs the others a tenth.
            match done + b * R {
                r if r > 0 && R > 1 => self.batch::<S, Q, R, false>(s, panel, part, batch, r, out),
                r => self.batch::<S, Q, R, true>(s, panel, part, batch, r, out),
            }
        }
        done + batches.len() * R
    }

    /// The bytes of `count` groups from `first` on.
    #[inline(always)]
    fn weights<S: Words, Q: Shape, L: Lie>(&self, first: usize, count: usize) -> L::Source<'a, S, Q> {
        let block_groups = Q::BLOCK_VALUES / GROUP_VALUES;
        let (at, len) = (first / block_groups * Q::BLOCK_BYTES, count / block_groups * Q::BLOCK_BYTES);
        L::source::<S, Q>(self.bytes, self.row_bytes, at, len, self.later)
    }

    /// A chain, and where the next one lies if rows are side by side.
    #[inline(always)]
    fn part<Q: Shape>(&self, chain: Range<usize>) -> Part {
        let block_groups = Q::BLOCK_VALUES / GROUP_VALUES;
        let next = self.bytes.as_ptr().wrapping_add(LANES * (chain.end / block_groups * Q::BLOCK_BYTES));
        let lines = match self.layout {
            Layout::Rows => 0,
            Layout::Interleaved => (LANES * Q::BLOCK_BYTES / block_groups).div_ceil(64),
        };
        Part { chain, next, lines }
    }

    /// `count` groups of an activation row from `first` on.
    #[inline(always)]
    fn octet(&self, row: u32, first: usize, count: usize) -> Octet<'a> {
        let at = row as usize * self.groups() + first;
        Octet {
            q: &self.x.q.as_chunks::<4>().0.as_chunks().0[at..][..count],
            d: &self.x.d[at..][..count],
            sums: &self.x.sum16.as_chunks().0[at..][..count],
        }
    }

    /// Adds the products of a chain to R rows of the tile, `r` on. The first rows ask for the next chain if `ASKS`.
    #[inline(always)]
    fn batch<S: Words, Q: Shape, const R: usize, const ASKS: bool>(
        &self,
        s: S,
        panel: &Panel<S>,
        part: &Part,
        rows: &[u32; R],
        r: usize,
        out: &mut Tile<'_>,
    ) {
        let mut acc = [s.splat(0.0); R];
        let chain = &part.chain;
        let (mut next, lines) = (part.next, if r == 0 { part.lines } else { 0 });
        for (first, (heads, codes)) in chain.clone().step_by(OCTET).zip(&panel.octets) {
            with_count!(Q, first, chain.end, |count| {
                let mut octets = [Octet { q: &[], d: &[], sums: &[] }; R];
                for (octet, &row) in octets.iter_mut().zip(rows) {
                    *octet = self.octet(row, first, count);
                }
                for g in 0..count {
                    if ASKS {
                        for line in 0..lines {
                            s.prefetch(next.wrapping_add(64 * line));
                        }
                        next = next.wrapping_add(64 * lines);
                    }
                    add_group::<S, Q, R>(s, heads, &codes[g], g, &octets, &mut acc);
                }
            });
        }
        for i in 0..R {
            let out = &mut out.row(r + i)[self.c..self.c + self.lanes];
            add_chain(s, chain.start == 0, acc[i], out);
        }
    }
}

/// The integer scale of each half of a group.
#[inline(always)]
fn scales<S: Words, Q: Shape>(s: S, heads: &Heads<S>, g: usize) -> [S::I; 2] {
    match Q::SCALES {
        0 => [s.load_scales(&[1; LANES]); 2],
        1 => [heads.scales[g][0]; 2],
        _ => heads.scales[g],
    }
}

/// `acc` and the terms of a group with these sums of products: of each half where float scales have one each, else of both
/// in the first.
#[inline(always)]
fn add_terms<S: Words, Q: Shape>(
    s: S,
    heads: &Heads<S>,
    g: usize,
    octet: &Octet<'_>,
    sums: [S::I; 2],
    acc: S::F,
) -> S::F {
    let b = block_of::<Q>(g);
    let d_a = s.splat(octet.d[g]);
    if Q::FLOAT_SCALE_PER_16 {
        // Codes with an offset have none of their own for each half, so it is taken from the sums of each.
        let mut acc = acc;
        for h in 0..2 {
            let offset = s.splat_i(offset::<S, Q>() * i32::from(octet.sums[g][h]));
            let sum = s.sub_i(sums[h], offset);
            acc = s.add(acc, s.mul(s.to_f(sum), s.mul(heads.d[b][h], d_a)));
        }
        return acc;
    }
    let [sum, _] = sums;
    let d = s.mul(heads.d[b][0], d_a);
    if Q::HAS_MIN {
        let minima = s.pair_products(heads.pairs[g], &octet.sums[g]);
        let minimum = s.mul(s.to_f(minima), s.mul(heads.min[b], d_a));
        return s.add(acc, s.add(s.mul(s.to_f(sum), d), minimum));
    }
    if offset::<S, Q>() != 0 {
        let offset = s.pair_products(heads.pairs[g], &octet.sums[g]);
        return s.add(acc, s.mul(s.to_f(s.sub_i(sum, offset)), d));
    }
    s.add(acc, s.mul(s.to_f(sum), d))
}

/// Multiplies codes by one activation row.
struct OneRow<'a, S: Simd, Q> {
    octet: Octet<'a>,
    /// The sum of the terms so far.
    acc: S::F,
    format: PhantomData<Q>,
}

impl<S: Words, Q: Shape> Sink<S> for OneRow<'_, S, Q> {
    type Sum = S::I;

    #[inline(always)]
    fn begin(&self, s: S) -> S::I {
        assert!(!Q::FLOAT_SCALE_PER_16, "such formats are unpacked row by row");
        s.splat_i(0)
    }

    #[inline(always)]
    fn put(&mut self, s: S, heads: &Heads<S>, sum: &mut S::I, g: usize, h: usize, codes: [S::B; 4]) {
        let words = self.octet.q[g].as_chunks().0.get(h).expect("two halves");
        *sum = s.add_half::<Q>(*sum, &codes, words, scales::<S, Q>(s, heads, g)[h]);
    }

    #[inline(always)]
    fn end(&mut self, s: S, heads: &Heads<S>, sum: S::I, g: usize) {
        let sum = s.scaled::<Q>(sum, scales::<S, Q>(s, heads, g)[0]);
        self.acc = add_terms::<S, Q>(s, heads, g, &self.octet, [sum; 2], self.acc);
    }
}

/// A chain of sixteen weight rows, unpacked.
struct Panel<S: Simd> {
    octets: [(Heads<S>, Codes<S>); CHAIN_GROUPS / OCTET],
}

impl<S: Words> Panel<S> {
    #[inline(always)]
    fn zeroed(s: S) -> Panel<S> {
        let codes = [[s.zero_b(); GROUP_WORDS]; OCTET];
        Panel { octets: [(Heads::zeroed(s), codes), (Heads::zeroed(s), codes)] }
    }
}

/// Adds the terms of group g of sixteen weight rows with R activation rows.
#[inline(always)]
fn add_group<S: Words, Q: Shape, const R: usize>(
    s: S,
    heads: &Heads<S>,
    codes: &[S::B; GROUP_WORDS],
    g: usize,
    octets: &[Octet<'_>; R],
    acc: &mut [S::F; R],
) {
    let mut words = [&octets[0].q[g]; R];
    for r in 0..R {
        words[r] = &octets[r].q[g];
    }
    let sums = s.group_sums::<Q, R>(codes, scales::<S, Q>(s, heads, g), &words);
    const { assert!(R <= 8) };
    each!(r in 0 1 2 3 4 5 6 7 => {
        if r < R {
            acc[r] = add_terms::<S, Q>(s, heads, g, &octets[r], sums[r], acc[r]);
        }
    });
}
