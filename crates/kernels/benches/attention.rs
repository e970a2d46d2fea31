//! Speed of attention per shape and instruction set, on one core, beside its bounds.
//!
//! Decode (one row): GB/s of half-precision keys and values from memory, to be held against the memory's read bandwidth,
//! and the share of the multiply-adds that the registers could do when they come from a cache. Prompt (16 rows): GFLOP/s.
//! Arguments: names of shapes, `sparse`, `indexer`; none means all.

use std::hint::black_box;
use std::time::Instant;

use kernels::{Attended, Cells, Isa, Kernels, PARTITION_CELLS, Partition, Queries};

/// Name, query heads per key head, values per head.
const SHAPES: [(&str, usize, usize); 7] = [
    ("smollm2", 3, 64),
    ("qwen2-0.5b", 7, 64),
    ("qwen2-1.5b", 6, 128),
    ("moe-1g", 4, 128),
    ("moe-5g", 8, 128),
    ("qwen4exp", 12, 256),
    ("one-head", 1, 128),
];

/// Values of keys and values: 256 MiB in half precision, more than a cache holds.
const VALUES: usize = 1 << 27;

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let named = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let cache = Cache::new();
    for isa in Isa::ALL {
        let Some(kernels) = Kernels::new(isa).filter(|_| isa != Isa::Scalar) else { continue };
        println!(
            "{}, memory {:.1} GB/s\n\
             shape       heads x dim  decode: GB/s ns/cell     int8: GB/s ns/cell    4 bits: GB/s ns/cell   \
             in cache, GFLOP/s: f16 int8 4 bits   prompt: f16 int8 4 bits",
            isa.name(),
            cache.bandwidth()
        );
        for (name, heads, dim) in SHAPES.into_iter().filter(|&(name, ..)| named(name)) {
            shape(&kernels, &cache, name, heads, dim);
        }
        if named("sparse") {
            sparse(&kernels, &cache);
        }
        if named("indexer") {
            indexer(&kernels, &cache);
        }
    }
}

/// Keys and values without end.
struct Cache {
    halves: Vec<u16>,
    codes: Vec<i8>,
    nibbles: Vec<u8>,
    scales: Vec<u16>,
}

/// An element type of cells.
#[derive(Clone, Copy)]
enum Stored {
    Half,
    Int8,
    Int4,
}

const STORED: [Stored; 3] = [Stored::Half, Stored::Int8, Stored::Int4];

impl Stored {
    /// Bytes of a cell's value.
    fn bytes(self) -> f64 {
        match self {
            Stored::Half => 2.0,
            Stored::Int8 => 1.0 + 2.0 / 64.0,
            Stored::Int4 => 0.5 + 2.0 / 32.0,
        }
    }
}

impl Cache {
    fn new() -> Cache {
        Cache {
            halves: (0..VALUES).map(|i| 0x2c00 + (i * 7 % 4001) as u16).collect(),
            codes: (0..VALUES).map(|i| (i * 7 % 251) as i8).collect(),
            nibbles: (0..VALUES / 2).map(|i| (i * 7 % 251) as u8).collect(),
            scales: vec![0x1419; VALUES / 32],
        }
    }

    /// Run `i` of `values` values.
    fn half(&self, i: usize, values: usize) -> Cells<'_> {
        Cells::F16(&self.halves[i * values..][..values])
    }

    fn cells(&self, stored: Stored, i: usize, values: usize) -> Cells<'_> {
        let scales = |each: usize| &self.scales[i * values / each..][..values / each];
        match stored {
            Stored::Half => self.half(i, values),
            Stored::Int8 => Cells::Int8 { codes: &self.codes[i * values..][..values], scales: scales(64) },
            Stored::Int4 => {
                let codes = &self.nibbles[i * values / 2..][..values / 2];
                Cells::Int4 { codes, scales: scales(32) }
            }
        }
    }

    /// GB/s of one core.
    fn bandwidth(&self) -> f64 {
        let sum = |part: &[u16]| part.iter().fold(0u16, |sum, &x| sum | x);
        2.0 * VALUES as f64 / 1e9 / seconds(|| _ = black_box(sum(&self.halves)))
    }
}

/// Dense attention of one row, then of sixteen.
fn shape(kernels: &Kernels, cache: &Cache, name: &str, heads: usize, dim: usize) {
    let values = PARTITION_CELLS * dim;
    let mut out = Attended::default();
    let mut run = |rows: usize, stored: Stored, partitions: usize| {
        let q = some_queries(rows * heads * dim);
        let queries = Queries { values: &q, stride: heads * dim, rows, heads, head_dim: dim };
        let counts = vec![PARTITION_CELLS as u16; rows];
        let cells = |i| cache.cells(stored, i, values);
        let seconds = seconds(|| {
            for i in 0..partitions {
                let (keys, values) = ([cells(2 * i)], [cells(2 * i + 1)]);
                let partition = Partition { keys: &keys, values: &values, seen: &counts, next: &[] };
                kernels.attend_partition(&queries, 0.1, &partition, &mut out);
            }
        });
        seconds / partitions as f64
    };
    let flops = 4e-9 * (heads * values) as f64;
    print!("{name:12} {heads:2} x {dim:3}");
    for stored in STORED {
        let seconds = run(1, stored, VALUES / values / 2);
        let bytes = 2e-9 * values as f64 * stored.bytes();
        print!(" {:14.1} {:8.2}", bytes / seconds, 1e9 * seconds / PARTITION_CELLS as f64);
    }
    let [in_cache, prompt] =
        [1, 16].map(|rows| STORED.map(|stored| rows as f64 * flops / run(rows, stored, 2)));
    let numbers = |x: [f64; 3]| format!("{:6.1} {:6.1} {:6.1}", x[0], x[1], x[2]);
    println!("   {}   {}", numbers(in_cache), numbers(prompt));
}

/// One row over partitions of scattered blocks of four cells: every so many-th block in memory. First qwen4exp's shape, then that
/// of `bench/depth`.
fn sparse(kernels: &Kernels, cache: &Cache) {
    for (heads, dim, every) in [(12, 256, 1), (12, 256, 16), (2, 64, 1), (2, 64, 16), (2, 64, 128)] {
        let values = 4 * dim;
        let q = some_queries(heads * dim);
        let queries = Queries { values: &q, stride: 0, rows: 1, heads, head_dim: dim };
        let mut out = Attended::default();
        // Keys, then values of each partition.
        let pieces = |partition: usize| -> Vec<Cells<'_>> {
            let first = partition * PARTITION_CELLS / 4;
            let piece = |i, half| cache.half((2 * (first + i) + half) * every, values);
            [0, 1]
                .into_iter()
                .flat_map(|half| (0..PARTITION_CELLS / 4).map(move |i| piece(i, half)))
                .collect()
        };
        let mut run = |partitions: usize| {
            let all: Vec<Vec<Cells<'_>>> = (0..partitions).map(pieces).collect();
            let seconds = seconds(|| {
                for (i, cells) in all.iter().enumerate() {
                    let (keys, values) = cells.split_at(cells.len() / 2);
                    let next = all.get(i + 1).map_or(&[][..], |next| next);
                    let partition = Partition { keys, values, seen: &[PARTITION_CELLS as u16], next };
                    kernels.attend_partition(&queries, 0.1, &partition, &mut out);
                }
            });
            seconds / partitions as f64
        };
        let cells = (PARTITION_CELLS * dim) as f64;
        let (bytes, flops) = (4e-9 * cells, 4e-9 * cells * heads as f64);
        let (far, near) = (run(VALUES / (2 * PARTITION_CELLS * dim * every)), run(2));
        println!(
            "sparse, {heads:2} x {dim:3}, every {every:3}: {:.1} GB/s, {:.1} GFLOP/s; in cache {:.1} GFLOP/s, {:.2} us a partition",
            bytes / far,
            flops / far,
            flops / near,
            1e6 * near
        );
    }
}

/// The indexer of qwen4exp: 64 pooled keys a block of cells, which lie as far apart as in a state with heads of 64 values.
fn indexer(kernels: &Kernels, cache: &Cache) {
    let (heads, dim, blocks, apart) = (4, 128, 64, 9);
    let values = blocks * dim;
    let mut room = Attended::default();
    for rows in [1, 16] {
        let q = some_queries(rows * heads * dim);
        let queries = Queries { values: &q, stride: heads * dim, rows, heads, head_dim: dim };
        let mut run = |partitions: usize| {
            let keys: Vec<Cells<'_>> = (0..partitions).map(|i| cache.half(i * apart, values)).collect();
            let mut scores = vec![0.0; rows * blocks * partitions];
            seconds(|| kernels.score_blocks(&queries, &keys, &mut scores, &mut room)) / partitions as f64
        };
        let (bytes, flops) = (2e-9 * values as f64, 2e-9 * (rows * heads * values) as f64);
        let (far, near) = (run(VALUES / values / apart), run(4));
        println!(
            "indexer, {rows:2} rows: {:.1} GB/s, {:.1} GFLOP/s; in cache {:.1} GFLOP/s",
            bytes / far,
            flops / far,
            flops / near
        );
    }
}

fn some_queries(values: usize) -> Vec<f32> {
    (0..values).map(|i| (i * 13 % 101) as f32 * 0.01 - 0.5).collect()
}

/// The least time of a call over a fifth of a second.
fn seconds(mut call: impl FnMut()) -> f64 {
    let mut least = f64::INFINITY;
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 0.2 {
        let begun = Instant::now();
        call();
        least = least.min(begun.elapsed().as_secs_f64());
    }
    least
}
