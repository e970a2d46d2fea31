//! Products of weight rows of every type with activation rows, and the quantisation of activations.

use gguf::TensorType;

use super::{Random, assert_same, for_each_isa, scalar};
use kernels::quant::{FORMATS, group};
use kernels::{Int8Rows, Int8RowsMut, Kernels, Layout, Tile, WeightRows, can_interleave, interleave};

/// Activation rows in int8 with room of their own.
struct Activations {
    k: usize,
    q: Vec<i8>,
    d: Vec<f32>,
    sum16: Vec<i16>,
}

impl Activations {
    fn new(k: usize, codes: Vec<i8>, d: Vec<f32>) -> Activations {
        let sum16 = codes.chunks(16).map(|codes| codes.iter().map(|&q| i16::from(q)).sum()).collect();
        Activations { k, q: codes, d, sum16 }
    }

    fn random(random: &mut Random, k: usize, rows: usize) -> Activations {
        let codes = (0..rows * k).map(|_| (random.below(255) as i32 - 127) as i8).collect();
        Activations::new(k, codes, random.floats(rows * k / 32))
    }

    fn rows(&self) -> Int8Rows<'_> {
        Int8Rows { k: self.k, q: &self.q, d: &self.d, sum16: &self.sum16 }
    }
}

fn int8_product(kernels: &Kernels, weights: &WeightRows<'_>, x: &Activations, rows: &[u32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows.len() * weights.rows()];
    kernels.matmul_int8(weights, &x.rows(), rows, &mut Tile::whole(&mut out, weights.rows()));
    out
}

fn check_int8(dtype: TensorType, k: usize, bytes: &[u8], x: &Activations, rows: &[u32], case: &str) {
    let weights = WeightRows::new(dtype, k, bytes);
    let wanted = int8_product(&scalar(), &weights, x, rows);
    for_each_isa(|kernels| {
        let shape = format!("{} x {}", weights.rows(), rows.len());
        let case = format!("{} {}, k {k}, {shape}, {case}", kernels.isa(), dtype.name());
        assert_same(&int8_product(kernels, &weights, x, rows), &wanted, &case);
    });
    check_interleaved(dtype, k, bytes, x, rows, &wanted);
}

/// The products of as many of these rows as can lie side by side: the same bits, whatever is asked of the memory.
fn check_interleaved(
    dtype: TensorType,
    k: usize,
    bytes: &[u8],
    x: &Activations,
    rows: &[u32],
    wanted: &[f32],
) {
    let row_bytes = dtype.row_bytes(k).unwrap();
    let (all, columns) = (bytes.len() / row_bytes, bytes.len() / row_bytes / 16 * 16);
    if columns == 0 || !can_interleave(dtype, columns) {
        return;
    }
    let in_rows = &bytes[..columns * row_bytes];
    let mut side_by_side = vec![0; in_rows.len()];
    interleave(dtype, row_bytes, in_rows, &mut side_by_side);
    let wanted: Vec<f32> = wanted.chunks(all).flat_map(|row| &row[..columns]).copied().collect();
    let weights = WeightRows::laid_out(dtype, k, &side_by_side, Layout::Interleaved);
    let nexts: [&[u8]; 3] = [&[], bytes, &bytes[..1]];
    let weights = [weights, weights.continued(false, nexts[0]), weights.continued(true, nexts[1])];
    for_each_isa(|kernels| {
        for weights in weights.iter().chain([&weights[0].continued(true, nexts[2])]) {
            let case =
                format!("{} {} interleaved, k {k}, {columns} x {}", kernels.isa(), dtype.name(), rows.len());
            assert_same(&int8_product(kernels, weights, x, rows), &wanted, &case);
        }
    });
    assert_same(&int8_product(&scalar(), &weights[0], x, rows), &wanted, &"scalar, interleaved");
}

#[test]
fn interleaved_rows_are_the_rows_that_were_interleaved() {
    for &dtype in FORMATS.iter().filter(|&&dtype| can_interleave(dtype, 32)) {
        let (k, random) = (3 * dtype.block_values(), &mut Random(dtype as u64));
        let row_bytes = dtype.row_bytes(k).unwrap();
        let bytes = random.bytes(32 * row_bytes);
        let mut out = vec![0; bytes.len()];
        interleave(dtype, row_bytes, &bytes, &mut out);
        assert_ne!(out, bytes);
        let rows = WeightRows::laid_out(dtype, k, &out, Layout::Interleaved);
        let back: Vec<u8> = (0..32).flat_map(|row| rows.row_of_file(row).into_owned()).collect();
        assert_eq!(back, bytes, "{}", dtype.name());
        let second = WeightRows::new(dtype, k, &bytes).slice(16, 16);
        assert_eq!(rows.slice(16, 16).row_of_file(3), second.row_of_file(3));
    }
    assert!(!can_interleave(TensorType::Q4_K, 24) && !can_interleave(TensorType::F16, 16));
}

#[test]
#[should_panic = "rows 8 and 16 more of interleaved ones"]
fn interleaved_rows_are_not_cut_within_sixteen() {
    WeightRows::laid_out(TensorType::Q8_0, 32, &[0; 32 * 34], Layout::Interleaved).slice(8, 16);
}

/// Row lengths of a type: whole blocks only, short ones and those of real models.
fn row_lengths(dtype: TensorType) -> Vec<usize> {
    let lengths = [32usize, 64, 96, 128, 256, 480, 512, 544, 576, 768, 1280, 1536, 2560];
    lengths.into_iter().filter(|k| k.is_multiple_of(dtype.block_values())).collect()
}

/// Random rows whose scales are ordinary numbers, so that no sum is lost in a NaN or an infinity.
fn ordinary_rows(random: &mut Random, dtype: TensorType, k: usize, rows: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < rows * dtype.row_bytes(k).unwrap() {
        let block = random.bytes(dtype.block_bytes());
        let groups = (0..dtype.block_values() / 32).map(|g| group(dtype, &block, g).unwrap());
        if groups.flat_map(|group| [group.d[0], group.d[1], group.min]).all(|x| x.abs() < 1e5) {
            bytes.extend(block);
        }
    }
    bytes
}

#[test]
fn int8_products_of_ordinary_blocks() {
    for &dtype in FORMATS {
        for k in [256, 768, 1024, 1280] {
            let random = &mut Random(k as u64 + 1);
            let x = Activations::random(random, k, 11);
            let bytes = ordinary_rows(random, dtype, k, 19);
            for rows in [1, 2, 8, 9, 11] {
                let rows: Vec<u32> = (0..rows).collect();
                let products = int8_product(&scalar(), &WeightRows::new(dtype, k, &bytes), &x, &rows);
                assert!(products.iter().all(|x| x.is_finite()), "{}", dtype.name());
                check_int8(dtype, k, &bytes, &x, &rows, "ordinary");
            }
        }
    }
}

#[test]
fn int8_products_of_random_blocks() {
    for &dtype in FORMATS {
        for k in row_lengths(dtype) {
            let random = &mut Random(k as u64);
            let x = Activations::random(random, k, 21);
            // Any bytes: scales are any half-precision bits.
            let columns = if k > 600 { 17 } else { 35 };
            let bytes = random.bytes(columns * dtype.row_bytes(k).unwrap());
            let gathered: Vec<u32> = (0..19).map(|_| random.below(21) as u32).collect();
            check_int8(dtype, k, &bytes, &x, &gathered, "gathered rows");
            check_int8(dtype, k, &bytes, &x, &gathered[..3], "few gathered rows");
            // One row goes a way of its own, where the end of a short chain counts, too.
            check_int8(dtype, k, &bytes, &x, &gathered[..1], "a lone gathered row");
        }
    }
}

#[test]
fn int8_products_of_few_rows_and_columns() {
    for &dtype in FORMATS {
        let k = 3 * 256;
        let random = &mut Random(5);
        let row_bytes = dtype.row_bytes(k).unwrap();
        let x = Activations::random(random, k, 17);
        let bytes = random.bytes(33 * row_bytes);
        for columns in [1, 2, 15, 16, 17, 33] {
            for rows in [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17] {
                let rows: Vec<u32> = (0..rows).rev().collect();
                check_int8(dtype, k, &bytes[..columns * row_bytes], &x, &rows, "few");
            }
        }
    }
}

#[test]
fn int8_products_of_extreme_blocks() {
    for &dtype in FORMATS {
        let k = 1280;
        let bytes = 16 * dtype.row_bytes(k).unwrap();
        let groups = 4 * k / 32;
        let extremes: [(Vec<i8>, f32); 4] = [
            (vec![-127; 4 * k], 1.0),
            (vec![127; 4 * k], -1e30),
            ((0..4 * k).map(|i| if i % 2 == 0 { 127 } else { -127 }).collect(), f32::NAN),
            (vec![0; 4 * k], 0.0),
        ];
        for (codes, d) in extremes {
            let x = Activations::new(k, codes, vec![d; groups]);
            // 0x80 is -128 as a code, 0x7c is an infinite scale, 0x7e and 0xff are NaN, 0x01 a subnormal, 0x3c about 1.
            for byte in [0x00, 0x01, 0x3c, 0x7b, 0x7c, 0x7e, 0x7f, 0x80, 0xbc, 0xfb, 0xff] {
                for rows in [&[2][..], &[0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]] {
                    check_int8(dtype, k, &vec![byte; bytes], &x, rows, "extreme");
                }
            }
        }
    }
}

/// The extreme bytes above rarely meet a finite scale; here every code is -128 (or all ones) and every scale 1.
#[test]
fn int8_products_of_extreme_codes_with_scale_one() {
    const ONE: [u8; 2] = 0x3c00u16.to_le_bytes();
    let types = [(TensorType::Q8_0, 34, 0), (TensorType::Q4_1, 20, 0), (TensorType::Q6_K, 210, 208)];
    for (dtype, block_bytes, scale_at) in types {
        for code in [0x80, 0xff, 0x7f, 0x00] {
            let k = 1536;
            let mut bytes = vec![code; 17 * dtype.row_bytes(k).unwrap()];
            for block in bytes.chunks_mut(block_bytes) {
                block[scale_at..scale_at + 2].copy_from_slice(&ONE);
                if dtype == TensorType::Q4_1 {
                    block[2..4].copy_from_slice(&ONE);
                }
            }
            for a in [-127, 127] {
                let x = Activations::new(k, vec![a; 12 * k], vec![1.0; 12 * k / 32]);
                check_int8(dtype, k, &bytes, &x, &[3], "codes");
                check_int8(dtype, k, &bytes, &x, &(0..12).collect::<Vec<u32>>(), "codes");
            }
        }
    }
}

#[test]
fn an_int8_product_in_a_part_of_a_matrix_leaves_the_rest_alone() {
    let (k, columns, rows) = (576, 40, 9);
    let random = &mut Random(3);
    let x = Activations::random(random, k, rows);
    let bytes = random.bytes(columns * TensorType::Q8_0.row_bytes(k).unwrap());
    let weights = WeightRows::new(TensorType::Q8_0, k, &bytes);
    let run = |kernels: &Kernels| {
        let mut matrix = vec![7.0; rows * columns];
        for mut tile in kernels::split_grid(&mut matrix, columns, &[1, 4, 9], &[3, 4, 38]) {
            let picked: Vec<u32> = (0..tile.rows()).map(|r| (tile.row0() + r) as u32).collect();
            let weights = weights.slice(tile.column0(), tile.columns());
            kernels.matmul_int8(&weights, &x.rows(), &picked, &mut tile);
        }
        matrix
    };
    let wanted = run(&scalar());
    for_each_isa(|kernels| assert_same(&run(kernels), &wanted, &kernels.isa()));
}

#[test]
fn float_products() {
    for dtype in [TensorType::F32, TensorType::F16, TensorType::BF16] {
        for k in [1, 7, 16, 31, 64, 100, 576, 1536] {
            let random = &mut Random(k as u64);
            let row_bytes = dtype.row_bytes(k).unwrap();
            for wild in [false, true] {
                let x = if wild { random.wild_floats(11 * k) } else { random.floats(11 * k) };
                let ordinary = random.floats(13 * k);
                for (columns, rows) in [(13, 1), (13, 11), (1, 5), (4, 4), (3, 3), (8, 2), (9, 0)] {
                    let bytes: Vec<u8> = if wild {
                        random.bytes(columns * row_bytes)
                    } else {
                        let value = |x: &f32| x.to_bits().to_le_bytes();
                        match dtype {
                            TensorType::F32 => ordinary.iter().flat_map(value).collect(),
                            TensorType::F16 => ordinary
                                .iter()
                                .flat_map(|&x| kernels::quant::f32_to_f16(x).to_le_bytes())
                                .collect(),
                            _ => ordinary.iter().flat_map(|x| value(x)[2..].to_vec()).collect(),
                        }
                    };
                    let weights = WeightRows::new(dtype, k, &bytes[..columns * row_bytes]);
                    let rows: Vec<u32> = (0..rows).rev().collect();
                    let run = |kernels: &Kernels| {
                        let mut out = vec![f32::NAN; rows.len() * columns];
                        kernels.matmul_float(&weights, &x, &rows, &mut Tile::whole(&mut out, columns));
                        out
                    };
                    let wanted = run(&scalar());
                    for_each_isa(|kernels| {
                        let shape = format!("{columns} x {}", rows.len());
                        let case = format!("{} {}, k {k}, {shape}, wild {wild}", kernels.isa(), dtype.name());
                        assert_same(&run(kernels), &wanted, &case);
                    });
                }
            }
        }
    }
}

#[test]
fn activations_are_quantised_alike() {
    let random = &mut Random(11);
    let mut groups: Vec<Vec<f32>> = (0..400).map(|_| random.floats(32)).collect();
    groups.extend((0..400).map(|_| random.wild_floats(32)));
    groups
        .extend([0.0, -0.0, 1e-30, 9.99e-31, 1e-45, f32::MAX, f32::INFINITY, f32::NAN].map(|x| vec![x; 32]));
    // Halves: with 127 as the largest value the scale is 1 and every .5 is a tie.
    groups.push((0..32).map(|i| if i == 0 { 127.0 } else { i as f32 - 16.5 }).collect());
    for per_row in [1, 2, 18, 48] {
        for x in groups.chunks_exact(per_row) {
            let x = x.concat();
            let run = |kernels: &Kernels| {
                let mut rows = Activations::new(x.len(), vec![99; x.len()], vec![99.0; x.len() / 32]);
                let Int8RowsMut { q, d, sum16, .. } =
                    Int8RowsMut { k: rows.k, q: &mut rows.q, d: &mut rows.d, sum16: &mut rows.sum16 };
                kernels.quantize_row(&x, q, d, sum16);
                rows
            };
            let wanted = run(&scalar());
            for_each_isa(|kernels| {
                let found = run(kernels);
                assert_eq!(found.q, wanted.q, "{}", kernels.isa());
                assert_eq!(found.sum16, wanted.sum16, "{}", kernels.isa());
                assert_same(&found.d, &wanted.d, &kernels.isa());
            });
        }
    }
}
