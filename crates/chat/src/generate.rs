//! Tokens to chat events.

use std::sync::Arc;

use engine::{StopReason, Verdict};

use crate::Decoder;
use crate::constraint::{Channel, Constraint, State};

/// What a reader of an answer gets to see, in this order: thinking, text, and one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More of the thinking; never empty.
    Thinking(String),
    /// More of the answer; never empty.
    Text(String),
    /// Nothing more comes.
    End {
        /// Why.
        reason: Finish,
        /// What it took.
        usage: Usage,
    },
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model, or a stop string of the request, ended it.
    Stop(StopReason),
    /// As many tokens as were wanted, or as the context holds.
    Length,
    /// The reader had enough.
    Cancelled,
}

/// Tokens of a request. A token that ends an answer is not counted; those that write a stop string or a mark, forced ones
/// too, are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: usize,
    /// Of the prompt, those that had been read before; known once the engine has ended.
    pub reused_tokens: usize,
    /// Of the answer, thinking included.
    pub completion_tokens: usize,
    /// Of the thinking, with its closing mark.
    pub thinking_tokens: usize,
}

/// Turns the tokens of one answer into events.
///
/// Text leaves with the token that makes it certain: only bytes that may be the beginning of a stop string or of a mark,
/// and characters that are not whole, are held back.
#[derive(Debug)]
pub struct Generation {
    constraint: Arc<Constraint>,
    state: State,
    prompt_tokens: usize,
    completion_tokens: usize,
    shown: Shown,
    ended: bool,
}

impl Generation {
    /// At the beginning of the answer to a prompt of `prompt_tokens` tokens.
    pub fn new(constraint: Arc<Constraint>, prompt_tokens: usize) -> Generation {
        let (state, _) = constraint.start();
        Generation {
            constraint,
            state,
            prompt_tokens,
            completion_tokens: 0,
            shown: Shown::default(),
            ended: false,
        }
    }

    /// The answer goes on with `tokens`. Those after a stop are ignored, so is everything after the end.
    pub fn push(&mut self, tokens: &[u32]) -> Vec<Event> {
        for &token in tokens {
            if self.ended {
                break;
            }
            let shown = &mut self.shown;
            let verdict = self.constraint.advance(&mut self.state, token, &mut |channel, bytes| {
                shown.push(channel, bytes);
            });
            self.completion_tokens += usize::from(!matches!(verdict, Verdict::Stop(StopReason::Token(_))));
            if let Verdict::Stop(stop) = verdict {
                self.end(Finish::Stop(stop));
            }
        }
        self.shown.flush();
        std::mem::take(&mut self.shown.events)
    }

    /// No more tokens come: what was held back leaves, then the end. Nothing if the end has been.
    pub fn finish(&mut self, reason: Finish) -> Vec<Event> {
        if !self.ended {
            self.end(reason);
        }
        std::mem::take(&mut self.shown.events)
    }

    fn end(&mut self, reason: Finish) {
        let shown = &mut self.shown;
        self.constraint.finish(&self.state, &mut |channel, bytes| shown.push(channel, bytes));
        self.shown.finish();
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            reused_tokens: 0,
            completion_tokens: self.completion_tokens,
            thinking_tokens: self.state.thinking_tokens,
        };
        self.shown.events.push(Event::End { reason, usage });
        self.ended = true;
    }
}

/// Bytes on their way to events.
#[derive(Debug, Default)]
struct Shown {
    channel: Option<Channel>,
    bytes: Vec<u8>,
    decoder: Decoder,
    events: Vec<Event>,
}

impl Shown {
    fn push(&mut self, channel: Channel, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.channel != Some(channel) {
            self.finish();
            self.channel = Some(channel);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes an event of all whole characters.
    fn flush(&mut self) {
        let text = self.decoder.push(&self.bytes);
        self.bytes.clear();
        self.emit(text);
    }

    /// As `flush`, and the channel ends: an unfinished character becomes a replacement mark.
    fn finish(&mut self) {
        let mut text = self.decoder.push(&self.bytes);
        self.bytes.clear();
        text += &self.decoder.finish();
        self.emit(text);
    }

    fn emit(&mut self, text: String) {
        match self.channel {
            _ if text.is_empty() => {}
            Some(Channel::Thinking) => self.events.push(Event::Thinking(text)),
            Some(Channel::Text) => self.events.push(Event::Text(text)),
            None => unreachable!("text of no channel"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
