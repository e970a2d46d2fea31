//! How keys and values are rounded when they are stored, and what the codes stand for.

use super::{Random, assert_same, for_each_isa, lengths, scalar};
use kernels::Kernels;
use kernels::attention::{Cells, INT4_VALUES, INT8_VALUES, int4_bytes, int4_scales, int8_scales};
use kernels::quant::{f16_to_f32, f32_to_f16};

/// Codes and scales of a cell.
type Narrowed = (Vec<u8>, Vec<u16>);

fn int8(kernels: &Kernels, x: &[f32]) -> Narrowed {
    let (mut codes, mut scales) = (vec![99; x.len()], vec![99; int8_scales(x.len())]);
    kernels.narrow_int8(x, &mut codes, &mut scales);
    (codes.iter().map(|&code| code as u8).collect(), scales)
}

fn int4(kernels: &Kernels, x: &[f32]) -> Narrowed {
    let (mut codes, mut scales) = (vec![99; int4_bytes(x.len())], vec![99; int4_scales(x.len())]);
    kernels.narrow_int4(x, &mut codes, &mut scales);
    (codes, scales)
}

const FORMATS: [(&str, fn(&Kernels, &[f32]) -> Narrowed); 2] = [("int8", int8), ("int4", int4)];

/// What codes stand for.
fn widened(format: &str, (codes, scales): &Narrowed, width: usize) -> Vec<f32> {
    let signed: Vec<i8> = codes.iter().map(|&code| code as i8).collect();
    let cells = match format {
        "int8" => Cells::Int8 { codes: &signed, scales },
        _ => Cells::Int4 { codes, scales },
    };
    assert_eq!(cells.cells_of(width), Some(1));
    let mut out = vec![f32::NAN; width];
    kernels::scalar::widen(cells, 0, &mut out);
    out
}

/// Values of every kind: ordinary ones, any bits, and groups that are all zeros, tiny, huge, of one sign or with ties.
fn cases(random: &mut Random, n: usize) -> Vec<Vec<f32>> {
    let ordinary = random.floats(n);
    let mut of_scale = |scale: f32| random.floats(n).iter().map(|x| x * scale).collect::<Vec<f32>>();
    let scaled = [1e-44, 1e-10, 2e-7, 1e-6, 1e-4, 30.0, 1e5, 4e6, 1e20, f32::MAX / 3.0].map(&mut of_scale);
    let whole: Vec<f32> = (0..n).map(|_| random.below(255) as f32 - 127.0).collect();
    let halves = whole.iter().map(|x| x + 0.5).collect();
    let positive: Vec<f32> = ordinary.iter().map(|x| x.abs()).collect();
    let negative = positive.iter().map(|x| -x).collect();
    let signs = (0..n).map(|i| if i % 2 == 0 { 4.0 } else { -4.0 }).collect();
    let zeros = (0..n).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect();
    let wild = [random.wild_floats(n), random.wild_floats(n)];
    let rare = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|x| {
        let mut values = ordinary.clone();
        values[random.below(n)] = x;
        values
    });
    let plain = vec![ordinary, whole, halves, positive, negative, signs, zeros];
    plain.into_iter().chain(scaled).chain(wild).chain(rare).collect()
}

#[test]
fn every_instruction_set_stores_the_same() {
    for n in lengths() {
        for x in cases(&mut Random(n as u64), n) {
            for (name, narrow) in FORMATS {
                let wanted = narrow(&scalar(), &x);
                for_each_isa(|kernels| {
                    assert!(narrow(kernels, &x) == wanted, "{name}, {}, {x:?}", kernels.isa());
                });
            }
        }
    }
}

/// The error is at most half a step, and in four bits a step on the side of which the largest value is not; scales near 0 are
/// rounded too. A group with a value that is none, or with one that is too large, is NaN as a whole, and no other is.
#[test]
fn what_is_stored_is_near() {
    for n in [1, 31, 64, 65, 128, 200, 256] {
        for x in cases(&mut Random(n as u64), n) {
            for (name, narrow) in FORMATS {
                let (levels, shared) = if name == "int8" { (127.0, INT8_VALUES) } else { (8.0, INT4_VALUES) };
                let (codes, scales) = narrow(&scalar(), &x);
                let found = widened(name, &(codes, scales.clone()), n);
                for (i, (x_of_group, found)) in x.chunks(shared).zip(found.chunks(shared)).enumerate() {
                    let largest = x_of_group.iter().map(|x| x.abs()).fold(0.0, f32::max);
                    let finite = x_of_group.iter().all(|x| x.is_finite()) && largest / levels < 65520.0;
                    assert_eq!(finite, found.iter().all(|x| x.is_finite()), "{name} {x_of_group:?}");
                    assert!(finite || found.iter().all(|x| x.is_nan()), "{name} {x_of_group:?}");
                    let step = f16_to_f32(scales[i]);
                    for (x, found) in x_of_group.iter().zip(found).filter(|_| finite) {
                        let steps = if name == "int4" && x / step > 7.0 { 1.0 } else { 0.5 };
                        let bound = steps * 1.001 * step.abs() + levels / (1 << 25) as f32;
                        assert!((x - found).abs() <= bound, "{name}: {x} became {found}, a step is {step}");
                    }
                }
            }
        }
    }
}

#[test]
fn codes_and_scales_by_hand() {
    // 127 steps of 0.5; -0.25 and 0.75 are halfway between codes, and the even ones win.
    let (codes, scales) = int8(&scalar(), &[63.5, -63.5, 0.5, 0.25, -0.25, 0.75, 0.2, -0.0]);
    assert_eq!(scales.iter().map(|&d| f16_to_f32(d)).collect::<Vec<_>>(), [0.5]);
    assert_eq!(codes.iter().map(|&c| c as i8).collect::<Vec<_>>(), [127, -127, 1, 0, 0, 2, 0, 0]);

    // The rounded scale counts: 1 / 127 is 0.0078740157, in half precision 0.0078735352.
    let x = [1.0, 0.49998];
    let (codes, scales) = int8(&scalar(), &x);
    assert_eq!((scales[0], codes), (f32_to_f16(1.0 / 127.0), vec![127, 64]));

    // Of two that are equally far from 0 the positive one counts; it has code -8, so the scale is negative.
    let mut x = [0.0; 20];
    (x[0], x[1], x[15], x[16], x[19]) = (-4.0, 3.5, 4.0, 0.25, 0.75);
    let (codes, scales) = int4(&scalar(), &x);
    assert_eq!(scales, [f32_to_f16(-0.5)]);
    let value = |code: u8| (f32::from(code) - 8.0) * -0.5;
    assert_eq!(codes.len(), 16);
    assert_eq!((value(codes[0] & 15), value(codes[0] >> 4)), (-3.5, 0.0));
    assert_eq!((value(codes[1] & 15), value(codes[3] >> 4)), (3.5, 1.0));
    assert_eq!((value(codes[15] & 15), codes[15] >> 4), (4.0, 8));
    x[15] = 0.0;
    assert_eq!(int4(&scalar(), &x).1, [f32_to_f16(0.5)]);

    assert_eq!(int8(&scalar(), &[0.0; 3]), (vec![0; 3], vec![0]));
    assert_eq!(int4(&scalar(), &[-0.0; 3]), (vec![0x88; 16], vec![0]));
}

#[test]
fn codes_stand_for_products_with_their_scales() {
    let codes: Vec<i8> = (0..2 * 65).map(|i| (i - 65) as i8).collect();
    let scales = [9.0, 9.0, 0.3, 2.0].map(f32_to_f16);
    let mut cell = [0.0; 65];
    kernels::scalar::widen(Cells::Int8 { codes: &codes, scales: &scales }, 1, &mut cell);
    let third = f16_to_f32(scales[2]);
    assert_eq!(cell[..2], [0.0, third]);
    assert_eq!(cell[63..], [63.0 * third, 64.0 * 2.0]);

    let mut codes = vec![0x88; 2 * int4_bytes(65)];
    (codes[48], codes[48 + 31], codes[48 + 32]) = (0x1f, 0x90, 0x0c);
    let scales = [9.0, 9.0, 9.0, 0.3, 0.5, 2.0].map(f32_to_f16);
    kernels::scalar::widen(Cells::Int4 { codes: &codes, scales: &scales }, 1, &mut cell);
    let wanted = |i| match i {
        0 => 7.0 * third,
        16 => -7.0 * third,
        47 => -8.0 * 0.5,
        63 => 0.5,
        64 => 4.0 * 2.0,
        _ => 0.0,
    };
    (0..65).for_each(|i| assert_eq!(cell[i], wanted(i), "value {i}"));
}

/// Against the matrix: the sign of entry (i, j) is the parity of the bits that i and j share.
#[test]
fn the_rotation_is_a_hadamard_matrix_in_pieces() {
    for (n, pieces) in [
        (1, vec![1]),
        (16, vec![16]),
        (64, vec![64]),
        (80, vec![64, 16]),
        (96, vec![64, 32]),
        (7, vec![4, 2, 1]),
        (256, vec![256]),
    ] {
        let x = Random(n as u64).floats(n);
        let mut found = x.clone();
        scalar().hadamard(&mut found);
        let mut first = 0;
        for piece in pieces {
            for i in 0..piece {
                let entry = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let sum: f64 = (0..piece).map(|j| entry(j) * f64::from(x[first + j])).sum();
                let wanted = sum / (piece as f64).sqrt();
                assert!((f64::from(found[first + i]) - wanted).abs() < 1e-5, "{n}, value {}", first + i);
            }
            first += piece;
        }
        assert_eq!(first, n);
        scalar().hadamard(&mut found);
        assert!(
            x.iter().zip(&found).all(|(x, back)| (x - back).abs() < 1e-5),
            "{n}: {x:?} came back as {found:?}"
        );
    }
}

#[test]
fn every_instruction_set_rotates_the_same() {
    for n in lengths() {
        for wild in [false, true] {
            let random = &mut Random(n as u64);
            let x = if wild { random.wild_floats(n) } else { random.floats(n) };
            let run = |kernels: &Kernels| {
                let mut x = x.clone();
                kernels.hadamard(&mut x);
                x
            };
            let wanted = run(&scalar());
            for_each_isa(|kernels| {
                assert_same(&run(kernels), &wanted, &format_args!("{}, n {n}, wild {wild}", kernels.isa()));
            });
        }
    }
}

/// What the rotation is for: with one value of 128 far from the others, four bits keep the others too.
#[test]
fn a_rotation_makes_room_for_outliers() {
    let random = &mut Random(1);
    let (mut plain, mut rotated) = (0.0, 0.0);
    for _ in 0..200 {
        let mut x: Vec<f32> = (0..128).map(|_| random.unit()).collect();
        (x[random.below(128)], x[random.below(128)]) = (20.0, -15.0);
        let error = |x: &[f32]| -> f32 {
            let found = widened("int4", &int4(&scalar(), x), x.len());
            x.iter().zip(found).map(|(x, found)| (x - found) * (x - found)).sum()
        };
        plain += error(&x);
        scalar().hadamard(&mut x);
        rotated += error(&x);
    }
    assert!(rotated < 0.6 * plain, "{rotated}, without a rotation {plain}");
}
