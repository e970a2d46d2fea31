//! Speed of products per tensor type and instruction set, on one core: GB/s of weights for one activation row (decode),
//! GMAC/s for 64 and 512 rows (prompt). Arguments: names of types; none means those of SmolLM2 and a few more.

use std::time::Instant;

use gguf::TensorType;
use kernels::{Int8Rows, Isa, Kernels, Tile, WeightRows};

/// Weight rows: with k = 576 and 1536 more than the caches hold for one activation row.
const COLUMNS: usize = 49_152;

fn main() {
    let named: Vec<TensorType> =
        std::env::args().skip(1).filter_map(|name| TensorType::from_name(&name)).collect();
    let usual = [
        TensorType::Q4_1,
        TensorType::Q8_0,
        TensorType::Q6_K,
        TensorType::Q4_0,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::IQ4_NL,
        TensorType::IQ2_XS,
        TensorType::F16,
        TensorType::F32,
    ];
    let types = if named.is_empty() { usual.to_vec() } else { named };
    println!("type     isa      k    GB/s 1 row  (in cache)  GMAC/s: 4      16      64     512 rows");
    for dtype in types {
        for isa in Isa::ALL {
            if let (Some(kernels), true) = (Kernels::new(isa), isa != Isa::Scalar) {
                for k in [576, 1536] {
                    if k % dtype.block_values() == 0 {
                        report(&kernels, dtype, k);
                    }
                }
            }
        }
    }
}

fn report(kernels: &Kernels, dtype: TensorType, k: usize) {
    let row_bytes = dtype.row_bytes(k).expect("whole blocks");
    // Small numbers in every byte: finite scales.
    let bytes: Vec<u8> = (0..COLUMNS * row_bytes).map(|i| (i * 7 % 61) as u8).collect();
    let bench = |columns: usize, rows: usize| {
        let weights = WeightRows::new(dtype, k, &bytes[..columns * row_bytes]);
        let mut out = vec![0.0f32; columns * rows];
        seconds(kernels, &weights, rows, &mut out)
    };
    let gigabytes = |columns: usize| (columns * row_bytes) as f64 / bench(columns, 1) / 1e9;
    let gigamacs = |rows: usize| (1024 * k * rows) as f64 / bench(1024, rows) / 1e9;
    println!(
        "{:8} {:7} {k:5} {:9.1} {:10.1}     {:8.1} {:8.1} {:8.1} {:8.1}",
        dtype.name(),
        kernels.isa().name(),
        gigabytes(COLUMNS),
        gigabytes(512),
        gigamacs(4),
        gigamacs(16),
        gigamacs(64),
        gigamacs(512),
    );
}

/// The least time of a product over a third of a second.
fn seconds(kernels: &Kernels, weights: &WeightRows<'_>, rows: usize, out: &mut [f32]) -> f64 {
    let k = weights.k;
    let x: Vec<f32> = (0..rows * k).map(|i| (i * 13 % 101) as f32 - 50.0).collect();
    let (mut q, mut d, mut sum16) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0; x.len() / 16]);
    kernels.quantize_row(&x, &mut q, &mut d, &mut sum16);
    let int8 = Int8Rows { k, q: &q, d: &d, sum16: &sum16 };
    let picked: Vec<u32> = (0..rows as u32).collect();
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.3 {
        let begun = Instant::now();
        let mut tile = Tile::whole(out, weights.rows());
        if Kernels::takes_float(weights.dtype) {
            kernels.matmul_float(weights, &x, &picked, &mut tile);
        } else {
            kernels.matmul_int8(weights, &int8, &picked, &mut tile);
        }
        least = least.min(begun.elapsed().as_secs_f64());
    }
    least
}
