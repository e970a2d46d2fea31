//! `POST /v1/completions`: a request of this kind in canonical form.

use chat::{ChatRequest, Prompt, Sampling, Thinking};
use serde_json::value::RawValue;

use super::request::{self, Asked, TOKENS_MAX};
use crate::fault::{Fault, Kind};
use crate::fields::{self, Fields};

/// Tokens of an answer whose request does not say: the API's own default.
const TOKENS_DEFAULT: usize = 16;

/// Reads the body. `model` may name anything, since there is one; unknown fields are ignored.
///
/// # Errors
/// The first field that is not what it should be, or that asks for what is not there yet.
pub(crate) fn parse(body: &[u8], defaults: &Sampling) -> Result<Asked, Fault> {
    let fields = Fields::of_body(body)?;
    let prompt = prompt(&fields)?;
    fields.text("model")?;
    request::refuse_unsupported(&fields)?;
    request::refuse_unless(&fields, "suffix", |_| false)?;
    request::refuse_unless(&fields, "logprobs", |_| false)?;
    if fields.flag("echo")?.unwrap_or(false) {
        let message = "`echo` is not supported yet: leave it out";
        return Err(Fault::of_field(Kind::Unsupported, "echo", message));
    }
    let (stream, stream_usage) = request::stream(&fields)?;
    let tokens_max = fields.whole("max_tokens", TOKENS_MAX)?.map(|tokens| tokens as usize);
    let request = ChatRequest {
        prompt,
        sampling: request::sampling(&fields, defaults)?,
        tokens_max: Some(tokens_max.unwrap_or(TOKENS_DEFAULT)),
        // Nobody asked for the default.
        fit_tokens_max: tokens_max.is_none(),
        stop_strings: request::stop_strings(&fields)?,
        thinking: Thinking::AsTemplate,
        local_time_s: None,
    };
    Ok(Asked { request, stream, stream_usage })
}

/// Text or token ids; either may come as the only one of a list.
fn prompt(fields: &Fields<'_>) -> Result<Prompt, Fault> {
    let wanted = "text or a list of token ids";
    let Some(value) = fields.raw("prompt") else {
        return Err(Fault::of_field(Kind::Invalid, "prompt", format!("`prompt` must be {wanted}")));
    };
    if value.get().starts_with('"') {
        return Ok(Prompt::Text(fields::text(value, "prompt")?));
    }
    let list = fields::list(value).ok_or_else(|| fields.wrong("prompt", wanted, value))?;
    match list.first() {
        None => {
            let message = "`prompt` must be text or a list of token ids, not an empty list";
            Err(Fault::of_field(Kind::Invalid, "prompt", message))
        }
        Some(first) if first.get().starts_with(['"', '[']) && list.len() > 1 => {
            let message = "`prompt` with several prompts is not supported yet: send one request for each";
            Err(Fault::of_field(Kind::Unsupported, "prompt", message))
        }
        Some(first) if first.get().starts_with('"') => Ok(Prompt::Text(fields::text(first, "prompt[0]")?)),
        Some(first) if first.get().starts_with('[') => {
            let inner = fields::list(first).unwrap_or_default();
            tokens(&inner, "prompt[0]")
        }
        Some(_) => tokens(&list, "prompt"),
    }
}

fn tokens(list: &[&RawValue], place: &str) -> Result<Prompt, Fault> {
    let token = |(i, value): (usize, &&RawValue)| {
        let wanted = format!("a token id, a whole number from 0 to {}", u32::MAX);
        let token = fields::whole(value).and_then(|token| u32::try_from(token).ok());
        token.ok_or_else(|| fields::wrong(&format!("{place}[{i}]"), &wanted, value))
    };
    if list.is_empty() {
        let message = format!("`{place}` must hold at least one token id");
        return Err(Fault::of_field(Kind::Invalid, place, message));
    }
    list.iter().enumerate().map(token).collect::<Result<_, _>>().map(Prompt::Tokens)
}
