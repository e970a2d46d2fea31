//! `qwen3moe`: `qwen3` with experts and no shared expert.

use super::keys::Keys;
use super::llama::{Style, dense};
use super::tensors::Tensors;
use super::{ModelSpec, Pairing};
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    dense(keys, tensors, Style { name: "qwen3moe", pairing: Pairing::Halves, head_norms: true })
}
