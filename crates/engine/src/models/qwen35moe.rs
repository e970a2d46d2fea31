//! `qwen35moe`: Qwen3.5 with experts and a shared one.

use super::ModelSpec;
use super::hybrid::{HeadOrder, single_stream};
use super::keys::Keys;
use super::tensors::Tensors;
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    single_stream("qwen35moe", keys, tensors, HeadOrder::Tiled)
}
