//! A stage: a model's layers on one backend, running windows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernels::{Isa, Kernels};
use sys::pool::Pool;

use crate::backend::{Backend, Buffers, Cpu, Pass, Rotations, Routing};
use crate::error::{LoadError, StepError};
use crate::graph::{Domain, Graph, Node, Part, Segment, Tap, TapSource};
use crate::memory::experts_used;
use crate::model::Model;
use crate::models::TensorId;
use crate::state::State;
use crate::weights::Mover;
use crate::window::{Input, Row, Span, Window};

/// Runs windows through a model.
pub struct Stage<B = Cpu> {
    model: Arc<Model>,
    backend: B,
    trunk: Buffers,
    draft: Option<Buffers>,
    failed: Vec<Failure>,
    /// Present where the weights are to move.
    mover: Option<Mover>,
    /// Present where the time of each part is wanted.
    times: Option<PartTimes>,
    touched: Touched,
}

/// Routed experts that windows touched: each once in a window and layer, however many of its rows chose it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Windows.
    pub windows: u64,
    /// Experts, over all windows and layers.
    pub experts: u64,
    /// Bytes of their matrices.
    pub bytes: u64,
}

/// How long the parts of passes took.
pub type PartTimes = BTreeMap<Part, Duration>;

/// What a window gave, for the rows that wanted it, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// `[rows][vocabulary]`.
    pub logits: &'a [f32],
    /// Residual before the head, `[rows][streams * width]`.
    pub residual: &'a [f32],
    /// The sequences that failed while others went on; their rows above mean nothing.
    pub failed: &'a [Failure],
}

/// A sequence whose rows could not be computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Which of the states handed to the pass.
    pub state: usize,
    /// Why.
    pub error: StepError,
}

/// Sees named intermediates: name, values per row, rows.
pub type TapSink<'a> = &'a mut dyn FnMut(&str, usize, &[f32]);

/// A CPU backend of `threads` threads; `isa` forces an instruction set.
///
/// # Errors
/// [`LoadError::InstructionSet`] and [`LoadError::Threads`].
pub fn cpu(threads: usize, isa: Option<Isa>) -> Result<Cpu, LoadError> {
    let kernels = match isa {
        None => Kernels::detect(),
        Some(isa) => Kernels::new(isa).ok_or_else(|| LoadError::InstructionSet {
            isa: isa.name().into(),
            available: Isa::ALL
                .into_iter()
                .filter(|i| i.available())
                .map(Isa::name)
                .collect::<Vec<_>>()
                .join(", "),
        })?,
    };
    let processors = sys::topology::processors();
    let places = processors.placing(threads).unwrap_or_default();
    let pool =
        Pool::placed(threads, places).map_err(|e| LoadError::Threads { threads, reason: e.to_string() })?;
    Ok(Cpu::new(kernels, pool))
}

impl<B: Backend> Stage<B> {
    /// The whole model on `backend`.
    pub fn new(model: Arc<Model>, backend: B) -> Stage<B> {
        let trunk = Buffers::new(&model.trunk.buffers);
        let draft = model.draft.as_ref().map(|graph| Buffers::new(&graph.buffers));
        Stage {
            model,
            backend,
            trunk,
            draft,
            failed: Vec::new(),
            mover: None,
            times: None,
            touched: Touched::default(),
        }
    }

    /// Has the time of each part of the trunk's passes taken from now on; what was taken before is answered.
    pub fn time_parts(&mut self) -> PartTimes {
        self.times.replace(PartTimes::new()).unwrap_or_default()
    }

    /// What passes through the trunk touched since this was asked for last.
    pub fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// Has the matrices moved into huge pages, in the background and once a pass through the trunk is done: what makes later
    /// tokens faster does not hold up the first one of a prompt that takes one pass. `promised_bytes` of this process's memory are
    /// others'; see [`crate::model::LoadOptions::promised_bytes`].
    pub fn move_weights(&mut self, promised_bytes: u64) {
        self.mover.get_or_insert_with(|| Mover::new(self.model.weights.clone(), promised_bytes));
    }

    /// Waits until weights that are to move have moved, or until that makes no progress for some seconds. Answers with the
    /// bytes moved; 0 where none are to move. Computing needs none of this: results are the same bits before and after.
    ///
    /// # Errors
    /// Why moving ended early ([`LoadError::Arena`], [`LoadError::Read`]), which harms nothing but speed.
    pub fn settle_weights(&mut self) -> Result<u64, LoadError> {
        self.mover.as_mut().map_or(Ok(0), Mover::settle)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Logits of the last window through the trunk.
    pub fn logits(&self) -> &[f32] {
        self.trunk.float(self.model.trunk.logits)
    }

    /// Bytes of scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        self.trunk.bytes() + self.draft.as_ref().map_or(0, Buffers::bytes)
    }

    /// Runs a window through the trunk. Rows of tentative spans wait for [`State::keep`]; others are committed.
    ///
    /// A number that is not finite fails the sequence whose row it arose in and no other: [`Output::failed`] names it.
    /// None of a failed sequence's rows is kept. Its state is as it was if the span was tentative or no layer is
    /// recurrent; else [`State::is_lost`].
    ///
    /// # Errors
    /// [`StepError::TokenOutOfRange`], [`StepError::ContextFull`] and [`StepError::OutOfMemory`] leave all states as they
    /// were. With any other error every sequence of the window has failed.
    pub fn run(
        &mut self,
        window: &Window,
        states: &mut [&mut State],
        taps: Option<TapSink<'_>>,
    ) -> Result<Output<'_>, StepError> {
        let (graph, layout) = (&self.model.trunk, &self.model.layout);
        let buffers = &mut self.trunk;
        assert!(states.iter().all(|s| s.layout() == layout), "states that are not of this model's trunk");
        let watch = Watch { taps, times: self.times.as_mut(), touched: Some(&mut self.touched) };
        self.failed = run(&self.model, graph, &mut self.backend, buffers, window, states, watch)?;
        if let Some(mover) = &mut self.mover {
            mover.begin();
        }
        Ok(output(graph, buffers, &self.failed))
    }

    /// Runs a window through the draft layer; the window carries the trunk's residuals and the states are draft states.
    ///
    /// # Errors
    /// As [`Stage::run`].
    pub fn run_draft(
        &mut self,
        window: &Window,
        states: &mut [&mut State],
        taps: Option<TapSink<'_>>,
    ) -> Result<Output<'_>, StepError> {
        let graph = self.model.draft.as_ref().expect("a model with a draft layer");
        let buffers = self.draft.as_mut().expect("a model with a draft layer");
        let layout = self.model.draft_layout.as_ref().expect("a model with a draft layer");
        assert_eq!(window.hidden.len(), window.rows.len() * self.model.spec.streams * self.model.spec.width);
        assert!(
            states.iter().all(|s| s.layout() == layout),
            "states that are not of this model's draft layer"
        );
        let watch = Watch { taps, times: None, touched: None };
        self.failed = run(&self.model, graph, &mut self.backend, buffers, window, states, watch)?;
        Ok(output(graph, buffers, &self.failed))
    }
}

fn output<'a>(graph: &Graph, buffers: &'a Buffers, failed: &'a [Failure]) -> Output<'a> {
    Output { logits: buffers.float(graph.logits), residual: buffers.float(graph.residual), failed }
}

/// Who looks on while a window runs.
struct Watch<'a, 'b> {
    taps: Option<TapSink<'a>>,
    times: Option<&'b mut PartTimes>,
    touched: Option<&'b mut Touched>,
}

impl Watch<'_, '_> {
    /// Runs a segment.
    fn segment<B: Backend>(
        &mut self,
        segment: &Segment,
        backend: &mut B,
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError> {
        let mut began = self.times.is_some().then(Instant::now);
        let mut after = |node: &Node, buffers: &Buffers, pass: &Pass<'_>| {
            if let (Some(times), Some(began)) = (&mut self.times, &mut began) {
                let now = Instant::now();
                *times.entry(node.part).or_default() += now - std::mem::replace(began, now);
            }
            if let Some(sink) = &mut self.taps {
                node.taps.iter().for_each(|tap| record(tap, buffers, pass, sink));
            }
        };
        backend.run_segment(segment, buffers, pass, &mut after)
    }
}

/// The sequences that failed while others went on.
fn run<B: Backend>(
    model: &Model,
    graph: &Graph,
    backend: &mut B,
    buffers: &mut Buffers,
    window: &Window,
    states: &mut [&mut State],
    mut watch: Watch<'_, '_>,
) -> Result<Vec<Failure>, StepError> {
    check(model, window, states.len())?;
    let outputs: Vec<u32> = window.output_rows().map(|row| row as u32).collect();
    // All memory comes before the first state is touched.
    buffers.set_rows(Domain::Window, window.rows.len())?;
    buffers.set_rows(Domain::Outputs, outputs.len())?;
    buffers.set_rows(Domain::Assignments, window.rows.len() * experts_used(&model.spec))?;
    open(window, states)?;
    let mut pass = Pass {
        weights: &model.weights,
        window,
        states: states.iter_mut().map(|state| &mut **state).collect(),
        rope: &model.spec.rope,
        rotations: Rotations::new(&model.spec.rope, window),
        outputs,
        routing: Routing::default(),
        experts: None,
        selections: Vec::new(),
        ngram_rows: Vec::new(),
        failed: vec![None; window.spans.len()],
    };
    let result = run_segments(model, graph, backend, buffers, &mut pass, &mut watch);
    let failed = pass.failed;
    for (span, failed) in window.spans.iter().zip(&failed) {
        if result.is_err() || failed.is_some() {
            states[span.state].fail(span.tentative);
        } else if !span.tentative {
            states[span.state].keep(span.count);
        }
    }
    result.map_err(|error| explain(model, window, &window.spans, error))?;
    let failed = window.spans.iter().zip(failed).filter_map(|(span, error)| Some((span, error?)));
    Ok(failed
        .map(|(span, error)| Failure {
            state: span.state,
            error: explain(model, window, std::slice::from_ref(span), error),
        })
        .collect())
}

fn run_segments<'a, B: Backend>(
    model: &'a Model,
    graph: &Graph,
    backend: &mut B,
    buffers: &mut Buffers,
    pass: &mut Pass<'a>,
    watch: &mut Watch<'_, '_>,
) -> Result<(), StepError> {
    for segment in &graph.segments {
        watch.segment(segment, backend, buffers, pass)?;
        if let Some(layer) = segment.experts_of {
            let acquired = model.experts.acquire(layer, pass.routing.groups.iter().map(|group| group.0));
            if let Some(touched) = &mut watch.touched {
                let (experts, bytes) = acquired.counts();
                touched.experts += experts as u64;
                touched.bytes += bytes as u64;
            }
            pass.experts = Some(acquired);
            // Growing would lose what lies in memory that other buffers share.
            assert!(pass.routing.len() <= buffers.rows_of(Domain::Assignments));
            buffers.set_rows(Domain::Assignments, pass.routing.len())?;
        }
    }
    if let Some(touched) = &mut watch.touched {
        touched.windows += 1;
    }
    match model.weights.damaged() {
        Some(path) => Err(StepError::FileDamaged { path: path.to_owned() }),
        None => Ok(()),
    }
}

/// Adds to an error about a number in the rows of `spans` the tensor that it came from.
fn explain(model: &Model, window: &Window, spans: &[Span], error: StepError) -> StepError {
    if let Some(path) = model.weights.damaged() {
        return StepError::FileDamaged { path: path.to_owned() };
    }
    let StepError::NotFinite { layer, value, .. } = error else { return error };
    let bindings = &model.spec.tensors;
    let named = |id: Option<TensorId>| {
        let tensor = id.map(|id| bindings[id.0 as usize].name.clone());
        StepError::NotFinite { layer, value, tensor }
    };
    // What came in first: with a bad embedding from outside, no tensor is to blame, and none is searched.
    match spans.iter().flat_map(|span| span.rows(window)).find_map(|row| bad_embedding(model, window, row)) {
        Some(Input::Token(_)) => return named(Some(model.spec.embedding)),
        Some(Input::Embedding(_)) => return named(None),
        None => {}
    }
    let prefix = if layer < model.spec.layers.len() { format!("blk.{layer}.") } else { "output".to_owned() };
    let of_layer = (0..bindings.len()).filter(|&i| bindings[i].name.starts_with(&prefix));
    named(model.weights.find_not_finite(of_layer.map(|i| TensorId(i as u32))))
}

/// The input of a row whose embedding holds a number that is not finite.
fn bad_embedding(model: &Model, window: &Window, row: &Row) -> Option<Input> {
    let width = model.spec.width;
    let finite = match row.input {
        Input::Token(token) => model.weights.row_is_finite(model.spec.embedding, token as usize),
        Input::Embedding(i) => window.embeddings[i as usize * width..][..width].iter().all(|v| v.is_finite()),
    };
    (!finite).then_some(row.input)
}

/// Tokens come from outside; the shape of a window is our own.
fn check(model: &Model, window: &Window, states: usize) -> Result<(), StepError> {
    let mut row = 0;
    let mut seen = vec![false; states];
    for span in &window.spans {
        assert!(span.first == row && span.count > 0, "spans cover the rows in order");
        assert!(!std::mem::replace(&mut seen[span.state], true), "one span per sequence");
        row += span.count;
    }
    assert_eq!(row, window.rows.len(), "spans cover the rows");
    let vocabulary = model.spec.vocabulary;
    for row in &window.rows {
        match row.input {
            Input::Token(token) if token as usize >= vocabulary => {
                return Err(StepError::TokenOutOfRange { token, vocabulary });
            }
            Input::Embedding(i) => assert!((i as usize + 1) * model.spec.width <= window.embeddings.len()),
            Input::Token(_) => {}
        }
    }
    Ok(())
}

fn open(window: &Window, states: &mut [&mut State]) -> Result<(), StepError> {
    for (i, span) in window.spans.iter().enumerate() {
        let positions: Vec<[i32; 3]> = span.rows(window).iter().map(|row| row.position).collect();
        if let Err(error) = states[span.state].open(&positions) {
            window.spans[..i].iter().for_each(|span| states[span.state].keep(0));
            return Err(error);
        }
    }
    Ok(())
}

fn record(tap: &Tap, buffers: &Buffers, pass: &Pass<'_>, sink: &mut TapSink<'_>) {
    let rows = pass.window.rows.len();
    match tap.source {
        TapSource::Buffer(id) => sink(&tap.name, buffers.width(id), buffers.float(id)),
        TapSource::Columns(id, first, width) => {
            let all = buffers.float(id).chunks_exact(buffers.width(id));
            let values: Vec<f32> = all.flat_map(|row| row[first..first + width].iter().copied()).collect();
            sink(&tap.name, width, &values);
        }
        TapSource::ExpertIds => {
            let values: Vec<f32> = pass.routing.experts.iter().map(|&e| e as f32).collect();
            sink(&tap.name, pass.routing.used, &values);
        }
        TapSource::ExpertWeights => {
            let by_row = pass.routing.by_row.iter();
            let values: Vec<f32> = by_row.map(|&a| pass.routing.weights[a as usize]).collect();
            sink(&tap.name, pass.routing.used, &values);
        }
        TapSource::SelectedCells => {
            let cells = pass
                .selections
                .iter()
                .flat_map(|selection| selection.runs())
                .map(|run| run.end)
                .max()
                .unwrap_or(0);
            let mut values = vec![0.0; rows * cells];
            for (row, selection) in pass.selections.iter().enumerate() {
                for run in selection.runs() {
                    values[row * cells..][run].fill(1.0);
                }
            }
            sink(&tap.name, cells, &values);
        }
        TapSource::NgramRows => {
            let values: Vec<f32> = pass.ngram_rows.iter().map(|&r| r as f32).collect();
            sink(&tap.name, values.len() / rows.max(1), &values);
        }
    }
}
