//! Speed of products per tensor type and instruction set, on one core: GB/s of weights for one activation row (decode),
//! GMAC/s for more (prompt). Arguments: names of types; none means all. In brackets the per cent of the bound measured in
//! the same run: reading memory for one row, multiplying and adding in registers for 512. Rows marked `=` are interleaved.

use std::hint::black_box;
use std::time::Instant;

use gguf::TensorType;
use kernels::quant::FORMATS;

use kernels::{Int8Rows, Isa, Kernels, Layout, Tile, WeightRows, can_interleave};

/// Weight rows: with k = 576 and 1536 more than the caches hold for one activation row.
const COLUMNS: usize = 49_152;

fn main() {
    let mut types: Vec<TensorType> =
        std::env::args().skip(1).filter_map(|name| TensorType::from_name(&name)).collect();
    if types.is_empty() {
        types = FORMATS.to_vec();
        types.extend([TensorType::F16, TensorType::BF16, TensorType::F32]);
    }
    for isa in Isa::ALL {
        let (Some(kernels), true) = (Kernels::new(isa), isa != Isa::Scalar) else { continue };
        let bounds = Bounds::measure(isa);
        println!(
            "{}: memory {:.1} GB/s, int8 {:.0} GMAC/s, f32 {:.0} GMAC/s",
            isa.name(),
            bounds.gigabytes,
            bounds.int8,
            bounds.float
        );
        println!("type          k    GB/s 1 row  (in cache)  GMAC/s: 4      16      64     512 rows");
        for &dtype in &types {
            for k in [576, 1536] {
                if k % dtype.block_values() == 0 {
                    report(&kernels, &bounds, dtype, k, Layout::Rows);
                    if can_interleave(dtype, COLUMNS) {
                        report(&kernels, &bounds, dtype, k, Layout::Interleaved);
                    }
                }
            }
        }
    }
}

/// What one core can do at most, measured.
struct Bounds {
    /// GB/s read from memory.
    gigabytes: f64,
    /// GMAC/s of bytes and of f32 in registers.
    int8: f64,
    float: f64,
}

impl Bounds {
    fn measure(isa: Isa) -> Bounds {
        let memory = vec![1u64; 1 << 24];
        let sum = || memory.iter().fold(0u64, |sum, &x| sum.wrapping_add(x));
        let gigabytes = 8.0 * memory.len() as f64
            / least_seconds(|| {
                black_box(sum());
            })
            / 1e9;
        let rate = |macs_per_step: usize, run: fn(usize)| {
            const STEPS: usize = 1 << 20;
            (macs_per_step * STEPS) as f64 / least_seconds(|| run(black_box(STEPS))) / 1e9
        };
        let [int8, float] = peak::loops(isa).map(|(macs_per_step, run)| rate(macs_per_step, run));
        Bounds { gigabytes, int8, float }
    }
}

/// Loops of nothing but multiply-adds in registers.
#[cfg(target_arch = "x86_64")]
mod peak {
    use core::arch::x86_64::*;
    use std::hint::black_box;

    use kernels::Isa;

    /// Sums in flight: more than the latency of an addition times those a cycle.
    const SUMS: usize = 12;

    /// Multiply-adds of a step and the function that takes so many steps, for bytes and for f32.
    pub fn loops(isa: Isa) -> [(usize, fn(usize)); 2] {
        match isa {
            // SAFETY: `main` asks only for what this CPU has.
            Isa::Avx512 => unsafe {
                [(64 * SUMS, |steps| avx512_int8(steps)), (16 * SUMS, |steps| avx512_float(steps))]
            },
            // SAFETY: as above.
            _ => unsafe { [(32 * SUMS, |steps| avx2_int8(steps)), (8 * SUMS, |steps| avx2_float(steps))] },
        }
    }

    #[target_feature(enable = "avx2")]
    fn avx2_int8(steps: usize) {
        let (a, ones) = black_box((_mm256_set1_epi8(1), _mm256_set1_epi16(1)));
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                // A factor that changes, so that nothing is moved out of the loop.
                let products = _mm256_madd_epi16(_mm256_maddubs_epi16(a, *sum), ones);
                *sum = _mm256_add_epi32(*sum, products);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    fn avx2_float(steps: usize) {
        let (a, b) = black_box((_mm256_set1_ps(1.5), _mm256_set1_ps(0.5)));
        let mut sums = [_mm256_setzero_ps(); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(a, b, *sum);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn avx512_int8(steps: usize) {
        let (a, b) = black_box((_mm512_set1_epi8(1), _mm512_set1_epi8(2)));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    fn avx512_float(steps: usize) {
        let (a, b) = black_box((_mm512_set1_ps(1.5), _mm512_set1_ps(0.5)));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for _ in 0..steps {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(a, b, *sum);
            }
        }
        black_box(sums);
    }
}

fn report(kernels: &Kernels, bounds: &Bounds, dtype: TensorType, k: usize, layout: Layout) {
    let row_bytes = dtype.row_bytes(k).expect("whole blocks");
    // Scattered bytes, as lookups in grids want them; without bit 2 half-precision scales are finite.
    let scattered = |i: usize| (i.wrapping_mul(0x9e37_79b9) >> 20) as u8 & 0xfb;
    let bytes: Vec<u8> = (0..COLUMNS * row_bytes).map(scattered).collect();
    let bench = |columns: usize, rows: usize| {
        let weights = WeightRows::laid_out(dtype, k, &bytes[..columns * row_bytes], layout);
        let mut out = vec![0.0f32; columns * rows];
        seconds(kernels, &weights, rows, &mut out)
    };
    let gigabytes = |columns: usize| (columns * row_bytes) as f64 / bench(columns, 1) / 1e9;
    let gigamacs = |rows: usize| (1024 * k * rows) as f64 / bench(1024, rows) / 1e9;
    let (from_memory, from_cache) = (gigabytes(COLUMNS), gigabytes(512));
    let [few, more, many, most] = [4, 16, 64, 512].map(gigamacs);
    let peak = if Kernels::takes_float(dtype) { bounds.float } else { bounds.int8 };
    println!(
        "{:8} {}{k:5} {from_memory:6.1} ({:3.0} %) {from_cache:10.1}   {few:8.1} {more:8.1} {many:8.1} {most:8.1} ({:3.0} %)",
        dtype.name(),
        if layout == Layout::Rows { ' ' } else { '=' },
        100.0 * from_memory / bounds.gigabytes,
        100.0 * most / peak,
    );
}

fn seconds(kernels: &Kernels, weights: &WeightRows<'_>, rows: usize, out: &mut [f32]) -> f64 {
    let k = weights.k;
    let x: Vec<f32> = (0..rows * k).map(|i| (i * 13 % 101) as f32 - 50.0).collect();
    let (mut q, mut d, mut sum16) = (vec![0; x.len()], vec![0.0; x.len() / 32], vec![0; x.len() / 16]);
    kernels.quantize_row(&x, &mut q, &mut d, &mut sum16);
    let int8 = Int8Rows { k, q: &q, d: &d, sum16: &sum16 };
    let picked: Vec<u32> = (0..rows as u32).collect();
    least_seconds(|| {
        let mut tile = Tile::whole(out, weights.rows());
        if Kernels::takes_float(weights.dtype) {
            kernels.matmul_float(weights, &x, &picked, &mut tile);
        } else {
            kernels.matmul_int8(weights, &int8, &picked, &mut tile);
        }
    })
}

/// The least of the times over a third of a second.
fn least_seconds(mut run: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.3 {
        let begun = Instant::now();
        run();
        least = least.min(begun.elapsed().as_secs_f64());
    }
    least
}
