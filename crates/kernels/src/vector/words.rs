//! Panels of sixteen weight rows, filled from blocks as they lie.
//!
//! Lanes are weight rows, so that neither the sums of products nor the floats behind them need a shuffle. Bytes are
//! transposed *before* they are unpacked, word by word of four bytes: a word of nibbles is two words of codes, so this halves
//! the shuffles. Whatever bits of a block lie in the same places in each row (scales, high bits) comes out of the same
//! transposition and is unpacked for sixteen rows at once.

use gguf::TensorType;

use super::lie::{Rows, Source};
use super::matmul_int8::{CHAIN_GROUPS, LANES, Shape, offset};
use super::packed::{Packed, chain_scales};
use super::simd::Simd;
use crate::GROUP_VALUES;
use crate::quant::codebooks::IQ4_NL_VALUES;
use crate::quant::{Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// Words of four codes in a group.
pub(super) const GROUP_WORDS: usize = GROUP_VALUES / 4;
/// Groups that are unpacked at once: those of the largest blocks.
pub(super) const OCTET: usize = 8;

/// What unpacking sixteen rows at once takes besides [`Products`].
///
/// A **word** is four bytes of each of sixteen rows. **Scales** are what products are multiplied by, one per row: twice in 16
/// bits on AVX2, elsewhere in 32 bits. **Pairs** are two numbers of 16 bits per row.
pub(super) trait Words: Products {
    /// Bytes `at .. at + 16` of each row, as four words.
    fn transposed_words(self, rows: &Rows<'_>, at: usize) -> [Self::B; 4];
    /// The high half of each word of a, then the low half of that of b.
    fn straddling(self, a: Self::B, b: Self::B) -> Self::B;
    /// Floats of the half-precision bits in the low half of each word.
    fn floats_of_low(self, x: Self::B) -> Self::F;
    /// The same of the high half.
    fn floats_of_high(self, x: Self::B) -> Self::F;
    /// Bits `shift .. shift + 8` of each byte that are in `mask`; where the shift goes beyond a byte, the mask must leave out
    /// the neighbour's bits.
    fn bits(self, x: Self::B, shift: i32, mask: u8) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    fn sub_bytes(self, a: Self::B, b: u8) -> Self::B;
    /// Byte `byte` of each word in all four.
    fn spread(self, x: Self::B, byte: usize) -> Self::B;
    /// Codes of half `h` of a group of 32, with 16 added where the bit of the code's number in the word `high` is set.
    fn with_fifth_bits(self, codes: [Self::B; 4], high: Self::B, h: usize) -> [Self::B; 4];

    /// Scales from byte `byte` of each word, unsigned.
    fn scales(self, x: Self::B, byte: usize) -> Self::I;
    /// Scales from byte `byte` of each word, signed.
    fn scales_signed(self, x: Self::B, byte: usize) -> Self::I;
    fn load_scales(self, x: &[i16; 16]) -> Self::I;
    /// Pairs from two bytes of each word, unsigned.
    fn pairs(self, x: Self::B, bytes: [usize; 2]) -> Self::I;
    /// Pairs from two bytes of each word, signed and times `2^shift`.
    fn pairs_signed(self, x: Self::B, bytes: [usize; 2], shift: i32) -> Self::I;
    fn load_pairs(self, x: &[i16; 32]) -> Self::I;
    /// The same number in all halves of lanes.
    fn splat_pair(self, x: i16) -> Self::I;
    /// The sum of the products of a pair with one pair, in 32 bits.
    fn pair_products(self, pairs: Self::I, x: &[i16; 2]) -> Self::I;
}

/// Sums of products of codes as [`Unpack`] gives them.
pub(super) trait Products: Simd {
    /// `sum` plus the products of half a group; times `scale` in formats that have one per half.
    fn add_half<Q: Shape>(
        self,
        sum: Self::I,
        codes: &[Self::B; 4],
        words: &[[i8; 4]; 4],
        scale: Self::I,
    ) -> Self::I;
    /// What [`Products::add_half`] summed up of a group, times its scale if that has not been done.
    fn scaled<Q: Shape>(self, sum: Self::I, scale: Self::I) -> Self::I;
    /// The sums of products of a group with R activation rows, times their scales: of each half where float scales have one
    /// each, else of both in the first.
    fn group_sums<Q: Shape, const R: usize>(
        self,
        codes: &[Self::B; GROUP_WORDS],
        scales: [Self::I; 2],
        words: &[&[[i8; 4]; GROUP_WORDS]; R],
    ) -> [[Self::I; 2]; R];
}

/// What up to eight groups of sixteen weight rows have besides codes.
pub(super) struct Heads<S: Simd> {
    /// Float scales of a block; the second of formats that have one per 16 values.
    pub d: [[S::F; 2]; OCTET],
    /// Float factors of the minima of a block.
    pub min: [S::F; OCTET],
    /// Integer scales of each half of a group; of formats that have them.
    pub scales: [[S::I; 2]; OCTET],
    /// Integer minima of both halves of a group, or what a unit of activations adds to the sum of products for the offset of
    /// the codes; pairs.
    pub pairs: [S::I; OCTET],
}

impl<S: Words> Heads<S> {
    #[inline(always)]
    pub(super) fn zeroed(s: S) -> Heads<S> {
        let zero = s.splat_i(0);
        Heads {
            d: [[s.splat(0.0); 2]; OCTET],
            min: [s.splat(0.0); OCTET],
            scales: [[zero; 2]; OCTET],
            pairs: [zero; OCTET],
        }
    }
}

/// Where codes go, encoded as [`Shape`] says: groups in ascending order, or several of them side by side.
pub(super) trait Sink<S: Words> {
    /// What is known of a group while its codes come.
    type Sum: Copy;
    /// Before the first codes of a group.
    fn begin(&self, s: S) -> Self::Sum;
    /// The four words of half `h` of group `g`.
    fn put(&mut self, s: S, heads: &Heads<S>, sum: &mut Self::Sum, g: usize, h: usize, codes: [S::B; 4]);
    /// After the last codes of a group; in ascending order.
    fn end(&mut self, s: S, heads: &Heads<S>, sum: Self::Sum, g: usize);
}

/// Codes of up to eight groups of sixteen rows, word by word.
pub(super) type Codes<S> = [[<S as Simd>::B; GROUP_WORDS]; OCTET];

impl<S: Words> Sink<S> for Codes<S> {
    type Sum = ();

    #[inline(always)]
    fn begin(&self, _s: S) {}

    #[inline(always)]
    fn put(&mut self, _s: S, _heads: &Heads<S>, _sum: &mut (), g: usize, h: usize, codes: [S::B; 4]) {
        self[g][4 * h..4 * h + 4].copy_from_slice(&codes);
    }

    #[inline(always)]
    fn end(&mut self, _s: S, _heads: &Heads<S>, _sum: (), _g: usize) {}
}

/// The same for each of `$count` numbers from 0 on; written out for eight, so that addresses are constants.
macro_rules! each_group {
    ($g:ident in $count:expr => $body:block) => {
        if $count == OCTET {
            each!($g in 0 1 2 3 4 5 6 7 => $body);
        } else {
            for $g in 0..$count $body
        }
    };
}

/// A format of which sixteen rows are unpacked at once.
pub(super) trait Unpack: Shape {
    /// Unpacks `count` groups, at most eight and whole blocks.
    fn unpack<S: Words, R: Source<S>, K: Sink<S>>(
        s: S,
        rows: &R,
        count: usize,
        heads: &mut Heads<S>,
        sink: &mut K,
    );
}

/// [`Unpack`] by functions for blocks of one group, or of eight.
macro_rules! unpack_by {
    (groups $($format:ident: $unpack:ident)*) => {$(
        impl Unpack for $format {
            #[inline(always)]
            fn unpack<S: Words, R: Source<S>, K: Sink<S>>(
                s: S,
                rows: &R,
                count: usize,
                heads: &mut Heads<S>,
                sink: &mut K,
            ) {
                each_group!(g in count => {
                    group_head::<S, Self, R>(s, rows, g, heads);
                    $unpack::<S, Self, R, K>(s, rows, g, heads, sink);
                });
                rows.ask_rest(s);
            }
        }
    )*};
    (octets $($format:ident: $unpack:ident)*) => {$(
        impl Unpack for $format {
            #[inline(always)]
            fn unpack<S: Words, R: Source<S>, K: Sink<S>>(
                s: S,
                rows: &R,
                _count: usize,
                heads: &mut Heads<S>,
                sink: &mut K,
            ) {
                $unpack(s, rows, heads, sink);
                rows.ask_rest(s);
            }
        }
    )*};
}

unpack_by!(groups
    Q4_0: nibble_group Q4_1: nibble_group Q5_0: nibble_group Q5_1: nibble_group Iq4Nl: nibble_group Q8_0: byte_group);
unpack_by!(octets Q2K: q2_k Q3K: q3_k Q4K: q4_k Q5K: q5_k Q6K: q6_k Iq4Xs: iq4_xs);

/// Formats that are unpacked row by row.
impl<Q: Packed> Unpack for Q {
    #[inline(always)]
    fn unpack<S: Words, R: Source<S>, K: Sink<S>>(
        s: S,
        rows: &R,
        count: usize,
        heads: &mut Heads<S>,
        sink: &mut K,
    ) {
        by_row::<S, Q, R, K>(s, rows, count, heads, sink);
        rows.ask_rest(s);
    }
}

#[inline(always)]
fn transposed<S: Simd, F: Packed>(s: S, bits: &[[u16; 16]; 16]) -> [S::F; 16] {
    let mut out = [s.splat(0.0); 16];
    for i in 0..16 {
        out[i] = F::scales(s, &bits[i]);
    }
    s.transpose(&mut out);
    out
}

/// Where the heads of a group lie that are those of its block. Where halves have float scales a group is its own block.
#[inline(always)]
pub(super) fn block_of<Q: Shape>(g: usize) -> usize {
    if Q::FLOAT_SCALE_PER_16 { g } else { g / (Q::BLOCK_VALUES / GROUP_VALUES) }
}

/// The scale of a block of one group, and its minimum.
#[inline(always)]
fn group_head<S: Words, Q: Shape, R: Source<S>>(s: S, rows: &R, g: usize, heads: &mut Heads<S>) {
    let at = g * Q::BLOCK_BYTES;
    if Q::HAS_MIN {
        let [head, ..] = rows.near_words(s, at);
        heads.d[g][0] = s.floats_of_low(head);
        heads.min[g] = s.floats_of_high(head);
    } else {
        heads.d[g][0] = rows.leading_float(s, at);
    }
    set_constant_pair::<S, Q>(s, g, heads);
}

/// Minima that are all 1, or the offset of codes without integer scales.
#[inline(always)]
fn set_constant_pair<S: Words, Q: Shape>(s: S, g: usize, heads: &mut Heads<S>) {
    if Q::HAS_MIN {
        heads.pairs[g] = s.splat_pair(1);
    } else if offset::<S, Q>() != 0 {
        heads.pairs[g] = s.splat_pair(offset::<S, Q>() as i16);
    }
}

/// Bits `shift .. shift + 8` of four words that are in `mask`; see [`Words::bits`].
#[inline(always)]
fn bits<S: Words>(s: S, words: &[S::B; 4], shift: i32, mask: u8) -> [S::B; 4] {
    let mut out = *words;
    for j in 0..4 {
        out[j] = s.bits(words[j], shift, mask);
    }
    out
}

#[inline(always)]
fn or<S: Words>(s: S, a: [S::B; 4], b: [S::B; 4]) -> [S::B; 4] {
    [s.or(a[0], b[0]), s.or(a[1], b[1]), s.or(a[2], b[2]), s.or(a[3], b[3])]
}

/// A group whose block ends with 16 bytes of nibbles, after 32 fifth bits in formats that have them.
#[inline(always)]
fn nibble_group<S: Words, Q: Shape, R: Source<S>, K: Sink<S>>(
    s: S,
    rows: &R,
    g: usize,
    heads: &Heads<S>,
    sink: &mut K,
) {
    let at = g * Q::BLOCK_BYTES;
    let words = rows.words(s, at + Q::BLOCK_BYTES - 16);
    let mut sum = sink.begin(s);
    each!(h in 0 1 => {
        let codes = bits(s, &words, 4 * h as i32, 15);
        let codes = match Q::TYPE {
            TensorType::IQ4_NL => looked_up(s, codes),
            // The 32 bits end two bytes into a word, or between two.
            TensorType::Q5_0 => s.with_fifth_bits(codes, rows.word_after_float(s, at), h),
            TensorType::Q5_1 => s.with_fifth_bits(codes, rows.near_words(s, at)[1], h),
            _ => codes,
        };
        sink.put(s, heads, &mut sum, g, h, codes);
    });
    sink.end(s, heads, sum, g);
}

/// A group of signed bytes behind a scale.
#[inline(always)]
fn byte_group<S: Words, Q: Shape, R: Source<S>, K: Sink<S>>(
    s: S,
    rows: &R,
    g: usize,
    heads: &Heads<S>,
    sink: &mut K,
) {
    let at = g * Q::BLOCK_BYTES + 2;
    let mut sum = sink.begin(s);
    each!(h in 0 1 => {
        let codes = signed(s, rows.words(s, at + 16 * h));
        sink.put(s, heads, &mut sum, g, h, codes);
    });
    sink.end(s, heads, sum, g);
}

#[inline(always)]
fn looked_up<S: Words>(s: S, x: [S::B; 4]) -> [S::B; 4] {
    let table = &IQ4_NL_VALUES;
    signed(s, [s.lookup(x[0], table), s.lookup(x[1], table), s.lookup(x[2], table), s.lookup(x[3], table)])
}

#[inline(always)]
fn signed<S: Words>(s: S, x: [S::B; 4]) -> [S::B; 4] {
    [s.signed_b(x[0]), s.signed_b(x[1]), s.signed_b(x[2]), s.signed_b(x[3])]
}

/// The float scales and integer scales and minima that Q4_K and Q5_K begin with.
#[inline(always)]
fn k_head<S: Words, R: Source<S>>(s: S, rows: &R, heads: &mut Heads<S>) {
    let [floats, scales, minima, rest] = rows.words(s, 0);
    heads.d[0][0] = s.floats_of_low(floats);
    heads.min[0] = s.negate(s.floats_of_high(floats));
    let of_scales = [s.bits(scales, 0, 63), s.or(s.bits(rest, 0, 15), s.bits(scales, 2, 48))];
    let of_minima = [s.bits(minima, 0, 63), s.or(s.bits(rest, 4, 15), s.bits(minima, 2, 48))];
    for i in 0..8 {
        heads.scales[i][0] = s.scales(of_scales[i / 4], i % 4);
        heads.pairs[i] = s.pairs(of_minima[i / 4], [i % 4; 2]);
    }
}

#[inline(always)]
fn q4_k<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    k_head(s, rows, heads);
    each!(i in 0 1 2 3 => {
        let (g, at) = (2 * i, 16 + 32 * i);
        let mut sums = [sink.begin(s); 2];
        each!(h in 0 1 => {
            let words = rows.words(s, at + 16 * h);
            sink.put(s, heads, &mut sums[0], g, h, bits(s, &words, 0, 15));
            sink.put(s, heads, &mut sums[1], g + 1, h, bits(s, &words, 4, 15));
        });
        sink.end(s, heads, sums[0], g);
        sink.end(s, heads, sums[1], g + 1);
    });
}

#[inline(always)]
fn q5_k<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    k_head(s, rows, heads);
    let high = [rows.words(s, 16), rows.words(s, 32)];
    each!(i in 0 1 2 3 => {
        let (g, at, bit) = (2 * i, 48 + 32 * i, 2 * i as i32);
        let mut sums = [sink.begin(s); 2];
        each!(h in 0 1 => {
            let words = rows.words(s, at + 16 * h);
            let codes = or(s, bits(s, &words, 0, 15), bits(s, &high[h], bit - 4, 16));
            sink.put(s, heads, &mut sums[0], g, h, codes);
            let codes = or(s, bits(s, &words, 4, 15), bits(s, &high[h], bit - 3, 16));
            sink.put(s, heads, &mut sums[1], g + 1, h, codes);
        });
        sink.end(s, heads, sums[0], g);
        sink.end(s, heads, sums[1], g + 1);
    });
}

/// Scales of sixteen values each, one byte each in four words; what a unit of activations adds is them times `2^shift`.
#[inline(always)]
fn sixteen_scales<S: Words>(s: S, scales: [S::B; 4], shift: i32, heads: &mut Heads<S>) {
    for g in 0..8 {
        let (word, byte) = (scales[g / 2], 2 * (g % 2));
        heads.scales[g] = [s.scales_signed(word, byte), s.scales_signed(word, byte + 1)];
        heads.pairs[g] = s.pairs_signed(word, [byte, byte + 1], shift);
    }
}

#[inline(always)]
fn end_four<S: Words, K: Sink<S>>(s: S, heads: &Heads<S>, sink: &mut K, sums: [K::Sum; 4], g: usize) {
    each!(q in 0 1 2 3 => {
        sink.end(s, heads, sums[q], g + q);
    });
}

#[inline(always)]
fn q6_k<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    heads.d[0][0] = rows.trailing_float(s, 208);
    sixteen_scales(s, rows.words(s, 192), 5, heads);
    each!(half in 0 1 => {
        let g = 4 * half;
        let mut sums = [sink.begin(s); 4];
        let high = [rows.words(s, 128 + 32 * half), rows.words(s, 144 + 32 * half)];
        // Two groups at a time: with four, sums do not stay in the registers of AVX2.
        each!(q in 0 1 => {
            each!(h in 0 1 => {
                let low = rows.words(s, 64 * half + 32 * q + 16 * h);
                let codes = or(s, bits(s, &low, 0, 15), bits(s, &high[h], 2 * q as i32 - 4, 48));
                sink.put(s, heads, &mut sums[q], g + q, h, codes);
                let codes = or(s, bits(s, &low, 4, 15), bits(s, &high[h], 2 * q as i32, 48));
                sink.put(s, heads, &mut sums[2 + q], g + 2 + q, h, codes);
            });
        });
        end_four(s, heads, sink, sums, g);
    });
}

#[inline(always)]
fn q2_k<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    let [.., floats] = rows.near_words(s, 68);
    heads.d[0][0] = s.floats_of_low(floats);
    heads.min[0] = s.negate(s.floats_of_high(floats));
    let numbers = rows.words(s, 0);
    for g in 0..8 {
        let byte = 2 * (g % 2);
        let [scales, minima] = s.nibbles(numbers[g / 2]);
        heads.scales[g] = [s.scales(scales, byte), s.scales(scales, byte + 1)];
        heads.pairs[g] = s.pairs(minima, [byte, byte + 1]);
    }
    each!(half in 0 1 => {
        let g = 4 * half;
        let mut sums = [sink.begin(s); 4];
        each!(h in 0 1 => {
            let words = rows.words(s, 16 + 32 * half + 16 * h);
            each!(q in 0 1 2 3 => {
                sink.put(s, heads, &mut sums[q], g + q, h, bits(s, &words, 2 * q as i32, 3));
            });
        });
        end_four(s, heads, sink, sums, g);
    });
}

#[inline(always)]
fn q3_k<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    heads.d[0][0] = rows.trailing_float(s, 108);
    let [_, low0, low1, high] = rows.words(s, 92);
    let mut scales = [low0; 4];
    for i in 0..4 {
        let low = s.bits(if i % 2 == 0 { low0 } else { low1 }, 4 * (i / 2) as i32, 15);
        scales[i] = s.sub_bytes(s.or(low, s.bits(high, 2 * i as i32 - 4, 48)), 32);
    }
    sixteen_scales(s, scales, 2, heads);
    let high = [rows.words(s, 0), rows.words(s, 16)];
    each!(half in 0 1 => {
        let g = 4 * half;
        let mut sums = [sink.begin(s); 4];
        each!(h in 0 1 => {
            let words = rows.words(s, 32 + 32 * half + 16 * h);
            each!(q in 0 1 2 3 => {
                let bit = (4 * half + q) as i32;
                let codes = or(s, bits(s, &words, 2 * q as i32, 3), bits(s, &high[h], bit - 2, 4));
                sink.put(s, heads, &mut sums[q], g + q, h, codes);
            });
        });
        end_four(s, heads, sink, sums, g);
    });
}

#[inline(always)]
fn iq4_xs<S: Words, R: Source<S>, K: Sink<S>>(s: S, rows: &R, heads: &mut Heads<S>, sink: &mut K) {
    let [head, low, ..] = rows.words(s, 0);
    heads.d[0][0] = s.floats_of_low(head);
    for i in 0..8 {
        // Two low bits of byte i / 2, two high ones of byte 2 + i / 4.
        let low = s.bits(s.spread(low, i / 2), 4 * (i % 2) as i32, 15);
        let high = s.bits(s.spread(head, 2 + i / 4), 2 * (i % 4) as i32 - 4, 48);
        let scale = s.sub_bytes(s.or(low, high), 32);
        heads.scales[i][0] = s.scales_signed(scale, 0);
        if S::SIGNED_BIAS != 0 {
            const { assert!(S::SIGNED_BIAS == 0 || S::SIGNED_BIAS == 1 << 7) };
            heads.pairs[i] = s.pairs_signed(scale, [0, 1], 7);
        }
    }
    each!(g in 0 1 2 3 4 5 6 7 => {
        let words = rows.words(s, 8 + 16 * g);
        let mut sum = sink.begin(s);
        each!(h in 0 1 => {
            let codes = looked_up(s, bits(s, &words, 4 * h as i32, 15));
            sink.put(s, heads, &mut sum, g, h, codes);
        });
        sink.end(s, heads, sum, g);
    });
}

/// Any format, row by row: rows are unpacked before they are transposed.
#[inline(always)]
fn by_row<S: Words, Q: Packed, R: Source<S>, K: Sink<S>>(
    s: S,
    rows: &R,
    count: usize,
    heads: &mut Heads<S>,
    sink: &mut K,
) {
    let mut codes = [[[0u8; 64]; LANES]; OCTET / 2];
    let (mut d, mut second) = ([[0u16; CHAIN_GROUPS]; LANES], [[0u16; CHAIN_GROUPS]; LANES]);
    let (mut scales, mut pairs) = ([[[0i16; LANES]; 2]; OCTET], [[0i16; 2 * LANES]; OCTET]);
    for lane in 0..LANES {
        let chain = rows.all_of_row(lane);
        for (vector, codes) in Q::codes(s, chain, count, OCTET).into_iter().zip(&mut codes) {
            s.store_b(vector, &mut codes[lane]);
        }
        chain_scales::<Q>(chain, count, &mut d[lane], &mut second[lane]);
        if Q::SCALES > 0 {
            let integers = Q::integers(s, chain);
            for g in 0..count {
                for h in 0..2 {
                    let i = if Q::SCALES == 1 { g } else { 2 * g + h };
                    let scale = i16::from(integers.scales[0][i]);
                    scales[g][h][lane] = scale;
                    pairs[g][2 * lane + h] = scale * offset::<S, Q>() as i16;
                }
            }
        }
    }
    let d = transposed::<S, Q>(s, &d);
    let second = if Q::FLOAT_SCALE_PER_16 { transposed::<S, Q>(s, &second) } else { d };
    for g in 0..count {
        let b = block_of::<Q>(g);
        heads.d[b] = [d[g], second[g]];
        if Q::SCALES > 0 {
            heads.scales[g] = [s.load_scales(&scales[g][0]), s.load_scales(&scales[g][1])];
            heads.pairs[g] = s.load_pairs(&pairs[g]);
        } else {
            set_constant_pair::<S, Q>(s, g, heads);
        }
    }
    let mut words = [[[0; 64]; LANES]; OCTET / 2];
    for (codes, words) in codes.iter().zip(&mut words) {
        s.interleave(false, codes.each_ref(), words);
    }
    for g in 0..count {
        let mut sum = sink.begin(s);
        each!(h in 0 1 => {
            let (vector, word) =
                if Q::QUADS { (g / 4 * 2 + h, g % 4 * 4) } else { (g / 2, g % 2 * 8 + 4 * h) };
            let words = &words[vector][word..word + 4];
            let words = [s.load_b(&words[0]), s.load_b(&words[1]), s.load_b(&words[2]), s.load_b(&words[3])];
            sink.put(s, heads, &mut sum, g, h, words);
        });
        sink.end(s, heads, sum, g);
    }
}
