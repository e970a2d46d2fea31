//! The chat template of a model file: a Jinja program that turns messages into a prompt.
//!
//! Run as Hugging Face's `apply_chat_template` runs it, whose behaviour template authors write for. The program comes from
//! an untrusted file: its work, its memory, its output and the time that one waits for it are bounded.

mod python;
mod thread;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;

use crate::{Error, Message, Tokenizer};

/// Longest template, in bytes; real ones have up to some 30,000. The stack of [`thread`] is measured for it.
const SOURCE_BYTES_MAX: usize = 1 << 17;

/// Calls within calls (macros, loops that recurse) before a template is stopped, so that it fits a small stack.
const RECURSION_MAX: usize = 64;

/// The name of the one template in its environment.
const NAME: &str = "chat_template";

/// For models whose file has no template, but whose vocabulary has the marks of this common form.
const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}";

/// What one rendering may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps of the template engine; 64 bytes of data made or read count as one step too.
    pub fuel: u64,
    /// Length of the prompt.
    pub output_bytes_max: usize,
    /// How long parsing and rendering are waited for, each. The steps bound neither the parser, which takes minutes to
    /// fold a long chain of constants, nor what the engine does within one step: to compare small lists that hold each
    /// other many times over can take for ever.
    pub time_max: Duration,
}

impl Default for Limits {
    /// At most 128 MB of data and about half a second; a conversation of 1,000 messages and 1 MB needs some 5 % of it.
    fn default() -> Limits {
        Limits { fuel: 2_000_000, output_bytes_max: 64 << 20, time_max: Duration::from_secs(10) }
    }
}

/// What a template sees.
#[derive(Debug, Clone, Default)]
pub struct RenderInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Text of the BOS token.
    pub bos_token: Option<&'a str>,
    /// Text of the EOS token.
    pub eos_token: Option<&'a str>,
    /// Whether the assistant may think first; absent: as the template prefers.
    pub enable_thinking: Option<bool>,
    /// Local time in seconds since 1970-01-01 00:00 local time, for templates that write today's date.
    pub local_time_s: Option<i64>,
    /// Further variables, `tools` among them; they win over the ones above.
    pub extra: Map<String, serde_json::Value>,
}

/// A chat template, parsed.
#[derive(Debug)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    limits: Limits,
}

impl Template {
    /// Parses a template, with the default limits.
    ///
    /// # Errors
    /// If it is too long or does not parse.
    pub fn new(source: &str) -> Result<Template, Error> {
        Template::with_limits(source, Limits::default())
    }

    /// Parses a template.
    ///
    /// # Errors
    /// If it is too long, does not parse, or takes too much time to parse.
    pub fn with_limits(source: &str, limits: Limits) -> Result<Template, Error> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(Error::TemplateLength { bytes: source.len(), max: SOURCE_BYTES_MAX });
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the delimiters are the default ones"));
        environment.set_fuel(Some(limits.fuel));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", python::raise_exception);
        let source = without_generation_tags(source).into_owned();
        let environment =
            thread::run(limits.time_max, move || match environment.add_template_owned(NAME, source) {
                Ok(()) => Ok(environment),
                Err(error) => {
                    let (line, reason) = describe(&error);
                    Err(Error::TemplateSyntax { line, reason })
                }
            })??;
        Ok(Template { environment: Arc::new(environment), limits })
    }

    /// The template of a model file, or ChatML if the file has none and the vocabulary has `<|im_start|>`.
    ///
    /// # Errors
    /// If there is neither, or the file's does not parse.
    pub fn from_metadata(metadata: &gguf::Metadata, tokenizer: &Tokenizer) -> Result<Template, Error> {
        match metadata.string("tokenizer.chat_template")? {
            Some(source) => Template::new(source),
            None if tokenizer.id_of("<|im_start|>").is_some() => Template::new(CHATML),
            None => Err(Error::NoTemplate),
        }
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// If the template refuses the messages, fails, or exceeds its limits.
    pub fn render(&self, input: &RenderInput) -> Result<String, Error> {
        let (environment, limits, context) = (self.environment.clone(), self.limits, context(input));
        thread::run(limits.time_max, move || render(&environment, limits, context))?
    }
}

fn render(environment: &Environment, limits: Limits, context: Value) -> Result<String, Error> {
    let template = environment.get_template(NAME).expect("added when parsed");
    let mut output = Bounded { bytes: Vec::new(), bytes_max: limits.output_bytes_max, exceeded: false };
    let result = template.render_captured_to(context, &mut output).map(drop);
    if output.exceeded {
        return Err(Error::TemplateOutput { max: limits.output_bytes_max });
    }
    result.map_err(|error| run_error(&error, limits))?;
    Ok(String::from_utf8(output.bytes).expect("the engine writes text"))
}

fn run_error(error: &minijinja::Error, limits: Limits) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(python::Raised(reason)) = current.downcast_ref() {
            return Error::TemplateRefused { reason: reason.clone() };
        }
        if current.downcast_ref().is_some_and(|e: &minijinja::Error| e.kind() == ErrorKind::OutOfFuel) {
            return Error::TemplateBudget { fuel: limits.fuel };
        }
        cause = current.source();
    }
    let (line, reason) = describe(error);
    Error::TemplateRun { line, reason }
}

/// The variables of a template: those of `apply_chat_template`, where `tools` and `documents` exist even if none are given.
fn context(input: &RenderInput) -> Value {
    let mut variables: Vec<(String, Value)> = Vec::new();
    let mut set = |name: &str, value: Value| variables.push((name.to_owned(), value));
    set("messages", input.messages.iter().map(message).collect());
    set("add_generation_prompt", input.add_generation_prompt.into());
    set("tools", ().into());
    set("documents", ().into());
    if let Some(text) = input.bos_token {
        set("bos_token", text.into());
    }
    if let Some(text) = input.eos_token {
        set("eos_token", text.into());
    }
    if let Some(yes) = input.enable_thinking {
        set("enable_thinking", yes.into());
    }
    if let Some(time_s) = input.local_time_s {
        set("strftime_now", Value::from_function(move |format: String| python::strftime(time_s, &format)));
    }
    for (name, value) in &input.extra {
        set(name, value_of(value));
    }
    Value::from_pairs(variables)
}

fn message(message: &Message) -> Value {
    let mut fields =
        vec![("role", Value::from(message.role.as_str())), ("content", Value::from(&*message.content))];
    if let Some(reasoning) = &message.reasoning {
        fields.push(("reasoning_content", Value::from(&**reasoning)));
    }
    Value::from_pairs(fields)
}

fn value_of(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(yes) => Value::from(*yes),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        serde_json::Value::String(text) => Value::from(&**text),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, value)| (name.clone(), value_of(value))))
        }
    }
}

/// Line and words of the error at the bottom, which says most.
fn describe(error: &minijinja::Error) -> (usize, String) {
    let mut deepest = error;
    while let Some(cause) = deepest.source().and_then(|cause| cause.downcast_ref()) {
        deepest = cause;
    }
    let kind = deepest.kind().to_string();
    let reason = deepest.detail().map_or(kind.clone(), |detail| format!("{kind}: {detail}"));
    (deepest.line().or(error.line()).unwrap_or(0), reason)
}

/// Takes `{% generation %}` and its end out of effect: marks of what to train on, which the engine does not know.
fn without_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation %}") && !source.contains("generation -%}") {
        return source.into();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |at| at + 2);
        let name = tag[2..end].trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag[..end].replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag[..end].replacen("endgeneration", "endif", 1)),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out.into()
}

/// Collects output up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    bytes_max: usize,
    exceeded: bool,
}

impl io::Write for &mut Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.bytes_max - self.bytes.len() {
            self.exceeded = true;
            return Err(io::Error::other("the output limit is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
