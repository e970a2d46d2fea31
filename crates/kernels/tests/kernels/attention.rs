//! Queries against partitions, pooled keys and the merging of partitions, with caches in every element type.

use super::{Random, assert_same, for_each_isa, scalar};
use kernels::attention::{Attended, Cells, Partition, Queries, int4_bytes, int4_scales, int8_scales};
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

/// The same cells in pieces of 1 to 9, each with memory of its own, and sometimes an empty one between them.
fn pieces(random: &mut Random, cells: Cells<'_>, width: usize) -> Vec<Stored> {
    let count = cells.cells_of(width).unwrap();
    let (mut pieces, mut first) = (Vec::new(), 0);
    while first < count {
        let end = (first + random.below(10)).min(count);
        let mut piece = Stored {
            f32: vec![],
            f16: vec![],
            codes: vec![],
            nibbles: vec![],
            scales: vec![],
            scales_of_int8: 0,
        };
        let scales_of = |each: usize| first * each..end * each;
        match cells {
            Cells::F32(all) => piece.f32 = all[first * width..end * width].to_vec(),
            Cells::F16(all) => piece.f16 = all[first * width..end * width].to_vec(),
            Cells::Int8 { codes, scales } => {
                piece.codes = codes[first * width..end * width].to_vec();
                piece.scales = scales[scales_of(int8_scales(width))].to_vec();
                piece.scales_of_int8 = piece.scales.len();
            }
            Cells::Int4 { codes, scales } => {
                piece.nibbles = codes[first * int4_bytes(width)..end * int4_bytes(width)].to_vec();
                piece.scales = scales[scales_of(int4_scales(width))].to_vec();
            }
        }
        pieces.push(piece);
        first = end;
    }
    pieces
}

fn dtype_of(cells: Cells<'_>) -> &'static str {
    match cells {
        Cells::F32(_) => "f32",
        Cells::F16(_) => "f16",
        Cells::Int8 { .. } => "int8",
        Cells::Int4 { .. } => "int4",
    }
}

/// Some cells of which each row sees the first so many, and nothing that comes next.
fn partition<'a>(keys: &'a Cells<'a>, values: &'a Cells<'a>, seen: &'a [u16]) -> Partition<'a> {
    let [keys, values] = [keys, values].map(std::slice::from_ref);
    Partition { keys, values, seen, next: &[] }
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
        let partition = partition(&keys, &values, &counts);
        let wanted = attended(&scalar(), queries, &partition, &mut Attended::default());
        for_each_isa(|kernels| {
            let found = attended(kernels, queries, &partition, &mut out);
            assert_same(&found, &wanted, &format_args!("{}, {case}, {counts:?}", kernels.isa()));
        });
    });
}

/// Wherever cells lie, and whatever is read after them.
#[test]
fn scattered_cells_say_the_same() {
    let mut out = Attended::default();
    for_each_case(|queries, keys, values, cells, random, case| {
        let counts: Vec<u16> = (0..queries.rows).map(|_| random.below(cells + 1) as u16).collect();
        let whole = partition(&keys, &values, &counts);
        let wanted = attended(&scalar(), queries, &whole, &mut Attended::default());
        let (name, width) = (dtype_of(keys), queries.head_dim);
        let cut = [keys, values].map(|cells| pieces(random, cells, width));
        let [keys, values] =
            cut.each_ref().map(|cut| cut.iter().map(|piece| piece.cells(name)).collect::<Vec<_>>());
        let next = if random.below(2) == 0 { &[] } else { &values[random.below(values.len())..] };
        let partition = Partition { keys: &keys, values: &values, seen: &counts, next };
        for_each_isa(|kernels| {
            let found = attended(kernels, queries, &partition, &mut out);
            assert_same(&found, &wanted, &format_args!("{}, {case}, {counts:?}", kernels.isa()));
        });
        assert_same(&attended(&scalar(), queries, &partition, &mut out), &wanted, &case);
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
        let (keys, values) = (Cells::F32(&keys), Cells::F32(&values));
        let counts = [cells as u16, 1 + turn % 40];
        let partition = partition(&keys, &values, &counts);
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
        let counts = [keys.len() as u16];
        let (all, values) = (Cells::F32(keys), Cells::F32(&values));
        let partition = partition(&all, &values, &counts);
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
    for_each_case(|queries, keys, _, cells, random, case| {
        let run = |kernels: &Kernels, keys: &[Cells<'_>], room: &mut Attended| {
            let mut scores = vec![f32::NAN; queries.rows * cells];
            kernels.score_blocks(queries, keys, &mut scores, room);
            scores
        };
        let cut = pieces(random, keys, queries.head_dim);
        let scattered: Vec<Cells<'_>> = cut.iter().map(|piece| piece.cells(dtype_of(keys))).collect();
        let wanted = run(&scalar(), &[keys], &mut room);
        assert_same(&run(&scalar(), &scattered, &mut room), &wanted, &case);
        for_each_isa(|kernels| {
            for keys in [&[keys][..], &scattered] {
                assert_same(
                    &run(kernels, keys, &mut room),
                    &wanted,
                    &format_args!("{}, {case}", kernels.isa()),
                );
            }
        });
    });
}

#[test]
fn scores_of_more_blocks_than_a_partition_has_cells() {
    let blocks = 2 * PARTITION_CELLS + 21;
    let keys = Random(2).floats(blocks * 16);
    let keys: Vec<Cells<'_>> = keys.chunks(PARTITION_CELLS * 16).map(Cells::F32).collect();
    let q = Random(3).floats(2 * 48);
    let queries = Queries { values: &q, stride: 48, rows: 2, heads: 3, head_dim: 16 };
    let run = |kernels: &Kernels| {
        let mut scores = vec![f32::NAN; 2 * blocks];
        kernels.score_blocks(&queries, &keys, &mut scores, &mut Attended::default());
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
