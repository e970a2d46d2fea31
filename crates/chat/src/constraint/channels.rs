//! The tokens of an answer, one after the other, sorted into thinking and text.

use engine::{StopReason, Verdict};

use super::matcher::At;
use super::{Constraint, Thinking};
use crate::Specials;

/// Where bytes belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Thinking,
    Text,
}

/// How far an answer is. What is held back follows from it, so that a copy is all that taking back needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    phase: Phase,
    /// Tokens of thinking so far.
    pub thinking_tokens: usize,
    /// Whether the closing mark was forced.
    cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing but white space and this many bytes of the opening mark.
    Start { matched: usize },
    /// `blank`: nothing but white space so far, which is left out.
    Thinking { at: At, blank: bool },
    /// As above.
    Text { at: At, blank: bool },
}

/// Takes the bytes that are certain.
type Sink<'a> = &'a mut dyn FnMut(Channel, &[u8]);

impl Constraint {
    /// Before the first token.
    pub(crate) fn start(&self) -> (State, Verdict) {
        let phase = match &self.thinking {
            None => Phase::Text { at: At::default(), blank: false },
            Some(thinking) if thinking.spec.opened_by_prompt => {
                Phase::Thinking { at: At::default(), blank: true }
            }
            Some(_) => Phase::Start { matched: 0 },
        };
        let mut state = State { phase, thinking_tokens: 0, cut: false };
        let verdict = self.cut(&mut state);
        (state, verdict)
    }

    /// The answer goes on with `token`.
    pub(crate) fn advance(&self, state: &mut State, token: u32, sink: Sink<'_>) -> Verdict {
        if let Some(&reason) = self.stop_tokens.get(&token) {
            return Verdict::Stop(reason);
        }
        if matches!(state.phase, Phase::Thinking { .. }) {
            state.thinking_tokens += 1;
        }
        for &byte in self.shown_bytes(state, token) {
            if let Some(stop) = self.push(&mut state.phase, byte, sink) {
                return Verdict::Stop(StopReason::Sequence(stop));
            }
        }
        self.cut(state)
    }

    /// Hands over what is held back, when nothing follows; a whole stop string is not.
    pub(crate) fn finish(&self, state: &State, sink: Sink<'_>) {
        match (state.phase, &self.thinking) {
            (Phase::Start { matched }, Some(thinking)) => {
                sink(Channel::Text, &thinking.spec.open.text.as_bytes()[..matched]);
            }
            // The end came within the closing mark that was forced: it is not the model's thinking.
            (Phase::Thinking { .. }, Some(_)) if state.cut => {}
            (Phase::Thinking { at, .. }, Some(thinking)) => sink(Channel::Thinking, thinking.close.held(at)),
            (Phase::Text { at, .. }, _) if self.stops.hit(at).is_some() => {}
            (Phase::Text { at, .. }, _) => sink(Channel::Text, self.stops.held(at)),
            (Phase::Start { .. } | Phase::Thinking { .. }, None) => unreachable!("only models that think"),
        }
    }

    /// A token's part of the text: none of a control token, unless it may be a mark, and none of an id without a text,
    /// which some models have past their tokenizer's last one.
    fn shown_bytes(&self, state: &State, token: u32) -> &[u8] {
        if token as usize >= self.tokenizer.vocabulary_len() {
            return &[];
        }
        let mark = self.thinking.as_ref().is_some_and(|thinking| match state.phase {
            Phase::Start { .. } => thinking.spec.open.tokens.contains(&token),
            Phase::Thinking { .. } => thinking.spec.close.tokens.contains(&token),
            Phase::Text { .. } => false,
        });
        match self.tokenizer.is_control(token) && !mark {
            true => &[],
            false => self.tokenizer.token_bytes(token),
        }
    }

    /// One more byte; the number of the stop string that it completes, if any.
    fn push(&self, phase: &mut Phase, byte: u8, sink: Sink<'_>) -> Option<usize> {
        match (*phase, &self.thinking) {
            (Phase::Start { matched }, Some(thinking)) => {
                let open = thinking.spec.open.text.as_bytes();
                if byte == open[matched] {
                    *phase = match matched + 1 == open.len() {
                        true => Phase::Thinking { at: At::default(), blank: true },
                        false => Phase::Start { matched: matched + 1 },
                    };
                    return None;
                }
                if matched == 0 && is_blank(byte) {
                    return None;
                }
                *phase = Phase::Text { at: At::default(), blank: false };
                let held = open[..matched].iter().copied().chain([byte]);
                held.map(|byte| self.push_text(phase, byte, sink)).find(Option::is_some).flatten()
            }
            (Phase::Thinking { blank: true, at }, _) if at == At::default() && is_blank(byte) => None,
            (Phase::Thinking { at, .. }, Some(thinking)) => {
                let next = thinking.close.step(at, byte);
                let kept = thinking.close.held(next).len();
                release(thinking.close.held(at), byte, kept, Channel::Thinking, sink);
                *phase = match thinking.close.hit(next) {
                    Some(_) => Phase::Text { at: At::default(), blank: true },
                    None => Phase::Thinking { at: next, blank: false },
                };
                None
            }
            (Phase::Text { .. }, _) => self.push_text(phase, byte, sink),
            (Phase::Start { .. } | Phase::Thinking { .. }, None) => unreachable!("only models that think"),
        }
    }

    fn push_text(&self, phase: &mut Phase, byte: u8, sink: Sink<'_>) -> Option<usize> {
        let Phase::Text { at, blank } = *phase else { unreachable!("the caller's phase is text") };
        if blank && is_blank(byte) {
            return None;
        }
        let next = self.stops.step(at, byte);
        *phase = Phase::Text { at: next, blank: false };
        let hit = self.stops.hit(next);
        let kept = hit.map_or(self.stops.held(next).len(), |(_, len)| len);
        release(self.stops.held(at), byte, kept, Channel::Text, sink);
        hit.map(|(stop, _)| stop)
    }

    /// Forces the closing mark if the thinking has spent its budget.
    fn cut(&self, state: &mut State) -> Verdict {
        let (Phase::Thinking { at, .. }, Some(thinking)) = (state.phase, &self.thinking) else {
            return Verdict::GoOn;
        };
        if state.cut || thinking.spec.budget_tokens.is_none_or(|budget| state.thinking_tokens < budget) {
            return Verdict::GoOn;
        }
        state.cut = true;
        Verdict::Force(self.rest_of_close(thinking, thinking.close.held(at).len()))
    }

    /// The tokens that complete a closing mark of which `written` bytes are there.
    fn rest_of_close(&self, thinking: &Thinking, written: usize) -> Vec<u32> {
        let close = &thinking.spec.close;
        // A special token means more to the model than its letters: it comes whole, whatever stands before it.
        if written == 0 || close.tokens.len() == 1 {
            return close.tokens.clone();
        }
        let mut bytes = 0;
        for (i, &token) in close.tokens.iter().enumerate() {
            if bytes == written {
                return close.tokens[i..].to_vec();
            }
            bytes += self.tokenizer.token_bytes(token).len();
        }
        // The model cut the mark in other places than the tokenizer, which it may also do within a character.
        match close.text.get(written..) {
            Some(rest) => self.tokenizer.encode_continuation(rest, Specials::AsText),
            None => close.tokens.clone(),
        }
    }
}

/// Of the bytes held back and one more, the last `kept` are not certain; the others leave.
fn release(held: &[u8], byte: u8, kept: usize, channel: Channel, sink: Sink<'_>) {
    let leaving = held.len() + 1 - kept;
    sink(channel, &held[..leaving.min(held.len())]);
    if leaving > held.len() {
        sink(channel, &[byte]);
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}
