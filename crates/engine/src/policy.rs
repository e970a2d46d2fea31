//! What may come next in a sequence, and when it ends.

/// Most tokens that a [`RowPolicy`] takes back at once: more than any drafter proposes.
pub const ROLL_BACK_TOKENS_MAX: usize = 256;

/// Asked by the engine row by row what may follow, and told what did.
///
/// Every token of the answer is told in order, chosen or forced. The engine knows tokens only: a policy that looks at text
/// keeps the text itself.
pub trait RowPolicy {
    /// What holds before the first token of the answer.
    fn start(&mut self) -> Verdict {
        Verdict::GoOn
    }

    /// The tokens that may come next; absent if all may.
    fn mask(&self) -> Option<&TokenMask> {
        None
    }

    /// The sequence goes on with `token`. After [`Verdict::Stop`] nothing but [`RowPolicy::roll_back`] is called.
    fn advance(&mut self, token: u32) -> Verdict;

    /// Takes back the last `tokens` calls of [`RowPolicy::advance`].
    ///
    /// # Panics
    /// If there were fewer calls, or if it is more than [`ROLL_BACK_TOKENS_MAX`].
    fn roll_back(&mut self, tokens: usize);
}

/// How a sequence goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the model likes, within the mask.
    GoOn,
    /// With exactly these tokens, one at least. They replace what is left of tokens that were to be forced before.
    Force(Vec<u32>),
    /// Not at all.
    Stop(StopReason),
}

/// Why a policy ends a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// This token came; it is not part of the answer.
    Token(u32),
    /// The stop sequence of this number in the request is complete; the token that completes it is still handed on, since
    /// it may begin with a part of the answer.
    Sequence(usize),
}

/// A set of tokens, one bit each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    vocabulary: usize,
}

impl TokenMask {
    /// None of `vocabulary` tokens.
    pub fn none(vocabulary: usize) -> TokenMask {
        TokenMask { words: vec![0; vocabulary.div_ceil(64)], vocabulary }
    }

    /// Adds a token.
    ///
    /// # Panics
    /// If it is outside the vocabulary.
    pub fn insert(&mut self, token: u32) {
        assert!((token as usize) < self.vocabulary, "token {token} of {}", self.vocabulary);
        self.words[token as usize / 64] |= 1 << (token % 64);
    }

    /// Whether a token is in the set; one outside the vocabulary never is.
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }
}

/// The policy of a request that has no constraint but tokens that end it.
#[derive(Clone, Debug)]
pub struct StopTokens(pub Vec<u32>);

impl RowPolicy for StopTokens {
    fn advance(&mut self, token: u32) -> Verdict {
        match self.0.contains(&token) {
            true => Verdict::Stop(StopReason::Token(token)),
            false => Verdict::GoOn,
        }
    }

    fn roll_back(&mut self, _tokens: usize) {}
}
