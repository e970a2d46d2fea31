//! The messages of a conversation.

use chat::{Message, Role, ToolCall};
use serde_json::value::RawValue;

use crate::fault::{Fault, Kind};
use crate::fields::{self, Fields};

/// All messages of a request. An empty list is none.
pub(super) fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, Fault> {
    let wanted = "`messages` must be a list of at least one message";
    let refused = || Fault::of_field(Kind::Invalid, "messages", wanted);
    let values = fields.raw("messages").map_or(0, |value| fields::values(value.get()));
    if values > fields::HANDED_VALUES_MAX {
        return Err(fields::too_many_values("messages"));
    }
    let list = fields.list("messages")?.filter(|list| !list.is_empty()).ok_or_else(refused)?;
    let messages = list.into_iter().enumerate().map(|(i, value)| message(value, &format!("messages[{i}]")));
    let messages: Vec<_> = messages.collect::<Result<_, _>>()?;
    match values + values_in_texts(&messages) > fields::HANDED_VALUES_MAX {
        true => Err(fields::too_many_values("messages")),
        false => Ok(messages),
    }
}

/// Arguments come as texts, and templates are given what these hold.
fn values_in_texts(messages: &[Message]) -> usize {
    let calls = messages.iter().flat_map(|message| &message.tool_calls);
    calls.filter_map(|call| call.arguments.as_str()).map(fields::values).sum()
}

fn message(value: &RawValue, place: &str) -> Result<Message, Fault> {
    let fields = Fields::of(value, place)?;
    let role = role(&fields)?;
    let content = match fields.raw("content") {
        Some(value) => content(value, &fields.place("content"))?,
        // An assistant that called tools, or a tool without an output.
        None => String::new(),
    };
    let mut message = Message::new(role, content);
    for name in ["reasoning_content", "reasoning"] {
        let text = fields.raw(name).filter(|value| value.get().starts_with('"'));
        if let Some(text) = text {
            message.reasoning = Some(fields::text(text, &fields.place(name))?);
            break;
        }
    }
    message.name = fields.text("name")?;
    message.tool_call_id = fields.text("tool_call_id")?;
    message.tool_calls = tool_calls(&fields)?;
    Ok(message)
}

/// Calls that the assistant made. What a model was cut off in the middle of is no less a part of the conversation, so
/// arguments can be anything.
fn tool_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, Fault> {
    let mut calls = Vec::new();
    for (i, call) in fields.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let fields = Fields::of(call, &format!("{}[{i}]", fields.place("tool_calls")))?;
        let Some(function) = fields.object("function")? else {
            let place = fields.place("function");
            return Err(Fault::of_field(Kind::Invalid, &place, format!("`{place}` must be an object")));
        };
        calls.push(call_of(fields.text("id")?, &function)?);
    }
    // The older form, of one call.
    if let Some(function) = fields.object("function_call")? {
        calls.push(call_of(None, &function)?);
    }
    Ok(calls)
}

fn call_of(id: Option<String>, function: &Fields<'_>) -> Result<ToolCall, Fault> {
    Ok(ToolCall {
        id,
        name: function.text("name")?.unwrap_or_default(),
        arguments: function.value("arguments")?.unwrap_or_else(|| "".into()),
    })
}

fn role(fields: &Fields<'_>) -> Result<Role, Fault> {
    let name = fields.text("role")?.unwrap_or_default();
    Ok(match name.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        // The result of a function was a tool's result under an older name.
        "tool" | "function" => Role::Tool,
        _ => {
            let place = fields.place("role");
            let wanted = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
            return Err(Fault::of_field(Kind::Invalid, &place, format!("`{place}` must be {wanted}")));
        }
    })
}

/// Text, or a list of parts that are text. Parts are put together as they are, with nothing between.
fn content(value: &RawValue, place: &str) -> Result<String, Fault> {
    if value.get().starts_with('"') {
        return fields::text(value, place);
    }
    let parts = fields::list(value).ok_or_else(|| fields::wrong(place, "text or a list of parts", value))?;
    let mut content = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        content.push_str(&part_text(part, &format!("{place}[{i}]"))?);
    }
    Ok(content)
}

fn part_text(part: &RawValue, place: &str) -> Result<String, Fault> {
    // Some clients send a list of plain texts.
    if part.get().starts_with('"') {
        return fields::text(part, place);
    }
    let fields = Fields::of(part, place)?;
    let kind = fields.text("type")?.unwrap_or_default();
    let name = match kind.as_str() {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "image_url" | "input_image" | "input_audio" | "file" | "input_file" | "video_url" => {
            let message =
                format!("`{place}` is of type \"{kind}\", which is not supported yet: only text is");
            return Err(Fault::of_field(Kind::Unsupported, place, message));
        }
        _ => {
            let place = fields.place("type");
            return Err(Fault::of_field(Kind::Invalid, &place, format!("`{place}` must be \"text\"")));
        }
    };
    let place = fields.place(name);
    let missing = || Fault::of_field(Kind::Invalid, &place, format!("`{place}` must be text"));
    fields.text(name)?.ok_or_else(missing)
}
