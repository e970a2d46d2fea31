//! What the processor could do at best: the bound that products of int8 values are measured against.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::isa::Isa;
use crate::table::Kernels;

/// Rows of either operand: as many sums as the smaller register files hold beside the operands.
const ROWS_A: usize = 2;
const ROWS_B: usize = 4;

/// Values of a row: both operands together stay in the first cache.
const ROW_VALUES: usize = 1024;

/// Products of one pass over the operands.
const PASS_PRODUCTS: usize = ROWS_A * ROWS_B * ROW_VALUES;

/// Passes between two looks at the clock: some tens of microseconds.
const PASSES: usize = 256;

/// One operand: rows of codes from 0 to 127, which unsigned and signed instructions read alike.
type Rows<const N: usize> = [[u8; ROW_VALUES]; N];

impl Kernels {
    /// Multiplies and adds int8 values on this thread for `time`, out of the first cache and with nothing around it, in
    /// the shortest sequence of the instruction set that is exact for 8 bits; returns how many products that were.
    ///
    /// Formats of fewer bits may take a sequence that is shorter still.
    pub fn int8_products(&self, time: Duration) -> u64 {
        let mut a = [[0; ROW_VALUES]; ROWS_A];
        let mut b = [[0; ROW_VALUES]; ROWS_B];
        for (i, code) in a.as_flattened_mut().iter_mut().chain(b.as_flattened_mut()).enumerate() {
            *code = (i * 37 % 128) as u8;
        }
        let pass = of(self.isa());
        let wanted = scalar(&a, &b);
        let (start, mut passes) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..PASSES {
                let sums = pass(black_box(&a), black_box(&b));
                assert!(sums == wanted, "the instructions of {} do not multiply", self.isa());
            }
            passes += PASSES;
        }
        (passes * PASS_PRODUCTS) as u64
    }
}

type Sums = [[i32; ROWS_B]; ROWS_A];

/// The pass of an instruction set that this CPU has.
fn of(isa: Isa) -> fn(&Rows<ROWS_A>, &Rows<ROWS_B>) -> Sums {
    match isa {
        Isa::Scalar => scalar,
        // SAFETY: a `Kernels` of an instruction set exists only where the CPU has its features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => |a, b| unsafe { x86::avx2(a, b) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => |a, b| unsafe { x86::avx512(a, b) },
        #[cfg(target_arch = "x86_64")]
        Isa::Neon => unreachable!("no `Kernels` of another architecture's instruction set exists"),
        // Not the best sequence of other architectures: nothing could be measured there yet.
        #[cfg(not(target_arch = "x86_64"))]
        _ => scalar,
    }
}

fn scalar(a: &Rows<ROWS_A>, b: &Rows<ROWS_B>) -> Sums {
    let dot = |x: &[u8; ROW_VALUES], y: &[u8; ROW_VALUES]| {
        x.iter().zip(y).map(|(&x, &y)| i32::from(x) * i32::from(y as i8)).sum()
    };
    a.each_ref().map(|x| b.each_ref().map(|y| dot(x, y)))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::{ROW_VALUES, ROWS_A, ROWS_B, Rows, Sums};

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(a: &Rows<ROWS_A>, b: &Rows<ROWS_B>) -> Sums {
        // SAFETY: 32 bytes at a multiple of 32 below the length.
        let load =
            |row: &[u8; ROW_VALUES], i: usize| unsafe { _mm256_loadu_si256(row[32 * i..].as_ptr().cast()) };
        let ones = _mm256_set1_epi16(1);
        let mut sums = [[_mm256_setzero_si256(); ROWS_B]; ROWS_A];
        for i in 0..ROW_VALUES / 32 {
            let (x, y) = (a.each_ref().map(|row| load(row, i)), b.each_ref().map(|row| load(row, i)));
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sum, y) in sums.iter_mut().zip(y) {
                    let pairs = _mm256_maddubs_epi16(x, y);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        sums.map(|sums| {
            sums.map(|sum| {
                let mut lanes = [0i32; 8];
                // SAFETY: room for eight lanes.
                unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
                lanes.iter().sum()
            })
        })
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn avx512(a: &Rows<ROWS_A>, b: &Rows<ROWS_B>) -> Sums {
        // SAFETY: 64 bytes at a multiple of 64 below the length.
        let load =
            |row: &[u8; ROW_VALUES], i: usize| unsafe { _mm512_loadu_si512(row[64 * i..].as_ptr().cast()) };
        let mut sums = [[_mm512_setzero_si512(); ROWS_B]; ROWS_A];
        for i in 0..ROW_VALUES / 64 {
            let (x, y) = (a.each_ref().map(|row| load(row, i)), b.each_ref().map(|row| load(row, i)));
            for (sums, x) in sums.iter_mut().zip(x) {
                for (sum, y) in sums.iter_mut().zip(y) {
                    *sum = _mm512_dpbusd_epi32(*sum, x, y);
                }
            }
        }
        sums.map(|sums| sums.map(|sum| _mm512_reduce_add_epi32(sum)))
    }
}
