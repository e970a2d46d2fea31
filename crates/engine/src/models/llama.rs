//! `llama`: Llama, Mistral, SmolLM2 and their kin; Mixtral when the file has experts.

use super::keys::Keys;
use super::tensors::Tensors;
use super::{
    AttentionSpec, ExpertsSpec, FeedForward, GateUp, LayerSpec, Mixer, ModelSpec, Pairing, QkvProjection,
    ReadSpec, Residual, frame,
};
use crate::error::LoadError;

pub(super) fn read(keys: &Keys<'_>, tensors: &mut Tensors<'_>) -> Result<ModelSpec, LoadError> {
    dense(keys, tensors, Style { name: "llama", pairing: Pairing::Adjacent, head_norms: false })
}

/// What tells the plain transformers of this family apart.
pub(super) struct Style {
    pub name: &'static str,
    pub pairing: Pairing,
    pub head_norms: bool,
}

/// A plain pre-norm transformer: every layer attention, then a dense block or experts.
pub(super) fn dense(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    style: Style,
) -> Result<ModelSpec, LoadError> {
    let mut spec = frame(style.name, keys, tensors, style.pairing, Residual::Single)?;
    let width = spec.width;
    spec.rope.divisors = tensors.optional_vector("rope_freqs.weight", spec.rope.frequencies.len())?;
    for index in 0..keys.layers()? {
        let b = format!("blk.{index}.");
        let mixer_read = ReadSpec::Norm { gamma: tensors.vector(&format!("{b}attn_norm.weight"), width)? };
        let mixer = Mixer::Attention(attention(keys, tensors, &b, width, false, style.head_norms)?);
        let feed_forward_read =
            ReadSpec::Norm { gamma: tensors.vector(&format!("{b}ffn_norm.weight"), width)? };
        let feed_forward = feed_forward(keys, tensors, &b, width)?;
        spec.layers.push(LayerSpec {
            index,
            ngram: None,
            mixer_read,
            mixer,
            feed_forward_read,
            feed_forward,
        });
    }
    Ok(spec)
}

/// No head is wider.
const HEAD_DIM_MAX: usize = 1 << 16;

/// Query heads, key/value heads, head dimension.
pub(super) fn heads(keys: &Keys<'_>, width: usize) -> Result<(usize, usize, usize), LoadError> {
    let heads = keys.size("attention.head_count")?;
    let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
    keys.require(
        "attention.head_count_kv",
        kv_heads > 0 && heads.is_multiple_of(kv_heads),
        &format!("a divisor of the {heads} heads"),
        kv_heads,
    )?;
    let head_dim = match keys.optional_size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => {
            keys.require(
                "attention.head_count",
                width.is_multiple_of(heads),
                &format!("a divisor of the width {width}, or attention.key_length,"),
                heads,
            )?;
            width / heads
        }
    };
    keys.require(
        "attention.key_length",
        (1..=HEAD_DIM_MAX).contains(&head_dim),
        &format!("between 1 and {HEAD_DIM_MAX}"),
        head_dim,
    )?;
    let value_dim = keys.optional_size("attention.value_length")?.unwrap_or(head_dim);
    keys.require("attention.value_length", value_dim == head_dim, "the key length", value_dim)?;
    Ok((heads, kv_heads, head_dim))
}

/// The attention of layer prefix `b`.
pub(super) fn attention(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    width: usize,
    gated: bool,
    head_norms: bool,
) -> Result<AttentionSpec, LoadError> {
    let (heads, kv_heads, head_dim) = heads(keys, width)?;
    let (q, kv) = (heads * head_dim * if gated { 2 } else { 1 }, kv_heads * head_dim);
    keys.require_columns("attention.head_count", q + 2 * kv)?;
    let fused = tensors.has(&format!("{b}attn_qkv.weight")) && !tensors.has(&format!("{b}attn_q.weight"));
    let projection = match fused {
        false => QkvProjection::Separate {
            q: tensors.linear(&format!("{b}attn_q"), width, q)?,
            k: tensors.linear(&format!("{b}attn_k"), width, kv)?,
            v: tensors.linear(&format!("{b}attn_v"), width, kv)?,
        },
        true => QkvProjection::Fused(tensors.linear(&format!("{b}attn_qkv"), width, q + 2 * kv)?),
    };
    let mut norm = |name: &str| {
        head_norms.then(|| tensors.vector(&format!("{b}attn_{name}_norm.weight"), head_dim)).transpose()
    };
    let (q_norm, k_norm) = (norm("q")?, norm("k")?);
    let output = tensors.linear(&format!("{b}attn_output"), heads * head_dim, width)?;
    Ok(AttentionSpec { heads, kv_heads, head_dim, projection, q_norm, k_norm, gated, output, indexer: None })
}

/// A dense block, or experts where the layer has a router or their matrices.
pub(super) fn feed_forward(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    width: usize,
) -> Result<FeedForward, LoadError> {
    let routed = ["ffn_gate_inp", "ffn_down_exps"].iter().any(|t| tensors.has(&format!("{b}{t}.weight")));
    if !routed {
        let inner = keys.size("feed_forward_length")?;
        return Ok(FeedForward::Dense(tensors.gated_mlp(b, "", width, inner)?));
    }
    let count = keys.size("expert_count")?;
    let used = keys.size("expert_used_count")?;
    keys.require("expert_used_count", used <= count, &format!("at most the {count} experts"), used)?;
    let expert_width = match keys.optional_size("expert_feed_forward_length")? {
        Some(inner) if inner > 0 => inner,
        _ => keys.size("feed_forward_length")?,
    };
    let gate_up = match tensors.has(&format!("{b}ffn_gate_up_exps.weight")) {
        true => {
            GateUp::Fused(tensors.stacked(&format!("{b}ffn_gate_up_exps"), width, 2 * expert_width, count)?)
        }
        false => GateUp::Separate {
            gate: tensors.stacked(&format!("{b}ffn_gate_exps"), width, expert_width, count)?,
            up: tensors.stacked(&format!("{b}ffn_up_exps"), width, expert_width, count)?,
        },
    };
    let weight_scale = keys.optional_float("expert_weights_scale")?.filter(|&s| s != 0.0).unwrap_or(1.0);
    Ok(FeedForward::Experts(ExpertsSpec {
        experts: count,
        used,
        expert_width,
        router: tensors.linear(&format!("{b}ffn_gate_inp"), width, count)?,
        gate_up,
        down: tensors.stacked(&format!("{b}ffn_down_exps"), expert_width, width, count)?,
        weight_scale,
        shared: None,
    }))
}
