//! Activation rows as signed bytes: the other factor of a quantised product.

use super::GROUP_VALUES;

/// A quantised activation row.
#[derive(Clone, Copy, Debug)]
pub struct ActRow<'a> {
    /// Codes in -127..=127.
    pub q: &'a [i8],
    /// Scale of each 32 codes.
    pub d: &'a [f32],
}

/// Quantises `x` in groups of 32. This is the numeric definition; a vector version gives the same bits.
///
/// Per group, with `bits` the largest `x.to_bits() & 0x7fff_ffff` as an unsigned integer:
/// - `bits >= 0x7f80_0000` (a NaN or an infinity): `d` is NaN (`f32::NAN`), all `q` are 0;
/// - else `amax = f32::from_bits(bits)`; `amax < 1e-30`: `d` is 0, all `q` are 0;
/// - else `d = amax / 127`, `inv = 127 / amax`, `q = x * inv` rounded half to even and clamped to ±127.
///
/// `sum16` receives the exact sum of each 16 codes. Lengths: `n` a multiple of 32 for `x` and `q`, `n / 32` for `d`,
/// `n / 16` for `sum16`; panics otherwise.
pub fn quantize_row(x: &[f32], q: &mut [i8], d: &mut [f32], sum16: &mut [i16]) {
    assert!(x.len().is_multiple_of(GROUP_VALUES), "{} activations are not whole groups of 32", x.len());
    assert_eq!(q.len(), x.len());
    assert_eq!(d.len(), x.len() / 32);
    assert_eq!(sum16.len(), x.len() / 16);
    for (g, x) in x.chunks_exact(32).enumerate() {
        let q = &mut q[32 * g..32 * g + 32];
        d[g] = quantize_group(x, q);
        for half in 0..2 {
            // At most 16 * 127.
            sum16[2 * g + half] = q[16 * half..16 * half + 16].iter().map(|&q| i16::from(q)).sum();
        }
    }
}

/// Codes of one group; returns its scale.
fn quantize_group(x: &[f32], q: &mut [i8]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().expect("a group has 32 values");
    let amax = f32::from_bits(bits);
    if bits >= 0x7f80_0000 || amax < 1e-30 {
        q.fill(0);
        return if amax < 1e-30 { 0.0 } else { f32::NAN };
    }
    let inv = 127.0 / amax;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inv).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    amax / 127.0
}
