//! The parts of a plan: how many bytes each takes, where, and why.

use kernels::PARTITION_CELLS;

use super::{PassShapes, PlanOptions, Shapes};
use crate::backend::scratch_bytes;
use crate::state::{KvGrowth, KvPool, StateLayout};
use crate::weights::Loading;

/// Something that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Its bytes.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
    /// Why there, and why so much.
    pub reason: String,
}

/// Where a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory of this process.
    Process,
    /// In pages of a mapped file, which the system may drop and read again.
    Mapped {
        /// Bytes of them for which there is memory.
        cached_bytes: u64,
    },
}

/// What takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// Matrices that every token reads.
    DenseWeights,
    /// Routed experts.
    Experts,
    /// N-gram tables.
    NgramTables,
    /// Norms, biases and other short vectors.
    Vectors,
    /// Keys and values.
    Kv,
    /// Keys and values of the draft layer.
    DraftKv,
    /// Matrices and convolution tails of recurrent layers.
    Recurrent,
    /// States of what was read before.
    Prefixes,
    /// Buffers between conversations and the disk.
    Saving,
    /// Rows that are not complete or wait to be kept.
    OpenRows,
    /// Scratch buffers of a window.
    Scratch,
    /// Logits, and what the sampler makes of them.
    Logits,
    /// Tokenizer.
    Tokenizer,
    /// Page tables.
    PageTables,
    /// Margin.
    Margin,
}

impl PartKind {
    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            PartKind::DenseWeights => "dense weights",
            PartKind::Experts => "routed experts",
            PartKind::NgramTables => "n-gram tables",
            PartKind::Vectors => "vectors",
            PartKind::Kv => "KV cells",
            PartKind::DraftKv => "draft KV cells",
            PartKind::Recurrent => "recurrent state",
            PartKind::Prefixes => "kept conversations",
            PartKind::Saving => "disk buffers",
            PartKind::OpenRows => "open rows",
            PartKind::Scratch => "scratch buffers",
            PartKind::Logits => "logits",
            PartKind::Tokenizer => "tokenizer",
            PartKind::PageTables => "page tables",
            PartKind::Margin => "margin",
        }
    }
}

impl Part {
    /// Bytes of a mapped part for which there is memory; 0 of another.
    pub fn cached_bytes(&self) -> u64 {
        match self.place {
            Place::Process => 0,
            Place::Mapped { cached_bytes } => cached_bytes,
        }
    }

    /// Bytes of a mapped part for which there is no memory.
    pub fn dropped_bytes(&self) -> u64 {
        match self.place {
            Place::Process => 0,
            Place::Mapped { cached_bytes } => self.bytes - cached_bytes,
        }
    }
}

/// Bytes of a tokenizer for each token of the vocabulary: an estimate. Text, merge and the entries of the tables that
/// find them took 260 in a vocabulary of 250,000, the metadata they were made from included.
const TOKENIZER_BYTES_PER_TOKEN: u64 = 400;

/// Most bytes that the CPU's attention keeps of partitions that threads share, until they are merged.
pub(crate) const ATTENTION_RECORD_BYTES_MAX: usize = 32 << 20;

/// What is not planned byte by byte: the program itself, stacks and work space of threads, lists of a window, requests.
const MARGIN_BYTES: u64 = (64 << 20) + ATTENTION_RECORD_BYTES_MAX as u64;

/// And of every this many planned bytes one: what the allocator rounds up and keeps.
const MARGIN_FRACTION: u64 = 64;

/// Bytes that the sampler keeps for each token of the vocabulary: candidates with score, penalties, their copies.
const SAMPLER_BYTES_PER_TOKEN: u64 = 32;

/// A page of a mapped file costs an entry of 8 bytes in a table.
const MAPPED_BYTES_PER_TABLE_BYTE: u64 = 4096 / 8;

/// All parts of a plan for a context; mapped ones without a page in memory yet.
pub(super) fn parts(shapes: &Shapes, options: &PlanOptions, context_tokens: usize) -> Vec<Part> {
    let mut parts = weights(shapes, options.loading);
    let own =
        state(shapes, options, context_tokens).into_iter().chain(window(shapes, options, context_tokens));
    let present = own.filter(|(_, bytes, _)| *bytes > 0);
    parts.extend(present.map(|(kind, bytes, reason)| Part { kind, bytes, place: Place::Process, reason }));
    if options.saving {
        let reason =
            "of a conversation that is saved and one that is loaded, and states taken over from older files";
        let (kind, bytes) = (PartKind::Saving, crate::saved::BUFFERS_BYTES);
        parts.push(Part { kind, bytes, place: Place::Process, reason: reason.to_owned() });
    }
    finish(&mut parts);
    parts
}

/// What sequences keep.
fn state(shapes: &Shapes, options: &PlanOptions, context_tokens: usize) -> [(PartKind, u64, String); 4] {
    let kv = options.kv.name();
    let of_sequences = match options.sequences {
        1 => "of one sequence".to_owned(),
        n => format!("of {n} sequences"),
    };
    let cells = |pass: &PassShapes| kv_bytes(&pass.layout, options, context_tokens);
    let recurrent = each_pass(shapes, |pass| pass.layout.recurrent_bytes() as u64);
    let rows = window_rows(options, context_tokens);
    let open = |pass: &PassShapes| open_rows(&pass.layout, options, rows);
    [
        (
            PartKind::Kv,
            cells(&shapes.trunk),
            format!(
                "{kv}, {context_tokens} tokens {of_sequences}, in blocks of {PARTITION_CELLS}; {}",
                growth(options.kv_growth)
            ),
        ),
        (
            PartKind::DraftKv,
            shapes.draft.as_ref().map_or(0, cells),
            format!("{kv}, {context_tokens} tokens {of_sequences}, of the draft layer"),
        ),
        (
            PartKind::Recurrent,
            recurrent.saturating_mul(options.sequences as u64),
            format!("f32, {of_sequences}, whatever their length"),
        ),
        (
            PartKind::OpenRows,
            each_pass(shapes, open),
            format!("positions, keys of incomplete blocks and inputs of recurrences of {rows} rows"),
        ),
    ]
}

/// How cells come and go, in words.
fn growth(growth: KvGrowth) -> String {
    let KvGrowth { init_tokens, step_tokens, hold } = growth;
    let mut words = match init_tokens {
        0 => "taken as they grow".to_owned(),
        tokens => format!("those of {tokens} tokens of each at the start, the others as they grow"),
    };
    if let Some(tokens) = step_tokens {
        words.push_str(&format!(", {tokens} tokens at a time"));
    }
    words.push_str(if hold { ", and kept" } else { "" });
    words
}

/// What a window takes, and what is made of it.
fn window(shapes: &Shapes, options: &PlanOptions, context_tokens: usize) -> [(PartKind, u64, String); 3] {
    let window = window_rows(options, context_tokens);
    let outputs = window.min(options.sequences.saturating_mul(options.output_rows + options.tentative_rows));
    let rows = [window, outputs, window.saturating_mul(shapes.experts_used)];
    let logits = |pass: &PassShapes| scratch_bytes(&[pass.buffers[pass.logits.0 as usize]], rows);
    let scratch = |pass: &PassShapes| scratch_bytes(&pass.buffers, rows) - logits(pass);
    let rotations = window.saturating_mul(shapes.rotated_pairs * 2 * size_of::<f32>());
    let vocabulary = shapes.vocabulary as u64;
    let sampler = (options.sequences as u64).saturating_mul(vocabulary * SAMPLER_BYTES_PER_TOKEN);
    [
        (
            PartKind::Scratch,
            each_pass(shapes, scratch).saturating_add(rotations as u64),
            format!("a window of {window} rows; all layers share them"),
        ),
        (
            PartKind::Logits,
            each_pass(shapes, logits).saturating_add(sampler),
            format!("{outputs} rows of {vocabulary} tokens, and the sampler's lists"),
        ),
        (
            PartKind::Tokenizer,
            vocabulary * TOKENIZER_BYTES_PER_TOKEN,
            format!("an estimate: {TOKENIZER_BYTES_PER_TOKEN} bytes for each of {vocabulary} tokens"),
        ),
    ]
}

/// A window has a row of each sequence that writes, and no more rows than there are tokens.
fn window_rows(options: &PlanOptions, context_tokens: usize) -> usize {
    options.chunk_tokens.max(options.sequences).min(context_tokens.saturating_mul(options.sequences))
}

fn each_pass(shapes: &Shapes, bytes: impl Fn(&PassShapes) -> u64) -> u64 {
    shapes.passes().map(bytes).fold(0, u64::saturating_add)
}

/// What comes on top of the other parts.
fn finish(parts: &mut Vec<Part>) {
    let (mapped, own) = (mapped_bytes(parts), super::process_bytes(parts));
    let mut push = |kind, bytes, reason: &str| {
        parts.push(Part { kind, bytes, place: Place::Process, reason: reason.to_owned() });
    };
    if mapped > 0 {
        let bytes = mapped.div_ceil(MAPPED_BYTES_PER_TABLE_BYTE);
        push(PartKind::PageTables, bytes, "8 bytes for each mapped page of 4096");
    }
    let margin = MARGIN_BYTES + own / MARGIN_FRACTION;
    push(
        PartKind::Margin,
        margin,
        "the program, stacks of threads, lists of requests, and what is rounded up",
    );
}

fn weights(shapes: &Shapes, loading: Loading) -> Vec<Part> {
    let read = loading == Loading::Read;
    let place = if read { Place::Process } else { Place::Mapped { cached_bytes: 0 } };
    let mapped = Place::Mapped { cached_bytes: 0 };
    let all = [
        (
            PartKind::DenseWeights,
            shapes.dense_bytes,
            place,
            if read { "read whole, in huge pages" } else { "mapped; read for every token" },
        ),
        (
            PartKind::Experts,
            shapes.expert_bytes,
            place,
            if read { "read whole, in huge pages" } else { "mapped; a token reads those it is routed to" },
        ),
        (PartKind::NgramTables, shapes.table_bytes, mapped, "mapped; a token reads a few rows"),
        (PartKind::Vectors, shapes.vector_bytes, Place::Process, "widened to f32 when loaded"),
    ];
    let present = all.into_iter().filter(|(_, bytes, ..)| *bytes > 0);
    present
        .map(|(kind, bytes, place, reason)| Part { kind, bytes, place, reason: reason.to_owned() })
        .collect()
}

/// What moves: a token uses all of it, or a good part.
const MOVED: [PartKind; 2] = [PartKind::DenseWeights, PartKind::Experts];

/// Bytes of the matrices that may be moved into huge pages.
pub(super) fn moved_bytes(shapes: &Shapes) -> u64 {
    shapes.dense_bytes.saturating_add(shapes.expert_bytes)
}

/// Bytes of mapped parts, in memory or not.
pub(super) fn mapped_bytes(parts: &[Part]) -> u64 {
    let mapped = parts.iter().filter(|part| part.place != Place::Process);
    mapped.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Says of the parts that could move whether they are going to. They stay mapped as far as the plan goes: they begin so,
/// they can stay so, and their bytes in memory are as many before and after.
pub(super) fn say_moved(parts: &mut [Part], moved: bool) {
    let how = if moved {
        "mapped, then moved to huge pages in the background"
    } else {
        "mapped, with no memory left to move it to huge pages"
    };
    for part in parts.iter_mut().filter(|part| MOVED.contains(&part.kind)) {
        part.reason = part.reason.replacen("mapped", how, 1);
    }
}

/// Bytes of the cells of all sequences.
fn kv_bytes(layout: &StateLayout, options: &PlanOptions, context_tokens: usize) -> u64 {
    let layout = layout.stored_as(options.kv, context_tokens);
    KvPool::budget_bytes(&layout, options.sequences, options.kv_growth) as u64
}

/// Each sequence has its own open rows, but all of them together have no more than a window. Inputs of a recurrence are
/// there for one layer at a time, those of tentative rows for all.
fn open_rows(layout: &StateLayout, options: &PlanOptions, rows: usize) -> u64 {
    let sequences = options.sequences;
    let kept =
        layout.open_rows_bytes(rows).saturating_add(layout.open_rows_bytes(0).saturating_mul(sequences - 1));
    let running = layout.pending_row_bytes().max().unwrap_or(0).saturating_mul(rows);
    let tentative = rows.min(options.tentative_rows.saturating_mul(sequences));
    let waiting = layout.pending_row_bytes().sum::<usize>().saturating_mul(tentative);
    kept.saturating_add(running).saturating_add(waiting) as u64
}

/// Adds what is kept of conversations, once it is known how much that may be.
pub(super) fn keep_prefixes(parts: &mut Vec<Part>, bytes: u64) {
    if bytes > 0 {
        let reason = "states of what was read, to be gone on from; taken as they come".to_owned();
        let at = parts.iter().position(|part| part.kind == PartKind::Margin).unwrap_or(parts.len());
        parts.insert(at, Part { kind: PartKind::Prefixes, bytes, place: Place::Process, reason });
    }
}

/// Gives `left` bytes to mapped parts: first to those that every token reads.
pub(super) fn keep_mapped(parts: &mut [Part], mut left: u64) {
    for kind in [PartKind::DenseWeights, PartKind::Experts, PartKind::NgramTables] {
        for part in parts.iter_mut().filter(|part| part.kind == kind) {
            if let Place::Mapped { cached_bytes } = &mut part.place {
                *cached_bytes = part.bytes.min(left);
                left -= *cached_bytes;
            }
        }
    }
}
