//! Element-wise operations, sums, recurrent steps.

use super::{Random, assert_same, for_each_isa, lengths, scalar};
use kernels::Kernels;

/// Runs `f` on ordinary and wild values of every length.
fn check(name: &str, f: impl Fn(&Kernels, &mut Random, bool, usize) -> Vec<f32>) {
    for n in lengths() {
        for wild in [false, true] {
            let wanted = f(&scalar(), &mut Random(n as u64), wild, n);
            for_each_isa(|kernels| {
                let found = f(kernels, &mut Random(n as u64), wild, n);
                assert_same(&found, &wanted, &format_args!("{name}, {}, n {n}, wild {wild}", kernels.isa()));
            });
        }
    }
}

fn values(random: &mut Random, wild: bool, n: usize) -> Vec<f32> {
    if wild { random.wild_floats(n) } else { random.floats(n) }
}

#[test]
fn sums_and_norms() {
    check("dot", |kernels, random, wild, n| {
        vec![kernels.dot(&values(random, wild, n), &values(random, wild, n))]
    });
    check("rms_norm", |kernels, random, wild, n| {
        let (x, gamma) = (values(random, wild, n), random.floats(n));
        let (mut out, mut plain) = (vec![0.0; n], vec![0.0; n]);
        kernels.rms_norm(&x, Some(&gamma), 1e-5, &mut out);
        kernels.rms_norm(&x, None, 1e-6, &mut plain);
        [out, plain].concat()
    });
    check("l2_norm", |kernels, random, wild, n| {
        let mut x = values(random, wild, n);
        kernels.l2_norm(&mut x, 1e-6);
        x
    });
}

#[test]
fn a_lane_that_gets_no_more_values_keeps_its_negative_zero() {
    // The products underflow to -0 in every lane; a tail that adds +0 to the lanes beyond it would lose the sign.
    for n in 16..48 {
        let (a, b) = (vec![1e-30; n], vec![-1e-30; n]);
        let wanted = scalar().dot(&a, &b);
        for_each_isa(|kernels| assert_same(&[kernels.dot(&a, &b)], &[wanted], &n));
    }
}

#[test]
fn element_wise() {
    type Unary = fn(&Kernels, &mut [f32]);
    type Binary = fn(&Kernels, &mut [f32], &[f32]);
    let unary: [(&str, Unary); 2] = [("silu", |k, x| k.silu(x)), ("sigmoid", |k, x| k.sigmoid(x))];
    for (name, f) in unary {
        check(name, |kernels, random, wild, n| {
            let mut x = values(random, wild, n);
            f(kernels, &mut x);
            x
        });
    }
    let binary: [(&str, Binary); 6] = [
        ("add", |k, y, x| k.add(y, x)),
        ("add_scaled", |k, y, x| k.add_scaled(y, 0.3, x)),
        ("silu_multiply", |k, y, x| k.silu_multiply(y, x)),
        ("multiply_sigmoid", |k, y, x| k.multiply_sigmoid(y, x)),
        ("multiply_silu", |k, y, x| k.multiply_silu(y, x)),
        ("merge_partition", |k, y, x| {
            let n = y.len() as f32;
            k.merge_partition((0.25, n), y, (0.5, 3.0), x);
        }),
    ];
    for (name, f) in binary {
        check(name, |kernels, random, wild, n| {
            let (mut y, x) = (values(random, wild, n), values(random, wild, n));
            f(kernels, &mut y, &x);
            y
        });
    }
}

#[test]
fn exponentials_of_every_exponent() {
    // Every 4099th float: all exponents, both signs.
    let all: Vec<f32> = (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect();
    let mut wanted = all.clone();
    scalar().silu(&mut wanted);
    for_each_isa(|kernels| {
        let mut found = all.clone();
        kernels.silu(&mut found);
        assert_same(&found, &wanted, &"silu of every exponent");
    });
}

#[test]
fn streams_and_taps() {
    check("mix_streams", |kernels, random, wild, n| {
        let (gate, x) = (values(random, wild, 4 * n), values(random, wild, 4 * n));
        let mut out = vec![0.0; n];
        kernels.mix_streams(&gate, &x, &mut out);
        out
    });
    check("convolve", |kernels, random, wild, n| {
        let (rows, weights) = (values(random, wild, 4 * n), values(random, wild, 4 * n));
        let taps: Vec<&[f32]> = rows.chunks(n).collect();
        let mut out = vec![f32::NAN; n];
        kernels.convolve(&taps, &weights, &mut out);
        out
    });
}

#[test]
fn rotations() {
    type Rope = fn(&Kernels, &mut [f32], &[f32], &[f32]);
    let ropes: [(&str, Rope); 2] = [
        ("halves", |k, x, cos, sin| k.apply_rope_halves(x, cos, sin)),
        ("adjacent", |k, x, cos, sin| k.apply_rope_adjacent(x, cos, sin)),
    ];
    for (name, rope) in ropes {
        check(name, |kernels, random, wild, n| {
            let mut x = values(random, wild, 2 * n + n % 3);
            rope(kernels, &mut x, &random.floats(n), &random.floats(n));
            x
        });
    }
}

#[test]
fn delta_rule() {
    for (keys, columns) in
        [(1, 1), (3, 5), (16, 16), (32, 32), (7, 33), (5, 70), (64, 96), (128, 128), (128, 17)]
    {
        for wild in [false, true] {
            let run = |kernels: &Kernels, with_query: bool| {
                let random = &mut Random((keys * columns) as u64);
                let mut state = values(random, wild, keys * columns);
                let (k, q) = (random.floats(keys), random.floats(keys));
                let v = values(random, wild, columns);
                let mut out = vec![0.0; columns];
                let query = with_query.then_some((&q[..], 0.125, &mut out[..]));
                kernels.delta_step(&mut state, &k, &v, 0.9, 0.7, query);
                [state, out].concat()
            };
            for with_query in [false, true] {
                let wanted = run(&scalar(), with_query);
                for_each_isa(|kernels| {
                    let case =
                        format_args!("{}, {keys} x {columns}, query {with_query}", kernels.isa()).to_string();
                    assert_same(&run(kernels, with_query), &wanted, &case);
                });
            }
        }
    }
}

#[test]
fn half_precision() {
    // A value halfway between neighbours ends in twelve zeros at least.
    let all: Vec<u32> = (0..=u32::MAX).step_by(1021).filter(|bits| bits & 0x0fff != 0).collect();
    narrows_alike(&all);
}

/// Halfway between neighbours. A test of its own, as Bochs, which emulates AVX-512 for `cargo xtask emulate`, does not
/// round these to even.
#[test]
fn half_precision_ties() {
    let halves = (0..0x7c00u32).map(|half| kernels::quant::f16_to_f32(half as u16));
    let above: Vec<u32> = halves.map(|x| x.to_bits() + 0x1000).collect();
    // The unit of those below 2^-14 is 2^-24.
    let subnormal: Vec<u32> = (0..1024).map(|n| ((n as f32 + 0.5) / (1 << 24) as f32).to_bits()).collect();
    narrows_alike(&[above, subnormal].concat());
}

fn narrows_alike(bits: &[u32]) {
    let x: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
    for n in (1..40).chain([x.len()]) {
        let mut wanted = vec![0; n];
        scalar().narrow_f16(&x[..n], &mut wanted);
        for_each_isa(|kernels| {
            let mut found = vec![0; n];
            kernels.narrow_f16(&x[..n], &mut found);
            for ((bits, found), wanted) in bits.iter().zip(&found).zip(&wanted) {
                assert_eq!(found, wanted, "{}, of an f32 of bits {bits:#x}", kernels.isa());
            }
        });
    }
}
