//! What a sequence keeps on a stage.
//!
//! Keys and values live in blocks of 256 cells that several sequences may share (copy on write); recurrent layers keep a
//! matrix per head and the tail of their convolution. Rows of a tentative span can be taken back: what attention layers
//! stored is cut off, and recurrent layers hold the state *before* those rows together with each row's small inputs, so
//! that the accepted rows are replayed from them by the next pass.

mod cells;
mod codec;
mod pool;
mod recurrent;

use std::sync::Arc;

pub use cells::{AttentionCells, CellArray, CellBlock, CellFormat, IndexerCells, KvType};
pub use codec::ModelIdentity;
pub(crate) use codec::binding;
pub use pool::{KvGrowth, KvPool};
pub use recurrent::{DeltaState, PendingRows, Tail};

use crate::error::StepError;
use crate::models::{LayerSpec, Mixer};
use kernels::{Kernels, PARTITION_CELLS};

/// Shapes of everything a sequence keeps, fixed when the model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// How keys and values are cached.
    pub kv: KvType,
    /// Attention layers, first to last.
    pub attention: Vec<AttentionCells>,
    /// Bytes of one cell block.
    pub block_bytes: usize,
    /// Delta-net layers, first to last.
    pub delta: Vec<DeltaShape>,
    /// The n-gram block, if there is one.
    pub ngram: Option<NgramShape>,
    /// Most tokens a sequence may hold.
    pub context_tokens: usize,
}

/// Shape of one delta-net layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Values per key head.
    pub key_dim: usize,
    /// Values per value head.
    pub value_dim: usize,
    /// Rows of the convolution's tail.
    pub tail_rows: usize,
    /// Channels of the convolution.
    pub channels: usize,
}

/// Shape of the n-gram block's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramShape {
    /// Token ids of history.
    pub history: usize,
    /// Id that stands for what is before the start.
    pub reset_token: u32,
    /// Rows of the convolution's tail.
    pub tail_rows: usize,
    /// Channels of the convolution.
    pub channels: usize,
}

impl StateLayout {
    /// The layout for these layers.
    pub fn new<'a>(
        layers: impl Iterator<Item = &'a LayerSpec>,
        kv: KvType,
        context_tokens: usize,
    ) -> StateLayout {
        let mut layout = StateLayout {
            kv,
            attention: Vec::new(),
            block_bytes: 0,
            delta: Vec::new(),
            ngram: None,
            context_tokens,
        };
        for layer in layers {
            match &layer.mixer {
                Mixer::Attention(spec) => {
                    let cells = AttentionCells::new(spec, kv, layout.block_bytes);
                    layout.block_bytes = cells.end();
                    layout.attention.push(cells);
                }
                Mixer::DeltaNet(spec) => layout.delta.push(DeltaShape {
                    key_heads: spec.key_heads,
                    value_heads: spec.value_heads,
                    key_dim: spec.key_dim,
                    value_dim: spec.value_dim,
                    tail_rows: spec.taps - 1,
                    channels: spec.channels(),
                }),
            }
            if let (Some(spec), crate::models::ReadSpec::Streams { down, .. }) =
                (&layer.ngram, layer.mixer_read)
            {
                layout.ngram = Some(NgramShape {
                    history: spec.ngram - 1,
                    reset_token: spec.reset_token,
                    tail_rows: (spec.taps - 1) * spec.dilation,
                    channels: down.inputs,
                });
            }
        }
        layout
    }

    /// The same shapes with cells of another type, for another context.
    pub fn stored_as(&self, kv: KvType, context_tokens: usize) -> StateLayout {
        let mut layout = StateLayout { kv, context_tokens, block_bytes: 0, ..self.clone() };
        for cells in &mut layout.attention {
            *cells = cells.stored_as(kv, layout.block_bytes);
            layout.block_bytes = cells.end();
        }
        layout
    }

    /// True where nothing is recurrent and no key stands for several cells.
    pub(crate) fn can_be_cut(&self) -> bool {
        self.delta.is_empty()
            && self.ngram.is_none()
            && self.attention.iter().all(|cells| cells.indexer.is_none())
    }

    /// Blocks of cells that `tokens` tokens take.
    pub fn blocks(&self, tokens: usize) -> usize {
        if self.block_bytes == 0 { 0 } else { tokens.div_ceil(PARTITION_CELLS) }
    }

    /// Most bytes of a sequence's recurrent state: matrices, and tails with the rows of a span pushed behind them.
    pub fn recurrent_bytes(&self) -> usize {
        let delta = self.delta.iter().map(|shape| {
            let matrices = 4 * shape.value_heads * shape.key_dim * shape.value_dim;
            sys::memory::held_bytes(matrices) + 2 * 4 * shape.channels * shape.tail_rows
        });
        let ngram =
            self.ngram.map_or(0, |shape| 2 * 4 * shape.channels * shape.tail_rows + 4 * shape.history);
        delta.sum::<usize>() + ngram
    }

    /// Most bytes that `rows` rows of an open span keep besides cells: positions, and raw keys of blocks that are not
    /// complete.
    pub fn open_rows_bytes(&self, rows: usize) -> usize {
        let raw_keys = self.attention.iter().filter_map(|cells| cells.indexer.as_ref());
        let raw_keys = raw_keys.map(|indexer| 4 * indexer.head_dim * (rows + indexer.block_cells));
        size_of::<[i32; 3]>() * (rows + PARTITION_CELLS) + raw_keys.sum::<usize>()
    }

    /// Bytes of the inputs of the recurrence, for one row of each layer: what a row costs until it is kept or taken back.
    pub fn pending_row_bytes(&self) -> impl Iterator<Item = usize> + '_ {
        self.delta.iter().map(|shape| {
            4 * (shape.key_heads * shape.key_dim
                + shape.value_heads * shape.value_dim
                + 2 * shape.value_heads)
        })
    }

    /// The first of `tokens` tokens that lies in a block which some indexer has yet to complete.
    fn first_incomplete(&self, tokens: usize) -> usize {
        let indexers = self.attention.iter().filter_map(|cells| cells.indexer.as_ref());
        let firsts = indexers.map(|indexer| tokens / indexer.block_cells * indexer.block_cells);
        firsts.min().unwrap_or(tokens)
    }
}

/// One sequence's state. Cloning it is a fork: cell blocks are shared until one side writes.
#[derive(Clone)]
pub struct State {
    layout: Arc<StateLayout>,
    pool: Arc<KvPool>,
    /// Committed tokens.
    tokens: usize,
    /// Rows of the last span that are still tentative.
    tentative: usize,
    /// Position triples of the tokens since the earliest block that a rollback could open again.
    positions: Vec<[i32; 3]>,
    /// Token index of `positions[0]`.
    positions_first: usize,
    /// Position that a text token would take next, as far as committed tokens say.
    next_position: i32,
    blocks: Vec<Arc<CellBlock>>,
    /// Per sparse attention layer: raw indexer keys of the tokens from `positions_first` on, rounded as stored.
    raw_keys: Vec<Vec<f32>>,
    delta: Vec<DeltaState>,
    tails: Vec<Tail>,
    ngram_tail: Option<Tail>,
    ngram_history: Vec<u32>,
    ngram_pending: Vec<u32>,
    /// True once a pass failed that had moved matrices on which nobody kept, and once the cells were given back.
    lost: bool,
}

impl State {
    /// The state before the first token. Its cells will come from `pool`.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`].
    pub fn new(layout: Arc<StateLayout>, pool: &Arc<KvPool>) -> Result<State, StepError> {
        let delta = layout.delta.iter().map(DeltaState::new).collect::<Result<_, _>>()?;
        let tails = layout.delta.iter().map(|shape| Tail::new(shape.channels, shape.tail_rows)).collect();
        let ngram_tail = layout.ngram.map(|shape| Tail::new(shape.channels, shape.tail_rows));
        let ngram_history = layout.ngram.map_or(Vec::new(), |shape| vec![shape.reset_token; shape.history]);
        Ok(State {
            tokens: 0,
            tentative: 0,
            positions: Vec::new(),
            positions_first: 0,
            next_position: 0,
            blocks: Vec::new(),
            raw_keys: vec![Vec::new(); layout.attention.len()],
            delta,
            tails,
            ngram_tail,
            ngram_history,
            ngram_pending: Vec::new(),
            lost: false,
            layout,
            pool: pool.clone(),
        })
    }

    /// Shapes of this state.
    pub fn layout(&self) -> &Arc<StateLayout> {
        &self.layout
    }

    /// Committed tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// True after a pass that failed, where the rows of this sequence were not tentative and some layer is recurrent: the
    /// state is that of no row any more, and cannot be used.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Rotary position of the next text token; stays at the largest there is.
    pub fn next_position(&self) -> i32 {
        self.next_position
    }

    /// Bytes this state holds, shared blocks included.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| block.bytes()).sum();
        let delta: usize = self.delta.iter().map(DeltaState::bytes).sum();
        let tails: usize = self.tails.iter().chain(&self.ngram_tail).map(Tail::bytes).sum();
        let raw: usize = self.raw_keys.iter().map(|keys| keys.len() * 4).sum();
        blocks + delta + tails + raw
    }

    /// Bytes it holds besides cells.
    pub(crate) fn own_bytes(&self) -> usize {
        self.bytes() - self.blocks.iter().map(|block| block.bytes()).sum::<usize>()
            + size_of_val(&self.positions[..])
    }

    /// Where its blocks of cells are: what two states share has the same address.
    pub(crate) fn block_addresses(&self) -> impl Iterator<Item = usize> + '_ {
        self.blocks.iter().map(|block| Arc::as_ptr(block).addr())
    }

    /// True if a beginning of its tokens has a state that is a part of this one: where nothing is recurrent, no key stands
    /// for several cells, and positions count tokens.
    pub(crate) fn can_be_cut(&self) -> bool {
        self.layout.can_be_cut() && usize::try_from(self.next_position) == Ok(self.tokens)
    }

    /// Leaves out all but the first `tokens` tokens.
    ///
    /// # Panics
    /// If it cannot be cut, or has fewer.
    pub(crate) fn cut(&mut self, tokens: usize) {
        assert!(self.can_be_cut() && tokens <= self.tokens && self.tentative == 0);
        self.blocks.truncate(tokens.div_ceil(PARTITION_CELLS));
        self.tokens = tokens;
        self.next_position = tokens as i32;
        self.positions.clear();
        self.positions_first = tokens;
    }

    /// Makes room for `rows` more tokens: their blocks exist and belong to this state alone.
    pub(crate) fn open(&mut self, rows: &[[i32; 3]]) -> Result<(), StepError> {
        assert_eq!(self.tentative, 0, "the rows of the last span were neither kept nor taken back");
        assert!(!self.lost, "the state was lost in a pass that failed");
        let end = self.tokens + rows.len();
        if end > self.layout.context_tokens {
            return Err(StepError::ContextFull { tokens: end, context_tokens: self.layout.context_tokens });
        }
        if self.layout.block_bytes > 0 {
            while self.blocks.len() * PARTITION_CELLS < end {
                self.blocks.push(Arc::new(self.pool.block(&self.layout)?));
            }
            for block in &mut self.blocks[self.tokens / PARTITION_CELLS..] {
                if Arc::get_mut(block).is_none() {
                    *block = Arc::new(self.pool.copy_of(&self.layout, block)?);
                }
            }
        }
        self.positions.extend_from_slice(rows);
        self.tentative = rows.len();
        Ok(())
    }

    /// Keeps the first `keep` rows of the last span and takes the others back. Without an open span there is nothing to
    /// keep and nothing happens.
    pub fn keep(&mut self, keep: usize) {
        assert!(keep <= self.tentative, "{keep} of {} rows", self.tentative);
        if self.tentative == 0 {
            return;
        }
        let taken_back = self.tentative - keep;
        self.positions.truncate(self.positions.len() - taken_back);
        self.tokens += keep;
        self.tentative = 0;
        let kept = &self.positions[self.positions.len() - keep..];
        if let Some(last) = kept.iter().flatten().max() {
            self.next_position = last.saturating_add(1);
        }
        let held = self.positions.len();
        for (cells, raw) in self.layout.attention.iter().zip(&mut self.raw_keys) {
            if let Some(indexer) = &cells.indexer {
                raw.truncate(held * indexer.head_dim);
            }
        }
        self.drop_complete_positions();
        for delta in &mut self.delta {
            delta.keep(keep);
        }
        for tail in self.tails.iter_mut().chain(&mut self.ngram_tail) {
            tail.keep(keep);
        }
        self.ngram_pending.truncate(keep);
        self.ngram_history.append(&mut self.ngram_pending);
        let history = self.layout.ngram.map_or(0, |shape| shape.history);
        self.ngram_history.drain(..self.ngram_history.len() - history);
    }

    /// Takes back the open span of a pass that failed. Matrices of recurrent layers wait for the verdict only where the
    /// span was tentative.
    pub(crate) fn fail(&mut self, tentative: bool) {
        self.keep(0);
        self.lost |= !tentative && !self.delta.is_empty();
    }

    /// Gives its cells back before it is dropped; it cannot be used any more.
    pub(crate) fn give_back(&mut self) {
        assert_eq!(self.tentative, 0, "a pass still runs");
        self.blocks = Vec::new();
        self.lost = true;
    }

    /// Forgets positions and raw indexer keys of blocks that are complete in every layer.
    fn drop_complete_positions(&mut self) {
        let keep_from = self.layout.first_incomplete(self.tokens);
        let gone = keep_from - self.positions_first;
        self.positions.drain(..gone);
        for (cells, raw) in self.layout.attention.iter().zip(&mut self.raw_keys) {
            if let Some(indexer) = &cells.indexer {
                raw.drain(..gone * indexer.head_dim);
            }
        }
        self.positions_first = keep_from;
    }

    /// Stores keys and values, `[kv_heads][head_dim]` each, of the token with index `cell` in attention layer `layer`. `room` is
    /// to work in.
    pub(crate) fn store_cell(
        &mut self,
        kernels: &Kernels,
        layer: usize,
        cell: usize,
        k: &[f32],
        v: &[f32],
        room: &mut Vec<f32>,
    ) {
        let layout = &self.layout.attention[layer];
        let block =
            Arc::get_mut(&mut self.blocks[cell / PARTITION_CELLS]).expect("an open block is not shared");
        let (i, d) = (cell % PARTITION_CELLS, layout.head_dim);
        for head in 0..layout.kv_heads {
            block.write(kernels, &layout.keys(head), i, &k[head * d..][..d], room);
            block.write(kernels, &layout.values(head), i, &v[head * d..][..d], room);
        }
    }

    /// Block `partition` of cells; cells past the committed and open rows hold anything.
    pub fn block(&self, partition: usize) -> &CellBlock {
        &self.blocks[partition]
    }

    /// Appends the raw indexer key of the next token and, where it completes a block, returns the block's index, its
    /// raw keys and the position of its first token.
    pub(crate) fn push_raw_key(&mut self, layer: usize, key: &[f32]) -> Option<(usize, &[f32], [i32; 3])> {
        let indexer = self.layout.attention[layer].indexer.expect("a sparse layer");
        let raw = &mut self.raw_keys[layer];
        raw.extend_from_slice(key);
        let token = self.positions_first + raw.len() / indexer.head_dim;
        if !token.is_multiple_of(indexer.block_cells) {
            return None;
        }
        let first = token - indexer.block_cells;
        let at = first - self.positions_first;
        Some((first / indexer.block_cells, &raw[at * indexer.head_dim..], self.positions[at]))
    }

    /// Stores the pooled indexer key of block `index`.
    pub(crate) fn store_pooled(
        &mut self,
        kernels: &Kernels,
        layer: usize,
        index: usize,
        key: &[f32],
        room: &mut Vec<f32>,
    ) {
        let layout = &self.layout.attention[layer];
        let indexer = layout.indexer.expect("a sparse layer");
        let per_block = PARTITION_CELLS / indexer.block_cells;
        let block = Arc::get_mut(&mut self.blocks[index / per_block]).expect("an open block is not shared");
        block.write(kernels, &layout.pooled().expect("a sparse layer"), index % per_block, key, room);
    }

    /// The recurrent state of delta-net layer `layer`.
    pub fn delta(&self, layer: usize) -> &DeltaState {
        &self.delta[layer]
    }

    /// As [`State::delta`], to be written.
    pub(crate) fn delta_mut(&mut self, layer: usize) -> &mut DeltaState {
        &mut self.delta[layer]
    }

    /// The convolution tail of delta-net layer `layer`, or of the n-gram block.
    pub fn tail(&self, slot: TailSlot) -> &Tail {
        match slot {
            TailSlot::Delta(layer) => &self.tails[layer],
            TailSlot::Ngram => self.ngram_tail.as_ref().expect("an n-gram block"),
        }
    }

    /// Raw indexer keys of attention layer `layer` for the tokens whose block is incomplete, `[tokens][head_dim]`.
    pub fn raw_keys(&self, layer: usize) -> &[f32] {
        &self.raw_keys[layer]
    }

    /// The last tokens that n-gram hashing saw, oldest first.
    pub fn ngram_history(&self) -> &[u32] {
        &self.ngram_history
    }

    /// As [`State::tail`], to be written.
    pub(crate) fn tail_mut(&mut self, slot: TailSlot) -> &mut Tail {
        match slot {
            TailSlot::Delta(layer) => &mut self.tails[layer],
            TailSlot::Ngram => self.ngram_tail.as_mut().expect("an n-gram block"),
        }
    }

    /// Remembers the n-gram tokens of the open rows and returns the history before them, oldest first.
    pub(crate) fn push_ngram_tokens(&mut self, tokens: impl Iterator<Item = u32>) -> Vec<u32> {
        self.ngram_pending.clear();
        self.ngram_pending.extend(tokens);
        self.ngram_history.clone()
    }
}

/// Which convolution's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailSlot {
    /// Of this delta-net layer.
    Delta(usize),
    /// Of the n-gram block.
    Ngram,
}
