//! See `scalar::cells`: how keys and values are rounded when they are stored, and widened when they are read.

use super::elementwise::scale;
use super::simd::Simd;
use crate::attention::{Cells, INT4_VALUES, INT8_VALUES, LINE, int4_bytes, int4_scales, int8_scales};
use crate::scalar;
use crate::scalar::cells::{INT4_ZEROS, hadamard_norm, int4_scale, scale_and_inverse};

/// Vectors of values that share a scale.
const INT8_LINES: usize = INT8_VALUES / LINE;
const INT4_LINES: usize = INT4_VALUES / LINE;

/// An element type of a cache that tiles load as it is.
pub(super) trait Cell: Copy {
    fn load<S: Simd>(s: S, x: &[Self; LINE]) -> S::F;
    fn load_first<S: Simd>(s: S, x: &[Self]) -> S::F;
}

impl Cell for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[f32; LINE]) -> S::F {
        s.load(x)
    }
    #[inline(always)]
    fn load_first<S: Simd>(s: S, x: &[f32]) -> S::F {
        s.load_first(x)
    }
}

impl Cell for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u16; LINE]) -> S::F {
        s.load_f16(x)
    }
    #[inline(always)]
    fn load_first<S: Simd>(s: S, x: &[u16]) -> S::F {
        s.load_f16_first(x)
    }
}

/// Cells of some pieces, one after the other.
pub(super) struct Reader<'a> {
    /// From the piece on that is read next.
    pieces: &'a [Cells<'a>],
    /// The cell of it that is read next.
    at: usize,
    width: usize,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn new(pieces: &'a [Cells<'a>], width: usize) -> Reader<'a> {
        Reader { pieces, at: 0, width }
    }

    /// The next cells in single precision, as many as `out` has room for, each padded with zeros to whole lines.
    #[inline(always)]
    pub fn widen<S: Simd>(&mut self, s: S, mut out: &mut [[f32; LINE]]) {
        let lines = self.width.div_ceil(LINE);
        while !out.is_empty() {
            let (piece, rest) = self.pieces.split_first().expect("as many cells as are read");
            let left = piece.cells_of(self.width).expect("whole cells") - self.at;
            let (mine, others) = out.split_at_mut((left * lines).min(out.len()));
            widen_adjacent(s, *piece, self.at, self.width, mine);
            out = others;
            self.at += mine.len() / lines;
            if mine.len() == left * lines {
                (self.pieces, self.at) = (rest, 0);
            }
        }
    }
}

/// Cells from `first` on, as many as `out` has room for. Where all groups are whole they count as one long cell.
#[inline(always)]
fn widen_adjacent<S: Simd>(s: S, source: Cells<'_>, first: usize, width: usize, out: &mut [[f32; LINE]]) {
    let lines = width.div_ceil(LINE);
    let count = out.len() / lines;
    match source {
        Cells::F32(all) if width.is_multiple_of(LINE) => {
            widen_row(s, &all[first * width..][..count * width], out);
        }
        Cells::F16(all) if width.is_multiple_of(LINE) => {
            widen_row(s, &all[first * width..][..count * width], out);
        }
        Cells::F32(all) => {
            let rows = all[first * width..][..count * width].chunks_exact(width);
            for (row, out) in rows.zip(out.chunks_exact_mut(lines)) {
                widen_row(s, row, out);
            }
        }
        Cells::F16(all) => {
            let rows = all[first * width..][..count * width].chunks_exact(width);
            for (row, out) in rows.zip(out.chunks_exact_mut(lines)) {
                widen_row(s, row, out);
            }
        }
        Cells::Int8 { codes, scales } => {
            let groups = int8_scales(width);
            let (codes, scales) =
                (&codes[first * width..][..count * width], &scales[first * groups..][..count * groups]);
            if width.is_multiple_of(INT8_VALUES) {
                widen_int8(s, codes, scales, out);
                return;
            }
            let rows = codes.chunks_exact(width).zip(scales.chunks_exact(groups));
            for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(lines)) {
                widen_int8(s, codes, scales, out);
            }
        }
        Cells::Int4 { codes, scales } => {
            let (bytes, groups) = (int4_bytes(width), int4_scales(width));
            let (codes, scales) =
                (&codes[first * bytes..][..count * bytes], &scales[first * groups..][..count * groups]);
            if width.is_multiple_of(INT4_VALUES) {
                widen_int4(s, codes, scales, out);
                return;
            }
            let rows = codes.chunks_exact(bytes).zip(scales.chunks_exact(groups));
            for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(lines)) {
                widen_int4(s, codes, scales, out);
                // What is beyond the last value.
                out.as_flattened_mut()[width..].fill(0.0);
            }
        }
    }
}

#[inline(always)]
pub(super) fn widen_row<S: Simd, C: Cell>(s: S, row: &[C], out: &mut [[f32; LINE]]) {
    let (whole, rest) = row.as_chunks();
    for (values, out) in whole.iter().zip(out.iter_mut()) {
        s.store(C::load(s, values), out);
    }
    if !rest.is_empty() {
        s.store(C::load_first(s, rest), &mut out[whole.len()]);
    }
}

/// Sixteen scales in single precision; zeros where there are fewer. A lane of them is loaded into all lanes of a vector by
/// units that are idle here, which cannot be said of widening each by itself.
#[inline(always)]
fn widen_scales<S: Simd>(s: S, scales: &[u16]) -> [f32; LINE] {
    let mut out = [0.0; LINE];
    match scales.try_into() {
        Ok(scales) => s.store(s.load_f16(scales), &mut out),
        Err(_) => s.store(s.load_f16_first(scales), &mut out),
    }
    out
}

#[inline(always)]
fn widen_int8<S: Simd>(s: S, codes: &[i8], scales: &[u16], out: &mut [[f32; LINE]]) {
    let blocks = codes.chunks(LINE * INT8_VALUES).zip(out.chunks_mut(LINE * INT8_LINES));
    for ((codes, out), scales) in blocks.zip(scales.chunks(LINE)) {
        let scales = widen_scales(s, scales);
        let (codes, codes_rest) = codes.as_chunks::<INT8_VALUES>();
        let (out, out_rest) = out.as_chunks_mut::<INT8_LINES>();
        for ((codes, out), &scale) in codes.iter().zip(out.iter_mut()).zip(&scales) {
            let codes: &[[i8; LINE]; INT8_LINES] = codes.as_chunks().0.try_into().expect("whole vectors");
            let scale = s.splat(scale);
            for i in 0..INT8_LINES {
                s.store(s.mul(s.to_f(s.load_i8(&codes[i])), scale), &mut out[i]);
            }
        }
        if codes_rest.is_empty() {
            continue;
        }
        // A group that is not whole is the last of its cell, and the next one begins on a line of its own.
        let mut padded = [0; INT8_VALUES];
        padded[..codes_rest.len()].copy_from_slice(codes_rest);
        let scale = s.splat(scales[codes.len()]);
        // Its lines are as many as those of a whole one, or fewer.
        let out = if out_rest.is_empty() { &mut out[codes.len()][..] } else { out_rest };
        for (codes, out) in padded.as_chunks().0.iter().zip(out.iter_mut()) {
            s.store(s.mul(s.to_f(s.load_i8(codes)), scale), out);
        }
        // A scale that is not finite makes no zeros.
        out.as_flattened_mut()[codes_rest.len()..].fill(0.0);
    }
}

#[inline(always)]
fn widen_int4<S: Simd>(s: S, codes: &[u8], scales: &[u16], out: &mut [[f32; LINE]]) {
    let blocks = codes.chunks(LINE * INT4_VALUES / 2).zip(out.chunks_mut(LINE * INT4_LINES));
    for ((codes, out), scales) in blocks.zip(scales.chunks(LINE)) {
        let scales = widen_scales(s, scales);
        let (whole, rest) = out.as_chunks_mut::<INT4_LINES>();
        let codes = codes.as_chunks().0;
        for ((codes, out), &scale) in codes.iter().zip(whole.iter_mut()).zip(&scales) {
            let [low, high] = s.scaled_nibbles(codes, s.splat(scale));
            s.store(low, &mut out[0]);
            s.store(high, &mut out[1]);
        }
        if let [rest] = rest {
            let [low, _] = s.scaled_nibbles(&codes[whole.len()], s.splat(scales[whole.len()]));
            s.store(low, rest);
        }
    }
}

/// Calls `$group` for every `$values` values with the room for their `$codes` codes, and stores the scale it answers with.
/// The last values are padded with zeros.
macro_rules! for_groups {
    ($x:expr, $codes:expr, $scales:expr, $values_max:ident, $codes_max:expr, |$values:ident, $out:ident| $group:expr) => {{
        let (x, x_rest) = $x.as_chunks::<$values_max>();
        let (codes, codes_rest) = $codes.split_at_mut(x.len() * $codes_max);
        let codes = codes.as_chunks_mut::<{ $codes_max }>().0;
        assert_eq!($scales.len(), $x.len().div_ceil($values_max));
        for (($values, $out), scale) in x.iter().zip(codes).zip($scales.iter_mut()) {
            *scale = $group;
        }
        if !x_rest.is_empty() {
            let (mut values, mut out) = ([0.0; $values_max], [0; $codes_max]);
            values[..x_rest.len()].copy_from_slice(x_rest);
            {
                let ($values, $out) = (&values, &mut out);
                $scales[x.len()] = $group;
            }
            codes_rest.copy_from_slice(&out[..codes_rest.len()]);
        }
    }};
}

#[inline(always)]
pub(super) fn narrow_int8<S: Simd>(s: S, x: &[f32], codes: &mut [i8], scales: &mut [u16]) {
    for_groups!(x, codes, scales, INT8_VALUES, INT8_VALUES, |x, codes| narrow_int8_group(s, x, codes));
}

#[inline(always)]
pub(super) fn narrow_int4<S: Simd>(s: S, x: &[f32], codes: &mut [u8], scales: &mut [u16]) {
    for_groups!(x, codes, scales, INT4_VALUES, INT4_VALUES / 2, |x, codes| narrow_int4_group(s, x, codes));
}

#[inline(always)]
fn narrow_int8_group<S: Simd>(s: S, x: &[f32; INT8_VALUES], codes: &mut [i8; INT8_VALUES]) -> u16 {
    let x: &[[f32; LINE]; INT8_LINES] = x.as_chunks().0.try_into().expect("whole vectors");
    let x = [s.load(&x[0]), s.load(&x[1]), s.load(&x[2]), s.load(&x[3])];
    let (a, b) = (s.magnitude_bits(x[0]), s.magnitude_bits(x[1]));
    let (c, d) = (s.magnitude_bits(x[2]), s.magnitude_bits(x[3]));
    let largest = s.max_lane_i(s.max_i(s.max_i(a, b), s.max_i(c, d))) as u32;
    let (scale, inv) = scale_and_inverse(largest, f32::from_bits(largest) / 127.0);
    if inv == 0.0 {
        codes.fill(0);
        return scale;
    }
    let (inv, least, most) = (s.splat(inv), s.splat(-127.0), s.splat(127.0));
    let codes: &mut [[i8; LINE]; INT8_LINES] = codes.as_chunks_mut().0.try_into().expect("whole vectors");
    for i in 0..INT8_LINES {
        s.store_i8(s.to_i(s.min(s.max(s.mul(x[i], inv), least), most)), &mut codes[i]);
    }
    scale
}

#[inline(always)]
fn narrow_int4_group<S: Simd>(s: S, x: &[f32; INT4_VALUES], codes: &mut [u8; INT4_VALUES / 2]) -> u16 {
    let x: &[[f32; LINE]; INT4_LINES] = x.as_chunks().0.try_into().expect("whole vectors");
    let x = [s.load(&x[0]), s.load(&x[1])];
    let largest = s.max_lane_i(s.max_i(s.magnitude_bits(x[0]), s.magnitude_bits(x[1]))) as u32;
    let of_group = if f32::from_bits(largest).is_finite() {
        let least = s.max_lane(s.negate(s.min(x[0], x[1])));
        int4_scale(s.max_lane(s.max(x[0], x[1])), -least)
    } else {
        f32::NAN
    };
    let (scale, inv) = scale_and_inverse(largest, of_group);
    if inv == 0.0 {
        codes.fill(INT4_ZEROS);
        return scale;
    }
    let (inv, least, most) = (s.splat(inv), s.splat(-8.0), s.splat(7.0));
    let mut plus_8 = [s.splat_i(8); INT4_LINES];
    for i in 0..INT4_LINES {
        plus_8[i] = s.add_i(s.to_i(s.min(s.max(s.mul(x[i], inv), least), most)), plus_8[i]);
    }
    let mut bytes = [0; LINE];
    s.store_i8(s.add_i(plus_8[0], s.mul_i(plus_8[1], s.splat_i(16))), &mut bytes);
    for i in 0..LINE {
        codes[i] = bytes[i] as u8;
    }
    scale
}

/// For strides 1, 2, 4 and 8: -1 in the lanes whose number has that bit.
const SIGNS: [[f32; LINE]; 4] = {
    let mut signs = [[1.0; LINE]; 4];
    let mut i = 0;
    while i < 4 * LINE {
        let (bit, lane) = (i / LINE, i % LINE);
        if lane >> bit & 1 == 1 {
            signs[bit][lane] = -1.0;
        }
        i += 1;
    }
    signs
};

#[inline(always)]
pub(super) fn hadamard<S: Simd>(s: S, x: &mut [f32]) {
    let mut rest = x;
    while rest.len() >= LINE {
        let (piece, tail) = rest.split_at_mut(1 << rest.len().ilog2());
        rest = tail;
        let n = piece.len();
        let lines = piece.as_chunks_mut::<LINE>().0;
        for line in lines.iter_mut() {
            // `fma(b, -1, a)` is `a - b`, rounded once.
            let x = s.load(line);
            let x = s.fma(x, s.load(&SIGNS[0]), s.swap_lanes(x, 1));
            let x = s.fma(x, s.load(&SIGNS[1]), s.swap_lanes(x, 2));
            let x = s.fma(x, s.load(&SIGNS[2]), s.swap_lanes(x, 4));
            let x = s.fma(x, s.load(&SIGNS[3]), s.swap_lanes(x, 8));
            s.store(x, line);
        }
        let mut stride = 1;
        while stride < lines.len() {
            for pair in lines.chunks_exact_mut(2 * stride) {
                let (a, b) = pair.split_at_mut(stride);
                for (a, b) in a.iter_mut().zip(b) {
                    let (x, y) = (s.load(a), s.load(b));
                    s.store(s.add(x, y), a);
                    s.store(s.sub(x, y), b);
                }
            }
            stride *= 2;
        }
        scale(s, piece, hadamard_norm(n));
    }
    scalar::hadamard(rest);
}
