//! State that moves with every token, and how it is taken back.

use sys::memory::AlignedBuf;

use super::DeltaShape;
use crate::error::StepError;

/// The matrices of one delta-net layer.
#[derive(Clone)]
pub struct DeltaState {
    /// `[value_heads][key_dim][value_dim]`, the state before [`DeltaState::pending`].
    pub matrices: AlignedBuf<f32>,
    /// Rows that have been seen but are not in the matrices.
    pub pending: PendingRows,
    /// True while the pending rows are those of a span that was neither kept nor taken back. Before the layer ran, and
    /// after the verdict, they are rows accepted earlier, which a verdict must not touch.
    open: bool,
}

/// Inputs of the recurrence for some rows.
#[derive(Clone, Default)]
pub struct PendingRows {
    /// Number of rows.
    pub rows: usize,
    /// `[rows][key_heads * key_dim]`.
    pub k: Vec<f32>,
    /// `[rows][value_heads * value_dim]`.
    pub v: Vec<f32>,
    /// Decay factors, `[rows][value_heads]`.
    pub decay: Vec<f32>,
    /// `[rows][value_heads]`.
    pub beta: Vec<f32>,
}

impl PendingRows {
    /// Forgets all but the first `rows` rows.
    pub fn truncate(&mut self, rows: usize) {
        if self.rows == 0 {
            return;
        }
        for part in [&mut self.k, &mut self.v, &mut self.decay, &mut self.beta] {
            part.truncate(part.len() / self.rows * rows);
        }
        self.rows = rows;
    }
}

impl DeltaState {
    pub(super) fn new(shape: &DeltaShape) -> Result<DeltaState, StepError> {
        let values = shape.value_heads * shape.key_dim * shape.value_dim;
        let oom = |_| StepError::OutOfMemory { what: "recurrent state", bytes: values * 4, left_bytes: None };
        let matrices = AlignedBuf::zeroed(values).map_err(oom)?;
        Ok(DeltaState { matrices, pending: PendingRows::default(), open: false })
    }

    /// Ends a span: what was pending is in the matrices, and so are `rows`, unless they are tentative and wait.
    pub(crate) fn finish_span(&mut self, rows: PendingRows, tentative: bool) {
        self.open = tentative;
        self.pending = if tentative { rows } else { PendingRows::default() };
    }

    /// Keeps the first `keep` rows of the open span, if this layer has seen it.
    pub(super) fn keep(&mut self, keep: usize) {
        if std::mem::take(&mut self.open) {
            self.pending.truncate(keep);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let pending = &self.pending;
        4 * (self.matrices.len()
            + pending.k.len()
            + pending.v.len()
            + pending.decay.len()
            + pending.beta.len())
    }
}

/// The last rows a convolution saw.
#[derive(Clone)]
pub struct Tail {
    width: usize,
    rows: usize,
    /// `[rows][width]` before the open span, then the rows of the open span that may matter later.
    values: Vec<f32>,
    /// Rows of the open span that were left out because later ones push them out whatever happens.
    skipped: usize,
}

impl Tail {
    pub(super) fn new(width: usize, rows: usize) -> Tail {
        Tail { width, rows, values: vec![0.0; width * rows], skipped: 0 }
    }

    /// Rows that are remembered.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `back` rows before the open span's first, 1 being the one right before it.
    pub fn before(&self, back: usize) -> &[f32] {
        assert!(back >= 1 && back <= self.rows, "{back} of {} rows", self.rows);
        &self.values[(self.rows - back) * self.width..][..self.width]
    }

    /// Remembers the span's rows, `[..][width]`. Where none will be taken back only the last ones matter.
    pub(crate) fn push(&mut self, span: &[f32], tentative: bool) {
        assert_eq!(self.values.len(), self.rows * self.width, "one span at a time");
        let count = span.len() / self.width;
        self.skipped = if tentative { 0 } else { count.saturating_sub(self.rows) };
        self.values.extend_from_slice(&span[self.skipped * self.width..]);
    }

    /// Keeps the first `keep` rows of the span.
    pub(super) fn keep(&mut self, keep: usize) {
        let pushed = self.values.len() / self.width.max(1) - self.rows;
        if pushed == 0 {
            return;
        }
        let kept = keep - self.skipped.min(keep);
        assert!(kept <= pushed);
        self.values.truncate((self.rows + kept) * self.width);
        self.values.drain(..kept * self.width);
        self.skipped = 0;
    }

    pub(super) fn bytes(&self) -> usize {
        self.values.len() * 4
    }

    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
