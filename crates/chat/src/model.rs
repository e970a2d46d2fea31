//! A model that answers conversations: messages in, chat events out.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use engine::{EndReason, Ended, Request, RequestError, RequestEvent, Sampling, Service, SubmitError};
use gguf::Metadata;
use serde_json::Map;
use thiserror::Error;

use crate::constraint::{Constraint, ConstraintError, ConstraintSpec, Marker, TextPolicy, ThinkingSpec};
use crate::generate::{Event, Finish, Generation, Usage};
use crate::{Error, Message, RenderInput, Rendered, Role, Specials, Template, Tokenizer, Vocabulary};

/// What is asked of a model, in no API's words.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// What comes before the answer.
    pub prompt: Prompt,
    /// How tokens are chosen. A penalty on repeated sequences without breakers gets [`ChatFormat::sequence_breakers`].
    pub sampling: Sampling,
    /// Most tokens of the answer, thinking included; as many as the context holds if absent.
    pub tokens_max: Option<usize>,
    /// Whether `tokens_max` is lowered to what the context holds beside the prompt, where it is more; else such a request is
    /// refused.
    pub fit_tokens_max: bool,
    /// Texts that end the answer.
    pub stop_strings: Vec<String>,
    /// Whether the model thinks first.
    pub thinking: Thinking,
    /// Local time in seconds since 1970-01-01 00:00 local time, for templates that write today's date.
    pub local_time_s: Option<i64>,
}

/// What comes before an answer.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A conversation, put into the form that the model's template gives it.
    Messages {
        /// The conversation.
        messages: Vec<Message>,
        /// Further variables of the template, `tools` among them.
        variables: Map<String, serde_json::Value>,
    },
    /// A text as it is. The texts of special tokens in it mean these tokens.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// A conversation of one message, the user's.
    pub fn user(text: impl Into<String>) -> Prompt {
        Prompt::Messages { messages: vec![Message::new(Role::User, text)], variables: Map::new() }
    }
}

impl Default for Prompt {
    fn default() -> Prompt {
        Prompt::Text(String::new())
    }
}

/// Whether a model that can think before it answers does so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// As its template prefers, as long as it likes.
    #[default]
    AsTemplate,
    /// No.
    Off,
    /// Yes, with at most this many tokens; 0 is [`Thinking::Off`].
    Budget(usize),
}

/// A request that is not answered.
#[derive(Debug, Error)]
pub enum ChatError {
    /// The template gives no prompt for these messages.
    #[error(transparent)]
    Prompt(Arc<Error>),
    /// The stop strings cannot be met.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The engine does not take it.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl From<Error> for ChatError {
    fn from(error: Error) -> ChatError {
        ChatError::Prompt(Arc::new(error))
    }
}

/// What a reader of an answer gets to see. After the end nothing follows.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatEvent {
    /// The prompt is being read; comes once the request has left the queue, and then step by step.
    Reading {
        /// Tokens read.
        done: usize,
        /// Tokens of the prompt.
        of: usize,
    },
    /// More of the thinking; never empty.
    Thinking(String),
    /// More of the answer; never empty.
    Text(String),
    /// Nothing more comes.
    End(ChatEnd),
}

/// The end record of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatEnd {
    /// Why it ended, or what went wrong.
    pub reason: Result<Finish, RequestError>,
    /// Tokens to account for.
    pub usage: Usage,
    /// The engine's own figures.
    pub engine: Ended,
}

/// A model file's side of the text: its tokenizer, its template and its marks of thinking.
pub struct ChatFormat {
    tokenizer: Arc<Tokenizer>,
    template: Result<Template, Arc<Error>>,
    /// The marks of a model that thinks.
    marks: Option<(Marker, Marker)>,
    sequence_breakers: OnceLock<Vec<u32>>,
}

impl ChatFormat {
    /// Takes it out of a model file.
    ///
    /// # Errors
    /// If the tokenizer cannot be used. A template that cannot be used is [`ChatFormat::template_error`].
    pub fn from_metadata(metadata: &Metadata) -> Result<ChatFormat, Error> {
        let tokenizer = Arc::new(Vocabulary::from_metadata(metadata).and_then(Tokenizer::new)?);
        let template = Template::from_metadata(metadata, &tokenizer).map_err(Arc::new);
        let marks = template.as_ref().ok().and_then(|template| template.thinking().marks);
        let marks =
            marks.map(|(open, close)| (Marker::new(&tokenizer, open), Marker::new(&tokenizer, close)));
        // Where the vocabulary cannot write a mark, there is nothing to know thinking by or to cut it with; every
        // conversation would be refused.
        let marks =
            marks.filter(|(open, close)| [open, close].iter().all(|mark| mark.is_written_by(&tokenizer)));
        Ok(ChatFormat { tokenizer, template, marks, sequence_breakers: OnceLock::new() })
    }

    /// Why conversations cannot be answered; plain texts can.
    pub fn template_error(&self) -> Option<Arc<Error>> {
        self.template.as_ref().err().cloned()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The tokens over which no repeated sequence reaches: with a line end, a colon, a quotation mark or an asterisk in
    /// their text, which are llama.cpp's choice.
    pub fn sequence_breakers(&self) -> &[u32] {
        self.sequence_breakers.get_or_init(|| {
            let breaks =
                |&id: &u32| self.tokenizer.token_bytes(id).iter().any(|byte| b"\n:\"*".contains(byte));
            (0..self.tokenizer.vocabulary_len() as u32).filter(breaks).collect()
        })
    }

    /// The token ids of a request's prompt.
    ///
    /// # Errors
    /// [`ChatError::Prompt`].
    pub fn prompt_tokens(&self, request: &ChatRequest) -> Result<Vec<u32>, ChatError> {
        Ok(self.read(request)?.tokens)
    }

    fn read(&self, request: &ChatRequest) -> Result<ReadPrompt, ChatError> {
        let (messages, variables) = match &request.prompt {
            Prompt::Tokens(tokens) => return Ok(ReadPrompt { tokens: tokens.clone(), thinking: None }),
            Prompt::Text(text) => {
                let tokens = self.tokenizer.encode_prompt(text, Specials::Parse);
                return Ok(ReadPrompt { tokens, thinking: None });
            }
            Prompt::Messages { messages, variables } => (messages, variables),
        };
        let template = self.template.as_ref().map_err(|error| ChatError::Prompt(error.clone()))?;
        let text_of = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(self.tokenizer.token_bytes(id)));
        let (bos, eos) = (text_of(self.tokenizer.bos()), text_of(self.tokenizer.eos()));
        let input = RenderInput {
            messages,
            add_generation_prompt: true,
            bos_token: bos.as_deref(),
            eos_token: eos.as_deref(),
            enable_thinking: match request.thinking {
                Thinking::AsTemplate => None,
                Thinking::Off | Thinking::Budget(0) => Some(false),
                Thinking::Budget(_) => Some(true),
            },
            local_time_s: request.local_time_s,
            extra: variables.clone(),
        };
        let Rendered { text, outside } = template.render_prompt(&input)?;
        let thinking = self.marks.clone().map(|(open, close)| ThinkingSpec {
            opened_by_prompt: template.thinking().is_opened_by(&text),
            open,
            close,
            budget_tokens: match request.thinking {
                Thinking::AsTemplate => None,
                Thinking::Off => Some(0),
                Thinking::Budget(tokens) => Some(tokens),
            },
        });
        Ok(ReadPrompt { tokens: self.tokenizer.encode_rendered(&text, &outside), thinking })
    }
}

struct ReadPrompt {
    tokens: Vec<u32>,
    thinking: Option<ThinkingSpec>,
}

/// A model with the engine that computes with it.
pub struct ChatModel {
    format: ChatFormat,
    service: Service,
}

impl ChatModel {
    /// Of a service.
    ///
    /// # Errors
    /// As [`ChatFormat::from_metadata`].
    pub fn new(service: Service) -> Result<ChatModel, Error> {
        Ok(ChatModel { format: ChatFormat::from_metadata(&service.model().metadata)?, service })
    }

    /// The side of the text.
    pub fn format(&self) -> &ChatFormat {
        &self.format
    }

    /// The engine.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Most tokens of prompt and answer together.
    pub fn context_tokens(&self) -> usize {
        self.service.model().layout.context_tokens
    }

    /// Begins an answer. Renders and encodes the prompt first, which takes time for a long one.
    ///
    /// # Errors
    /// [`ChatError`]; nothing was computed then.
    pub fn generate(&self, request: ChatRequest) -> Result<ChatAnswer, ChatError> {
        let ReadPrompt { tokens: prompt, thinking } = self.format.read(&request)?;
        let ChatRequest { mut sampling, mut tokens_max, fit_tokens_max, stop_strings, .. } = request;
        if fit_tokens_max {
            let room = self.context_tokens().saturating_sub(prompt.len());
            tokens_max = tokens_max.map(|tokens| tokens.min(room));
        }
        if let Some(dry) = sampling.dry.as_mut().filter(|dry| dry.sequence_breakers.is_empty()) {
            // A tokenizer may have tokens past the last one that the model knows.
            let known = |&id: &u32| (id as usize) < self.service.model().spec.vocabulary;
            dry.sequence_breakers = self.format.sequence_breakers().iter().copied().filter(known).collect();
        }
        let stop_tokens = self.format.tokenizer.end_of_generation().iter().copied().collect();
        let spec = ConstraintSpec { stop_strings, stop_tokens, thinking };
        let constraint = Arc::new(Constraint::new(spec, self.format.tokenizer.clone())?);
        let prompt_tokens = prompt.len();
        // A message ends with the mark that ends an answer.
        let ends = self.format.tokenizer.end_of_generation();
        let marks = prompt.iter().enumerate().filter(|(_, token)| ends.contains(token));
        let message_ends = marks.map(|(at, _)| at + 1).collect();
        let answer = self.service.submit(Request {
            prompt,
            sampling,
            tokens_max,
            message_ends,
            policy: Box::new(TextPolicy::new(constraint.clone())),
        })?;
        Ok(ChatAnswer {
            answer,
            generation: Generation::new(constraint, prompt_tokens),
            ready: VecDeque::new(),
            end: None,
            tokens: Vec::new(),
            prompt_tokens,
        })
    }
}

/// An answer as it is written. Dropping it cancels the request.
#[derive(Debug)]
pub struct ChatAnswer {
    answer: engine::Answer,
    generation: Generation,
    /// Events that are certain and not handed out.
    ready: VecDeque<ChatEvent>,
    /// What the text's side knows of the end, until the engine's record comes.
    end: Option<(Finish, Usage)>,
    tokens: Vec<u32>,
    prompt_tokens: usize,
}

impl ChatAnswer {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The tokens of the answer so far, marks and stop strings included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Stops the answer as soon as the engine hears of it; what was written until then still comes, and the end.
    pub fn cancel(&self) {
        self.answer.cancel();
    }

    /// The next event, waited for; nothing after [`ChatEvent::End`].
    ///
    /// # Panics
    /// On a thread that runs asynchronous tasks, which it would hold up.
    pub fn next_blocking(&mut self) -> Option<ChatEvent> {
        while self.ready.is_empty() {
            let event = self.answer.next_blocking()?;
            self.take(event);
        }
        self.ready.pop_front()
    }

    /// As [`ChatAnswer::next_blocking`], for asynchronous tasks. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<ChatEvent> {
        while self.ready.is_empty() {
            let event = self.answer.next().await?;
            self.take(event);
        }
        self.ready.pop_front()
    }

    fn take(&mut self, event: RequestEvent) {
        let of = self.prompt_tokens;
        match event {
            RequestEvent::Admitted { reused_tokens } => {
                self.ready.push_back(ChatEvent::Reading { done: reused_tokens, of });
            }
            RequestEvent::Read { tokens } => self.ready.push_back(ChatEvent::Reading { done: tokens, of }),
            RequestEvent::Token(sampled) => {
                self.tokens.push(sampled.token);
                let events = self.generation.push(&[sampled.token]);
                self.show(events);
            }
            RequestEvent::Ended(engine) => {
                let finish = match &engine.reason {
                    EndReason::Stop(reason) => Finish::Stop(*reason),
                    EndReason::Length => Finish::Length,
                    EndReason::Cancelled | EndReason::Failed(_) => Finish::Cancelled,
                };
                let events = self.generation.finish(finish);
                self.show(events);
                let (finish, usage) = self.end.expect("an end of the text by now");
                let usage = Usage { reused_tokens: engine.reused_tokens, ..usage };
                let reason = match &engine.reason {
                    EndReason::Failed(error) => Err(error.clone()),
                    _ => Ok(finish),
                };
                self.ready.push_back(ChatEvent::End(ChatEnd { reason, usage, engine }));
            }
        }
    }

    fn show(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Thinking(text) => self.ready.push_back(ChatEvent::Thinking(text)),
                Event::Text(text) => self.ready.push_back(ChatEvent::Text(text)),
                Event::End { reason, usage } => self.end = Some((reason, usage)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gguf::{Array, Value};

    use super::*;

    /// Such a model's every conversation was refused, with a sentence about marks that nobody had asked for.
    #[test]
    fn a_vocabulary_that_cannot_write_a_mark_has_no_thinking() {
        let text = |text: &str| Value::String(text.as_bytes().to_vec());
        let format = |tokens: &[&str]| {
            let tokens = tokens.iter().map(|token| token.as_bytes()).collect();
            let none: [&[u8]; 0] = [];
            ChatFormat::from_metadata(
                &Metadata::new(vec![
                    ("tokenizer.ggml.model".into(), text("gpt2")),
                    ("tokenizer.ggml.pre".into(), text("qwen2")),
                    ("tokenizer.ggml.tokens".into(), Value::Array(Array::Strings(tokens))),
                    (
                        "tokenizer.ggml.merges".into(),
                        Value::Array(Array::Strings(none.into_iter().collect())),
                    ),
                    ("tokenizer.chat_template".into(), text("{{ messages[0].content }}<think>")),
                ])
                .unwrap(),
            )
            .unwrap()
        };
        let thinking = |format: &ChatFormat| {
            let request = ChatRequest { prompt: Prompt::user("a"), ..ChatRequest::default() };
            format.read(&request).unwrap().thinking
        };
        assert!(thinking(&format(&["a", "b"])).is_none());
        let letters = ["a", "<", ">", "/", "t", "h", "i", "n", "k"];
        assert!(thinking(&format(&letters)).is_some_and(|thinking| thinking.opened_by_prompt));
    }
}
