//! Speed of products of one row out of memory, in huge pages and in tiles one after another, as the pool's threads take them: GB/s
//! of weights as in the file and interleaved, on one core, beside what a plain sum reads and what comes out of the cache.
//! Arguments: names of types; none means all that can be interleaved.

use std::hint::black_box;
use std::time::Instant;

use gguf::TensorType;
use kernels::quant::FORMATS;
use kernels::{Int8Rows, Kernels, Layout, Tile, WeightRows, can_interleave};
use sys::memory::AlignedBuf;

/// Values of a row.
const K: usize = 1536;
/// More than any cache that one core has for itself.
const WEIGHT_BYTES: usize = 400 << 20;
/// About as many bytes as a thread takes at a time.
const TILE_BYTES: usize = 128 << 10;
/// Times that all is read; the median counts.
const ROUNDS: usize = 7;

fn main() {
    let named: Vec<TensorType> =
        std::env::args().skip(1).filter_map(|name| TensorType::from_name(&name)).collect();
    let kernels = Kernels::detect();
    println!(
        "{} on one core, rows of {K} values\ntype      layout       GB/s  in cache  a sum",
        kernels.isa().name()
    );
    for dtype in FORMATS.iter().copied().filter(|&dtype| can_interleave(dtype, 16)) {
        if named.is_empty() || named.contains(&dtype) {
            report(&kernels, dtype);
        }
    }
}

fn report(kernels: &Kernels, dtype: TensorType) {
    let row_bytes = dtype.row_bytes(K).expect("whole blocks");
    let tile = (TILE_BYTES / row_bytes).next_multiple_of(16);
    let tiles = WEIGHT_BYTES / row_bytes / tile;
    let mut buffer = AlignedBuf::<u64>::zeroed((tiles * tile * row_bytes).div_ceil(8)).expect("memory");
    for (i, word) in buffer.iter_mut().enumerate() {
        // Scattered; without these bits half-precision scales are finite.
        *word = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xfbfb_fbfb_fbfb_fbfb;
    }
    let bytes = &sys::cast::bytes_of(&buffer)[..tiles * tile * row_bytes];
    let x: Vec<f32> = (0..K).map(|i| (i * 13 % 101) as f32 - 50.0).collect();
    let (mut q, mut d, mut sum16) = (vec![0; K], vec![0.0; K / 32], vec![0; K / 16]);
    kernels.quantize_row(&x, &mut q, &mut d, &mut sum16);
    let x = Int8Rows { k: K, q: &q, d: &d, sum16: &sum16 };
    let mut out = vec![0.0f32; tile];
    for layout in [Layout::Rows, Layout::Interleaved] {
        let weights = WeightRows::laid_out(dtype, K, bytes, layout);
        let mut pass = |distinct: usize| {
            let begun = Instant::now();
            for i in 0..tiles {
                let next = bytes.get((i + 1) % distinct * tile * row_bytes..).unwrap_or_default();
                let rows = weights.slice(i % distinct * tile, tile).continued(i > 0, next);
                kernels.matmul_int8(&rows, &x, &[0], &mut Tile::whole(&mut out, tile));
            }
            bytes.len() as f64 / begun.elapsed().as_secs_f64() / 1e9
        };
        let (memory, cache) = (median(|| pass(tiles)), median(|| pass(1)));
        let sum = median(|| plain_sum(&buffer));
        println!("{:8} {layout:12?} {memory:5.1} {cache:9.1} {sum:6.1}", dtype.name());
    }
}

/// GB/s of a loop that does nothing but read.
fn plain_sum(words: &[u64]) -> f64 {
    let begun = Instant::now();
    let mut sums = [0u64; 32];
    for block in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*word);
        }
    }
    black_box(sums);
    size_of_val(words) as f64 / begun.elapsed().as_secs_f64() / 1e9
}

fn median(mut run: impl FnMut() -> f64) -> f64 {
    let mut rates: Vec<f64> = (0..ROUNDS).map(|_| run()).collect();
    rates.sort_unstable_by(f64::total_cmp);
    rates[ROUNDS / 2]
}
