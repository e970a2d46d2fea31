//! How sixteen weight rows lie, and what of them is asked for before it is read.

use std::cell::Cell;
use std::hint::black_box;
use std::marker::PhantomData;

use super::matmul_int8::{LANES, Shape};
use super::simd::Simd;
use super::words::Words;
use crate::interleave::place;
use crate::table::WeightRows;

/// How far ahead of what is read interleaved rows are asked for: some time of a memory access at full speed, and few enough
/// (with 28 to 52 KiB a Zen 4 got slower than without).
const AHEAD_BYTES: usize = 4096;
/// How many times sixteen rows ahead bytes are asked for.
pub(super) const AHEAD: usize = 2;

/// How sixteen rows lie.
pub(super) trait Lie {
    /// Bytes of rows of a format that lie so.
    type Source<'a, S: Words, Q: Shape>: Source<S>;
    /// The `len` bytes from `at` on of each of sixteen rows of `row_bytes`. At `later` lies what is read some sixteen rows
    /// later.
    fn source<S: Words, Q: Shape>(
        rows: &[u8],
        row_bytes: usize,
        at: usize,
        len: usize,
        later: Option<*const u8>,
    ) -> Self::Source<'_, S, Q>;
    /// Asks for what is read first and next, as far as that is of use.
    fn prefetch<S: Simd>(s: S, weights: &WeightRows<'_>);
}

/// One after another, as in the file.
pub(super) struct InRows;

/// As [`crate::interleave`] lays them. Lines are asked for as earlier ones are read if `ASKS`.
pub(super) struct SideBySide<const ASKS: bool>;

/// Where up to eight groups of sixteen rows come from. Offsets are those of a row's bytes.
pub(super) trait Source<S: Words> {
    /// Bytes `at .. at + 16` of each row, as four words. Between the words of a block and `at` lie whole words.
    fn near_words(&self, s: S, at: usize) -> [S::B; 4];
    /// Asks for bytes of later rows, as many as `bytes` of these.
    fn ask(&self, s: S, bytes: usize);
    /// Asks for what was not asked for yet of as many bytes of later rows as these have.
    fn ask_rest(&self, s: S);
    /// The half-precision number in the two bytes from `at` on, with which a block begins; 14 more follow.
    fn leading_float(&self, s: S, at: usize) -> S::F;
    /// The half-precision number in the two bytes from `at` on, with which a block ends; 14 more lie before it.
    fn trailing_float(&self, s: S, at: usize) -> S::F;
    /// The word behind the leading float at `at`.
    fn word_after_float(&self, s: S, at: usize) -> S::B;
    /// All bytes of a row, where rows lie as in the file.
    fn all_of_row(&self, lane: usize) -> &[u8];

    /// [`Source::near_words`], asking for as many bytes of later rows.
    #[inline(always)]
    fn words(&self, s: S, at: usize) -> [S::B; 4] {
        self.ask(s, 16);
        self.near_words(s, at)
    }
}

/// What to ask for while sixteen rows are read. That many at a time are more streams than the processor foresees, and a line
/// that nobody asked for takes as long as dozens of others.
pub(super) struct Ahead {
    later: *const u8,
    /// Bytes of a row that are read.
    len: usize,
    /// How many bytes of each later row have been asked for.
    asked: Cell<usize>,
}

impl Ahead {
    /// Where no later rows are known these are asked for, which are here: a branch would cut the block of instructions in two,
    /// and the compiler, which moves sums across that but not loads, would load the words of all groups first.
    #[inline(always)]
    fn new(these: &[u8], at: usize, len: usize, later: Option<*const u8>) -> Ahead {
        let later = later.map_or(these.as_ptr(), |later| later.wrapping_add(LANES * at));
        Ahead { later: black_box(later), len, asked: Cell::new(0) }
    }

    /// Asks for bytes of later rows, as many as are read of these, in the order of addresses.
    #[inline(always)]
    fn ask<S: Simd>(&self, s: S, bytes: usize) {
        let asked = self.asked.get();
        let until = (asked + bytes).min(self.len);
        for line in (LANES * asked..LANES * until).step_by(64) {
            s.prefetch(self.later.wrapping_add(line));
        }
        self.asked.set(until);
    }
}

/// Rows as they lie in the file.
pub(super) struct Rows<'a> {
    /// Ends with the last row's groups.
    bytes: &'a [u8],
    row_bytes: usize,
    /// The groups of rows 0, 4, 8 and 12, and three times the distance of rows: what addresses of all rows can be made of
    /// without arithmetic, with few registers.
    quarters: [*const u8; 4],
    three_rows: usize,
    ahead: Ahead,
}

impl Rows<'_> {
    /// Where the N bytes from `at` on of row `4 q + i` begin.
    #[inline(always)]
    pub(super) fn row<const N: usize>(&self, q: usize, i: usize, at: usize) -> *const u8 {
        assert!(at + N <= self.ahead.len);
        let rows = match i {
            3 => self.three_rows,
            i => i * self.row_bytes,
        };
        self.quarters[q].wrapping_add(rows).wrapping_add(at)
    }
}

impl Lie for InRows {
    type Source<'a, S: Words, Q: Shape> = Rows<'a>;

    /// The first sixteen rows. Those from the third sixteen on are asked for while earlier ones are read; the second sixteen
    /// are not: asking for both at the start made tiles slower.
    #[inline(always)]
    fn prefetch<S: Simd>(s: S, weights: &WeightRows<'_>) {
        if weights.asked() {
            return;
        }
        let bytes = weights.slice(0, LANES.min(weights.rows())).bytes;
        for line in (0..bytes.len()).step_by(64) {
            s.prefetch(bytes.as_ptr().wrapping_add(line));
        }
    }

    #[inline(always)]
    fn source<S: Words, Q: Shape>(
        rows: &[u8],
        row_bytes: usize,
        at: usize,
        len: usize,
        later: Option<*const u8>,
    ) -> Rows<'_> {
        let bytes = &rows[at..][..(LANES - 1) * row_bytes + len];
        let first = bytes.as_ptr();
        // Black boxes, for the compiler would rather keep sixteen addresses, most of them in memory.
        let quarter = |q: usize| black_box(first.wrapping_add(4 * q * row_bytes));
        Rows {
            bytes,
            row_bytes,
            quarters: [first, quarter(1), quarter(2), quarter(3)],
            three_rows: black_box(3 * row_bytes),
            ahead: Ahead::new(bytes, at, len, later),
        }
    }
}

impl<S: Words> Source<S> for Rows<'_> {
    #[inline(always)]
    fn near_words(&self, s: S, at: usize) -> [S::B; 4] {
        s.transposed_words(self, at)
    }

    #[inline(always)]
    fn ask(&self, s: S, bytes: usize) {
        self.ahead.ask(s, bytes);
    }

    #[inline(always)]
    fn ask_rest(&self, s: S) {
        self.ahead.ask(s, self.ahead.len);
    }

    #[inline(always)]
    fn leading_float(&self, s: S, at: usize) -> S::F {
        s.floats_of_low(self.near_words(s, at)[0])
    }

    #[inline(always)]
    fn trailing_float(&self, s: S, at: usize) -> S::F {
        s.floats_of_high(self.near_words(s, at - 14)[3])
    }

    #[inline(always)]
    fn word_after_float(&self, s: S, at: usize) -> S::B {
        let [first, second, ..] = self.near_words(s, at);
        s.straddling(first, second)
    }

    #[inline(always)]
    fn all_of_row(&self, lane: usize) -> &[u8] {
        &self.bytes[lane * self.row_bytes..][..self.ahead.len]
    }
}

/// Rows that [`crate::interleave`] has put side by side.
pub(super) struct Interleaved<'a, Q, const ASKS: bool> {
    /// Bytes from 16 times a [`place`] on are those of all rows from that part on, word by word and float by float.
    bytes: &'a [u8],
    format: PhantomData<Q>,
}

impl<'a, Q: Shape, const ASKS: bool> Interleaved<'a, Q, ASKS> {
    /// The N bytes of the part at `at`.
    #[inline(always)]
    fn side_by_side<const N: usize>(&self, at: usize) -> &'a [u8; N] {
        let at = place(Q::TYPE, at);
        self.bytes[LANES * at..].first_chunk().expect("as many bytes as the block has for sixteen rows")
    }
}

impl<const ASKS: bool> Lie for SideBySide<ASKS> {
    type Source<'a, S: Words, Q: Shape> = Interleaved<'a, Q, ASKS>;

    /// One stream from front to back, of which lines are asked for as earlier ones are read. Here is asked for where it goes on if
    /// that is elsewhere.
    #[inline(always)]
    fn prefetch<S: Simd>(s: S, weights: &WeightRows<'_>) {
        let Some(next) = weights.next_elsewhere() else { return };
        for line in (0..next.len().min(AHEAD_BYTES)).step_by(64) {
            s.prefetch(next.as_ptr().wrapping_add(line));
        }
    }

    #[inline(always)]
    fn source<S: Words, Q: Shape>(
        rows: &[u8],
        _row_bytes: usize,
        at: usize,
        len: usize,
        _later: Option<*const u8>,
    ) -> Interleaved<'_, Q, ASKS> {
        Interleaved { bytes: &rows[LANES * at..][..LANES * len], format: PhantomData }
    }
}

impl<S: Words, Q: Shape, const ASKS: bool> Source<S> for Interleaved<'_, Q, ASKS> {
    #[inline(always)]
    fn near_words(&self, s: S, at: usize) -> [S::B; 4] {
        let word = |j: usize| {
            let line = self.side_by_side(at + 4 * j);
            // Some processors foresee a single stream well, others give it half the bandwidth (Q5_0 and Q6_K on a Zen 5).
            if ASKS {
                s.prefetch(line.as_ptr().wrapping_add(AHEAD_BYTES));
            }
            s.load_b(line)
        };
        [word(0), word(1), word(2), word(3)]
    }

    #[inline(always)]
    fn ask(&self, _s: S, _bytes: usize) {}

    #[inline(always)]
    fn ask_rest(&self, _s: S) {}

    #[inline(always)]
    fn leading_float(&self, s: S, at: usize) -> S::F {
        s.load_f16_bytes(self.side_by_side(at))
    }

    #[inline(always)]
    fn trailing_float(&self, s: S, at: usize) -> S::F {
        s.load_f16_bytes(self.side_by_side(at))
    }

    #[inline(always)]
    fn word_after_float(&self, s: S, at: usize) -> S::B {
        s.load_b(self.side_by_side(at + 2))
    }

    fn all_of_row(&self, _: usize) -> &[u8] {
        unreachable!("formats that are unpacked row by row are not interleaved")
    }
}
