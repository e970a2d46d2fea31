//! What a template sees: the names and shapes that `apply_chat_template` documents.

use std::borrow::Cow;

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::RenderInput;
use super::outside::Marker;
use super::python;
use crate::{Message, ToolCall};

/// The form in which a template gets the arguments of tool calls. Some write them with `tojson`, others put text together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// As an object if they are one, or a text that reads as one; else as they are.
    Parsed,
    /// As text.
    Text,
    /// As an object in any case: blank ones as an empty object, others that are none as its field `arguments`.
    Object,
}

/// A [`RenderInput`] that a thread of its own can take.
#[derive(Debug, Clone)]
pub(super) struct Variables {
    pub(super) messages: Vec<Message>,
    add_generation_prompt: bool,
    bos_token: Option<String>,
    eos_token: Option<String>,
    enable_thinking: Option<bool>,
    local_time_s: Option<i64>,
    extra: Map<String, Json>,
}

impl Variables {
    pub(super) fn new(input: &RenderInput) -> Variables {
        Variables {
            messages: input.messages.to_vec(),
            add_generation_prompt: input.add_generation_prompt,
            bos_token: input.bos_token.map(str::to_owned),
            eos_token: input.eos_token.map(str::to_owned),
            enable_thinking: input.enable_thinking,
            local_time_s: input.local_time_s,
            extra: input.extra.clone(),
        }
    }

    /// The variables for the engine; `tools` and `documents` exist even if none are given.
    pub(super) fn value(&self, arguments: Arguments, marker: Option<&Marker>) -> Value {
        let strings = Strings { marker, arguments };
        let mut variables: Vec<(Cow<str>, Value)> = Vec::new();
        let mut set = |name: &'static str, value: Value| variables.push((name.into(), value));
        set("messages", self.messages.iter().map(|message| strings.message(message)).collect());
        set("add_generation_prompt", self.add_generation_prompt.into());
        set("tools", ().into());
        set("documents", ().into());
        if let Some(text) = &self.bos_token {
            set("bos_token", (&**text).into());
        }
        if let Some(text) = &self.eos_token {
            set("eos_token", (&**text).into());
        }
        if let Some(yes) = self.enable_thinking {
            set("enable_thinking", yes.into());
        }
        if let Some(time_s) = self.local_time_s {
            set(
                "strftime_now",
                Value::from_function(move |format: String| python::strftime(time_s, &format)),
            );
        }
        variables.extend(self.extra.iter().map(|(name, value)| (name.into(), strings.json(value))));
        Value::from_pairs(variables)
    }

    pub(super) fn has_calls(&self) -> bool {
        self.messages.iter().any(|message| !message.tool_calls.is_empty())
    }

    /// All texts that come from outside.
    pub(super) fn texts(&self) -> Vec<&str> {
        let mut texts = Vec::new();
        for message in &self.messages {
            texts.push(&*message.content);
            texts.extend(
                [&message.reasoning, &message.name, &message.tool_call_id]
                    .into_iter()
                    .flatten()
                    .map(|t| &**t),
            );
            for call in &message.tool_calls {
                texts.push(&call.name);
                texts.extend(call.id.as_deref());
                collect(&call.arguments, &mut texts);
            }
        }
        self.extra.values().for_each(|value| collect(value, &mut texts));
        texts
    }
}

fn collect<'a>(json: &'a Json, texts: &mut Vec<&'a str>) {
    match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
        Json::String(text) => texts.push(text),
        Json::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Json::Object(fields) => {
            for (name, value) in fields {
                texts.push(name);
                collect(value, texts);
            }
        }
    }
}

/// Turns what comes from outside into values, marked or not.
struct Strings<'a> {
    marker: Option<&'a Marker<'a>>,
    arguments: Arguments,
}

impl Strings<'_> {
    fn text(&self, text: &str) -> Value {
        self.marker.map_or_else(|| text.into(), |marker| marker.text(text).into())
    }

    fn key(&self, text: &str) -> String {
        self.marker.map_or_else(|| text.to_owned(), |marker| marker.key(text))
    }

    fn message(&self, message: &Message) -> Value {
        let mut fields =
            vec![("role", Value::from(message.role.as_str())), ("content", self.text(&message.content))];
        let optional = [
            ("reasoning_content", &message.reasoning),
            ("name", &message.name),
            ("tool_call_id", &message.tool_call_id),
        ];
        fields
            .extend(optional.into_iter().filter_map(|(name, text)| Some((name, self.text(text.as_ref()?)))));
        if !message.tool_calls.is_empty() {
            fields.push(("tool_calls", message.tool_calls.iter().map(|call| self.call(call)).collect()));
        }
        Value::from_pairs(fields)
    }

    fn call(&self, call: &ToolCall) -> Value {
        let function = [("name", self.text(&call.name)), ("arguments", self.call_arguments(&call.arguments))];
        let mut fields = vec![("type", Value::from("function")), ("function", Value::from_pairs(function))];
        if let Some(id) = &call.id {
            fields.push(("id", self.text(id)));
        }
        Value::from_pairs(fields)
    }

    fn call_arguments(&self, given: &Json) -> Value {
        let parsed = match given {
            Json::String(text) => serde_json::from_str(text).ok().filter(Json::is_object),
            _ => None,
        };
        let arguments = parsed.as_ref().unwrap_or(given);
        match (self.arguments, given) {
            (Arguments::Text, Json::String(text)) => self.text(text),
            (Arguments::Text, other) => self.text(&other.to_string()),
            (Arguments::Object, Json::String(text)) if text.trim().is_empty() => {
                Value::from_pairs([("", ()); 0])
            }
            (Arguments::Object, _) if !arguments.is_object() => {
                Value::from_pairs([("arguments", self.json(given))])
            }
            _ => self.json(arguments),
        }
    }

    fn json(&self, json: &Json) -> Value {
        match json {
            Json::Null => Value::from(()),
            Json::Bool(yes) => Value::from(*yes),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::from(number),
                (None, Some(number)) => Value::from(number),
                (None, None) => Value::from(number.as_f64()),
            },
            Json::String(text) => self.text(text),
            Json::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Json::Object(fields) => {
                Value::from_pairs(fields.iter().map(|(name, value)| (self.key(name), self.json(value))))
            }
        }
    }
}
