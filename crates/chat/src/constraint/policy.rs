//! A constraint where the engine asks for it.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::policy::ROLL_BACK_TOKENS_MAX;
use engine::{RowPolicy, Verdict};

use super::{Constraint, State};

/// Steers one answer.
#[derive(Debug, Clone)]
pub struct TextPolicy {
    constraint: Arc<Constraint>,
    state: State,
    /// States before the last tokens, the oldest first.
    before: VecDeque<State>,
}

impl TextPolicy {
    /// At the beginning of an answer.
    pub fn new(constraint: Arc<Constraint>) -> TextPolicy {
        let (state, _) = constraint.start();
        TextPolicy { constraint, state, before: VecDeque::new() }
    }
}

impl RowPolicy for TextPolicy {
    fn start(&mut self) -> Verdict {
        self.before.clear();
        let (state, verdict) = self.constraint.start();
        self.state = state;
        verdict
    }

    fn advance(&mut self, token: u32) -> Verdict {
        if self.before.len() == ROLL_BACK_TOKENS_MAX {
            self.before.pop_front();
        }
        self.before.push_back(self.state);
        self.constraint.advance(&mut self.state, token, &mut |_, _| {})
    }

    fn roll_back(&mut self, tokens: usize) {
        assert!(tokens <= self.before.len(), "{tokens} tokens back, of {}", self.before.len());
        if let Some(state) = self.before.drain(self.before.len() - tokens..).next() {
            self.state = state;
        }
    }
}
