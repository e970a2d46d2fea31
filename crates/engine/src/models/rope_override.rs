//! What the user says about positions against what the file says.

use gguf::{ModelFile, Value};

use super::keys::Keys;
use crate::error::LoadError;

/// How positions beyond the trained context are brought into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency is divided by the factor.
    Linear,
    /// YaRN (Peng et al. 2023): low frequencies are divided, high ones stay.
    Yarn,
}

impl RopeScaling {
    /// All of them.
    pub const ALL: [RopeScaling; 3] = [RopeScaling::None, RopeScaling::Linear, RopeScaling::Yarn];

    /// Its name in model files.
    pub fn name(self) -> &'static str {
        match self {
            RopeScaling::None => "none",
            RopeScaling::Linear => "linear",
            RopeScaling::Yarn => "yarn",
        }
    }

    /// By its name in model files.
    pub fn from_name(name: &str) -> Option<RopeScaling> {
        RopeScaling::ALL.into_iter().find(|scaling| scaling.name() == name)
    }
}

/// Positions other than a file has them. What is absent stays as the file says.
///
/// They are written over the file's keys before anything reads these, so that all that is derived from a file follows
/// them: shapes, plan, and the identity that saved states are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopeOverride {
    /// How positions are scaled.
    pub scaling: Option<RopeScaling>,
    /// How many times longer than the original context they reach, above 0. If absent where `scaling` is there: as many
    /// times as the wanted context is longer, else what the file says.
    pub factor: Option<f32>,
    /// Base of the frequencies, above 1.
    pub freq_base: Option<f32>,
    /// Tokens of the context that the model was trained for before any scaling.
    pub original_context_tokens: Option<usize>,
    /// How much of YaRN's kept frequencies there is in the mix, at most 1; below 0 is all of them.
    pub yarn_ext_factor: Option<f32>,
    /// Factor of the magnitude of the rotation, above 0.
    pub attn_factor: Option<f32>,
    /// Turns within the original context from which on YaRN keeps a frequency, above 0.
    pub yarn_beta_fast: Option<f32>,
    /// Turns below which it divides one, above 0.
    pub yarn_beta_slow: Option<f32>,
}

impl RopeOverride {
    /// Writes it over the keys of `file`, of which a context of `context_tokens` is wanted. Where positions are scaled the
    /// model's context grows by the factor. False if scaling was asked for and nothing says by how much, or the file says that there
    /// is none.
    ///
    /// # Errors
    /// [`LoadError`] where the file does not say what is needed.
    pub fn apply(&self, file: &mut ModelFile, context_tokens: Option<usize>) -> Result<bool, LoadError> {
        if *self == RopeOverride::default() {
            return Ok(true);
        }
        let Some(architecture) = file.metadata.string("general.architecture")?.map(str::to_owned) else {
            // Whoever reads the model says what is missing.
            return Ok(true);
        };
        let mut set = Vec::new();
        let mut number = |key: &'static str, value: Option<f32>| {
            set.extend(value.map(|value| (key, Value::F32(value))));
        };
        number("rope.freq_base", self.freq_base);
        number("rope.scaling.yarn_ext_factor", self.yarn_ext_factor);
        number("rope.scaling.attn_factor", self.attn_factor);
        number("rope.scaling.yarn_beta_fast", self.yarn_beta_fast);
        number("rope.scaling.yarn_beta_slow", self.yarn_beta_slow);
        let keys = Keys::new(file, &architecture);
        let original = match self.original_context_tokens {
            Some(tokens) => tokens,
            None => match keys.optional_size("rope.scaling.original_context_length")? {
                Some(tokens) if tokens > 0 => tokens,
                _ => keys.size("context_length")?,
            },
        };
        if let Some(scaling) = self.scaling {
            set.push(("rope.scaling.type", scaling.name().into()));
        }
        if self.original_context_tokens.is_some() || self.scaling.is_some() {
            set.push(("rope.scaling.original_context_length", size(original)));
        }
        let factor = self.factor_of(&keys, original, context_tokens)?;
        let wants = self.factor.is_some() || self.scaling.is_some_and(|scaling| scaling != RopeScaling::None);
        if let Some(factor) = factor {
            set.push(("rope.scaling.factor", Value::F32(factor)));
            let reached = (original as f64 * f64::from(factor.max(1.0))).round();
            set.push(("context_length", size(reached.min(f64::from(i32::MAX)) as usize)));
        }
        for (key, value) in set {
            file.metadata.set(&format!("{architecture}.{key}"), value);
        }
        Ok(factor.is_some() || !wants)
    }

    /// The factor that is to be written, if any.
    fn factor_of(
        &self,
        keys: &Keys<'_>,
        original: usize,
        context_tokens: Option<usize>,
    ) -> Result<Option<f32>, LoadError> {
        let unscaled = keys.optional_string("rope.scaling.type")? == Some(RopeScaling::None.name());
        match (self.scaling, self.factor) {
            (Some(RopeScaling::None), _) => Ok(Some(1.0)),
            // A factor alone scales nothing there.
            (None, Some(_)) if unscaled => Ok(None),
            (_, Some(factor)) => Ok(Some(factor)),
            (None, None) => Ok(None),
            (Some(_), None) => match context_tokens.filter(|&tokens| tokens > original) {
                Some(tokens) => Ok(Some((tokens as f64 / original as f64) as f32)),
                None => keys.optional_float("rope.scaling.factor"),
            },
        }
    }
}

fn size(tokens: usize) -> Value {
    Value::U32(u32::try_from(tokens).unwrap_or(u32::MAX))
}
