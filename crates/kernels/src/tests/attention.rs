//! Scores, softmax and weighted sums over partitions, with caches in both element types.

use super::{Random, assert_same, for_each_isa, scalar};
use crate::Kernels;
use crate::table::Cells;

/// Head widths with cells of a partition.
const SHAPES: [(usize, usize); 12] = [
    (64, 256),
    (64, 1),
    (64, 15),
    (64, 17),
    (128, 100),
    (256, 33),
    (80, 40),
    (96, 16),
    (7, 20),
    (17, 35),
    (1, 3),
    (576, 5),
];

fn narrowed(x: &[f32]) -> Vec<u16> {
    let mut out = vec![0; x.len()];
    scalar().narrow_f16(x, &mut out);
    out
}

#[test]
fn a_partition() {
    for (width, cells) in SHAPES {
        for wild in [false, true] {
            for half in [false, true] {
                let run = |kernels: &Kernels| {
                    let random = &mut Random((width * cells) as u64);
                    let q = random.floats(width);
                    let n = width * cells;
                    let (keys, values) = if wild {
                        (random.wild_floats(n), random.wild_floats(n))
                    } else {
                        (random.floats(n), random.floats(n))
                    };
                    let (half_keys, half_values) = (narrowed(&keys), narrowed(&values));
                    let (keys, values) = if half {
                        (Cells::F16(&half_keys), Cells::F16(&half_values))
                    } else {
                        (Cells::F32(&keys), Cells::F32(&values))
                    };
                    let mut scores = vec![0.0; cells];
                    kernels.score_keys(&q, keys, 0.125, &mut scores);
                    let raw = scores.clone();
                    for (j, score) in scores.iter_mut().enumerate() {
                        if j % 3 == 1 {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                    let (max, sum) = kernels.softmax_partition(&mut scores);
                    let mut out = random.floats(width);
                    kernels.accumulate_values(&scores, values, &mut out);
                    [raw, scores, out, vec![max, sum]].concat()
                };
                let wanted = run(&scalar());
                for_each_isa(|kernels| {
                    let case =
                        format!("{}, {width} wide, {cells} cells, f16 {half}, wild {wild}", kernels.isa());
                    assert_same(&run(kernels), &wanted, &case);
                });
            }
        }
    }
}

#[test]
fn the_maximum_is_the_first_of_equals_and_never_nan() {
    let cases: [&[f32]; 6] = [
        &[-1.0, 0.0, -0.0, -2.0],
        &[-1.0, -0.0, 0.0, -2.0],
        &[f32::NAN, -0.0, 0.0],
        &[f32::NEG_INFINITY; 20],
        &[f32::NAN; 33],
        &[f32::INFINITY, 1.0],
    ];
    // Zeros of both signs in every pair of places of whole vectors and of what is left over.
    let mut long = Vec::new();
    for first in [0, 3, 15, 16, 20, 31, 33] {
        for second in [2, 8, 19, 30, 32, 39] {
            let mut scores = vec![-3.0; 40];
            (scores[1], scores[first], scores[second]) = (f32::NAN, -0.0, 0.0);
            long.push(scores);
        }
    }
    for case in cases.into_iter().chain(long.iter().map(|scores| &scores[..])) {
        let run = |kernels: &Kernels| {
            let mut scores = case.to_vec();
            let (max, sum) = kernels.softmax_partition(&mut scores);
            [scores, vec![max, sum]].concat()
        };
        let wanted = run(&scalar());
        for_each_isa(|kernels| {
            assert_same(&run(kernels), &wanted, &format_args!("{} {case:?}", kernels.isa()))
        });
    }
}

#[test]
fn merging() {
    let infinite = f32::NEG_INFINITY;
    for (m0, m1) in
        [(0.5, 2.0), (2.0, 0.5), (infinite, 1.0), (1.0, infinite), (infinite, infinite), (f32::NAN, 1.0)]
    {
        let run = |kernels: &Kernels| {
            let random = &mut Random(9);
            let mut values = random.floats(70);
            let (max, sum) = kernels.merge_partition((m0, 3.5), &mut values, (m1, 1.25), &random.floats(70));
            [values, vec![max, sum]].concat()
        };
        let wanted = run(&scalar());
        for_each_isa(|kernels| {
            assert_same(&run(kernels), &wanted, &format_args!("{} {m0} {m1}", kernels.isa()))
        });
    }
}
