//! Half-precision floats, exactly: IEEE 754 binary16 and bfloat16.
//!
//! NaNs become quiet and keep sign and payload, as the conversion instructions of x86 and ARM do, so that a vector
//! version can meet these functions bit for bit.

/// The value of binary16 bits; every one is representable.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let mantissa = u32::from(bits & 0x03ff);
    let magnitude = match u32::from(bits >> 10) & 0x1f {
        // Subnormal: mantissa * 2^-24, exact.
        0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f if mantissa == 0 => 0x7f80_0000,
        0x1f => 0x7fc0_0000 | mantissa << 13,
        exponent => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest binary16, ties to even; too large becomes infinity.
#[inline]
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let bits = x.to_bits() & 0x7fff_ffff;
    let magnitude = if bits > 0x7f80_0000 {
        0x7e00 | (bits >> 13 & 0x03ff)
    } else if bits >= 0x4780_0000 {
        // 65536 and more. From 65520, the tie above the largest finite value, the last case carries up to infinity.
        0x7c00
    } else if bits < 0x3880_0000 {
        // Below 2^-14: the unit in the last place of 0.5 is 2^-24, the unit here, so the addition rounds as wanted.
        (f32::from_bits(bits) + 0.5).to_bits() - 0.5f32.to_bits()
    } else {
        (bits + 0x0fff + (bits >> 13 & 1) - (112 << 23)) >> 13
    };
    sign | magnitude as u16
}

/// The value of bfloat16 bits: the upper half of an f32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
