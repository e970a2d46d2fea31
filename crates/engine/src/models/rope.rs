//! Rotary positions: which pairs rotate, by which frequency, along which axis.

use super::keys::{Keys, listed};
use super::tensors::TensorId;
use crate::error::LoadError;

/// Which values of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(x[2 j], x[2 j + 1])`.
    Adjacent,
    /// `(x[j], x[j + d / 2])`.
    Halves,
}

/// Rotary positions of a model.
#[derive(Clone, Debug)]
pub struct RopeSpec {
    /// Which values form a pair.
    pub pairing: Pairing,
    /// Angle per position of each pair, radians; scaling included.
    pub frequencies: Vec<f64>,
    /// Position axis (0 time, 1 height, 2 width) of each pair.
    pub axes: Vec<u8>,
    /// Sines and cosines are multiplied by this (YaRN's temperature; 1 otherwise).
    pub magnitude: f64,
    /// One divisor per pair (Llama 3 stores its scaling this way).
    pub divisors: Option<TensorId>,
}

impl RopeSpec {
    /// Reads `rope.*`.
    pub(super) fn read(keys: &Keys<'_>, pairing: Pairing, head_dim: usize) -> Result<RopeSpec, LoadError> {
        let dims = keys.optional_size("rope.dimension_count")?.unwrap_or(head_dim);
        keys.require(
            "rope.dimension_count",
            dims > 0 && dims % 2 == 0 && dims <= head_dim,
            &format!("an even number up to the head's {head_dim}"),
            dims,
        )?;
        let base = f64::from(keys.optional_float("rope.freq_base")?.unwrap_or(10_000.0));
        keys.require("rope.freq_base", base > 1.0, "a number above 1", base)?;
        let mut frequencies: Vec<f64> =
            (0..dims / 2).map(|j| libm::pow(base, -2.0 * j as f64 / dims as f64)).collect();
        let magnitude = scale(keys, base, &mut frequencies)?;
        Ok(RopeSpec { pairing, axes: axes(keys, dims / 2)?, frequencies, magnitude, divisors: None })
    }

    /// Divides the frequencies by the values of [`RopeSpec::divisors`], once they are read.
    pub(crate) fn divide(&mut self, divisors: &[f32]) {
        for (frequency, &divisor) in self.frequencies.iter_mut().zip(divisors) {
            *frequency /= f64::from(divisor);
        }
    }

    /// Values of a head that rotate.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines and sines at one position triple, one per pair.
    ///
    /// Computed in f64 by a portable implementation of sin and cos and rounded once, so every machine agrees.
    pub fn rotation(&self, position: [i32; 3], cos: &mut [f32], sin: &mut [f32]) {
        for (j, (&frequency, &axis)) in self.frequencies.iter().zip(&self.axes).enumerate() {
            let angle = f64::from(position[axis as usize]) * frequency;
            cos[j] = (libm::cos(angle) * self.magnitude) as f32;
            sin[j] = (libm::sin(angle) * self.magnitude) as f32;
        }
    }
}

/// Interleaved axes: pair j belongs to height if `j % 3 == 1` and to width if `j % 3 == 2`, as far as the sections
/// reach; else to time. Without sections everything is time.
fn axes(keys: &Keys<'_>, pairs: usize) -> Result<Vec<u8>, LoadError> {
    let Some(sections) = keys.optional_integers("rope.dimension_sections")? else {
        return Ok(vec![0; pairs]);
    };
    keys.require(
        "rope.dimension_sections",
        (3..=4).contains(&sections.len())
            && sections.iter().all(|&s| s <= pairs as u64)
            && sections.iter().sum::<u64>() <= pairs as u64,
        &format!("three or four numbers that add up to at most {pairs}"),
        listed(&sections),
    )?;
    Ok((0..pairs as u64)
        .map(|j| match j % 3 {
            1 if j < 3 * sections[1] => 1,
            2 if j < 3 * sections[2] => 2,
            _ => 0,
        })
        .collect())
}

/// Applies `rope.scaling.*` and returns the magnitude of the rotation.
///
/// Linear (also where a factor comes without a type, as older files have it): frequencies divided by the factor. YaRN
/// (Peng et al. 2023): frequencies that turn often within the original context stay, those that turn less than once are
/// divided, with a ramp between; magnitude `1 + 0.1 ln(factor)`. `attn_factor` multiplies the magnitude of any type.
/// Which keys count and what their absence means is llama.cpp's reading of them.
fn scale(keys: &Keys<'_>, base: f64, frequencies: &mut [f64]) -> Result<f64, LoadError> {
    let kind = keys.optional_string("rope.scaling.type")?.unwrap_or("linear");
    let key = match keys.optional_float("rope.scaling.factor")? {
        Some(_) => "rope.scaling.factor",
        None => "rope.scale_linear",
    };
    let factor = match keys.optional_float(key)? {
        None | Some(0.0) => 1.0,
        Some(factor) => f64::from(factor),
    };
    keys.require(key, factor > 0.0, "a positive number", factor)?;
    let magnitude = positive(keys, "rope.scaling.attn_factor", 1.0)?;
    match kind {
        "none" => Ok(magnitude),
        "linear" => {
            for frequency in frequencies {
                *frequency /= factor;
            }
            Ok(magnitude)
        }
        "yarn" => Ok(magnitude * yarn(keys, base, factor, frequencies)?),
        other => Err(LoadError::BadKey {
            key: keys.full("rope.scaling.type"),
            wanted: "none, linear or yarn".into(),
            found: other.into(),
        }),
    }
}

fn positive(keys: &Keys<'_>, key: &str, default: f32) -> Result<f64, LoadError> {
    let value = keys.optional_float(key)?.unwrap_or(default);
    keys.require(key, value > 0.0, "a positive number", value)?;
    Ok(f64::from(value))
}

/// YaRN: scales the frequencies and returns the magnitude.
fn yarn(keys: &Keys<'_>, base: f64, factor: f64, frequencies: &mut [f64]) -> Result<f64, LoadError> {
    let original = match keys.optional_size("rope.scaling.original_context_length")? {
        Some(tokens) if tokens > 0 => tokens,
        _ => keys.size("context_length")?,
    };
    let beta_fast = positive(keys, "rope.scaling.yarn_beta_fast", 32.0)?;
    let beta_slow = positive(keys, "rope.scaling.yarn_beta_slow", 1.0)?;
    // How much of the kept frequencies there is in the mix; without any, YaRN is linear scaling.
    let kept = f64::from(keys.optional_float("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0));
    keys.require("rope.scaling.yarn_ext_factor", kept <= 1.0, "a number of at most 1", kept)?;
    let kept = if kept < 0.0 { 1.0 } else { kept };
    let dims = 2.0 * frequencies.len() as f64;
    // The pair that turns `turns` times within the original context.
    let pair_of = |turns: f64| {
        dims * libm::log(original as f64 / (turns * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(base))
    };
    let low = pair_of(beta_fast).floor().max(0.0);
    let high = pair_of(beta_slow).ceil().min(dims - 1.0);
    for (j, frequency) in frequencies.iter_mut().enumerate() {
        let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let keep = (1.0 - ramp) * kept;
        *frequency = *frequency / factor * (1.0 - keep) + *frequency * keep;
    }
    Ok(if kept == 0.0 || factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * libm::log(factor) })
}
