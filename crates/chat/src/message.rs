//! What a conversation consists of.

use std::fmt;

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// Instructions by the application; what newer clients send for `System`.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool that the model called.
    Tool,
}

impl Role {
    /// The name that templates compare with.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// What the assistant thought before it spoke; templates know it as `reasoning_content`.
    pub reasoning: Option<String>,
}

impl Message {
    /// A message without reasoning.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), reasoning: None }
    }
}
