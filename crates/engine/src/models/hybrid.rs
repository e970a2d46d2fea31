//! What the hybrid architectures share: delta-net layers among gated attention layers, and the shared expert.

use super::keys::Keys;
use super::llama::{attention, feed_forward};
use super::tensors::Tensors;
use super::{
    Activation, DeltaNetSpec, DeltaProjection, FeedForward, LayerSpec, Linear, Mixer, ModelSpec, Pairing,
    ReadSpec, Residual, SharedExpert, frame,
};
use crate::error::LoadError;

/// How beta and alpha come, and in which order value heads lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadOrder {
    /// Value head j uses key head j mod key_heads; `ssm_beta` and `ssm_alpha` apart.
    Tiled,
    /// Value head j uses key head j div r; `ssm_ba` interleaved by key head.
    Grouped,
}

/// A hybrid with one residual stream.
pub(super) fn single_stream(
    name: &'static str,
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    order: HeadOrder,
) -> Result<ModelSpec, LoadError> {
    let mut spec = frame(name, keys, tensors, Pairing::Halves, Residual::Single)?;
    let width = spec.width;
    for (index, recurrent) in recurrent_layers(keys)?.into_iter().enumerate() {
        let b = format!("blk.{index}.");
        let mixer = match recurrent {
            true => Mixer::DeltaNet(delta_net(keys, tensors, &b, width, order, Activation::Silu)?),
            false => Mixer::Attention(attention(keys, tensors, &b, width, true, true)?),
        };
        spec.layers.push(LayerSpec {
            index,
            ngram: None,
            mixer_read: ReadSpec::Norm { gamma: tensors.vector(&format!("{b}attn_norm.weight"), width)? },
            mixer,
            feed_forward_read: ReadSpec::Norm {
                gamma: tensors.vector(&format!("{b}post_attention_norm.weight"), width)?,
            },
            feed_forward: with_shared_expert(keys, tensors, &b, width)?,
        });
    }
    Ok(spec)
}

/// For each trunk layer whether it is recurrent: the file's list, or every layer but each n-th.
pub(super) fn recurrent_layers(keys: &Keys<'_>) -> Result<Vec<bool>, LoadError> {
    let blocks = keys.layers()?;
    let drafts = keys.optional_size("nextn_predict_layers")?.unwrap_or(0);
    keys.require("nextn_predict_layers", drafts < blocks, "fewer than block_count", drafts)?;
    let trunk = blocks - drafts;
    if let Some(list) = keys.optional_integers("attention.recurrent_layers")? {
        keys.require(
            "attention.recurrent_layers",
            list.len() >= trunk,
            &format!("a value for each of {trunk} layers"),
            format!("{} values", list.len()),
        )?;
        return Ok(list[..trunk].iter().map(|&v| v != 0).collect());
    }
    let interval = keys.optional_size("full_attention_interval")?.unwrap_or(4);
    keys.require("full_attention_interval", interval > 0, "a positive number", interval)?;
    Ok((0..trunk).map(|i| !(i + 1).is_multiple_of(interval)).collect())
}

/// The delta-net layer of prefix `b`.
pub(super) fn delta_net(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    width: usize,
    order: HeadOrder,
    gate_activation: Activation,
) -> Result<DeltaNetSpec, LoadError> {
    let key_heads = keys.size("ssm.group_count")?;
    let value_heads = keys.size("ssm.time_step_rank")?;
    keys.require(
        "ssm.time_step_rank",
        value_heads.is_multiple_of(key_heads),
        &format!("a multiple of the {key_heads} key heads"),
        value_heads,
    )?;
    let key_dim = keys.size("ssm.state_size")?;
    let inner = keys.size("ssm.inner_size")?;
    keys.require(
        "ssm.inner_size",
        inner.is_multiple_of(value_heads),
        &format!("a multiple of the {value_heads} value heads"),
        inner,
    )?;
    let taps = keys.size("ssm.conv_kernel")?;
    keys.require("ssm.conv_kernel", (2..=64).contains(&taps), "between 2 and 64", taps)?;
    let channels = 2 * key_heads * key_dim + inner;
    keys.require_columns("ssm.inner_size", channels.saturating_add(inner + 2 * value_heads))?;
    let shape = DeltaShape { key_heads, value_heads, key_dim, value_dim: inner / value_heads };
    Ok(DeltaNetSpec {
        key_heads,
        value_heads,
        key_dim,
        value_dim: shape.value_dim,
        taps,
        projection: projection(tensors, b, width, order, &shape)?,
        convolution: tensors.taps(&format!("{b}ssm_conv1d.weight"), taps, channels)?,
        dt_bias: tensors.vector(&format!("{b}ssm_dt.bias"), value_heads)?,
        a: tensors.vector(&format!("{b}ssm_a"), value_heads)?,
        norm: tensors.vector(&format!("{b}ssm_norm.weight"), shape.value_dim)?,
        output: tensors.linear(&format!("{b}ssm_out"), inner, width)?,
        gate_activation,
        tiled_heads: order == HeadOrder::Tiled,
    })
}

struct DeltaShape {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

/// Finds the projections in any of the three layouts files come in.
fn projection(
    tensors: &mut Tensors<'_>,
    b: &str,
    width: usize,
    order: HeadOrder,
    shape: &DeltaShape,
) -> Result<DeltaProjection, LoadError> {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim } = *shape;
    let (channels, inner) = (2 * key_heads * key_dim + value_heads * value_dim, value_heads * value_dim);
    let mut linears: Vec<Linear> = Vec::new();
    let (channel_map, gate);
    if order == HeadOrder::Grouped && tensors.has(&format!("{b}ssm_in.weight")) {
        // One matrix, per key head [q | k | v of its value heads | z of its value heads].
        linears.push(tensors.linear(&format!("{b}ssm_in"), width, channels + inner)?);
        let r = value_heads / key_heads;
        let per_head = 2 * key_dim + 2 * r * value_dim;
        let part = |offset: usize, len: usize| -> Vec<u32> {
            (0..key_heads).flat_map(|h| (0..len).map(move |i| (h * per_head + offset + i) as u32)).collect()
        };
        let mut map = part(0, key_dim);
        map.extend(part(key_dim, key_dim));
        map.extend(part(2 * key_dim, r * value_dim));
        channel_map = Some(map);
        gate = part(2 * key_dim + r * value_dim, r * value_dim);
    } else {
        linears.push(tensors.linear(&format!("{b}attn_qkv"), width, channels)?);
        linears.push(tensors.linear(&format!("{b}attn_gate"), width, inner)?);
        channel_map = None;
        gate = (channels..channels + inner).map(|c| c as u32).collect();
    }
    let first = channels + inner;
    let (beta, alpha);
    if order == HeadOrder::Grouped && !tensors.has(&format!("{b}ssm_beta.weight")) {
        linears.push(tensors.linear(&format!("{b}ssm_ba"), width, 2 * value_heads)?);
        let r = value_heads / key_heads;
        let column = |half: usize| -> Vec<u32> {
            (0..value_heads).map(|j| (first + (j / r) * 2 * r + half * r + j % r) as u32).collect()
        };
        (beta, alpha) = (column(0), column(1));
    } else {
        linears.push(tensors.linear(&format!("{b}ssm_beta"), width, value_heads)?);
        linears.push(tensors.linear(&format!("{b}ssm_alpha"), width, value_heads)?);
        let column = |start: usize| -> Vec<u32> { (start..start + value_heads).map(|c| c as u32).collect() };
        (beta, alpha) = (column(first), column(first + value_heads));
    }
    Ok(DeltaProjection { linears, channels: channel_map, gate, beta, alpha })
}

/// A feed-forward block, with a gated shared expert where the file has experts and the keys or tensors of a shared one.
pub(super) fn with_shared_expert(
    keys: &Keys<'_>,
    tensors: &mut Tensors<'_>,
    b: &str,
    width: usize,
) -> Result<FeedForward, LoadError> {
    let mut block = feed_forward(keys, tensors, b, width)?;
    if let FeedForward::Experts(experts) = &mut block {
        let inner = keys.optional_size("expert_shared_feed_forward_length")?.filter(|&inner| inner > 0);
        let named = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp"];
        if inner.is_none() && !named.iter().any(|t| tensors.has(&format!("{b}{t}.weight"))) {
            return Ok(block);
        }
        let inner = inner.unwrap_or(experts.expert_width);
        experts.shared = Some(SharedExpert {
            mlp: tensors.gated_mlp(b, "_shexp", width, inner)?,
            gate: tensors.linear(&format!("{b}ffn_gate_inp_shexp"), width, 1)?,
        });
    }
    Ok(block)
}
