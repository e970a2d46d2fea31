//! Other orders of a conversation, for templates that are stricter than their clients.
//!
//! Many templates want a system message first or nowhere, and then the user and the assistant in turn; clients put
//! instructions anywhere. The conversation is rendered as it is if the template takes it. If it refuses, fails, or leaves
//! out what somebody other than the model or a tool said, these are tried, each on top of the former:
//!
//! 1. A developer is the system. System messages at the beginning become one, empty ones go.
//! 2. Later system messages become the user's.
//! 3. The user and the assistant alternate: messages of one in a row become one; an empty message of the user goes before
//!    an assistant that begins, and an empty one of the assistant between a tool's result and the user.
//! 4. The system message becomes the beginning of the user's first one.
//! 5. Tools become text: a call is the assistant's words, in JSON, and a result is the user's. Then 3 and 4 again.
//!
//! Nothing is moved, so the prompt up to a late message stays what it was, and a cache of it is of use. Joined messages are
//! separated by an empty line.

#[cfg(test)]
mod tests;

use serde_json::json;

use crate::{Message, Role};

/// The other orders, in the order to try them; none is as the conversation already is.
pub(super) fn others(messages: &[Message]) -> Vec<Vec<Message>> {
    let mut orders = vec![messages.to_vec()];
    let changes = [one_system, late_systems_as_user, alternating, without_system];
    for change in changes.into_iter().chain([tools_as_text, alternating, without_system]) {
        let changed = change(orders.last().cloned().unwrap_or_default());
        if orders.last() != Some(&changed) {
            orders.push(changed);
        }
    }
    orders.split_off(1)
}

/// Whether a prompt has what was said by others than the model and its tools, whose words templates may change.
pub(super) fn is_complete(prompt: &str, messages: &[Message]) -> bool {
    let mut from = 0;
    messages.iter().filter(|message| !matches!(message.role, Role::Assistant | Role::Tool)).all(|message| {
        let said = message.content.trim();
        // Mostly in order, so that the whole is gone through once.
        match prompt[from..].find(said) {
            Some(at) => from += at + said.len(),
            None => return prompt[..from].contains(said),
        }
        true
    })
}

fn one_system(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut beginning = true;
    for mut message in messages {
        if message.role == Role::Developer {
            message.role = Role::System;
        }
        beginning &= message.role == Role::System;
        if message.role == Role::System && message.content.trim().is_empty() {
            continue;
        }
        match out.last_mut().filter(|_| beginning) {
            Some(first) => join(first, message),
            None => out.push(message),
        }
    }
    out
}

fn late_systems_as_user(mut messages: Vec<Message>) -> Vec<Message> {
    for message in messages.iter_mut().skip(1).filter(|message| message.role == Role::System) {
        message.role = Role::User;
    }
    messages
}

fn alternating(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        let begins = out.last().is_none_or(|last| last.role == Role::System);
        match (out.last_mut(), message.role) {
            (_, Role::Assistant | Role::Tool) if begins => {
                out.push(Message::new(Role::User, ""));
                out.push(message);
            }
            (Some(last), Role::User) if last.role == Role::Tool || !last.tool_calls.is_empty() => {
                out.push(Message::new(Role::Assistant, ""));
                out.push(message);
            }
            (Some(last), Role::User | Role::Assistant)
                if last.role == message.role
                    && last.tool_calls.is_empty()
                    && message.tool_calls.is_empty() =>
            {
                join(last, message);
            }
            _ => out.push(message),
        }
    }
    if out.last().is_none_or(|last| last.role == Role::System) {
        out.push(Message::new(Role::User, ""));
    }
    out
}

fn without_system(mut messages: Vec<Message>) -> Vec<Message> {
    if messages.first().is_none_or(|first| first.role != Role::System) {
        return messages;
    }
    messages[0].role = Role::User;
    if messages.get(1).is_some_and(|second| second.role == Role::User) {
        let second = messages.remove(1);
        join(&mut messages[0], second);
    }
    messages
}

fn tools_as_text(mut messages: Vec<Message>) -> Vec<Message> {
    // The empty messages between a result and the user are of no use any more.
    messages.retain(|m| m.role != Role::Assistant || !m.content.is_empty() || !m.tool_calls.is_empty());
    for message in &mut messages {
        for call in std::mem::take(&mut message.tool_calls) {
            let call = json!({"name": call.name, "arguments": call.arguments});
            join_text(&mut message.content, &call.to_string());
        }
        if message.role == Role::Tool {
            message.role = Role::User;
        }
    }
    messages
}

/// Makes two messages one.
fn join(first: &mut Message, second: Message) {
    join_text(&mut first.content, &second.content);
    match (&mut first.reasoning, second.reasoning) {
        (Some(first), Some(second)) => join_text(first, &second),
        (first, second) => *first = first.take().or(second),
    }
    first.name = first.name.take().or(second.name);
}

fn join_text(first: &mut String, second: &str) {
    if !first.is_empty() && !second.is_empty() {
        first.push_str("\n\n");
    }
    first.push_str(second);
}
