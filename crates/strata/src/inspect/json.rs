//! Facts about a model, for programs.

use engine::models::{FeedForward, ModelSpec};
use gguf::{Array, Value};
use serde_json::{Map, Value as Json, json};

use super::facts::{Facts, Layers, Sum, string};

/// Longer lists are told by their length: a vocabulary is not what anybody reads here.
const ITEMS_MAX: usize = 256;

/// Everything there is to say; tensors and keys where they are wanted.
pub fn document(facts: &Facts, tensors: bool, metadata: bool) -> Json {
    let total = facts.total();
    let token = |token: Option<(u64, String)>| token.map(|(id, text)| json!({"id": id, "text": text}));
    let mut document = json!({
        "architecture": facts.architecture(),
        "name": string(&facts.file.metadata, "general.name"),
        "supported": facts.spec.is_ok(),
        "unsupported_reason": facts.spec.as_ref().err().map(ToString::to_string),
        "parameters": total.values,
        "active_parameters": facts.active_values(),
        "bytes": total.bytes,
        "active_bytes": facts.active_bytes(),
        "bits_per_weight": facts.bits_per_weight(),
        "layers": facts.number("block_count"),
        "width": facts.number("embedding_length"),
        "heads": facts.number("attention.head_count"),
        "kv_heads": facts.number("attention.head_count_kv"),
        "experts": facts.number("expert_count"),
        "experts_used": facts.number("expert_used_count"),
        "context_tokens": facts.number("context_length"),
        "vocabulary": facts.vocabulary(),
        "shape": facts.spec.as_ref().ok().map(shape),
        "roles": facts.by_role().iter().map(|(role, sum)| named(role.name(), sum)).collect::<Map<_, _>>(),
        "types": facts.by_type().iter().map(|(dtype, sum)| named(dtype.name(), sum)).collect::<Map<_, _>>(),
        "tokenizer": facts.tokenizer().map(|tokenizer| json!({
            "model": tokenizer.model,
            "pre": tokenizer.pre,
            "tokens": tokenizer.tokens,
            "bos": token(tokenizer.bos),
            "eos": token(tokenizer.eos),
        })),
        "template": facts.template().map(|template| json!({
            "chars": template.chars,
            "tools": template.tools,
            "thinking": template.thinking,
        })),
        "files": facts.files().iter().map(|(path, bytes)| json!({
            // A path that is no text is told as near as can be.
            "path": path.to_string_lossy(),
            "bytes": bytes,
        })).collect::<Vec<_>>(),
    });
    if tensors {
        document["tensors"] = tensors_json(facts);
    }
    if metadata {
        let entries = facts.file.metadata.iter().map(|(key, value)| (key.to_owned(), value_json(value)));
        document["metadata"] = entries.collect::<Map<_, _>>().into();
    }
    document
}

fn named(name: &str, sum: &Sum) -> (String, Json) {
    (name.to_owned(), json!({"tensors": sum.tensors, "parameters": sum.values, "bytes": sum.bytes}))
}

fn shape(spec: &ModelSpec) -> Json {
    let layers = Layers::of(spec);
    let experts = spec.layers.iter().find_map(|layer| match &layer.feed_forward {
        FeedForward::Experts(experts) => Some(experts),
        FeedForward::Dense(_) => None,
    });
    json!({
        "layers": layers.all,
        "attention_layers": layers.attention,
        "sparse_attention_layers": layers.sparse,
        "delta_net_layers": layers.delta_net,
        "expert_layers": layers.experts,
        "draft_layer": spec.draft.is_some(),
        "residual_streams": spec.streams,
        "expert_width": experts.map(|experts| experts.expert_width),
        "shared_expert": experts.is_some_and(|experts| experts.shared.is_some()),
    })
}

fn tensors_json(facts: &Facts) -> Json {
    let tensor = |(tensor, part): (&gguf::TensorInfo, &engine::inventory::Part)| {
        json!({
            "name": tensor.name,
            "type": tensor.dtype.name(),
            "shape": tensor.shape,
            "bytes": tensor.len,
            "role": part.role.name(),
            "file": tensor.shard,
        })
    };
    facts.file.tensors.iter().zip(&facts.parts).map(tensor).collect::<Vec<_>>().into()
}

fn value_json(value: &Value) -> Json {
    match value {
        Value::U8(n) => json!(n),
        Value::I8(n) => json!(n),
        Value::U16(n) => json!(n),
        Value::I16(n) => json!(n),
        Value::U32(n) => json!(n),
        Value::I32(n) => json!(n),
        Value::U64(n) => json!(n),
        Value::I64(n) => json!(n),
        Value::F32(n) => json!(n),
        Value::F64(n) => json!(n),
        Value::Bool(yes) => json!(yes),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(array) if array.len() > ITEMS_MAX => {
            json!({"type": array.item_type_name(), "length": array.len()})
        }
        Value::Array(array) => array_json(array),
    }
}

fn array_json(array: &Array) -> Json {
    match array {
        Array::U8(items) => json!(items),
        Array::I8(items) => json!(items),
        Array::U16(items) => json!(items),
        Array::I16(items) => json!(items),
        Array::U32(items) => json!(items),
        Array::I32(items) => json!(items),
        Array::U64(items) => json!(items),
        Array::I64(items) => json!(items),
        Array::F32(items) => json!(items),
        Array::F64(items) => json!(items),
        Array::Bool(items) => json!(items),
        Array::Strings(items) => items.iter().map(String::from_utf8_lossy).collect::<Vec<_>>().into(),
    }
}
