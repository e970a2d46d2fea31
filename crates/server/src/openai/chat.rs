//! `POST /v1/chat/completions`: a request of this kind in canonical form.

use chat::{ChatRequest, Prompt, Sampling, Thinking};
use serde_json::Map;

use super::messages::messages;
use super::request::{self, Asked, TOKENS_MAX};
use crate::fault::{Fault, Kind};
use crate::fields::{Fields, list};

/// Reads the body. `model` may name anything, since there is one; unknown fields are ignored.
///
/// # Errors
/// The first field that is not what it should be, or that asks for what is not there yet.
pub(crate) fn parse(body: &[u8], defaults: &Sampling) -> Result<Asked, Fault> {
    let fields = Fields::of_body(body)?;
    let messages = messages(&fields)?;
    fields.text("model")?;
    refuse_unsupported(&fields)?;
    let (stream, stream_usage) = request::stream(&fields)?;
    let tokens_max = match fields.whole("max_completion_tokens", TOKENS_MAX)? {
        None => fields.whole("max_tokens", TOKENS_MAX)?,
        found => found,
    };
    let (thinking, variables) = thinking(&fields)?;
    let request = ChatRequest {
        prompt: Prompt::Messages { messages, variables },
        sampling: request::sampling(&fields, defaults)?,
        tokens_max: tokens_max.map(|tokens| tokens as usize),
        fit_tokens_max: false,
        stop_strings: request::stop_strings(&fields)?,
        thinking,
        local_time_s: None,
    };
    Ok(Asked { request, stream, stream_usage })
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), Fault> {
    request::refuse_unsupported(fields)?;
    for name in ["tools", "functions"] {
        request::refuse_unless(fields, name, |value| list(value).is_some_and(|tools| tools.is_empty()))?;
    }
    // Without tools these two ask for nothing.
    for name in ["tool_choice", "function_call"] {
        request::refuse_unless(fields, name, |value| matches!(value.get(), "\"none\"" | "\"auto\""))?;
    }
    request::refuse_unless(fields, "modalities", |value| {
        list(value).is_some_and(|kinds| kinds.iter().all(|kind| kind.get() == "\"text\""))
    })?;
    if fields.flag("logprobs")?.unwrap_or(false) {
        let message = "`logprobs` is not supported yet: leave it out";
        return Err(Fault::of_field(Kind::Unsupported, "logprobs", message));
    }
    if fields.whole("top_logprobs", 0..=20)?.unwrap_or(0) > 0 {
        let message = "`top_logprobs` is not supported yet: leave it out";
        return Err(Fault::of_field(Kind::Unsupported, "top_logprobs", message));
    }
    Ok(())
}

/// How long the model may think, by the ways that clients ask for it, and what else goes to the template.
fn thinking(fields: &Fields<'_>) -> Result<(Thinking, Map<String, serde_json::Value>), Fault> {
    let mut variables = Map::new();
    let mut off = false;
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        off |= kwargs.raw("enable_thinking").is_some_and(|value| value.get() == "false");
        if let Some(serde_json::Value::Object(kwargs)) = fields.value("chat_template_kwargs")? {
            variables = kwargs;
        }
    }
    off |= fields.flag("enable_thinking")? == Some(false);
    if let Some(effort) = fields.text("reasoning_effort")? {
        if !["none", "minimal", "low", "medium", "high", "xhigh"].contains(&effort.as_str()) {
            let wanted = "\"none\", \"minimal\", \"low\", \"medium\", \"high\" or \"xhigh\"";
            let message = format!("`reasoning_effort` must be {wanted}");
            return Err(Fault::of_field(Kind::Invalid, "reasoning_effort", message));
        }
        off |= effort == "none";
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let budget = fields.whole("thinking_budget", TOKENS_MAX)?;
    let thinking = match (off, budget) {
        (true, _) | (_, Some(0)) => Thinking::Off,
        (false, Some(budget)) => Thinking::Budget(budget as usize),
        (false, None) => Thinking::AsTemplate,
    };
    Ok((thinking, variables))
}
