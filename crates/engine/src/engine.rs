//! Tokens in, tokens out.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::Isa;
use thiserror::Error;

use crate::backend::Cpu;
use crate::error::{LoadError, StepError};
use crate::model::{LoadOptions, Model};
use crate::policy::{RowPolicy, StopReason, StopTokens, Verdict};
use crate::sampler::{SampleError, Sampled, Sampler, Sampling, SamplingError};
use crate::stage::{Stage, cpu};
use crate::state::State;
use crate::window::{Outputs, Window};

/// What the caller decides about an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How the model is loaded.
    pub load: LoadOptions,
    /// Threads that compute.
    pub threads: usize,
    /// Instruction set; the best there is if absent.
    pub isa: Option<Isa>,
    /// Most prompt tokens of one window.
    pub chunk_tokens: usize,
}

/// What is wanted of an engine.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate.
    pub tokens_max: usize,
    /// Tokens that end the answer; they are not part of it.
    pub stop_tokens: Vec<u32>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// A stop token came.
    Stop,
    /// As many tokens as were wanted, or as the context holds.
    Length,
    /// The caller had enough.
    Cancelled,
}

/// How an answer ended, with its own figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// What stopped it, if the reason is [`EndReason::Stop`].
    pub stop: Option<StopReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, the stop token not counted.
    pub generated_tokens: usize,
    /// Time to read the prompt.
    pub read_time: Duration,
    /// Time to write the answer.
    pub write_time: Duration,
}

/// A request that could not be answered.
#[derive(Debug, Error)]
pub enum RequestError {
    /// A prompt without tokens.
    #[error("the prompt is empty: there is nothing to go on from")]
    EmptyPrompt,
    /// More than the context holds.
    #[error(
        "the prompt has {prompt_tokens} tokens; the context holds {context_tokens}, one of them for the answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// The sampling makes no sense.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A pass failed.
    #[error(transparent)]
    Step(#[from] StepError),
}

/// A model with the threads that run it.
pub struct Engine {
    stage: Stage<Cpu>,
    chunk_tokens: usize,
}

impl Engine {
    /// Loads a model and starts its threads.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: &Path, config: &EngineConfig) -> Result<Engine, LoadError> {
        let model = Arc::new(Model::load(path, &config.load)?);
        let backend = cpu(config.threads, config.isa)?;
        Ok(Engine { stage: Stage::new(model, backend), chunk_tokens: config.chunk_tokens.max(1) })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        self.stage.model()
    }

    /// The stage, for passes without sampling.
    pub fn stage_mut(&mut self) -> &mut Stage<Cpu> {
        &mut self.stage
    }

    /// The stage.
    pub fn stage(&self) -> &Stage<Cpu> {
        &self.stage
    }

    /// Reads tokens into `state` chunk by chunk and returns the logits after the last one.
    ///
    /// # Errors
    /// See [`StepError`].
    pub fn read(&mut self, state: &mut State, tokens: &[u32]) -> Result<&[f32], StepError> {
        let chunks = tokens.len().div_ceil(self.chunk_tokens);
        assert!(chunks > 0, "nothing to read");
        for (i, chunk) in tokens.chunks(self.chunk_tokens).enumerate() {
            let mut window = Window::default();
            let outputs = if i + 1 == chunks { Outputs::Last } else { Outputs::None };
            window.push_tokens(0, chunk, state.next_position(), outputs);
            self.stage.run(&window, &mut [state], None)?;
        }
        Ok(self.stage.logits())
    }

    /// Answers a request, handing each token to `emit` as soon as it is chosen.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn generate(
        &mut self,
        request: &Request,
        mut emit: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Ended, RequestError> {
        self.generate_with(request, &mut StopTokens(&request.stop_tokens), |sampled| emit(sampled.token))
    }

    /// Answers a request under a policy, which also decides about the request's stop tokens: they are not looked at here.
    /// Forced tokens count as generated and are emitted like chosen ones.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn generate_with(
        &mut self,
        request: &Request,
        policy: &mut dyn RowPolicy,
        mut emit: impl FnMut(&Sampled) -> ControlFlow<()>,
    ) -> Result<Ended, RequestError> {
        let context_tokens = self.model().layout.context_tokens;
        let prompt_tokens = request.prompt.len();
        if prompt_tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if prompt_tokens >= context_tokens {
            return Err(RequestError::PromptTooLong { prompt_tokens, context_tokens });
        }
        let mut sampler = Sampler::new(request.sampling.clone().validate(self.model().spec.vocabulary)?);
        let start = Instant::now();
        let mut state = self.model().new_state()?;
        self.read(&mut state, &request.prompt)?;
        let read_time = start.elapsed();
        let limit = request.tokens_max.min(context_tokens - prompt_tokens);
        let mut tokens = request.prompt.clone();
        let mut forced = VecDeque::new();
        let mut verdict = policy.start();
        let (reason, stop) = loop {
            match verdict {
                Verdict::GoOn => {}
                Verdict::Force(next) => forced = next.into(),
                Verdict::Stop(stop) => break (stop.into(), Some(stop)),
            }
            if tokens.len() == prompt_tokens + limit {
                break (EndReason::Length, None);
            }
            if let [.., last] = tokens[prompt_tokens..] {
                self.read(&mut state, &[last])?;
            }
            let logits = self.stage.logits();
            let next = match forced.pop_front() {
                Some(token) => sampler.told(logits, token),
                None => sampler.sample(logits, &tokens, tokens.len() as u64, policy.mask())?,
            };
            verdict = policy.advance(next.token);
            if !matches!(verdict, Verdict::Stop(StopReason::Token(_))) {
                tokens.push(next.token);
                if emit(&next).is_break() {
                    break (EndReason::Cancelled, None);
                }
            }
        };
        let write_time = start.elapsed() - read_time;
        let generated_tokens = tokens.len() - prompt_tokens;
        Ok(Ended { reason, stop, prompt_tokens, generated_tokens, read_time, write_time })
    }
}
