//! `qwen2`: Qwen2 and Qwen2.5; biases on queries, keys and values.

use super::keys::Keys;
use super::llama::{Style, dense};
use super::tensors::Tensors;
use super::{ModelSpec, Pairing};
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    dense(keys, tensors, Style { name: "qwen2", pairing: Pairing::Halves, head_norms: false })
}
