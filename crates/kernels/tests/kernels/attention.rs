//! Queries against partitions, pooled keys and the merging of partitions, with caches in every element type.

use super::{Random, assert_same, for_each_isa, scalar};
use kernels::attention::{Attended, Cells, Partition, Queries, Seen, int4_bytes, int4_scales, int8_scales};
use kernels::{Kernels, PARTITION_CELLS};

/// Head widths with cells of a partition.
const SHAPES: [(usize, usize); 13] = [
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
    (130, 70),
];

/// Rows and heads of queries: every remainder of a tile.
const QUERIES: [(usize, usize); 9] = [(1, 1), (1, 2), (3, 1), (2, 2), (1, 5), (2, 3), (1, 7), (4, 2), (5, 5)];

/// Cells in one of the element types.
struct Stored {
    f32: Vec<f32>,
    f16: Vec<u16>,
    codes: Vec<i8>,
    nibbles: Vec<u8>,
    scales: Vec<u16>,
    /// So many of them.
    scales_of_int8: usize,
}

const TYPES: [&str; 4] = ["f32", "f16", "int8", "int4"];

impl Stored {
    fn new(random: &mut Random, cells: usize, width: usize, wild: bool) -> Stored {
        let n = cells * width;
        let f32 = if wild { random.wild_floats(n) } else { random.floats(n) };
        let mut f16 = vec![0; n];
        scalar().narrow_f16(&f32, &mut f16);
        let codes = random.bytes(n).iter().map(|&b| b as i8).collect();
        // Whatever lies beyond the last value of a cell counts for nothing.
        let nibbles = random.bytes(cells * int4_bytes(width));
        let count = cells * int4_scales(width);
        let mut scales = vec![0; count];
        scalar()
            .narrow_f16(&if wild { random.wild_floats(count) } else { random.floats(count) }, &mut scales);
        Stored { f32, f16, codes, nibbles, scales, scales_of_int8: cells * int8_scales(width) }
    }

    fn cells(&self, dtype: &str) -> Cells<'_> {
        match dtype {
            "f32" => Cells::F32(&self.f32),
            "f16" => Cells::F16(&self.f16),
            "int8" => Cells::Int8 { codes: &self.codes, scales: &self.scales[..self.scales_of_int8] },
            _ => Cells::Int4 { codes: &self.nibbles, scales: &self.scales },
        }
    }
}

/// Everything that attending gives.
fn attended(
    kernels: &Kernels,
    queries: &Queries<'_>,
    partition: &Partition<'_>,
    out: &mut Attended,
) -> Vec<f32> {
    kernels.attend_partition(queries, 0.125, partition, out);
    let one = |i: usize| [&[out.max_sum(i).0, out.max_sum(i).1], out.values(i)].concat();
    (0..queries.len()).flat_map(one).collect()
}

/// Calls `check` with shapes, queries, element types and ordinary or wild values.
fn for_each_case(mut check: impl FnMut(&Queries<'_>, Cells<'_>, Cells<'_>, usize, &mut Random, &str)) {
    for (case, (width, cells)) in SHAPES.into_iter().enumerate() {
        for wild in [false, true] {
            let random = &mut Random((width * cells) as u64);
            let (keys, values) =
                (Stored::new(random, cells, width, wild), Stored::new(random, cells, width, wild));
            for turn in 0..3 {
                let (rows, heads) = QUERIES[(case + 3 * turn) % QUERIES.len()];
                let stride = heads * width + 3 * turn;
                let values_of_queries = random.floats(rows * stride);
                let queries = Queries { values: &values_of_queries, stride, rows, heads, head_dim: width };
                for dtype in TYPES {
                    let name =
                        format!("{rows} rows of {heads} x {width}, {cells} cells in {dtype}, wild {wild}");
                    check(&queries, keys.cells(dtype), values.cells(dtype), cells, random, &name);
                }
            }
        }
    }
}

#[test]
fn the_first_cells_of_a_partition() {
    let mut out = Attended::default();
    for_each_case(|queries, keys, values, cells, random, case| {
        let mut counts: Vec<u16> = (0..queries.rows).map(|_| random.below(cells + 1) as u16).collect();
        counts[random.below(queries.rows)] = cells as u16;
        let partition = Partition { keys, values, seen: Seen::First(&counts) };
        let wanted = attended(&scalar(), queries, &partition, &mut Attended::default());
        for_each_isa(|kernels| {
            let found = attended(kernels, queries, &partition, &mut out);
            assert_same(&found, &wanted, &format_args!("{}, {case}, {counts:?}", kernels.isa()));
        });
    });
}

#[test]
fn listed_cells_of_a_partition() {
    let mut out = Attended::default();
    for_each_case(|queries, keys, values, cells, random, case| {
        let mut list: Vec<u8> = (0..cells as u32).map(|cell| cell as u8).collect();
        list.retain(|_| random.below(3) == 0);
        if list.is_empty() {
            list.push(random.below(cells) as u8);
        }
        let partition = Partition { keys, values, seen: Seen::Listed(&list) };
        let wanted = attended(&scalar(), queries, &partition, &mut Attended::default());
        for_each_isa(|kernels| {
            let found = attended(kernels, queries, &partition, &mut out);
            assert_same(&found, &wanted, &format_args!("{}, {case}, {list:?}", kernels.isa()));
        });
    });
}

#[test]
fn a_list_of_the_first_cells_says_the_same() {
    let mut out = Attended::default();
    for_each_case(|queries, keys, values, cells, _, case| {
        let list: Vec<u8> = (0..cells as u32).map(|cell| cell as u8).collect();
        let counts = vec![cells as u16; queries.rows];
        let wanted =
            attended(&scalar(), queries, &Partition { keys, values, seen: Seen::First(&counts) }, &mut out);
        let found =
            attended(&scalar(), queries, &Partition { keys, values, seen: Seen::Listed(&list) }, &mut out);
        assert_same(&found, &wanted, &case);
    });
}

/// Weights that underflow to zero, beside values whose sums are zeros of both signs or not finite.
#[test]
fn cells_of_weight_zero_are_passed_over() {
    let (width, cells) = (32, 48);
    let random = &mut Random(5);
    for turn in 0..200u16 {
        let n = cells * width;
        let mut keys = random.floats(n);
        // Some scores lie more than 105 below the others.
        (0..cells).filter(|_| random.below(2) == 0).collect::<Vec<_>>().iter().for_each(|j| {
            keys[j * width..][..width].fill(-40.0);
        });
        let extremes = [0.0, -0.0, 1e-45, -1e-45, f32::INFINITY, f32::NAN];
        let values: Vec<f32> = (0..n)
            .map(|i| match (i % width + usize::from(turn)) % 5 {
                0 => 0.0,
                1 => -0.0,
                2 => extremes[random.below(4)],
                3 => extremes[random.below(6)],
                _ => random.unit(),
            })
            .collect();
        let q: Vec<f32> = (0..4 * width).map(|_| 1.0 + random.unit()).collect();
        let queries = Queries { values: &q, stride: 2 * width, rows: 2, heads: 2, head_dim: width };
        let partition = Partition {
            keys: Cells::F32(&keys),
            values: Cells::F32(&values),
            seen: Seen::First(&[cells as u16, 1 + turn % 40]),
        };
        let wanted = attended(&scalar(), &queries, &partition, &mut Attended::default());
        for_each_isa(|kernels| {
            let found = attended(kernels, &queries, &partition, &mut Attended::default());
            assert_same(&found, &wanted, &format_args!("{} {turn}", kernels.isa()));
        });
    }
}

#[test]
fn the_maximum_is_never_nan() {
    let cases: [&[f32]; 7] = [
        &[-1.0, 0.0, -0.0, -2.0],
        &[-1.0, -0.0, 0.0, -2.0],
        &[f32::NAN, -0.0, -1.0],
        &[f32::NEG_INFINITY; 20],
        &[f32::NAN; 33],
        &[f32::INFINITY, 1.0],
        &[f32::NAN, f32::NEG_INFINITY, 3.0],
    ];
    for keys in cases {
        let values = Random(1).floats(keys.len());
        let queries = Queries { values: &[8.0], stride: 1, rows: 1, heads: 1, head_dim: 1 };
        let partition = Partition {
            keys: Cells::F32(keys),
            values: Cells::F32(&values),
            seen: Seen::First(&[keys.len() as u16]),
        };
        let wanted = attended(&scalar(), &queries, &partition, &mut Attended::default());
        for_each_isa(|kernels| {
            let found = attended(kernels, &queries, &partition, &mut Attended::default());
            assert_same(&found, &wanted, &format_args!("{} {keys:?}", kernels.isa()));
        });
    }
}

#[test]
fn scores_of_blocks() {
    let mut room = Attended::default();
    for_each_case(|queries, keys, _, cells, _, case| {
        let run = |kernels: &Kernels, room: &mut Attended| {
            let mut scores = vec![f32::NAN; queries.rows * cells];
            kernels.score_blocks(queries, keys, &mut scores, room);
            scores
        };
        let wanted = run(&scalar(), &mut room);
        for_each_isa(|kernels| {
            assert_same(&run(kernels, &mut room), &wanted, &format_args!("{}, {case}", kernels.isa()));
        });
    });
}

#[test]
fn scores_of_more_blocks_than_a_partition_has_cells() {
    let blocks = 2 * PARTITION_CELLS + 21;
    let keys = Random(2).floats(blocks * 16);
    let q = Random(3).floats(2 * 48);
    let queries = Queries { values: &q, stride: 48, rows: 2, heads: 3, head_dim: 16 };
    let run = |kernels: &Kernels| {
        let mut scores = vec![f32::NAN; 2 * blocks];
        kernels.score_blocks(&queries, Cells::F32(&keys), &mut scores, &mut Attended::default());
        scores
    };
    let wanted = run(&scalar());
    assert!(wanted.contains(&0.0) && wanted.iter().any(|&score| score > 1.0));
    for_each_isa(|kernels| assert_same(&run(kernels), &wanted, &kernels.isa()));
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
