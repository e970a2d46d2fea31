//! What the server needs of a model: `chat::ChatModel`, and in tests a scripted one.

use std::future::Future;

use chat::{ChatAnswer, ChatError, ChatEvent, ChatModel, ChatRequest};

/// A model that answers.
pub trait Model: Send + Sync + 'static {
    /// What it gives.
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
    /// Tokens of the prompt.
    fn prompt_tokens(&self) -> usize;

    /// What comes next; nothing after [`ChatEvent::End`]. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Option<ChatEvent>> + Send;
}

/// What a model is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Requests that wait.
    pub queued: usize,
    /// Requests that are being answered.
    pub running: usize,
    /// Most of those at the same time.
    pub parallel_max: usize,
    /// False once nothing is answered any more.
    pub alive: bool,
}

impl Model for ChatModel {
    type Answer = ChatAnswer;

    fn generate(&self, request: ChatRequest) -> Result<ChatAnswer, ChatError> {
        ChatModel::generate(self, request)
    }

    fn context_tokens(&self) -> usize {
        ChatModel::context_tokens(self)
    }

    fn counts(&self) -> Counts {
        let (counts, limits) = (self.service().counts(), self.service().limits());
        Counts {
            queued: counts.queued,
            running: counts.running,
            parallel_max: limits.parallel_max,
            alive: counts.alive,
        }
    }
}

impl Answer for ChatAnswer {
    fn prompt_tokens(&self) -> usize {
        ChatAnswer::prompt_tokens(self)
    }

    fn next(&mut self) -> impl Future<Output = Option<ChatEvent>> + Send {
        ChatAnswer::next(self)
    }
}
