//! A request on its way through the engine: what of it has been computed, and what comes next.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::error::StepError;
use crate::model::Model;
use crate::policy::{RowPolicy, StopReason, Verdict};
use crate::prefix;
use crate::request::{EndReason, Ended, Request, RequestError};
use crate::sampler::{Sampled, Sampler, ValidSampling};
use crate::state::State;

/// A request whose every number was checked for one model.
pub(crate) struct ValidRequest {
    prompt: Vec<u32>,
    sampling: ValidSampling,
    /// Most tokens to generate, within the context.
    tokens_max: usize,
    message_ends: Vec<usize>,
    policy: Box<dyn RowPolicy + Send>,
}

impl ValidRequest {
    /// Checks a request.
    ///
    /// # Errors
    /// [`RequestError`], without anything computed.
    pub fn new(request: Request, model: &Model) -> Result<ValidRequest, RequestError> {
        let Request { prompt, sampling, tokens_max, message_ends, policy } = request;
        let (context_tokens, vocabulary) = (model.layout.context_tokens, model.spec.vocabulary);
        let prompt_tokens = prompt.len();
        if prompt_tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if prompt_tokens >= context_tokens {
            return Err(RequestError::PromptTooLong { prompt_tokens, context_tokens });
        }
        if let Some(at) = prompt.iter().position(|&token| token as usize >= vocabulary) {
            return Err(RequestError::TokenOutOfRange { token: prompt[at], at, vocabulary });
        }
        let sampling = sampling.validate(vocabulary)?;
        let room = context_tokens - prompt_tokens;
        let tokens_max = match tokens_max {
            Some(tokens_max) if tokens_max > room => {
                return Err(RequestError::AnswerTooLong { prompt_tokens, tokens_max, context_tokens });
            }
            wanted => wanted.unwrap_or(room),
        };
        Ok(ValidRequest { prompt, sampling, tokens_max, message_ends, policy })
    }

    /// The prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len()
    }

    /// The message that a token of the prompt is in, from 0, and how many there are.
    pub fn message_of(&self, token: usize) -> (usize, usize) {
        (self.message_ends.partition_point(|&end| end <= token), self.message_ends.len() + 1)
    }
}

/// Tokens that a sequence has in common with a prompt, as far as its state is of use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    /// Those that it has read.
    pub now: usize,
    /// Those that it will have read.
    pub later: usize,
}

/// An admitted request.
pub(crate) struct Sequence {
    /// Prompt and answer.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Of these, those that had been read before.
    reused_tokens: usize,
    /// Numbers of tokens after which its state is to be kept, the next one last.
    stops: Vec<usize>,
    /// The number of tokens at which a request that has not begun goes on from its state, the next one if there are several.
    awaited: Option<usize>,
    tokens_max: usize,
    state: State,
    sampler: Sampler,
    policy: Box<dyn RowPolicy + Send>,
    /// What the policy wants to come next.
    forced: VecDeque<u32>,
    /// What the policy said last and was not yet followed.
    verdict: Verdict,
    ended: Option<EndReason>,
    queue_time: Duration,
    admitted: Instant,
    read: Option<Instant>,
}

impl Sequence {
    /// From `state`, which has read a beginning of the prompt. `queue_time` is how long the request waited.
    pub fn new(request: ValidRequest, state: State, queue_time: Duration) -> Sequence {
        let ValidRequest { prompt, sampling, tokens_max, message_ends, mut policy } = request;
        let (prompt_tokens, reused_tokens) = (prompt.len(), state.tokens());
        assert!(reused_tokens < prompt_tokens, "the last token's row gives the first logits");
        let mut stops = match state.can_be_cut() {
            // Any beginning of it can be gone on from.
            true => vec![prompt_tokens],
            false => prefix::stops(reused_tokens, prompt_tokens, &message_ends),
        };
        stops.reverse();
        Sequence {
            prompt_tokens,
            reused_tokens,
            stops,
            awaited: None,
            tokens: prompt,
            tokens_max,
            state,
            sampler: Sampler::new(sampling),
            verdict: policy.start(),
            policy,
            forced: VecDeque::new(),
            ended: None,
            queue_time,
            admitted: Instant::now(),
            read: None,
        }
    }

    /// How many of the pending tokens the next window may have: it ends where the state is to be kept.
    pub fn rows_max(&self) -> usize {
        let pending = self.pending().len();
        self.stops.last().map_or(pending, |stop| pending.min(stop - self.state.tokens()))
    }

    /// The tokens and a copy of the state, if it is to be kept now.
    pub fn kept(&mut self) -> Option<(Vec<u32>, State)> {
        let tokens = self.state.tokens();
        self.stops.pop_if(|stop| *stop == tokens)?;
        Some((self.tokens[..tokens].to_vec(), self.state.clone()))
    }

    /// Keeps nothing before it ends.
    pub fn keep_nothing(&mut self) {
        self.stops.clear();
    }

    /// How many tokens of `prompt`, short of its last one, a copy of its state can have read: now, and once it has read that far
    /// itself.
    pub fn shared(&self, prompt: &[u32]) -> Shared {
        let common = prefix::common_prefix(&self.tokens, prompt).min(prompt.len() - 1);
        let read = self.state.tokens();
        if self.state.can_be_cut() {
            return Shared { now: read.min(common), later: common };
        }
        if read > common {
            return Shared { now: 0, later: 0 };
        }
        // It pauses where they part, but for a few tokens that are not worth another pause.
        let stop = self.stops.iter().copied().find(|&stop| stop <= common).unwrap_or(read);
        let later = if common - stop < prefix::STOP_TOKENS_MIN { stop } else { common };
        Shared { now: read, later }
    }

    /// A copy of its state after `tokens` tokens, which are no more than [`Shared::now`].
    pub fn copy(&self, tokens: usize) -> State {
        let mut state = self.state.clone();
        if state.tokens() > tokens {
            state.cut(tokens);
        }
        state
    }

    /// Has it be there, if only for a moment, when it has read so many tokens, which are [`Shared::later`]: somebody waits for it.
    pub fn await_at(&mut self, tokens: usize) {
        assert!(tokens > self.state.tokens() && tokens <= self.prompt_tokens, "nothing to wait for");
        self.awaited = Some(self.awaited.map_or(tokens, |awaited| awaited.min(tokens)));
        if !self.state.can_be_cut()
            && let Err(place) = self.stops.binary_search_by(|stop| tokens.cmp(stop))
        {
            self.stops.insert(place, tokens);
        }
    }

    /// Nobody waits for it.
    pub fn await_nothing(&mut self) {
        self.awaited = None;
    }

    /// Tokens that are left to read until it is of use to somebody: to its caller, or to a request that waits for it.
    pub fn left(&self) -> usize {
        self.awaited.map_or(self.pending().len(), |awaited| awaited - self.state.tokens())
    }

    /// Tokens whose rows are not computed yet, at least one.
    pub fn pending(&self) -> &[u32] {
        &self.tokens[self.state.tokens()..]
    }

    /// Its state.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// Position of the next row.
    pub fn next_position(&self) -> i32 {
        self.state.next_position()
    }

    /// Tokens of the prompt that it did not have to read.
    pub fn reused_tokens(&self) -> usize {
        self.reused_tokens
    }

    /// Tokens of the prompt whose rows are computed.
    pub fn read_tokens(&self) -> usize {
        self.state.tokens().min(self.prompt_tokens)
    }

    /// True while rows of the prompt are missing.
    pub fn is_reading(&self) -> bool {
        self.state.tokens() < self.prompt_tokens
    }

    /// Why it ended, if it has.
    pub fn ended(&self) -> Option<&EndReason> {
        self.ended.as_ref()
    }

    /// Ends it.
    pub fn end(&mut self, reason: EndReason) {
        self.ended.get_or_insert(reason);
    }

    /// Chooses the next token from the logits after the last one; nothing if the answer ends without another.
    pub fn choose(&mut self, logits: &[f32]) -> Option<Sampled> {
        self.read.get_or_insert_with(Instant::now);
        if self.settle() {
            return None;
        }
        let next = match self.forced.pop_front() {
            // Told here, it ends this request; in the next window it would end those of all others too.
            Some(token) if token as usize >= logits.len() => {
                let error = StepError::TokenOutOfRange { token, vocabulary: logits.len() };
                self.end(EndReason::Failed(error.into()));
                return None;
            }
            Some(token) => self.sampler.told(logits, token),
            None => {
                let position = self.tokens.len() as u64;
                match self.sampler.sample(logits, &self.tokens, position, self.policy.mask()) {
                    Ok(next) => next,
                    Err(error) => {
                        self.end(EndReason::Failed(error.into()));
                        return None;
                    }
                }
            }
        };
        self.verdict = self.policy.advance(next.token);
        let stopped = matches!(self.verdict, Verdict::Stop(StopReason::Token(_)));
        if !stopped {
            self.tokens.push(next.token);
        }
        self.settle();
        (!stopped).then_some(next)
    }

    /// Follows the policy's verdict and the limit; true if the answer has ended.
    fn settle(&mut self) -> bool {
        match std::mem::replace(&mut self.verdict, Verdict::GoOn) {
            Verdict::GoOn => {}
            Verdict::Force(tokens) => self.forced = tokens.into(),
            Verdict::Stop(reason) => self.end(EndReason::Stop(reason)),
        }
        if self.tokens.len() == self.prompt_tokens + self.tokens_max {
            self.end(EndReason::Length);
        }
        self.ended.is_some()
    }

    /// The end record, and what was computed: tokens with their state, where that is of use.
    ///
    /// # Panics
    /// If it has not ended.
    pub fn finish(mut self) -> (Ended, Option<(Vec<u32>, State)>) {
        let now = Instant::now();
        let read = self.read.unwrap_or(now);
        let ended = Ended {
            reason: self.ended.expect("a sequence that has ended"),
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused_tokens,
            read_tokens: self.state.tokens().clamp(self.reused_tokens, self.prompt_tokens)
                - self.reused_tokens,
            generated_tokens: self.tokens.len() - self.prompt_tokens,
            queue_time: self.queue_time,
            read_time: read - self.admitted,
            write_time: now - read,
        };
        self.tokens.truncate(self.state.tokens());
        let computed = (!self.state.is_lost()).then_some((self.tokens, self.state));
        (ended, computed)
    }
}
