//! How far a context reaches and how its memory grows.

use engine::{KvGrowth, RopeOverride, RopeScaling};
use gguf::ModelFile;

use super::parse;
use crate::error::Error;

/// How the memory for keys and values grows.
#[derive(Debug, clap::Args)]
pub struct KvArgs {
    /// Take memory for the keys and values of so many tokens of each sequence at the start
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = parse::in_range(0..=parse::CONTEXT_MAX))]
    pub kv_init: usize,
    /// Take memory for so many tokens at a time as conversations grow [default: for those of 16 MiB]
    #[arg(long, value_name = "TOKENS", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub kv_step: Option<usize>,
    /// 1 keeps the memory of conversations that ended for others, 0 gives it back to the system
    #[arg(long, value_name = "0|1", default_value_t = 0, value_parser = parse::in_range(0..=1))]
    pub kv_hold: usize,
    /// Keep the keys and values of so many tokens of each layer on the device and the others in RAM; here is no device, so that all
    /// are in RAM
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = parse::in_range(0..=parse::CONTEXT_MAX))]
    pub kv_resident: usize,
}

impl KvArgs {
    /// The engine's form of it.
    pub fn growth(&self) -> KvGrowth {
        KvGrowth { init_tokens: self.kv_init, step_tokens: self.kv_step, hold: self.kv_hold == 1 }
    }
}

/// Positions other than the file has them, for a context longer than the model was trained for.
#[derive(Debug, clap::Args)]
pub struct RopeArgs {
    /// Scale positions, none, linear or yarn [default: as the file says]
    #[arg(long, value_name = "HOW", value_parser = parse::rope_scaling)]
    pub rope_scaling: Option<RopeScaling>,
    /// Reach so many times farther than the original context [default with --rope-scaling: as far as --ctx]
    #[arg(long, value_name = "FACTOR", value_parser = parse::number(1e-3..=1e4))]
    pub rope_scale: Option<f32>,
    /// The same as one divided by --rope-scale
    #[arg(long, value_name = "FACTOR", value_parser = parse::number(1e-4..=1e3), conflicts_with = "rope_scale")]
    pub rope_freq_scale: Option<f32>,
    /// Base of the rotary frequencies [default: as the file says]
    #[arg(long, value_name = "BASE", value_parser = parse::number(1.001..=1e12))]
    pub rope_freq_base: Option<f32>,
    /// Tokens of the context before it was scaled [default: as the file says]
    #[arg(long, value_name = "TOKENS", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub yarn_orig_ctx: Option<usize>,
    /// How much of the frequencies that YaRN keeps is in the mix; below 0 is all [default: as the file says]
    #[arg(long, value_name = "N", value_parser = parse::number(-1.0..=1.0))]
    pub yarn_ext_factor: Option<f32>,
    /// Factor of the magnitude of rotations [default: as the file says]
    #[arg(long, value_name = "N", value_parser = parse::number(1e-3..=1e3))]
    pub yarn_attn_factor: Option<f32>,
    /// Turns within the original context from which on YaRN keeps a frequency [default: as the file says]
    #[arg(long, value_name = "TURNS", value_parser = parse::number(1e-3..=1e6))]
    pub yarn_beta_fast: Option<f32>,
    /// Turns below which YaRN scales a frequency fully [default: as the file says]
    #[arg(long, value_name = "TURNS", value_parser = parse::number(1e-3..=1e6))]
    pub yarn_beta_slow: Option<f32>,
}

impl RopeArgs {
    /// Writes it over the file's keys.
    ///
    /// # Errors
    /// [`Error::Load`] where the file does not say what is needed.
    pub fn apply(&self, file: &mut ModelFile, context_tokens: Option<usize>) -> Result<(), Error> {
        let over = RopeOverride {
            scaling: self.rope_scaling,
            factor: self.rope_scale.or(self.rope_freq_scale.map(|scale| 1.0 / scale)),
            freq_base: self.rope_freq_base,
            original_context_tokens: self.yarn_orig_ctx,
            yarn_ext_factor: self.yarn_ext_factor,
            attn_factor: self.yarn_attn_factor,
            yarn_beta_fast: self.yarn_beta_fast,
            yarn_beta_slow: self.yarn_beta_slow,
        };
        let path = file.shards.first().map(|shard| shard.path.clone()).unwrap_or_default();
        let scaled = over
            .apply(file, context_tokens)
            .map_err(|source| Error::Load { path, source: Box::new(source) })?;
        if !scaled {
            tracing::warn!(
                "positions are not scaled: --rope-scaling linear or yarn needs --rope-scale, or a --ctx beyond the model's context"
            );
        }
        Ok(())
    }
}
