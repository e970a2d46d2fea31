//! What to say where a model does not fit: both numbers, and the nearest settings that do.

use std::fmt;

use super::text::bytes_text_apart;
use super::{Machine, PlanOptions, Shapes, bytes_text, largest, place};
use crate::state::KvType;
use crate::weights::Loading;

/// What is wanted does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// Bytes that this process would need.
    pub needed_bytes: u64,
    /// The machine.
    pub machine: Machine,
    /// What was wanted.
    pub options: PlanOptions,
    /// Settings that fit, each by itself, those that change least first.
    pub suggestions: Vec<Suggestion>,
    /// Bytes that the smallest setting needs, where no setting fits.
    pub least_bytes: u64,
}

/// Settings that fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// What is other than what was wanted.
    pub changes: Vec<Change>,
    /// All of it.
    pub options: PlanOptions,
}

/// One setting that is other than what was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// How weights come into memory.
    Loading(Loading),
    /// Element type of cached keys and values.
    Kv(KvType),
    /// Most tokens of a sequence.
    Context(usize),
    /// Sequences at once.
    Sequences(usize),
    /// Most rows of a window.
    Chunk(usize),
    /// Bytes for states of conversations.
    PrefixBytes(u64),
}

/// Rows of the smallest window worth having.
const CHUNK_TOKENS_MIN: usize = 32;

impl Refusal {
    /// One sentence; `spell` gives a setting its name.
    pub fn sentence(&self, spell: impl Fn(&Change) -> String) -> String {
        let (needed, available) = bytes_text_apart(self.needed_bytes, self.machine.available_bytes);
        let start =
            format!("{needed} of memory are needed and {available} are available ({})", self.machine.source);
        if self.suggestions.is_empty() {
            let least = bytes_text(self.least_bytes);
            return format!("{start}; no setting fits: even the smallest needs {least}");
        }
        let spelled = |suggestion: &Suggestion| {
            format!("with {}", suggestion.changes.iter().map(&spell).collect::<Vec<_>>().join(" and "))
        };
        let fits: Vec<String> = self.suggestions.iter().map(spelled).collect();
        format!("{start}; it fits {}", fits.join(", or "))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence(|change| match change {
            Change::Loading(loading) => format!("weights {}", loading.name()),
            Change::Kv(kv) => format!("keys and values in {}", kv.name()),
            Change::Context(tokens) => format!("a context of {tokens} tokens"),
            Change::Sequences(1) => "one sequence at once".to_owned(),
            Change::Sequences(sequences) => format!("{sequences} sequences at once"),
            Change::Chunk(tokens) => format!("chunks of {tokens} tokens"),
            Change::PrefixBytes(bytes) => format!("{} for kept conversations", bytes_text(*bytes)),
        }))
    }
}

/// Looks for settings that fit. Every one that is named was planned.
pub(super) fn refuse(shapes: &Shapes, machine: &Machine, wanted: &PlanOptions, needed_bytes: u64) -> Refusal {
    let fits = |options: &PlanOptions| place(shapes, machine, options).is_ok();
    let mut suggestions: Vec<Suggestion> = Vec::new();
    for change in changes(wanted, &fits) {
        let options = with(wanted, &[change]);
        if fits(&options) {
            suggestions.push(Suggestion { changes: vec![change], options });
        }
    }
    let smallest = PlanOptions { context_tokens: Some(1), ..with(wanted, &smallest(wanted)) };
    let nowhere = Machine { available_bytes: 0, ..machine.clone() };
    let least_bytes = place(shapes, &nowhere, &smallest).err().unwrap_or(0);
    if suggestions.is_empty() {
        suggestions.extend(several(wanted, &fits).map(|changes| {
            let options = with(wanted, &changes);
            Suggestion { changes, options }
        }));
    }
    Refusal { needed_bytes, machine: machine.clone(), options: wanted.clone(), suggestions, least_bytes }
}

fn with(wanted: &PlanOptions, changes: &[Change]) -> PlanOptions {
    let mut options = wanted.clone();
    for change in changes {
        match *change {
            Change::Loading(loading) => options.loading = loading,
            Change::Kv(kv) => options.kv = kv,
            Change::Context(tokens) => options.context_tokens = Some(tokens),
            Change::Sequences(sequences) => options.sequences = sequences,
            Change::Chunk(tokens) => options.chunk_tokens = tokens,
            Change::PrefixBytes(bytes) => options.prefix_bytes = Some(bytes),
        }
    }
    options
}

/// Changes of one setting, those that take least from the user first.
fn changes(wanted: &PlanOptions, fits: &dyn Fn(&PlanOptions) -> bool) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend((wanted.loading == Loading::Read).then_some(Change::Loading(Loading::Mapped)));
    changes.extend(smaller_cells(wanted).find(|change| fits(&with(wanted, &[*change]))));
    changes.extend(fewer_prefixes(wanted, fits));
    changes.extend(shorter_context(wanted, &[], fits));
    changes.extend(fewer_sequences(wanted, fits));
    changes.extend(smaller_chunk(wanted).find(|change| fits(&with(wanted, &[*change]))));
    changes
}

/// The most below `not` that fits, or 0; whatever is less than one that fits does, too.
fn most(mut not: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let mut fitting = 0;
    while not - fitting > 1 {
        let middle = fitting + (not - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut not }) = middle;
    }
    fitting
}

/// The most bytes for conversations that fit, in whole MiB, of a user who named a number.
fn fewer_prefixes(wanted: &PlanOptions, fits: &dyn Fn(&PlanOptions) -> bool) -> Option<Change> {
    let change = |mib: u64| Change::PrefixBytes(mib << 20);
    let fits = |mib: u64| fits(&with(wanted, &[change(mib)]));
    let wanted_bytes = wanted.prefix_bytes.filter(|&bytes| bytes > 0 && fits(0))?;
    Some(change(most(wanted_bytes.div_ceil(1 << 20), fits)))
}

/// The longest context that fits after `changes`, of a user who named one.
fn shorter_context(
    wanted: &PlanOptions,
    changes: &[Change],
    fits: &dyn Fn(&PlanOptions) -> bool,
) -> Option<Change> {
    let most = wanted.context_tokens?.checked_sub(1).filter(|&tokens| tokens > 0)?;
    let options = with(wanted, changes);
    let fits = |tokens| fits(&with(&options, &[Change::Context(tokens)]));
    // Within one block of cells the number of tokens takes no memory, so there is nothing between a block and none.
    largest(most, fits).map(Change::Context)
}

fn fewer_sequences(wanted: &PlanOptions, fits: &dyn Fn(&PlanOptions) -> bool) -> Option<Change> {
    let fits = |sequences| fits(&with(wanted, &[Change::Sequences(sequences)]));
    let fitting = most(wanted.sequences as u64, |n| fits(n as usize)) as usize;
    (fitting > 0).then_some(Change::Sequences(fitting))
}

/// Types of cells with fewer bytes, those with most first.
fn smaller_cells(wanted: &PlanOptions) -> impl Iterator<Item = Change> {
    let wanted = wanted.kv;
    KvType::ALL.into_iter().skip_while(move |&kv| kv != wanted).skip(1).map(Change::Kv)
}

fn smaller_chunk(wanted: &PlanOptions) -> impl Iterator<Item = Change> {
    let halves = std::iter::successors(Some(wanted.chunk_tokens / 2), |tokens| Some(tokens / 2));
    halves.take_while(|&tokens| tokens >= CHUNK_TOKENS_MIN).map(Change::Chunk)
}

/// Every setting at its smallest, but the context.
fn smallest(wanted: &PlanOptions) -> Vec<Change> {
    let mut changes = Vec::new();
    changes.extend((wanted.loading == Loading::Read).then_some(Change::Loading(Loading::Mapped)));
    changes.extend(smaller_cells(wanted).last());
    changes.extend(wanted.prefix_bytes.filter(|&bytes| bytes > 0).map(|_| Change::PrefixBytes(0)));
    changes.extend((wanted.sequences > 1).then_some(Change::Sequences(1)));
    changes.extend((wanted.chunk_tokens > CHUNK_TOKENS_MIN).then_some(Change::Chunk(CHUNK_TOKENS_MIN)));
    changes
}

/// Changes of several settings: as few as it takes, in the same order, then the context.
fn several(wanted: &PlanOptions, fits: &dyn Fn(&PlanOptions) -> bool) -> Option<Vec<Change>> {
    let all = smallest(wanted);
    for count in 1..=all.len() {
        let mut changes = all[..count].to_vec();
        if fits(&with(wanted, &changes)) {
            // Cells need not be the smallest then.
            let larger = smaller_cells(wanted).map(|cells| {
                let changed = changes
                    .iter()
                    .map(|change| if matches!(change, Change::Kv(_)) { cells } else { *change });
                changed.collect()
            });
            return larger
                .into_iter()
                .find(|changes: &Vec<Change>| fits(&with(wanted, changes)))
                .or(Some(changes));
        }
        if let Some(context) = shorter_context(wanted, &changes, fits) {
            changes.push(context);
            return Some(changes);
        }
    }
    None
}
