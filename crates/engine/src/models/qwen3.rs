//! `qwen3`: a norm on every query and key head.

use super::keys::Keys;
use super::llama::{Style, dense};
use super::tensors::Tensors;
use super::{ModelSpec, Pairing};
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    dense(keys, tensors, Style { name: "qwen3", pairing: Pairing::Halves, head_norms: true })
}
