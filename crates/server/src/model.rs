//! What the server needs of a model: `chat::ChatModel`, and in tests a scripted one.

use std::future::Future;

pub use chat::Sampling;
use chat::{Finish, Message, Usage};
use serde_json::{Map, Value};

/// A model that answers.
pub trait Model: Send + Sync + 'static {
    /// See [`Answer`].
    type Answer: Answer;

    /// Takes a request. Returns when the prompt is tokens, and may take as long as that takes.
    ///
    /// # Errors
    /// See [`ChatError`].
    fn generate(&self, request: ChatRequest) -> Result<Self::Answer, ChatError>;

    /// Most tokens of prompt and answer together.
    fn context_tokens(&self) -> usize;

    /// What it is doing.
    fn counts(&self) -> Counts;
}

/// An answer on its way. Dropping it ends the work, at whatever point it is.
pub trait Answer: Send + 'static {
    /// Of the prompt.
    fn prompt_tokens(&self) -> usize;

    /// What comes next; nothing after [`ChatEvent::End`]. May be dropped and called again without a loss.
    fn next(&mut self) -> impl Future<Output = Option<ChatEvent>> + Send;
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    pub prompt: Prompt,
    pub sampling: Sampling,
    pub tokens_max: Option<usize>,
    pub stop_strings: Vec<String>,
    pub thinking: Thinking,
}
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Messages { messages: Vec<Message>, extra: Map<String, Value> },
    Text(String),
    Tokens(Vec<u32>),
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    AsTemplate,
    Off,
    Budget(usize),
}
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub queued: usize,
    pub running: usize,
    pub parallel: usize,
}
#[derive(Debug, Clone, PartialEq)]
pub enum ChatEvent {
    Reading { done: usize, of: usize },
    Thinking(String),
    Text(String),
    End { reason: Result<Finish, String>, usage: Usage },
}
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChatError {
    #[error("the prompt has {prompt_tokens} tokens and the context holds {context_tokens}")]
    TooLong { prompt_tokens: usize, context_tokens: usize },
    #[error(transparent)]
    Sampling(chat::SamplingError),
    #[error("queue full")]
    QueueFull,
    #[error("stopped")]
    Stopped,
    #[error("failed")]
    Failed,
}
