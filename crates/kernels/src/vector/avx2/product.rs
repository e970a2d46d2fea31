//! Quantised products on AVX2: a panel of sixteen weight rows against up to four activation rows at a time.
//!
//! `vpmaddubsw` adds two products of an unsigned and a signed byte in 16 bits. Small codes leave room to add several of
//! those before `vpmaddwd` widens them, and it multiplies by the integer scales on the way.

use core::arch::x86_64::*;
use std::marker::PhantomData;

use gguf::TensorType;

use super::words::{Codes, GROUP_WORDS, Heads, Rows, Sink, block_of, reads_words, unpack};
use super::{Avx2, F, I};
use crate::GROUP_VALUES;
use crate::table::{Int8Rows, WeightRows};
use crate::tile::Tile;
use crate::vector::few_rows::{self, FEW_ROWS, add_chain};
use crate::vector::matmul_int8::{CHAIN_GROUPS, LANES, Shape};
use crate::vector::packed::Packed;
use crate::vector::simd::Simd;

/// Activation rows that share one load of the codes.
const BATCH_ROWS: usize = 4;

impl Avx2 {
    operations! {
        fn splat_word(self, x: &[i8; 4]) -> I {
            [_mm256_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()); 2]
        }
        fn splat_sums(self, x: &[i16; 2]) -> I {
            [_mm256_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()); 2]
        }
        /// Sums of two products of adjacent codes and activations.
        fn pairs(self, signed: bool, codes: I, a: I) -> I {
            let mut out = codes;
            for h in 0..2 {
                out[h] = if signed {
                    // |code| <= 128 and |activation| <= 127: a sum of two products fits 16 bits.
                    _mm256_maddubs_epi16(_mm256_abs_epi8(codes[h]), _mm256_sign_epi8(a[h], codes[h]))
                } else {
                    _mm256_maddubs_epi16(codes[h], a[h])
                };
            }
            out
        }
        fn add_16(self, a: I, b: I) -> I { [_mm256_add_epi16(a[0], b[0]), _mm256_add_epi16(a[1], b[1])] }
        /// Sums of two products of adjacent numbers of 16 bits.
        fn products_16(self, a: I, b: I) -> I { [_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[1], b[1])] }
    }
}

/// Words whose sums of pairs of products fit 16 bits together, each at most twice 127 times the largest code.
const fn words_in_16_bits<Q: Shape>() -> usize {
    use TensorType::*;
    match Q::TYPE {
        _ if Q::SIGNED => 1,
        Q4_0 | Q4_1 | Q4_K | Q2_K | Q3_K | Q2_0 | Q1_0 | TQ1_0 | TQ2_0 => 8,
        Q5_0 | Q5_1 | Q5_K | MXFP4 | NVFP4 | IQ1_S | IQ1_M => 4,
        // At most 63; see [`Shape::OFFSET`].
        _ => 2,
    }
}

/// See [`crate::scalar::matmul_int8`].
#[inline(always)]
pub(super) fn matmul<Q: Packed>(
    s: Avx2,
    weights: &WeightRows<'_>,
    x: &Int8Rows<'_>,
    rows: &[u32],
    out: &mut Tile<'_>,
) {
    assert!(rows.len() == out.rows() && weights.rows() == out.columns() && weights.k == x.k);
    if rows.is_empty() {
        return;
    }
    if !const { reads_words(Q::TYPE) } && rows.len() <= FEW_ROWS {
        return few_rows::matmul::<Avx2, Q>(s, weights, x, rows, out);
    }
    let zero = s.splat_i(0);
    let mut heads = Heads {
        d: [[s.splat(0.0); 2]; CHAIN_GROUPS],
        min: [s.splat(0.0); CHAIN_GROUPS],
        scales: [[zero; 2]; CHAIN_GROUPS],
        pairs: [zero; CHAIN_GROUPS],
    };
    prefetch_rows(s, weights.slice(0, LANES.min(weights.rows())).bytes);
    let mut padded = Vec::new();
    // Written out for both: the room for codes is not needed by one row.
    if let &[row] = rows {
        for c in (0..out.columns()).step_by(LANES) {
            Product::new(weights, x, c, &mut padded).one_row::<Q>(s, row, &mut heads, out);
        }
    } else {
        let mut codes = [[zero; GROUP_WORDS]; CHAIN_GROUPS];
        for c in (0..out.columns()).step_by(LANES) {
            Product::new(weights, x, c, &mut padded).rows::<Q>(s, rows, &mut heads, &mut codes, out);
        }
    }
}

/// Asks for the first rows; the later ones are asked for while these are read.
#[inline(always)]
fn prefetch_rows(s: Avx2, bytes: &[u8]) {
    for line in (0..bytes.len()).step_by(64) {
        s.prefetch(bytes.as_ptr().wrapping_add(line));
    }
}

/// Sixteen weight rows.
struct Product<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    x: &'a Int8Rows<'a>,
    /// First column of the tile.
    c: usize,
    /// Columns, at most sixteen.
    lanes: usize,
}

/// One chain of an activation row.
#[derive(Clone, Copy)]
struct Chain<'a> {
    q: &'a [[[i8; 4]; GROUP_WORDS]],
    d: &'a [f32],
    sums: &'a [[i16; 2]],
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
        Product { bytes, row_bytes: weights.row_bytes(), x, c, lanes }
    }

    /// One activation row: codes are multiplied as they are unpacked.
    #[inline(always)]
    fn one_row<Q: Packed>(&self, s: Avx2, row: u32, heads: &mut Heads, out: &mut Tile<'_>) {
        let groups = self.x.k / GROUP_VALUES;
        for first in (0..groups).step_by(CHAIN_GROUPS) {
            let count = CHAIN_GROUPS.min(groups - first);
            let chain = self.chain(row, first, count);
            let mut sink = OneRow::<Q> { chain, acc: s.splat(0.0), format: PhantomData };
            unpack::<Q, _>(s, &self.weights::<Q>(first, count), count, heads, &mut sink);
            add_chain(s, first == 0, sink.acc, &mut out.row(0)[self.c..self.c + self.lanes]);
        }
    }

    /// Several activation rows: codes are unpacked once for all.
    #[inline(always)]
    fn rows<Q: Packed>(
        &self,
        s: Avx2,
        rows: &[u32],
        heads: &mut Heads,
        codes: &mut Codes,
        out: &mut Tile<'_>,
    ) {
        let groups = self.x.k / GROUP_VALUES;
        for first in (0..groups).step_by(CHAIN_GROUPS) {
            let count = CHAIN_GROUPS.min(groups - first);
            unpack::<Q, _>(s, &self.weights::<Q>(first, count), count, heads, codes);
            let panel = Panel { heads, codes, first, count };
            let (batches, rest) = rows.as_chunks::<BATCH_ROWS>();
            for (b, batch) in batches.iter().enumerate() {
                self.batch::<Q, BATCH_ROWS>(s, &panel, batch, b * BATCH_ROWS, out);
            }
            for (r, row) in rest.iter().enumerate() {
                let r = batches.len() * BATCH_ROWS + r;
                self.batch::<Q, 1>(s, &panel, std::array::from_ref(row), r, out);
            }
        }
    }

    /// The bytes of a chain.
    #[inline(always)]
    fn weights<Q: Packed>(&self, first: usize, count: usize) -> Rows<'a> {
        let block_groups = Q::BLOCK_VALUES / GROUP_VALUES;
        let at = first / block_groups * Q::BLOCK_BYTES;
        let chain_bytes = count / block_groups * Q::BLOCK_BYTES;
        Rows {
            bytes: &self.bytes[at..][..(LANES - 1) * self.row_bytes + chain_bytes],
            row_bytes: self.row_bytes,
            next: self.bytes.as_ptr().wrapping_add(LANES * (self.row_bytes + at)),
        }
    }

    /// A chain of an activation row.
    #[inline(always)]
    fn chain(&self, row: u32, first: usize, count: usize) -> Chain<'a> {
        let at = row as usize * (self.x.k / GROUP_VALUES) + first;
        Chain {
            q: &self.x.q.as_chunks::<4>().0.as_chunks().0[at..at + count],
            d: &self.x.d[at..at + count],
            sums: &self.x.sum16.as_chunks().0[at..at + count],
        }
    }

    /// Adds the chain to R rows of the tile, `r` on.
    #[inline(always)]
    fn batch<Q: Shape, const R: usize>(
        &self,
        s: Avx2,
        panel: &Panel<'_>,
        rows: &[u32; R],
        r: usize,
        out: &mut Tile<'_>,
    ) {
        let mut chains = [Chain { q: &[], d: &[], sums: &[] }; R];
        for (chain, &row) in chains.iter_mut().zip(rows) {
            *chain = self.chain(row, panel.first, panel.count);
        }
        let mut acc = [s.splat(0.0); R];
        for g in 0..panel.count {
            panel.add_group::<Q, R>(s, g, &chains, &mut acc);
        }
        for i in 0..R {
            let out = &mut out.row(r + i)[self.c..self.c + self.lanes];
            add_chain(s, panel.first == 0, acc[i], out);
        }
    }
}

/// The integer scale of each half of a group.
#[inline(always)]
fn scales<Q: Shape>(s: Avx2, heads: &Heads, g: usize) -> [I; 2] {
    match Q::SCALES {
        0 => [s.splat_pair(1); 2],
        1 => [heads.scales[g][0]; 2],
        _ => heads.scales[g],
    }
}

/// `acc` and the terms of a group with these sums of products: of each half where float scales have one each, else of both
/// in the first.
#[inline(always)]
fn add_terms<Q: Shape>(s: Avx2, heads: &Heads, g: usize, chain: &Chain<'_>, sums: [I; 2], acc: F) -> F {
    let b = block_of::<Q>(g);
    let d_a = s.splat(chain.d[g]);
    if Q::FLOAT_SCALE_PER_16 {
        // Codes with an offset have none of their own for each half, so it is taken from the sums of each.
        let mut acc = acc;
        for h in 0..2 {
            let offset = s.splat_i(Q::OFFSET.unwrap_or(0) * i32::from(chain.sums[g][h]));
            let sum = s.sub_i(sums[h], offset);
            acc = s.add(acc, s.mul(s.to_f(sum), s.mul(heads.d[b][h], d_a)));
        }
        return acc;
    }
    let [sum, _] = sums;
    let d = s.mul(heads.d[b][0], d_a);
    if Q::HAS_MIN {
        let minima = s.products_16(heads.pairs[g], s.splat_sums(&chain.sums[g]));
        let minimum = s.mul(s.to_f(minima), s.mul(heads.min[b], d_a));
        return s.add(acc, s.add(s.mul(s.to_f(sum), d), minimum));
    }
    if Q::OFFSET.is_some() {
        let offset = s.products_16(heads.pairs[g], s.splat_sums(&chain.sums[g]));
        return s.add(acc, s.mul(s.to_f(s.sub_i(sum, offset)), d));
    }
    s.add(acc, s.mul(s.to_f(sum), d))
}

/// Multiplies codes by one activation row.
struct OneRow<'a, Q> {
    chain: Chain<'a>,
    /// The sum of the terms so far.
    acc: F,
    format: PhantomData<Q>,
}

impl<Q: Shape> Sink for OneRow<'_, Q> {
    /// Of each half where that matters, else of both in the first.
    type Sum = [I; 2];

    #[inline(always)]
    fn begin(&self, s: Avx2) -> [I; 2] {
        [s.splat_i(0); 2]
    }

    #[inline(always)]
    fn put(&mut self, s: Avx2, heads: &Heads, sum: &mut [I; 2], g: usize, h: usize, codes: [I; 4]) {
        let words: &[_; 4] = self.chain.q[g].as_chunks().0.get(h).expect("two halves");
        let scale = scales::<Q>(s, heads, g)[h];
        let step = const { words_in_16_bits::<Q>() }.min(4);
        for first in (0..4).step_by(step) {
            let mut pairs = s.pairs(Q::SIGNED, codes[first], s.splat_word(&words[first]));
            for w in first + 1..first + step {
                pairs = s.add_16(pairs, s.pairs(Q::SIGNED, codes[w], s.splat_word(&words[w])));
            }
            let i = if Q::FLOAT_SCALE_PER_16 { h } else { 0 };
            sum[i] = s.add_i(sum[i], s.products_16(pairs, scale));
        }
    }

    #[inline(always)]
    fn end(&mut self, s: Avx2, heads: &Heads, sum: [I; 2], g: usize) {
        self.acc = add_terms::<Q>(s, heads, g, &self.chain, sum, self.acc);
    }
}

/// A chain of sixteen weight rows, unpacked.
struct Panel<'a> {
    heads: &'a Heads,
    codes: &'a Codes,
    /// Groups of the chain.
    first: usize,
    count: usize,
}

impl Panel<'_> {
    /// Adds the terms of a group with R activation rows.
    #[inline(always)]
    fn add_group<Q: Shape, const R: usize>(
        &self,
        s: Avx2,
        g: usize,
        chains: &[Chain<'_>; R],
        acc: &mut [F; R],
    ) {
        let scales = scales::<Q>(s, self.heads, g);
        let mut words = [&chains[0].q[g]; R];
        for r in 0..R {
            words[r] = &chains[r].q[g];
        }
        let mut sums = [[s.splat_i(0); 2]; R];
        if Q::SCALES == 2 || Q::FLOAT_SCALE_PER_16 {
            self.add_words::<Q, R>(s, g, 0..4, scales[0], &words, &mut sums);
            self.add_words::<Q, R>(s, g, 4..8, scales[1], &words, &mut sums);
        } else {
            self.add_words::<Q, R>(s, g, 0..8, scales[0], &words, &mut sums);
        }
        for r in 0..R {
            acc[r] = add_terms::<Q>(s, self.heads, g, &chains[r], sums[r], acc[r]);
        }
    }

    /// Adds the products of some words of a group, times their scale.
    #[inline(always)]
    fn add_words<Q: Shape, const R: usize>(
        &self,
        s: Avx2,
        g: usize,
        words: std::ops::Range<usize>,
        scale: I,
        activations: &[&[[i8; 4]; GROUP_WORDS]; R],
        sums: &mut [[I; 2]; R],
    ) {
        let i = if Q::FLOAT_SCALE_PER_16 { words.start / 4 } else { 0 };
        let step = const { words_in_16_bits::<Q>() }.min(words.len());
        for first in words.step_by(step) {
            let mut pairs = [s.splat_i(0); R];
            for w in first..first + step {
                let codes = self.codes[g][w];
                for r in 0..R {
                    let products = s.pairs(Q::SIGNED, codes, s.splat_word(&activations[r][w]));
                    pairs[r] = if w == first { products } else { s.add_16(pairs[r], products) };
                }
            }
            for r in 0..R {
                sums[r][i] = s.add_i(sums[r][i], s.products_16(pairs[r], scale));
            }
        }
    }
}
