//! The block formats against ggml's own decoder, and the definition of a quantised product against an independent one
//! (`oracle/make_quant_extra.py`) and against exact arithmetic.

use gguf::TensorType;
use kernels::quant::{
    ActRow, FORMATS, Format, FormatVisitor, Group, Unsupported, bf16_to_f32, dequantize_row, dot_row,
    f16_to_f32, f32_to_f16, group, quantize_row, with_format,
};
use std::collections::BTreeMap;

type Golden = BTreeMap<String, oracle::Array>;

const FLOATS: [TensorType; 2] = [TensorType::F16, TensorType::BF16];

/// Numbers that differ from call to call and not from run to run (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    fn codes(&mut self, n: usize) -> Vec<i8> {
        (0..n).map(|_| (self.next() % 255) as i16 as i8).map(|c| c.max(-127)).collect()
    }

    /// In -1..1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

fn assert_same_floats(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
        assert!(same, "{what}, value {i}: {f:e} is not {e:e}");
    }
}

fn golden_pair<'a>(golden: &'a Golden, prefix: &str) -> Option<(&'a [u8], &'a [f32])> {
    Some((golden.get(&format!("{prefix}/bytes"))?.u8(), golden.get(&format!("{prefix}/f32"))?.f32()))
}

#[test]
fn rows_decode_as_in_ggml() {
    for file in ["quants", "quants_extra"] {
        let golden = oracle::npz(file);
        for &dtype in FORMATS.iter().chain(&FLOATS) {
            let Some((bytes, expected)) = golden_pair(&golden, &format!("{dtype:?}")) else {
                assert!(file == "quants" && dtype == TensorType::NVFP4, "{file} lacks {dtype:?}");
                continue;
            };
            let mut out = vec![1.0; expected.len()];
            dequantize_row(dtype, bytes, &mut out).unwrap();
            assert_same_floats(&out, expected, &format!("{file} {dtype:?}"));
        }
    }
}

#[test]
fn f32_rows_are_copied() {
    let values = [1.5f32, -0.0, f32::MIN_POSITIVE / 3.0, f32::INFINITY];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut out = [0.0; 4];
    dequantize_row(TensorType::F32, &bytes, &mut out).unwrap();
    assert_same_floats(&out, &values, "F32");
}

#[test]
fn other_types_are_named() {
    let decode = dequantize_row(TensorType::I32, &[0; 4], &mut [0.0]);
    assert_eq!(decode, Err(Unsupported::Decode(TensorType::I32)));
    assert_eq!(group(TensorType::F16, &[0; 64], 0), Err(Unsupported::Group(TensorType::F16)));
    assert!(Unsupported::Decode(TensorType::Q8_K).to_string().contains("Q8_K"));
}

#[test]
#[should_panic(expected = "bytes of 32 values")]
fn row_of_another_length_is_refused() {
    let _ = dequantize_row(TensorType::Q8_0, &[0; 33], &mut [0.0; 32]);
}

/// The group's formula in f64; exact up to the one rounding of a sum.
fn reconstruct(group: &Group, i: usize) -> f64 {
    let half = i / 16;
    let scaled = f64::from(group.d[half]) * f64::from(group.s16[half]) * f64::from(group.q[i]);
    scaled + f64::from(group.min) * f64::from(group.m16[half])
}

#[test]
fn groups_describe_the_floats_of_ggml() {
    let golden = oracle::npz("quants_extra");
    for &dtype in FORMATS {
        let (bytes, expected) = golden_pair(&golden, &format!("{dtype:?}")).unwrap();
        for (g, expected) in expected.chunks_exact(32).enumerate() {
            let group = group(dtype, bytes, g).unwrap();
            for i in 0..32 {
                let (found, expected) = (reconstruct(&group, i), f64::from(expected[i]));
                let half = i / 16;
                let magnitude = f64::from(group.d[half] * (group.s16[half] * i32::from(group.q[i])) as f32)
                    .abs()
                    + f64::from(group.min * group.m16[half] as f32).abs();
                let same = (found - expected).abs() <= 2e-7 * magnitude
                    || !found.is_finite() && !expected.is_finite();
                assert!(same, "{dtype:?} group {g} value {i}: {found:e} is not {expected:e}");
            }
        }
    }
}

#[test]
fn activations_quantise_by_the_definition() {
    let golden = oracle::npz("quants_extra");
    let x = golden["act/x"].f32();
    let (mut q, mut d, mut sums) = (vec![1; x.len()], vec![1.0; x.len() / 32], vec![1; x.len() / 16]);
    quantize_row(x, &mut q, &mut d, &mut sums);
    let expected: Vec<i8> = golden["act/q"].i64().iter().map(|&q| q as i8).collect();
    assert_eq!(q, expected);
    assert_same_floats(&d, golden["act/d"].f32(), "activation scales");
    for (sum, q) in sums.iter().zip(q.chunks_exact(16)) {
        assert_eq!(i64::from(*sum), q.iter().map(|&q| i64::from(q)).sum::<i64>());
    }
}

#[test]
fn every_magnitude_quantises_within_range() {
    let mut random = Random(3);
    for exponent in -149..128 {
        let scale = 2f64.powi(exponent) as f32;
        let x: Vec<f32> = (0..32).map(|_| random.float() * scale).collect();
        let (mut q, mut d, mut sums) = ([0; 32], [0.0], [0; 2]);
        quantize_row(&x, &mut q, &mut d, &mut sums);
        let amax = x.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
        if amax < 1e-30 {
            assert_eq!((q, d), ([0; 32], [0.0]));
            continue;
        }
        assert_eq!(q.iter().map(|q| q.unsigned_abs()).max(), Some(127));
        for (q, x) in q.iter().zip(&x) {
            let error = (f64::from(*q) * f64::from(d[0]) - f64::from(*x)).abs();
            assert!(error <= 0.50002 * f64::from(d[0]), "2^{exponent}: {x:e} became {q}");
        }
    }
}

#[test]
fn products_have_the_bits_of_the_definition() {
    let golden = oracle::npz("quants_extra");
    let (x, rows) = (golden["act/x"].f32(), 4);
    let n = x.len() / rows;
    let q: Vec<i8> = golden["act/q"].i64().iter().map(|&q| q as i8).collect();
    let d = golden["act/d"].f32();
    for dtype in [TensorType::Q8_0, TensorType::Q4_1, TensorType::Q4_K, TensorType::Q6_K, TensorType::NVFP4] {
        let (bytes, expected) = golden_pair(&golden, &format!("dot/{dtype:?}")).unwrap();
        let mut found = Vec::new();
        for row in bytes.chunks_exact(bytes.len() / rows) {
            for r in 0..rows {
                let act = ActRow { q: &q[n * r..][..n], d: &d[n / 32 * r..][..n / 32] };
                found.push(dot_row(dtype, row, &act));
            }
        }
        assert_same_floats(&found, expected, &format!("{dtype:?}"));
    }
}

/// Blocks whose float scales are set to sane values, so that a product of random blocks is finite.
fn tame_row(dtype: TensorType, values: usize, random: &mut Random) -> Vec<u8> {
    let (block_values, block_bytes) = (dtype.block_values(), dtype.block_bytes());
    let mut row = random.bytes(values / block_values * block_bytes);
    for block in row.chunks_exact_mut(block_bytes) {
        let mut put = |at: usize, random: &mut Random| {
            block[at..at + 2].copy_from_slice(&f32_to_f16(random.float()).to_le_bytes());
        };
        match dtype {
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => {
                put(0, random);
                put(2, random);
            }
            TensorType::Q2_K => {
                put(80, random);
                put(82, random);
            }
            TensorType::Q3_K => put(108, random),
            TensorType::Q6_K => put(208, random),
            TensorType::TQ1_0 => put(52, random),
            TensorType::TQ2_0 => put(64, random),
            // The top nibbles of four words: exponent bits of about 1.
            TensorType::IQ1_M => {
                block[55] = block[55] & 15 | 0x30;
            }
            TensorType::MXFP4 => block[0] = 120 + (random.next() % 16) as u8,
            TensorType::NVFP4 => {}
            _ => put(0, random),
        }
    }
    row
}

#[test]
fn products_are_near_the_exact_ones() {
    let mut random = Random(7);
    for &dtype in FORMATS {
        for values in [256, 512, 768, 2304] {
            let row = tame_row(dtype, values, &mut random);
            let q = random.codes(values);
            let d: Vec<f32> = (0..values / 32).map(|_| random.float() + 1.5).collect();
            let (mut exact, mut magnitude) = (0.0, 0.0);
            for g in 0..values / 32 {
                let group = group(dtype, &row, g).unwrap();
                for half in 0..2 {
                    let codes = 32 * g + 16 * half..32 * g + 16 * half + 16;
                    let scaled: f64 =
                        codes.clone().map(|i| f64::from(group.q[i % 32]) * f64::from(q[i])).sum();
                    let scaled =
                        scaled * f64::from(group.s16[half]) * f64::from(group.d[half]) * f64::from(d[g]);
                    let sum: f64 = codes.map(|i| f64::from(q[i])).sum();
                    let min = sum * f64::from(group.m16[half]) * f64::from(group.min) * f64::from(d[g]);
                    exact += scaled + min;
                    magnitude += scaled.abs() + min.abs();
                }
            }
            // Two roundings in each product, one in a pair of terms, 32 in a chain, one a chain, each of half a unit.
            let bound = magnitude * (35.0 + values as f64 / 512.0) * 2f64.powi(-24);
            let found = f64::from(dot_row(dtype, &row, &ActRow { q: &q, d: &d }));
            assert!((found - exact).abs() <= bound, "{dtype:?} x {values}: {found} is not {exact} ± {bound}");
        }
    }
}

/// The largest sum of |s16 * q * a| and of |m16 * a| over groups of a row.
struct Extremes<'a> {
    row: &'a [u8],
}

impl FormatVisitor for Extremes<'_> {
    type Output = (i64, i64);

    fn visit<F: Format>(self) -> (i64, i64) {
        let groups = self.row.len() / F::BLOCK_BYTES * F::BLOCK_VALUES / 32;
        let (mut products, mut sums) = (0, 0);
        for g in 0..groups {
            let group = F::row_group(self.row, g);
            let product =
                (0..32).map(|i| (i64::from(group.s16[i / 16]) * i64::from(group.q[i])).abs() * 127).sum();
            let sum = (0..32).map(|i| i64::from(group.m16[i / 16]).abs() * 127).sum();
            (products, sums) = (i64::max(products, product), i64::max(sums, sum));
            assert!(F::HAS_MIN || group.m16 == [0; 2] && group.min == 0.0);
            let same_d = group.d[0].to_bits() == group.d[1].to_bits();
            assert!(F::FLOAT_SCALE_PER_16 || same_d, "{:?}", F::TYPE);
        }
        (products, sums)
    }
}

#[test]
fn integer_sums_are_exact_as_floats() {
    let mut random = Random(11);
    let mut largest = 0;
    for &dtype in FORMATS {
        let bytes = dtype.block_bytes();
        let mut row: Vec<u8> = (0..=255u8).flat_map(|byte| std::iter::repeat_n(byte, bytes)).collect();
        row.extend(random.bytes(200 * bytes));
        let (products, sums) = with_format(dtype, Extremes { row: &row }).unwrap();
        assert!(products < 1 << 24 && sums < 1 << 24, "{dtype:?}: {products}, {sums}");
        largest = largest.max(products);
        // The tests run with overflow checks: a sum that left its type would panic.
        for a in [-127, 127] {
            let values = row.len() / bytes * dtype.block_values();
            dot_row(dtype, &row, &ActRow { q: &vec![a; values], d: &vec![1.0; values / 32] });
        }
    }
    assert_eq!(largest, 32 * 128 * 32 * 127);
}

#[test]
fn a_spoilt_activation_group_spoils_the_product() {
    for &dtype in FORMATS {
        let mut row = tame_row(dtype, 512, &mut Random(5));
        row.fill(0);
        let mut d = [1.0; 16];
        assert_eq!(dot_row(dtype, &row, &ActRow { q: &[1; 512], d: &d }), 0.0, "{dtype:?}");
        d[9] = f32::NAN;
        assert!(dot_row(dtype, &row, &ActRow { q: &[0; 512], d: &d }).is_nan(), "{dtype:?}");
    }
}

#[test]
fn f16_converts_exactly_both_ways() {
    for bits in 0..=u16::MAX {
        let ours = f16_to_f32(bits);
        let exponent = i32::from(bits >> 10 & 31);
        let mantissa = f64::from(bits & 1023);
        let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
        let exact = match exponent {
            0 => sign * mantissa * 2f64.powi(-24),
            31 if mantissa == 0.0 => sign * f64::INFINITY,
            31 => f64::NAN,
            _ => sign * (1024.0 + mantissa) * 2f64.powi(exponent - 25),
        };
        assert_same_floats(&[ours], &[exact as f32], &format!("{bits:#06x}"));
        if exact.is_nan() {
            assert_ne!(ours.to_bits() & 0x0040_0000, 0, "{bits:#06x} stayed a signalling NaN");
            assert_eq!(f32_to_f16(ours), bits | 0x200, "{bits:#06x}");
        } else {
            assert_eq!(f32_to_f16(ours), bits, "{bits:#06x}");
        }
    }
}

/// The nearest binary16 value, ties to even, by its definition: multiples of 2^-24 or of 11 bits.
fn nearest_f16(x: f32) -> f64 {
    if !x.is_finite() {
        return f64::from(x);
    }
    let exponent = (i32::from((x.to_bits() >> 23) as u8) - 127).max(-14);
    let unit = 2f64.powi(exponent - 10);
    let rounded = (f64::from(x) / unit).round_ties_even() * unit;
    if rounded.abs() >= 65536.0 { f64::INFINITY.copysign(rounded) } else { rounded }
}

#[test]
fn f32_rounds_to_the_nearest_f16() {
    let check = |bits: u32| {
        let x = f32::from_bits(bits);
        assert_same_floats(
            &[f16_to_f32(f32_to_f16(x))],
            &[nearest_f16(x) as f32],
            &format!("{x:e} ({bits:#010x})"),
        );
    };
    // Both sides of every f16 and of the middle between neighbours.
    for bits in 0..=u16::MAX {
        let x = f16_to_f32(bits).to_bits();
        for step in [0, 1, 0x0fff, 0x1000, 0x1001] {
            check(x.wrapping_add(step));
            check(x.wrapping_sub(step));
        }
    }
    let mut random = Random(13);
    for _ in 0..2_000_000 {
        check(random.next() as u32);
    }
    // Around and below the subnormals, where random bits seldom fall.
    for _ in 0..500_000 {
        check((random.next() as u32 & 0x81ff_ffff) + 0x3200_0000);
    }
}

#[test]
fn bf16_is_the_upper_half() {
    assert_eq!(bf16_to_f32(0x3f80), 1.0);
    assert_eq!(bf16_to_f32(0x0001).to_bits(), 0x0001_0000);
}
