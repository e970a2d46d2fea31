//! The chat template of a model file: a Jinja program that turns messages into a prompt.
//!
//! Run as Hugging Face's `apply_chat_template` runs it, whose behaviour template authors write for. The program comes from
//! an untrusted file: its work, its memory, its output and the time that one waits for it are bounded.

mod engine;
mod order;
mod outside;
mod python;
mod source;
mod thread;
mod variables;

#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use minijinja::{Environment, ErrorKind, Value};
use serde_json::Map;

use crate::{Error, Message, Tokenizer};
use engine::Compiled;
use outside::{ControlTexts, Marker, Marks};
use source::Words;
use variables::{Arguments, Variables};

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
    /// Steps of the template engine, for one run of the template; 64 bytes of data made or read, and 8 values gone
    /// through, count as one step too. A prompt may take several runs: see [`Template::render_prompt`].
    pub fuel: u64,
    /// Length of the prompt.
    pub output_bytes_max: usize,
    /// How long parsing and rendering are waited for, each. The steps bound both; this is for a machine that is too slow
    /// for them, and for templates that fail late in every order of the messages.
    pub time_max: Duration,
}

impl Default for Limits {
    /// At most 128 MB of data and about half a second; a conversation of 1,000 messages and 1 MB needs some 5 % of it.
    fn default() -> Limits {
        Limits { fuel: 2_000_000, output_bytes_max: 64 << 20, time_max: Duration::from_secs(2) }
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
    /// Further variables, `tools` among them; they win over the ones above. Their strings come from outside.
    pub extra: Map<String, serde_json::Value>,
}

/// A prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of the text, in order and apart, that read like control tokens and are not, as some of it came from
    /// outside: out of the messages, or out of [`RenderInput::extra`]. The text of a control token that overlaps one of
    /// them, or lies in it, is text.
    pub outside: Vec<Range<usize>>,
}

/// A chat template, parsed.
#[derive(Debug, Clone)]
pub struct Template {
    program: Arc<Program>,
}

/// What a thread that renders needs.
#[derive(Debug)]
struct Program {
    environment: Environment<'static>,
    /// Compiled anew for each prompt, in less than a millisecond; the engine's form of it would borrow from here.
    source: String,
    controls: ControlTexts,
    limits: Limits,
}

impl Template {
    /// Parses a template, with the default limits, for a vocabulary with these texts of control tokens.
    ///
    /// # Errors
    /// If it is too long or does not parse.
    pub fn new(source: &str, control_texts: &[String]) -> Result<Template, Error> {
        Template::with_limits(source, control_texts, Limits::default())
    }

    /// Parses a template.
    ///
    /// # Errors
    /// If it is too long, does not parse, or takes too much time to parse.
    pub fn with_limits(source: &str, control_texts: &[String], limits: Limits) -> Result<Template, Error> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(Error::TemplateLength { bytes: source.len(), max: SOURCE_BYTES_MAX });
        }
        if let Some(line) = source::too_long(source) {
            let reason = "there are too many words within one pair of braces".to_owned();
            return Err(Error::TemplateSyntax { line, reason });
        }
        let mut environment = Environment::new();
        environment.set_debug(false);
        environment.set_fuel(Some(limits.fuel));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(python::method);
        environment.add_filter("tojson", python::to_json);
        environment.add_function("raise_exception", python::raise_exception);
        engine::add_guards(&mut environment);
        let controls = ControlTexts::new(control_texts, Words::new(source));
        let source = source::without_generation_tags(source).into_owned();
        let program = Arc::new(Program { environment, source, controls, limits });
        let parsed = program.clone();
        thread::run(limits.time_max, move || parsed.compiled().map(drop))??;
        Ok(Template { program })
    }

    /// The template of a model file, or ChatML if the file has none and the vocabulary has `<|im_start|>`.
    ///
    /// # Errors
    /// If there is neither, or the file's does not parse.
    pub fn from_metadata(metadata: &gguf::Metadata, tokenizer: &Tokenizer) -> Result<Template, Error> {
        let controls: Vec<String> = (0..tokenizer.vocabulary_len() as u32)
            .filter(|&id| tokenizer.is_control(id))
            .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned())
            .collect();
        match metadata.string("tokenizer.chat_template")? {
            Some(source) => Template::new(source, &controls),
            None if tokenizer.id_of("<|im_start|>").is_some() => Template::new(CHATML, &controls),
            None => Err(Error::NoTemplate),
        }
    }

    /// The prompt for a conversation.
    ///
    /// The template is run on the messages as they are. If it refuses or fails, or leaves out what a user or the system
    /// said, it is run on them in other orders, and with the arguments of calls in other forms. What typed control tokens
    /// are is then found by one or more runs on marked texts.
    ///
    /// # Errors
    /// If there are no messages, or if the template refuses them, fails, or exceeds its limits; then with what it said
    /// of the messages as they are.
    pub fn render_prompt(&self, input: &RenderInput) -> Result<Rendered, Error> {
        if input.messages.is_empty() {
            return Err(Error::NoMessages);
        }
        let (program, variables) = (self.program.clone(), Variables::new(input));
        thread::run(self.program.limits.time_max, move || {
            let compiled = program.compiled()?;
            Rendering { program: &program, compiled, started: Instant::now() }.prompt(variables)
        })?
    }
}

impl Program {
    fn compiled(&self) -> Result<Compiled<'_>, Error> {
        Compiled::new(NAME, &self.source)
    }
}

/// A prompt in the making.
struct Rendering<'a> {
    program: &'a Program,
    compiled: Compiled<'a>,
    started: Instant,
}

impl Rendering<'_> {
    fn prompt(&self, mut variables: Variables) -> Result<Rendered, Error> {
        let (arguments, text) = self.plain(&mut variables)?;
        let controls = &self.program.controls;
        if controls.is_empty() {
            return Ok(Rendered { text, outside: Vec::new() });
        }
        let marks = Marks::new(controls, variables.texts()).ok_or(Error::TemplateMarks)?;
        let mut last = Err(Error::TemplateMarks);
        for (extent, form) in marks.ways() {
            let marker = Marker { controls, marks: &marks, extent, form };
            last = self.run(variables.value(arguments, Some(&marker))).map(|text| marks.removed(&text));
            if last.as_ref().is_ok_and(|(same, _)| *same == text) {
                break;
            }
        }
        let (text, marks) = last?;
        let outside = outside::outside(controls, &text, &marks);
        Ok(Rendered { text, outside })
    }

    /// The prompt without marks: the first one that is complete, or else the first one, of the orders of the messages and
    /// the forms of arguments. `variables` then have its order.
    fn plain(&self, variables: &mut Variables) -> Result<(Arguments, String), Error> {
        let mut incomplete = None;
        let first = match self.forms(variables) {
            Ok((arguments, text)) if order::is_complete(&text, &variables.messages) => {
                return Ok((arguments, text));
            }
            Ok((arguments, text)) => {
                incomplete = Some((arguments, text, variables.messages.clone()));
                None
            }
            Err(error @ (Error::TemplateRun { .. } | Error::TemplateRefused { .. })) => Some(error),
            Err(error) => return Err(error),
        };
        let given = variables.messages.clone();
        for messages in order::others(&given) {
            variables.messages = messages;
            match self.forms(variables) {
                Ok((arguments, text)) if order::is_complete(&text, &given) => return Ok((arguments, text)),
                Ok((arguments, text)) => {
                    incomplete.get_or_insert((arguments, text, variables.messages.clone()));
                }
                Err(Error::TemplateRun { .. } | Error::TemplateRefused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match (incomplete, first) {
            (Some((arguments, text, messages)), _) => {
                variables.messages = messages;
                Ok((arguments, text))
            }
            (None, first) => Err(first.expect("it is an error, or incomplete")),
        }
    }

    /// The prompt for one order, and the form of arguments in which the template does not fail.
    fn forms(&self, variables: &Variables) -> Result<(Arguments, String), Error> {
        let first = match self.run(variables.value(Arguments::Parsed, None)) {
            Err(error @ Error::TemplateRun { .. }) => error,
            result => return result.map(|text| (Arguments::Parsed, text)),
        };
        let others = [Arguments::Text, Arguments::Object].into_iter().filter(|_| variables.has_calls());
        let run = |arguments| Some((arguments, self.run(variables.value(arguments, None)).ok()?));
        others.into_iter().find_map(run).ok_or(first)
    }

    fn run(&self, variables: Value) -> Result<String, Error> {
        let limits = self.program.limits;
        if self.started.elapsed() >= limits.time_max {
            return Err(Error::TemplateTime { seconds: limits.time_max.as_secs_f64() });
        }
        let run = self.compiled.run(&self.program.environment, variables);
        let text = run.map_err(|error| run_error(&error, limits))?;
        match text.len() > limits.output_bytes_max {
            true => Err(Error::TemplateOutput { max: limits.output_bytes_max }),
            false => Ok(text),
        }
    }
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
