//! `GET /v1/models`.

use serde_json::{Value, json};

/// The one model, by the name it is served under.
pub(crate) fn model(name: &str, created_s: u64, context_tokens: usize) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "strata",
        // Two names that clients look for.
        "context_length": context_tokens,
        "max_model_len": context_tokens,
    })
}

/// The list of it.
pub(crate) fn list(model: Value) -> Value {
    json!({"object": "list", "data": [model]})
}
