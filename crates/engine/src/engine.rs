//! Tokens in, tokens out.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gguf::ModelFile;
use kernels::Isa;

use crate::backend::Cpu;
use crate::error::{LoadError, StepError};
use crate::model::{LoadOptions, Model};
use crate::pace::Pace;
use crate::request::{EndReason, RequestEvent};
use crate::scheduler;
use crate::sequence::Sequence;
use crate::stage::{Stage, cpu};
use crate::state::State;
use crate::weights::{Loading, Progress};
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

/// A model with the threads that run it.
pub struct Engine {
    stage: Stage<Cpu>,
    chunk_tokens: usize,
    pace: Pace,
    vocabulary: usize,
}

impl Engine {
    /// Loads a model and starts its threads.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: &Path, config: &EngineConfig) -> Result<Engine, LoadError> {
        Engine::load_file(ModelFile::open(path)?, config, &|_, _| ())
    }

    /// As [`Engine::load`], of a file whose headers were read already; `progress` hears of the bytes of weights that are read and of how many there will be, from
    /// several threads; of nothing where weights are mapped.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_file(
        file: ModelFile,
        config: &EngineConfig,
        progress: Progress<'_>,
    ) -> Result<Engine, LoadError> {
        let model = Arc::new(Model::load_file(file, &config.load, progress)?);
        let backend = cpu(config.threads, config.isa)?;
        let vocabulary = model.spec.vocabulary;
        let mut stage = Stage::new(model, backend);
        if config.load.loading == Loading::Moved {
            stage.move_weights(config.load.promised_bytes);
        }
        let chunk_tokens = config.chunk_tokens.max(1);
        Ok(Engine { stage, chunk_tokens, pace: Pace::new(chunk_tokens), vocabulary })
    }

    /// See [`Stage::settle_weights`].
    ///
    /// # Errors
    /// As [`Stage::settle_weights`].
    pub fn settle_weights(&mut self) -> Result<u64, LoadError> {
        self.stage.settle_weights()
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

    /// Runs one window with rows of all these sequences, none of which has ended, and tells of what came of it, by the
    /// sequence's index. Sequences that end, failed ones too, say so themselves.
    ///
    /// Any failure stays with the sequences that caused it, where that can be told. `make_room` is asked for memory as often
    /// as some is short, until it says that it has no more.
    pub(crate) fn step(
        &mut self,
        sequences: &mut [&mut Sequence],
        emit: &mut dyn FnMut(usize, RequestEvent),
        make_room: &mut dyn FnMut() -> bool,
    ) {
        if sequences.is_empty() {
            return;
        }
        let pending: Vec<usize> = sequences.iter().map(|sequence| sequence.pending().len()).collect();
        let left: Vec<usize> = sequences.iter().map(|sequence| sequence.left()).collect();
        let most: Vec<usize> = sequences.iter().map(|sequence| sequence.rows_max()).collect();
        let writing = pending.iter().filter(|&&tokens| tokens == 1).count();
        let to_read: usize =
            pending.iter().zip(&most).filter(|&(&tokens, _)| tokens > 1).map(|(_, &most)| most).sum();
        let prompt_rows = self.pace.prompt_rows(writing, to_read);
        let rows = scheduler::rows(&pending, &left, &most, prompt_rows);
        let members: Vec<usize> = (0..rows.len()).filter(|&i| rows[i] > 0).collect();
        let result = loop {
            match self.run_rows(sequences, &members, &rows, emit) {
                Err(StepError::OutOfMemory { .. }) if make_room() => {}
                result => break result,
            }
        };
        match result {
            Ok(took) => {
                let read = rows.iter().sum::<usize>() - writing;
                self.pace.took(writing, read, took.as_secs_f64());
            }
            // No state was touched: those that find room alone go on alone.
            Err(StepError::OutOfMemory { .. }) if members.len() > 1 => {
                for &member in &members {
                    if let Err(error) = self.run_rows(sequences, &[member], &rows, emit) {
                        sequences[member].end(EndReason::Failed(error.into()));
                        // What it held may be what the next one lacks.
                        sequences[member].state_mut().give_back();
                    }
                }
            }
            Err(error) => {
                for &member in &members {
                    sequences[member].end(EndReason::Failed(error.clone().into()));
                }
            }
        }
    }

    /// Computes `rows[i]` pending tokens of each sequence `i` among `members`; answers with how long the pass took.
    fn run_rows(
        &mut self,
        sequences: &mut [&mut Sequence],
        members: &[usize],
        rows: &[usize],
        emit: &mut dyn FnMut(usize, RequestEvent),
    ) -> Result<Duration, StepError> {
        let mut window = Window::default();
        for (state, &member) in members.iter().enumerate() {
            let sequence = &sequences[member];
            let tokens = &sequence.pending()[..rows[member]];
            let outputs = match tokens.len() == sequence.pending().len() {
                true => Outputs::Last,
                false => Outputs::None,
            };
            window.push_tokens(state, tokens, sequence.next_position(), outputs);
        }
        let wanted: Vec<bool> =
            window.spans.iter().map(|span| span.rows(&window).iter().any(|r| r.output)).collect();
        let reading: Vec<bool> = members.iter().map(|&member| sequences[member].is_reading()).collect();
        let mut states: Vec<&mut State> = (sequences.iter_mut().enumerate())
            .filter(|(i, _)| members.contains(i))
            .map(|(_, sequence)| sequence.state_mut())
            .collect();
        let began = Instant::now();
        let output = self.stage.run(&window, &mut states, None)?;
        let took = began.elapsed();
        for failure in output.failed {
            sequences[members[failure.state]].end(EndReason::Failed(failure.error.clone().into()));
        }
        let mut logits = output.logits.chunks_exact(self.vocabulary);
        for (state, &member) in members.iter().enumerate() {
            let logits = wanted[state].then(|| logits.next().expect("a row of logits for each output"));
            let sequence = &mut sequences[member];
            if sequence.ended().is_some() {
                continue;
            }
            if reading[state] {
                emit(member, RequestEvent::Read { tokens: sequence.read_tokens() });
            }
            if let Some(token) = logits.and_then(|logits| sequence.choose(logits)) {
                emit(member, RequestEvent::Token(token));
            }
        }
        Ok(took)
    }
}
