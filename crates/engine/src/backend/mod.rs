//! What runs graphs.

mod buffers;
mod checking;
mod cpu;
mod routing;

pub use buffers::{Buffers, Int8Buffer, scratch_bytes};
pub use checking::Checking;
pub use cpu::Cpu;
pub use routing::{Routing, Selection};

use crate::error::StepError;
use crate::experts::Acquired;
use crate::graph::{Node, Segment};
use crate::models::RopeSpec;
use crate::state::State;
use crate::weights::Weights;
use crate::window::Window;

/// Runs the operations of a segment over a window.
pub trait Backend: Send {
    /// Runs one operation. `later` are those that follow it in its segment: what a backend may get ready for.
    fn run(
        &mut self,
        node: &Node,
        later: &[Node],
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError>;

    /// Runs a segment; `after` sees every node when it is done.
    fn run_segment(
        &mut self,
        segment: &Segment,
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
        after: &mut dyn FnMut(&Node, &Buffers, &Pass<'_>),
    ) -> Result<(), StepError> {
        for (i, node) in segment.nodes.iter().enumerate() {
            self.run(node, &segment.nodes[i + 1..], buffers, pass)?;
            after(node, buffers, pass);
        }
        Ok(())
    }
}

/// What the operations of one pass see besides buffers: everything that changes per window.
pub struct Pass<'a> {
    /// The weights.
    pub weights: &'a Weights,
    /// The rows.
    pub window: &'a Window,
    /// The states of the window's sequences, opened for its rows.
    pub states: Vec<&'a mut State>,
    /// Rotary positions of the model.
    pub rope: &'a RopeSpec,
    /// Rotations of the window's rows.
    pub rotations: Rotations,
    /// Rows that want logits.
    pub outputs: Vec<u32>,
    /// The experts chosen by the last router.
    pub routing: Routing,
    /// Those experts, in the order of the groups of the routing; held until the next router's are.
    pub experts: Option<Acquired<'a>>,
    /// The cells chosen by the last indexer, per row; empty where attention is dense.
    pub selections: Vec<Selection>,
    /// Table rows of the last n-gram lookup, `[rows][heads]`.
    pub ngram_rows: Vec<u64>,
    /// For each span of the window why its rows could not be computed, if so.
    pub failed: Vec<Option<StepError>>,
}

impl Pass<'_> {
    /// Notes that `value` of these window rows is not a finite number: the sequences they belong to have failed. The
    /// others go on, since no row reads another sequence's.
    ///
    /// # Errors
    /// [`StepError::NotFinite`] once no sequence is left.
    pub fn not_finite(&mut self, rows: &[usize], layer: usize, value: &'static str) -> Result<(), StepError> {
        if rows.is_empty() {
            return Ok(());
        }
        let error = StepError::NotFinite { layer, value, tensor: None };
        for &row in rows {
            let span = self.window.spans.partition_point(|span| span.first <= row) - 1;
            self.failed[span].get_or_insert_with(|| error.clone());
        }
        if self.failed.iter().all(Option::is_some) { Err(error) } else { Ok(()) }
    }
}

/// Cosines and sines per row.
#[derive(Clone, Debug, Default)]
pub struct Rotations {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotations {
    /// For every row of the window.
    pub fn new(rope: &RopeSpec, window: &Window) -> Rotations {
        let pairs = rope.frequencies.len();
        let mut rotations = Rotations {
            pairs,
            cos: vec![0.0; window.rows.len() * pairs],
            sin: vec![0.0; window.rows.len() * pairs],
        };
        let chunks = rotations.cos.chunks_mut(pairs.max(1)).zip(rotations.sin.chunks_mut(pairs.max(1)));
        for (row, (cos, sin)) in window.rows.iter().zip(chunks) {
            rope.rotation(row.position, cos, sin);
        }
        rotations
    }

    /// Cosines and sines of row `row`.
    pub fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let range = row * self.pairs..(row + 1) * self.pairs;
        (&self.cos[range.clone()], &self.sin[range])
    }
}
