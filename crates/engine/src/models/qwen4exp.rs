//! `qwen4exp`: Qwen3.8-Flash-Next. Four gated residual streams, an n-gram table, delta-net layers, block-sparse
//! attention, experts with a shared one, and a draft layer.

use super::hybrid::{HeadOrder, delta_net, recurrent_layers, with_shared_expert};
use super::keys::{Keys, listed};
use super::llama::attention;
use super::tensors::Tensors;
use super::{
    Activation, AttentionSpec, DraftSpec, IndexerSpec, LayerSpec, Mixer, ModelSpec, NgramSpec, Pairing,
    Residual, Warning, frame,
};
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    let mut spec = frame("qwen4exp", keys, tensors, Pairing::Halves, Residual::Streams)?;
    let (width, rotated) = (spec.width, spec.rope.dims());
    let recurrent = recurrent_layers(keys)?;
    let ratios = compress_ratios(keys, tensors, &recurrent, &mut spec.warnings)?;
    let ngram_layer = ngram_layer(keys, tensors, recurrent.len())?;
    for (index, &recurrent) in recurrent.iter().enumerate() {
        let b = format!("blk.{index}.");
        let mixer = match recurrent {
            true => {
                Mixer::DeltaNet(delta_net(keys, tensors, &b, width, HeadOrder::Tiled, Activation::Sigmoid)?)
            }
            false => Mixer::Attention(sparse_attention(keys, tensors, &b, (width, rotated), ratios[index])?),
        };
        let mut layer = layer(keys, tensors, &b, index, width, mixer)?;
        if ngram_layer == Some(index) {
            layer.ngram = Some(ngram(keys, tensors, &b, width)?);
        }
        spec.layers.push(layer);
    }
    spec.draft = draft(keys, tensors, recurrent.len(), (width, rotated), &ratios)?;
    Ok(spec)
}

fn layer(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    index: usize,
    width: usize,
    mixer: Mixer,
) -> Result<LayerSpec, LoadError> {
    Ok(LayerSpec {
        index,
        ngram: None,
        mixer_read: tensors.stream_read(&format!("{b}hc_attn"), width, keys, true)?,
        mixer,
        feed_forward_read: tensors.stream_read(&format!("{b}hc_ffn"), width, keys, true)?,
        feed_forward: with_shared_expert(keys, tensors, b, width)?,
    })
}

/// Cells per indexer block of each layer, 0 for dense attention and recurrent layers.
///
/// A single number stands for every layer. Some converters write 0 for every layer although the indexer's tensors are
/// there; 4 is right for them, and is worth a warning.
fn compress_ratios(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    recurrent: &[bool],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<usize>, LoadError> {
    let key = "attention.compress_ratios";
    let mut ratios = keys.optional_integers(key)?.unwrap_or_default();
    keys.require(key, ratios.iter().all(|&r| r <= 256), "at most 256 cells per block", listed(&ratios))?;
    match ratios[..] {
        [one] => ratios.resize(recurrent.len() + 1, one),
        _ => keys.require(
            key,
            ratios.is_empty() || ratios.len() >= recurrent.len(),
            &format!("a value for each of {} layers", recurrent.len()),
            format!("{} values", ratios.len()),
        )?,
    }
    ratios.resize(ratios.len().max(recurrent.len() + 1), 0);
    let has_indexer = |i: usize| tensors.has(&format!("blk.{i}.indexer.q_proj.weight"));
    let trunk = 0..recurrent.len();
    if trunk.clone().all(|i| ratios[i] == 0) && trunk.clone().any(|i| !recurrent[i] && has_indexer(i)) {
        for (_, ratio) in ratios.iter_mut().enumerate().filter(|&(index, _)| has_indexer(index)) {
            *ratio = ASSUMED_BLOCK_CELLS as u64;
        }
        warnings
            .push(Warning::IndexerBlocksAssumed { key: keys.full(key), block_cells: ASSUMED_BLOCK_CELLS });
    }
    Ok(ratios.into_iter().map(|r| r as usize).collect())
}

/// Cells per indexer block where the file does not say.
const ASSUMED_BLOCK_CELLS: usize = 4;

/// `width` of the residual stream, and how many values of each head (the indexer's too) are `rotated`.
fn sparse_attention(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    (width, rotated): (usize, usize),
    block_cells: usize,
) -> Result<AttentionSpec, LoadError> {
    let mut spec = attention(keys, tensors, b, width, true, true)?;
    if block_cells > 0 {
        let heads = keys.size("attention.indexer.head_count")?;
        let head_dim = keys.size("attention.indexer.key_length")?;
        let budget = keys.size("attention.indexer.top_k")?;
        keys.require("attention.indexer.top_k", budget >= block_cells, "room for one block", budget)?;
        keys.require(
            "attention.compress_ratios",
            256 % block_cells == 0,
            "a divisor of 256 cells",
            block_cells,
        )?;
        keys.require(
            "attention.indexer.key_length",
            head_dim >= rotated,
            &format!("at least the {rotated} rotated dimensions"),
            head_dim,
        )?;
        keys.require_columns("attention.indexer.head_count", heads * head_dim)?;
        spec.indexer = Some(IndexerSpec {
            heads,
            head_dim,
            block_cells,
            blocks_kept: budget / block_cells,
            q: tensors.linear(&format!("{b}indexer.q_proj"), width, heads * head_dim)?,
            k: tensors.linear(&format!("{b}indexer.k_proj"), width, head_dim)?,
            q_norm: tensors.vector(&format!("{b}indexer.q_norm.weight"), head_dim)?,
            k_norm: tensors.vector(&format!("{b}indexer.k_norm.weight"), head_dim)?,
        });
    }
    Ok(spec)
}

fn ngram_layer(keys: &Keys<'_>, tensors: &Tensors<'_>, layers: usize) -> Result<Option<usize>, LoadError> {
    let list = keys.optional_integers("ple.layers")?;
    if list.is_none() && tensors.has("per_layer_token_embd.weight") {
        let wanted = "the layer that reads the n-gram table";
        return Err(LoadError::MissingKey { key: keys.full("ple.layers"), wanted });
    }
    let list = list.unwrap_or_default();
    keys.require("ple.layers", list.len() <= 1, "at most one layer", listed(&list))?;
    let Some(&layer) = list.first() else { return Ok(None) };
    keys.require("ple.layers", (layer as usize) < layers, &format!("a layer below {layers}"), layer)?;
    Ok(Some(layer as usize))
}

fn ngram(keys: &Keys<'_>, tensors: &mut Tensors<'_>, b: &str, width: usize) -> Result<NgramSpec, LoadError> {
    let flat = width * keys.streams()?;
    let ngram = keys.size("ple.ngram_size")?;
    keys.require("ple.ngram_size", (2..=8).contains(&ngram), "between 2 and 8", ngram)?;
    let heads_per_ngram = keys.size("ple.heads_per_ngram")?;
    let heads = (ngram - 1) * heads_per_ngram;
    let row_width = keys.size("embedding_length_per_layer_input")?;
    let (table, rows) = tensors.table("per_layer_token_embd.weight", row_width)?;
    let head_sizes = keys.integers("ple.head_vocab_sizes", heads)?;
    let head_offsets = keys.integers("ple.head_offsets", heads)?;
    for (&size, &offset) in head_sizes.iter().zip(&head_offsets) {
        keys.require(
            "ple.head_vocab_sizes",
            size > 0 && offset.checked_add(size).is_some_and(|end| end <= rows as u64),
            &format!("heads within the table's {rows} rows"),
            format!("{size} rows from row {offset}"),
        )?;
    }
    let reset = keys.size("ple.eos_token_id")?;
    let taps = keys.size("ple.conv_kernel")?;
    keys.require("ple.conv_kernel", (2..=64).contains(&taps), "between 2 and 64", taps)?;
    Ok(NgramSpec {
        table,
        row_width,
        ngram,
        heads_per_ngram,
        multipliers: keys.integers("ple.layer_multipliers", ngram)?,
        head_sizes,
        head_offsets,
        reset_token: reset as u32,
        image_token: keys.optional_size("ple.image_token_id")?.unwrap_or(reset) as u32,
        key: tensors.linear(&format!("{b}ple_key"), heads * row_width, flat)?,
        value: tensors.linear(&format!("{b}ple_value"), heads * row_width, width)?,
        norm_key: tensors.vector(&format!("{b}ple_norm_key.weight"), flat)?,
        norm_query: tensors.vector(&format!("{b}ple_norm_query.weight"), flat)?,
        norm_convolution: tensors.vector(&format!("{b}ple_norm_conv.weight"), flat)?,
        convolution: tensors.taps(&format!("{b}ple_conv1d.weight"), taps, flat)?,
        taps,
        dilation: ngram,
    })
}

/// The draft layer: the first block behind the trunk, in the file itself or in one beside it.
fn draft(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    index: usize,
    (width, rotated): (usize, usize),
    ratios: &[usize],
) -> Result<Option<DraftSpec>, LoadError> {
    tensors.use_draft_file(true);
    let b = format!("blk.{index}.");
    if !tensors.has(&format!("{b}nextn.eh_proj.weight")) {
        tensors.use_draft_file(false);
        return match tensors.has_draft_file() {
            true => Err(LoadError::MissingTensor {
                name: format!("{b}nextn.eh_proj.weight"),
                wanted: vec![2 * width, width],
            }),
            false => Ok(None),
        };
    }
    let flat = width * keys.streams()?;
    // A file whose trunk list lacks the draft layer's entry has the indexer's tensors to go by.
    let indexed = tensors.has(&format!("{b}indexer.q_proj.weight"));
    let ratio = match ratios.get(index).copied().unwrap_or(0) {
        0 if indexed => ratios.iter().copied().max().filter(|&r| r > 0).unwrap_or(ASSUMED_BLOCK_CELLS),
        ratio => ratio,
    };
    let mixer = Mixer::Attention(sparse_attention(keys, tensors, &b, (width, rotated), ratio)?);
    let draft = DraftSpec {
        combine: tensors.linear(&format!("{b}nextn.eh_proj"), 2 * width, width)?,
        embedding_norm: tensors.vector(&format!("{b}nextn.enorm.weight"), width)?,
        hidden_norm: tensors.vector(&format!("{b}nextn.hnorm.weight"), flat)?,
        layer: layer(keys, tensors, &b, index, width, mixer)?,
        output_read: tensors.stream_read(&format!("{b}nextn.hc_head"), width, keys, false)?,
    };
    tensors.use_draft_file(false);
    Ok(Some(draft))
}
