//! Panels of sixteen weight rows, filled from blocks as they lie.
//!
//! AVX2 has no sums of four products, so lanes must be weight rows for the sums to need no shuffles. Bytes are transposed
//! *before* they are unpacked, word by word of four bytes: a word of nibbles is two words of codes, so this halves the
//! shuffles. Whatever bits of a block lie in the same places in each row (scales, high bits) comes out of the same
//! transposition and is unpacked for sixteen rows at once.

use core::arch::x86_64::*;

use gguf::TensorType;

use super::{Avx2, F, I};
use crate::GROUP_VALUES;
use crate::quant::codebooks::IQ4_NL_VALUES;
use crate::vector::matmul_int8::{CHAIN_GROUPS, LANES, Shape};
use crate::vector::packed::{Packed, chain_scales};
use crate::vector::panel::transposed;
use crate::vector::simd::Simd;

/// Words of four codes in a group.
pub(super) const GROUP_WORDS: usize = GROUP_VALUES / 4;

/// What a chain of sixteen weight rows has besides codes. Vectors hold one word of four bytes, or one float, of each row.
pub(super) struct Heads {
    /// Float scales of a block; the second of formats that have one per 16 values.
    pub d: [[F; 2]; CHAIN_GROUPS],
    /// Float factors of the minima of a block.
    pub min: [F; CHAIN_GROUPS],
    /// Integer scales of each half of a group, twice in 16 bits; of formats that have them.
    pub scales: [[I; 2]; CHAIN_GROUPS],
    /// Integer minima of both halves of a group in 16 bits each, or what a unit of activations adds to the sum of products
    /// for the offset of the codes.
    pub pairs: [I; CHAIN_GROUPS],
}

/// Where codes go, encoded as [`Shape`] says: groups in ascending order, or several of them side by side.
pub(super) trait Sink {
    /// What is known of a group while its codes come.
    type Sum: Copy;
    /// Before the first codes of a group.
    fn begin(&self, s: Avx2) -> Self::Sum;
    /// The four words of half `h` of group `g`.
    fn put(&mut self, s: Avx2, heads: &Heads, sum: &mut Self::Sum, g: usize, h: usize, codes: [I; 4]);
    /// After the last codes of a group; in ascending order.
    fn end(&mut self, s: Avx2, heads: &Heads, sum: Self::Sum, g: usize);
}

/// Codes of a chain of sixteen rows, word by word.
pub(super) type Codes = [[I; GROUP_WORDS]; CHAIN_GROUPS];

impl Sink for Codes {
    type Sum = ();

    #[inline(always)]
    fn begin(&self, _s: Avx2) {}

    #[inline(always)]
    fn put(&mut self, _s: Avx2, _heads: &Heads, _sum: &mut (), g: usize, h: usize, codes: [I; 4]) {
        self[g][4 * h..4 * h + 4].copy_from_slice(&codes);
    }

    #[inline(always)]
    fn end(&mut self, _s: Avx2, _heads: &Heads, _sum: (), _g: usize) {}
}

/// The bytes of a chain of sixteen rows.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// Ends with the last row's chain.
    pub bytes: &'a [u8],
    /// Distance of rows.
    pub row_bytes: usize,
    /// What to ask for while this chain is read: as many bytes as it has in all rows, of the rows after these. Sixteen rows
    /// at a time are more streams than the processor foresees.
    pub next: *const u8,
}

impl<'a> Rows<'a> {
    fn row(&self, lane: usize) -> &'a [u8] {
        &self.bytes[lane * self.row_bytes..][..self.bytes.len() - (LANES - 1) * self.row_bytes]
    }

    /// Where the N bytes from `at` on of row 0 begin; those of all other rows are inside, too.
    #[inline(always)]
    fn first<const N: usize>(&self, at: usize) -> *const u8 {
        assert!((LANES - 1) * self.row_bytes + at + N <= self.bytes.len());
        self.bytes.as_ptr().wrapping_add(at)
    }
}

impl Avx2 {
    operations! {
        /// Bytes `at .. at + 16` of each row, as four words; asks for as many bytes of the rows after these.
        fn words(self, rows: &Rows<'_>, at: usize) -> [I; 4] {
            for line in 0..4 {
                _mm_prefetch::<_MM_HINT_T0>(rows.next.wrapping_add(LANES * at + 64 * line).cast());
            }
            self.near_words(rows, at)
        }
        /// The same of bytes near others that are read.
        fn near_words(self, rows: &Rows<'_>, at: usize) -> [I; 4] {
            let first = rows.first::<16>(at);
            let mut out = [[_mm256_setzero_si256(); 2]; 4];
            for h in 0..2 {
                let mut x = [_mm256_setzero_si256(); 4];
                // Multiples of the distance that addresses can hold: sixteen pointers are more than there are registers.
                let (first, d) = (first.add(8 * h * rows.row_bytes), std::hint::black_box(rows.row_bytes));
                for i in 0..4 {
                    let low = first.add(i * d).cast();
                    let high = first.add((4 + i) * d).cast();
                    let low = _mm256_castsi128_si256(_mm_loadu_si128(low));
                    x[i] = _mm256_inserti128_si256::<1>(low, _mm_loadu_si128(high));
                }
                let (low01, high01) = (_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
                let (low23, high23) = (_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
                out[0][h] = _mm256_unpacklo_epi64(low01, low23);
                out[1][h] = _mm256_unpackhi_epi64(low01, low23);
                out[2][h] = _mm256_unpacklo_epi64(high01, high23);
                out[3][h] = _mm256_unpackhi_epi64(high01, high23);
            }
            out
        }
        /// The high half of each word of a, then the low half of that of b.
        fn straddling(self, a: I, b: I) -> I {
            let mut out = a;
            for h in 0..2 {
                out[h] = _mm256_or_si256(_mm256_srli_epi32::<16>(a[h]), _mm256_slli_epi32::<16>(b[h]));
            }
            out
        }
        /// Floats of the half-precision bits in the low half of each word.
        fn floats_of_low(self, x: I) -> F {
            let low = _mm256_set1_epi32(0xffff);
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low), _mm256_and_si256(x[1], low));
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            [_mm256_cvtph_ps(_mm256_castsi256_si128(packed)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(packed))]
        }
        /// The same of the high half.
        fn floats_of_high(self, x: I) -> F {
            self.floats_of_low([_mm256_srli_epi32::<16>(x[0]), _mm256_srli_epi32::<16>(x[1])])
        }
        /// Bits `shift .. shift + 8` of each byte that are in `mask`; where the shift goes beyond a byte, the mask must leave
        /// out the neighbour's bits.
        fn bits(self, x: I, shift: i32, mask: u8) -> I {
            let (count, mask) = (_mm_cvtsi32_si128(shift.abs()), _mm256_set1_epi8(mask as i8));
            let mut out = x;
            for h in 0..2 {
                let moved =
                    if shift < 0 { _mm256_sll_epi16(x[h], count) } else { _mm256_srl_epi16(x[h], count) };
                out[h] = _mm256_and_si256(moved, mask);
            }
            out
        }
        fn or(self, a: I, b: I) -> I { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
        fn sub_bytes(self, a: I, b: u8) -> I {
            let b = _mm256_set1_epi8(b as i8);
            [_mm256_sub_epi8(a[0], b), _mm256_sub_epi8(a[1], b)]
        }
        /// Byte `byte` of each word, unsigned, twice in 16 bits.
        fn twice(self, x: I, byte: usize) -> I {
            let b = byte as i32;
            let order = _mm256_add_epi8(
                _mm256_set1_epi32(b | 0x80 << 8 | b << 16 | i32::MIN),
                _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0004_0004, 0x0008_0008, 0x000c_000c)),
            );
            [_mm256_shuffle_epi8(x[0], order), _mm256_shuffle_epi8(x[1], order)]
        }
        /// Bytes `byte` and `byte + 1` of each word, unsigned, in 16 bits each.
        fn two(self, x: I, byte: usize) -> I {
            let b = byte as i32;
            let order = _mm256_add_epi8(
                _mm256_set1_epi32(b | 0x80 << 8 | (b + 1) << 16 | i32::MIN),
                _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0004_0004, 0x0008_0008, 0x000c_000c)),
            );
            [_mm256_shuffle_epi8(x[0], order), _mm256_shuffle_epi8(x[1], order)]
        }
        /// Byte `byte` of each word, signed, twice in 16 bits.
        fn twice_signed(self, x: I, byte: usize) -> I {
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0400_0400, 0x0800_0800, 0x0c00_0c00));
            let order = _mm256_add_epi8(order, _mm256_set1_epi32((0x0100_0100 * byte as i32) | 0x0080_0080));
            let high = [_mm256_shuffle_epi8(x[0], order), _mm256_shuffle_epi8(x[1], order)];
            [_mm256_srai_epi16::<8>(high[0]), _mm256_srai_epi16::<8>(high[1])]
        }
        /// Bytes `byte` and `byte + 1` of each word, signed and times 2^shift, in 16 bits each.
        fn two_signed(self, x: I, byte: usize, shift: i32) -> I {
            let b = byte as i32;
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0400_0400, 0x0800_0800, 0x0c00_0c00));
            let order = _mm256_add_epi8(order, _mm256_set1_epi32(b << 8 | (b + 1) << 24 | 0x0080_0080));
            let count = _mm_cvtsi32_si128(8 - shift);
            [
                _mm256_sra_epi16(_mm256_shuffle_epi8(x[0], order), count),
                _mm256_sra_epi16(_mm256_shuffle_epi8(x[1], order), count),
            ]
        }
        /// 16 in the bytes of the four codes `4 j ..` whose bit is set in the low or, where j is odd, high halves of the
        /// word's bytes. `halves` is both of them.
        fn fifth_bits(self, halves: &[I; 2], j: usize) -> I {
            let order = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
            let order = _mm256_add_epi8(order, _mm256_set1_epi8((j / 2) as i8));
            let (bits, x) = (_mm256_set1_epi32(0x0804_0201), halves[j % 2]);
            // Index 0 gives 0; 1, 2, 4 and 8 give 16.
            let sixteen = _mm256_broadcastsi128_si256(_mm_setr_epi32(0x0010_1000, 16, 16, 0));
            let mut out = x;
            for h in 0..2 {
                let bit = _mm256_and_si256(_mm256_shuffle_epi8(x[h], order), bits);
                out[h] = _mm256_shuffle_epi8(sixteen, bit);
            }
            out
        }
        fn load_16(self, x: &[i16; 32]) -> I {
            let x: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(x), _mm256_loadu_si256(x.add(1))]
        }
    }
}

// Macros and not functions of closures, as in `elementwise`.

/// The same for each of some numbers; written out, so that sums stay in registers.
macro_rules! each {
    ($i:ident in $($value:literal)* => $body:block) => {
        $({
            let $i = $value;
            $body
        })*
    };
}

/// Unpacks groups `0 .. count` of a chain.
#[inline(always)]
pub(super) fn unpack<Q: Packed, K: Sink>(
    s: Avx2,
    rows: &Rows<'_>,
    count: usize,
    heads: &mut Heads,
    sink: &mut K,
) {
    /// By blocks of eight groups.
    macro_rules! blocks {
        ($unpack:ident) => {
            for b in 0..count / 8 {
                $unpack(s, rows, b * Q::BLOCK_BYTES, b, heads, sink);
            }
        };
    }
    match Q::TYPE {
        TensorType::Q4_0 | TensorType::IQ4_NL => nibble_groups::<Q, K>(s, rows, count, heads, sink, 2),
        TensorType::Q4_1 => nibble_groups::<Q, K>(s, rows, count, heads, sink, 4),
        TensorType::Q5_0 => five_bit_groups::<Q, K>(s, rows, count, heads, sink, 2),
        TensorType::Q5_1 => five_bit_groups::<Q, K>(s, rows, count, heads, sink, 4),
        TensorType::Q8_0 => {
            for g in 0..count {
                let at = g * Q::BLOCK_BYTES;
                group_head::<Q>(s, rows, g, heads);
                let mut sum = sink.begin(s);
                sink.put(s, heads, &mut sum, g, 0, s.words(rows, at + 2));
                sink.put(s, heads, &mut sum, g, 1, s.words(rows, at + 18));
                sink.end(s, heads, sum, g);
            }
        }
        TensorType::Q2_K => blocks!(q2_k),
        TensorType::Q3_K => blocks!(q3_k),
        TensorType::Q4_K => blocks!(q4_k),
        TensorType::Q5_K => blocks!(q5_k),
        TensorType::Q6_K => blocks!(q6_k),
        TensorType::IQ4_XS => blocks!(iq4_xs),
        _ => by_row::<Q, K>(s, rows, count, heads, sink),
    }
}

/// Where the heads of a group lie that are those of its block. Where halves have float scales a group is its own block.
#[inline(always)]
pub(super) fn block_of<Q: Shape>(g: usize) -> usize {
    if Q::FLOAT_SCALE_PER_16 { g } else { g / (Q::BLOCK_VALUES / GROUP_VALUES) }
}

/// Whether blocks of this type are transposed before they are unpacked.
pub(super) const fn reads_words(dtype: TensorType) -> bool {
    use TensorType::*;
    matches!(dtype, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_NL | IQ4_XS)
}

/// The scale of a block of one group, and its minimum.
#[inline(always)]
fn group_head<Q: Shape>(s: Avx2, rows: &Rows<'_>, g: usize, heads: &mut Heads) {
    let [head, ..] = s.near_words(rows, g * Q::BLOCK_BYTES);
    heads.d[g][0] = s.floats_of_low(head);
    if Q::HAS_MIN {
        heads.min[g] = s.floats_of_high(head);
    }
    set_constant_pair::<Q>(s, g, heads);
}

/// Minima that are all 1, or the offset of codes without integer scales.
#[inline(always)]
fn set_constant_pair<Q: Shape>(s: Avx2, g: usize, heads: &mut Heads) {
    if Q::HAS_MIN {
        heads.pairs[g] = s.splat_pair(1);
    } else if let Some(offset) = Q::OFFSET {
        heads.pairs[g] = s.splat_pair(offset as i16);
    }
}

/// Bits `shift .. shift + 8` of four words that are in `mask`; see [`Avx2::bits`].
#[inline(always)]
fn bits(s: Avx2, words: &[I; 4], shift: i32, mask: u8) -> [I; 4] {
    let mut out = *words;
    for j in 0..4 {
        out[j] = s.bits(words[j], shift, mask);
    }
    out
}

#[inline(always)]
fn or(s: Avx2, a: [I; 4], b: [I; 4]) -> [I; 4] {
    [s.or(a[0], b[0]), s.or(a[1], b[1]), s.or(a[2], b[2]), s.or(a[3], b[3])]
}

/// Groups with 16 bytes of nibbles from `at` on.
#[inline(always)]
fn nibble_groups<Q: Shape, K: Sink>(
    s: Avx2,
    rows: &Rows<'_>,
    count: usize,
    heads: &mut Heads,
    sink: &mut K,
    at: usize,
) {
    for g in 0..count {
        group_head::<Q>(s, rows, g, heads);
        let words = s.words(rows, g * Q::BLOCK_BYTES + at);
        let mut sum = sink.begin(s);
        each!(h in 0 1 => {
            let mut codes = bits(s, &words, 4 * h as i32, 15);
            if matches!(Q::TYPE, TensorType::IQ4_NL) {
                codes = looked_up(s, codes);
            }
            sink.put(s, heads, &mut sum, g, h, codes);
        });
        sink.end(s, heads, sum, g);
    }
}

#[inline(always)]
fn looked_up(s: Avx2, x: [I; 4]) -> [I; 4] {
    let table = &IQ4_NL_VALUES;
    [s.lookup(x[0], table), s.lookup(x[1], table), s.lookup(x[2], table), s.lookup(x[3], table)]
}

/// Groups with 32 high bits at `at` and 16 bytes of nibbles behind them.
#[inline(always)]
fn five_bit_groups<Q: Shape, K: Sink>(
    s: Avx2,
    rows: &Rows<'_>,
    count: usize,
    heads: &mut Heads,
    sink: &mut K,
    at: usize,
) {
    for g in 0..count {
        group_head::<Q>(s, rows, g, heads);
        let words = s.words(rows, g * Q::BLOCK_BYTES + at + 4);
        // The 32 bits end two bytes into a word, or between two.
        let [first, second, ..] = s.near_words(rows, g * Q::BLOCK_BYTES);
        let high = s.nibbles(if at == 2 { s.straddling(first, second) } else { second });
        let mut sum = sink.begin(s);
        each!(h in 0 1 => {
            let mut codes = bits(s, &words, 4 * h as i32, 15);
            for j in 0..4 {
                codes[j] = s.or(codes[j], s.fifth_bits(&high, 4 * h + j));
            }
            sink.put(s, heads, &mut sum, g, h, codes);
        });
        sink.end(s, heads, sum, g);
    }
}

/// The float scales and integer scales and minima that Q4_K and Q5_K begin with.
#[inline(always)]
fn k_head(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads) {
    let [floats, scales, minima, rest] = s.words(rows, at);
    heads.d[b][0] = s.floats_of_low(floats);
    heads.min[b] = s.negate(s.floats_of_high(floats));
    let of_scales = [s.bits(scales, 0, 63), s.or(s.bits(rest, 0, 15), s.bits(scales, 2, 48))];
    let of_minima = [s.bits(minima, 0, 63), s.or(s.bits(rest, 4, 15), s.bits(minima, 2, 48))];
    for i in 0..8 {
        heads.scales[8 * b + i][0] = s.twice(of_scales[i / 4], i % 4);
        heads.pairs[8 * b + i] = s.twice(of_minima[i / 4], i % 4);
    }
}

#[inline(always)]
fn q4_k<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    k_head(s, rows, at, b, heads);
    for i in 0..4 {
        let (g, at) = (8 * b + 2 * i, at + 16 + 32 * i);
        let mut sums = [sink.begin(s); 2];
        each!(h in 0 1 => {
            let words = s.words(rows, at + 16 * h);
            sink.put(s, heads, &mut sums[0], g, h, bits(s, &words, 0, 15));
            sink.put(s, heads, &mut sums[1], g + 1, h, bits(s, &words, 4, 15));
        });
        sink.end(s, heads, sums[0], g);
        sink.end(s, heads, sums[1], g + 1);
    }
}

#[inline(always)]
fn q5_k<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    k_head(s, rows, at, b, heads);
    let high = [s.words(rows, at + 16), s.words(rows, at + 32)];
    for i in 0..4 {
        let (g, at, bit) = (8 * b + 2 * i, at + 48 + 32 * i, 2 * i as i32);
        let mut sums = [sink.begin(s); 2];
        each!(h in 0 1 => {
            let words = s.words(rows, at + 16 * h);
            let codes = or(s, bits(s, &words, 0, 15), bits(s, &high[h], bit - 4, 16));
            sink.put(s, heads, &mut sums[0], g, h, codes);
            let codes = or(s, bits(s, &words, 4, 15), bits(s, &high[h], bit - 3, 16));
            sink.put(s, heads, &mut sums[1], g + 1, h, codes);
        });
        sink.end(s, heads, sums[0], g);
        sink.end(s, heads, sums[1], g + 1);
    }
}

/// Scales of sixteen values each, one byte each in four words; what a unit of activations adds is them times `2^shift`.
#[inline(always)]
fn sixteen_scales(s: Avx2, scales: [I; 4], b: usize, shift: i32, heads: &mut Heads) {
    for i in 0..8 {
        let (g, byte) = (8 * b + i, 2 * (i % 2));
        heads.scales[g] = [s.twice_signed(scales[i / 2], byte), s.twice_signed(scales[i / 2], byte + 1)];
        heads.pairs[g] = s.two_signed(scales[i / 2], byte, shift);
    }
}

#[inline(always)]
fn end_four<K: Sink>(s: Avx2, heads: &Heads, sink: &mut K, sums: [K::Sum; 4], g: usize) {
    each!(q in 0 1 2 3 => {
        sink.end(s, heads, sums[q], g + q);
    });
}

#[inline(always)]
fn q6_k<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    // The last word of 16 bytes that end with the block.
    heads.d[b][0] = s.floats_of_high(s.near_words(rows, at + 194)[3]);
    sixteen_scales(s, s.words(rows, at + 192), b, 5, heads);
    for half in 0..2 {
        let g = 8 * b + 4 * half;
        let mut sums = [sink.begin(s); 4];
        each!(h in 0 1 => {
            let high = s.words(rows, at + 128 + 32 * half + 16 * h);
            let first = at + 64 * half + 16 * h;
            each!(q in 0 1 => {
                let low = s.words(rows, first + 32 * q);
                let codes = or(s, bits(s, &low, 0, 15), bits(s, &high, 2 * q as i32 - 4, 48));
                sink.put(s, heads, &mut sums[q], g + q, h, codes);
                let codes = or(s, bits(s, &low, 4, 15), bits(s, &high, 2 * q as i32, 48));
                sink.put(s, heads, &mut sums[2 + q], g + 2 + q, h, codes);
            });
        });
        end_four(s, heads, sink, sums, g);
    }
}

#[inline(always)]
fn q2_k<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    let [.., floats] = s.near_words(rows, at + 68);
    heads.d[b][0] = s.floats_of_low(floats);
    heads.min[b] = s.negate(s.floats_of_high(floats));
    let numbers = s.words(rows, at);
    for i in 0..8 {
        let (g, byte) = (8 * b + i, 2 * (i % 2));
        let [scales, minima] = s.nibbles(numbers[i / 2]);
        heads.scales[g] = [s.twice(scales, byte), s.twice(scales, byte + 1)];
        heads.pairs[g] = s.two(minima, byte);
    }
    for half in 0..2 {
        let g = 8 * b + 4 * half;
        let mut sums = [sink.begin(s); 4];
        each!(h in 0 1 => {
            let words = s.words(rows, at + 16 + 32 * half + 16 * h);
            each!(q in 0 1 2 3 => {
                sink.put(s, heads, &mut sums[q], g + q, h, bits(s, &words, 2 * q as i32, 3));
            });
        });
        end_four(s, heads, sink, sums, g);
    }
}

#[inline(always)]
fn q3_k<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    heads.d[b][0] = s.floats_of_high(s.near_words(rows, at + 94)[3]);
    let [_, low0, low1, high] = s.words(rows, at + 92);
    let mut scales = [low0; 4];
    for i in 0..4 {
        let low = s.bits(if i % 2 == 0 { low0 } else { low1 }, 4 * (i / 2) as i32, 15);
        scales[i] = s.sub_bytes(s.or(low, s.bits(high, 2 * i as i32 - 4, 48)), 32);
    }
    sixteen_scales(s, scales, b, 2, heads);
    let high = [s.words(rows, at), s.words(rows, at + 16)];
    for half in 0..2 {
        let g = 8 * b + 4 * half;
        let mut sums = [sink.begin(s); 4];
        each!(h in 0 1 => {
            let words = s.words(rows, at + 32 + 32 * half + 16 * h);
            each!(q in 0 1 2 3 => {
                let bit = (4 * half + q) as i32;
                let codes = or(s, bits(s, &words, 2 * q as i32, 3), bits(s, &high[h], bit - 2, 4));
                sink.put(s, heads, &mut sums[q], g + q, h, codes);
            });
        });
        end_four(s, heads, sink, sums, g);
    }
}

#[inline(always)]
fn iq4_xs<K: Sink>(s: Avx2, rows: &Rows<'_>, at: usize, b: usize, heads: &mut Heads, sink: &mut K) {
    let [head, low, ..] = s.words(rows, at);
    heads.d[b][0] = s.floats_of_low(head);
    for i in 0..8 {
        // Two low bits of byte i / 2, two high ones of byte 2 + i / 4.
        let low = s.bits(s.twice(low, i / 2), 4 * (i % 2) as i32, 15);
        let high = s.bits(s.twice(head, 2 + i / 4), 2 * (i % 4) as i32 - 4, 48);
        heads.scales[8 * b + i][0] = s.twice_signed(s.sub_bytes(s.or(low, high), 32), 0);
    }
    for i in 0..8 {
        let g = 8 * b + i;
        let words = s.words(rows, at + 8 + 16 * i);
        let mut sum = sink.begin(s);
        each!(h in 0 1 => {
            let codes = looked_up(s, bits(s, &words, 4 * h as i32, 15));
            sink.put(s, heads, &mut sum, g, h, codes);
        });
        sink.end(s, heads, sum, g);
    }
}

/// Any format, row by row: rows are unpacked before they are transposed.
#[inline(always)]
fn by_row<Q: Packed, K: Sink>(s: Avx2, rows: &Rows<'_>, count: usize, heads: &mut Heads, sink: &mut K) {
    let mut codes = [[[0u8; 64]; LANES]; GROUP_WORDS];
    let (mut d, mut second) = ([[0u16; CHAIN_GROUPS]; LANES], [[0u16; CHAIN_GROUPS]; LANES]);
    let mut numbers = [[[0i16; 2 * LANES]; 3]; CHAIN_GROUPS];
    for lane in 0..LANES {
        let chain = rows.row(lane);
        for (vector, codes) in Q::codes(s, chain, count, CHAIN_GROUPS).into_iter().zip(&mut codes) {
            s.store_b(vector, &mut codes[lane]);
        }
        chain_scales::<Q>(chain, count, &mut d[lane], &mut second[lane]);
        if Q::SCALES > 0 {
            let integers = Q::integers(s, chain);
            for g in 0..count {
                for h in 0..2 {
                    // One array of sixteen groups, or one for each block.
                    let (array, i) = if Q::SCALES == 1 { (0, g) } else { (g / 8, 2 * (g % 8) + h) };
                    let scale = i16::from(integers.scales[array][i]);
                    numbers[g][h][2 * lane..2 * lane + 2].fill(scale);
                    numbers[g][2][2 * lane + h] = match Q::OFFSET {
                        _ if Q::HAS_MIN => i16::from(integers.minima[array][i]),
                        offset => scale * offset.unwrap_or(0) as i16,
                    };
                }
            }
        }
    }
    let (d, second) = (transposed::<Avx2, Q>(s, &d), transposed::<Avx2, Q>(s, &second));
    for g in 0..count {
        let b = block_of::<Q>(g);
        heads.d[b] = [d[g], second[g]];
        heads.min[b] = second[g];
        if Q::SCALES > 0 {
            heads.scales[g] = [s.load_16(&numbers[g][0]), s.load_16(&numbers[g][1])];
            heads.pairs[g] = s.load_16(&numbers[g][2]);
        } else {
            set_constant_pair::<Q>(s, g, heads);
        }
    }
    let mut words = [[[0; 64]; LANES]; GROUP_WORDS];
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
