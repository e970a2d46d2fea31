//! Speed of what treats rows one by one, per instruction set, on one core: the delta rule, mixing and adding of streams, the
//! convolution, norms, rotations and activations, at the sizes of qwen4exp.
//!
//! From memory: GB/s read and written, and the per cent of what a loop that scales numbers in place moves in the same run.
//! In the cache: GFLOP/s. Arguments: names; none means all.

use std::hint::black_box;
use std::time::Instant;

use kernels::{Isa, Kernels};

/// Values that an operation goes through: 256 MiB, more than a cache holds.
const VALUES: usize = 1 << 26;
/// Values in the second-level cache.
const NEAR_VALUES: usize = 1 << 15;

/// Name, values of an item, f32 read and written per value, floating-point operations per value, and the operation on an
/// item that fills `state`.
type Case = (&'static str, usize, f64, f64, fn(&Kernels, &mut [f32], &Inputs));

/// Whatever else operations read: short, so in the cache.
struct Inputs {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

/// Streams and width of the residual.
const STREAMS: usize = 4;
const WIDTH: usize = 2560;

const CASES: [Case; 7] = [
    // A state of 128 keys by 128 values: decay, read, write, query.
    ("delta", 128 * 128, 2.0, 7.0, |kernels, state, x| {
        let mut out = [0.0; 128];
        kernels.delta_step(state, &x.a[..128], &x.b[..128], 0.97, 0.4, Some((&x.c[..128], 0.1, &mut out)));
        black_box(out[0]);
    }),
    // Gates and streams in turn, a fifth of their length out.
    ("mix streams", 2 * STREAMS * WIDTH, 1.0, 1.0, |kernels, state, _| {
        let (gate, x) = state.split_at(STREAMS * WIDTH);
        let mut out = [0.0; WIDTH];
        kernels.mix_streams(gate, x, &mut out);
        black_box(out[0]);
    }),
    ("add to stream", WIDTH, 2.0, 2.0, |kernels, state, x| kernels.add_scaled(state, 0.3, &x.a[..WIDTH])),
    ("norm", WIDTH, 1.0, 4.0, |kernels, state, x| {
        let mut out = [0.0; WIDTH];
        kernels.rms_norm(state, Some(&x.a[..WIDTH]), 1e-6, &mut out);
        black_box(out[0]);
    }),
    ("silu", 640, 2.0, 0.0, |kernels, state, x| kernels.silu_multiply(state, &x.a[..640])),
    ("rope", 256, 2.0, 3.0, |kernels, state, x| kernels.apply_rope_halves(state, &x.a[..128], &x.b[..128])),
    ("convolve", 4 * WIDTH, 1.0, 2.0, |kernels, state, x| {
        let taps: [&[f32]; 4] = std::array::from_fn(|i| &state[i * WIDTH..][..WIDTH]);
        let mut out = [0.0; WIDTH];
        kernels.convolve(&taps, &x.c[..4 * WIDTH], &mut out);
        black_box(out[0]);
    }),
];

fn main() {
    let names: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let inputs = Inputs { a: numbers(WIDTH), b: numbers(WIDTH), c: numbers(4 * WIDTH) };
    let mut memory = numbers(VALUES);
    for isa in Isa::ALL {
        let Some(kernels) = Kernels::new(isa).filter(|_| isa != Isa::Scalar) else { continue };
        println!("{}\noperation        GB/s  of bound   in cache: GFLOP/s", isa.name());
        for (name, item, moved, flops, run) in CASES {
            if !names.is_empty() && !names.iter().any(|n| n == name) {
                continue;
            }
            let far = VALUES / item * item;
            let each =
                |values: &mut [f32]| values.chunks_exact_mut(item).for_each(|x| run(&kernels, x, &inputs));
            let bound = if moved > 1.0 {
                least_seconds(|| memory[..far].iter_mut().for_each(|x| *x *= 0.999))
            } else {
                least_seconds(|| _ = black_box(memory[..far].iter().fold(0u32, |sum, x| sum | x.to_bits())))
            };
            let seconds = least_seconds(|| each(&mut memory[..far]));
            let near = (NEAR_VALUES / item).max(1) * item;
            let near_seconds = least_seconds(|| (0..64).for_each(|_| each(&mut memory[..near]))) / 64.0;
            println!(
                "{name:14} {:6.1} {:8.0} % {:19.1}",
                4e-9 * moved * far as f64 / seconds,
                100.0 * bound / seconds,
                1e-9 * flops * near as f64 / near_seconds
            );
            memory.iter_mut().enumerate().for_each(|(i, x)| *x = number(i));
        }
    }
}

fn number(i: usize) -> f32 {
    (i * 7 % 1009) as f32 / 5000.0 - 0.1
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(number).collect()
}

/// Of the fastest of five runs.
fn least_seconds(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64()
    };
    (0..5).map(once).fold(f64::INFINITY, f64::min)
}
