//! What a conversation consists of.

use std::fmt;

use serde_json::Value;

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
    /// The name of the speaker, or of the tool whose result this is.
    pub name: Option<String>,
    /// The tools that the assistant called.
    pub tool_calls: Vec<ToolCall>,
    /// Which call this is the result of.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that is nothing but text.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        let content = content.into();
        Message { role, content, reasoning: None, name: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What the result refers to.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// What it is called with: an object, or a text that need not be JSON, as the model may have been cut off within it.
    pub arguments: Value,
}
