//! Answers in the API's form: whole, and in the pieces of a stream.

use chat::{Finish, Usage};
use serde_json::{Value, json};

/// The two kinds of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// What every piece of one answer says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// Decides the form.
    pub endpoint: Endpoint,
    /// A name for it.
    pub id: String,
    /// When it began, in seconds since 1970.
    pub created_s: u64,
    /// What wrote it.
    pub model: String,
    /// Whether the stream says what it took.
    pub stream_usage: bool,
}

/// What an answer consists of.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// What the model thought before it spoke.
    pub thinking: String,
    /// What it said.
    pub text: String,
}

impl Reply {
    /// The answer as one object.
    pub fn whole(&self, content: &Content, finish: Finish, usage: Usage) -> Value {
        let choice = match self.endpoint {
            Endpoint::Chat => {
                let mut message = json!({"role": "assistant", "content": content.text, "refusal": null});
                if !content.thinking.is_empty() {
                    message["reasoning_content"] = content.thinking.as_str().into();
                }
                json!({"index": 0, "message": message, "logprobs": null, "finish_reason": reason(finish)})
            }
            Endpoint::Completions => {
                json!({"index": 0, "text": content.text, "logprobs": null, "finish_reason": reason(finish)})
            }
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = counts(usage);
        whole
    }

    /// The first piece, before anything is written: who speaks. Plain completions have none.
    pub fn opening(&self) -> Option<Value> {
        (self.endpoint == Endpoint::Chat)
            .then(|| self.piece(json!({"role": "assistant", "content": ""}), None))
    }

    /// More of the answer.
    pub fn text(&self, text: &str) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.piece(json!({"content": text}), None),
            Endpoint::Completions => self.piece(text.into(), None),
        }
    }

    /// More of the thinking. Plain completions have no place for it but the text.
    pub fn thinking(&self, text: &str) -> Value {
        match self.endpoint {
            Endpoint::Chat => self.piece(json!({"reasoning_content": text}), None),
            Endpoint::Completions => self.piece(text.into(), None),
        }
    }

    /// Why it ends, and what it took if that is wanted.
    pub fn closing(&self, finish: Finish, usage: Usage) -> (Value, Option<Value>) {
        let empty = match self.endpoint {
            Endpoint::Chat => json!({}),
            Endpoint::Completions => "".into(),
        };
        let usage = self.stream_usage.then(|| {
            let mut last = self.object(self.piece_object(), json!([]));
            last["usage"] = counts(usage);
            last
        });
        (self.piece(empty, Some(reason(finish))), usage)
    }

    fn piece_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn piece(&self, content: Value, finish_reason: Option<&str>) -> Value {
        let name = match self.endpoint {
            Endpoint::Chat => "delta",
            Endpoint::Completions => "text",
        };
        let choice = json!({"index": 0, name: content, "logprobs": null, "finish_reason": finish_reason});
        let mut piece = self.object(self.piece_object(), json!([choice]));
        if self.stream_usage {
            // Clients tell by its value which piece is the last.
            piece["usage"] = Value::Null;
        }
        piece
    }

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// As the API counts: the prompt with all that the template adds to it, the answer with its thinking. What counts as a token of the
/// answer is said at [`Usage`].
fn counts(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
    })
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop(_) => "stop",
        Finish::Length => "length",
        Finish::Cancelled => unreachable!("a fault by now"),
    }
}
