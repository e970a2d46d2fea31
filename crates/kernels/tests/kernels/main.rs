//! Every instruction set this CPU has against the definition, bit for bit, by the same cases.

mod attention;
mod cells;
mod floats;
mod math;
mod products;
mod tile;

use kernels::{Isa, Kernels};

/// Row lengths: every short one, odd ones, those of real models.
fn lengths() -> impl Iterator<Item = usize> {
    (1..71).chain([127, 129, 255, 576, 600, 1000, 1536, 2560])
}

/// The definition.
fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("plain Rust is available")
}

/// `cargo xtask emulate` runs this one first: without the instruction set all others pass and say nothing about it.
#[test]
#[ignore = "for an emulated CPU, which has them all"]
fn the_best_instruction_set_is_there() {
    let best = if cfg!(target_arch = "aarch64") { Isa::Neon } else { Isa::Avx512 };
    assert_eq!(Isa::detect(), best);
}

/// Calls `check` with the kernels of each other instruction set this CPU has.
fn for_each_isa(mut check: impl FnMut(&Kernels)) {
    for isa in Isa::ALL {
        if isa != Isa::Scalar
            && let Some(kernels) = Kernels::new(isa)
        {
            check(&kernels);
        }
    }
}

/// Equal bits, or both NaN.
#[track_caller]
fn assert_same(found: &[f32], wanted: &[f32], case: &dyn std::fmt::Display) {
    assert_eq!(found.len(), wanted.len());
    for (i, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
        assert!(
            found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
            "{case}: value {i} is {found:e}, the definition gives {wanted:e}"
        );
    }
}

/// Sebastiano Vigna's SplitMix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// In [-1, 1).
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| 3.0 * self.unit()).collect()
    }

    /// Ordinary values with zeros, subnormals, infinities, NaNs and any other bits among them.
    fn wild_floats(&mut self, n: usize) -> Vec<f32> {
        const EXTREMES: [f32; 12] = [
            0.0,
            -0.0,
            1e-45,
            -1e-40,
            f32::MIN_POSITIVE,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            88.7,
            -103.9,
        ];
        (0..n)
            .map(|_| match self.below(8) {
                0 => EXTREMES[self.below(EXTREMES.len())],
                1 => f32::from_bits(self.bits() as u32),
                2 => 100.0 * self.unit(),
                _ => self.unit(),
            })
            .collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.bits() as u8).collect()
    }
}
