//! `qwen35`: Qwen3.5 dense; tiled value heads, interleaved position axes.

use super::ModelSpec;
use super::hybrid::{HeadOrder, single_stream};
use super::keys::Keys;
use super::tensors::Tensors;
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    single_stream("qwen35", keys, tensors, HeadOrder::Tiled)
}
