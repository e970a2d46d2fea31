//! The plan: what of a model goes where in the memory that this process may use, before any of it is taken.
//!
//! [`plan`] is a pure function of sizes ([`Shapes`]), of a machine ([`Machine`]) and of what the user wants
//! ([`PlanOptions`]), so that it can be asked about machines that are not there. It answers with parts, each with its
//! bytes, its place and the reason, which together never exceed what is available; or with a [`Refusal`] that has both
//! numbers and the settings that would do.

mod parts;
mod refusal;
mod shapes;
mod text;

use kernels::PARTITION_CELLS;

pub(crate) use parts::ATTENTION_RECORD_BYTES_MAX;
pub use parts::{Part, PartKind, Place};
pub use refusal::{Change, Refusal, Suggestion};
pub use shapes::{PassShapes, Shapes};
pub(crate) use shapes::{experts_used, ngram_tables};
pub use text::bytes_text;

use crate::model::LoadOptions;
use crate::state::{KvGrowth, KvType};
use crate::weights::Loading;

/// A machine, as far as memory goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes that this process may still take.
    pub available_bytes: u64,
    /// What says so.
    pub source: String,
    /// Bytes of memory there are, if known.
    pub total_bytes: Option<u64>,
    /// Bytes that may be mapped for huge pages, if memory is left for them: 0 where there are no such pages.
    pub huge_page_room_bytes: u64,
}

impl Machine {
    /// The one this process runs on, as far as it may use it now.
    pub fn here() -> Machine {
        let available = sys::memory::available();
        Machine {
            available_bytes: available.bytes,
            source: available.reason.to_string(),
            total_bytes: sys::memory::total_bytes(),
            huge_page_room_bytes: sys::memory::huge_page_room(),
        }
    }

    /// One with so many bytes available.
    pub fn invented(available_bytes: u64) -> Machine {
        Machine {
            available_bytes,
            source: "an invented machine".into(),
            total_bytes: None,
            huge_page_room_bytes: u64::MAX,
        }
    }
}

/// What is wanted of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Most tokens of a sequence; the most that fit, up to what the model was trained for, if absent.
    pub context_tokens: Option<usize>,
    /// Element type of cached keys and values.
    pub kv: KvType,
    /// How their memory grows.
    pub kv_growth: KvGrowth,
    /// Sequences whose state is in memory at once, at least 1.
    pub sequences: usize,
    /// Most rows of a window, at least 1.
    pub chunk_tokens: usize,
    /// Most rows of a sequence that wait to be kept or taken back.
    pub tentative_rows: usize,
    /// Most rows of a sequence's part of a window of which the logits are wanted, at least 1; those that wait come on top.
    pub output_rows: usize,
    /// Bytes of states that may be kept of what was read, to be gone on from; what the machine can spare if absent.
    pub prefix_bytes: Option<u64>,
    /// Whether conversations are saved on disk.
    pub saving: bool,
    /// How weights come into memory.
    pub loading: Loading,
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions {
            context_tokens: None,
            kv: KvType::default(),
            kv_growth: KvGrowth::default(),
            sequences: 1,
            chunk_tokens: CHUNK_TOKENS,
            tentative_rows: 0,
            output_rows: 1,
            prefix_bytes: Some(0),
            saving: false,
            loading: Loading::Moved,
        }
    }
}

/// Rows of a window unless somebody says otherwise: enough to make every read of the weights count, few enough for small
/// buffers.
pub const CHUNK_TOKENS: usize = 512;

/// Sequences of a server whose user named no number: a person with a few programs. All of them may be of full length.
pub const SEQUENCES_DEFAULT: usize = 4;

/// And the most where there is memory: beyond it each of them is slow, and waiting for a turn takes less time.
pub const SEQUENCES_DEFAULT_MAX: usize = 16;

/// Where a context that nobody asked for begins to take memory from weights that every token reads. A shorter one is
/// of no use to a conversation; a longer one would make all of it slow.
pub const CONTEXT_UNCONTESTED_TOKENS: usize = 4096;

/// Least that stays available when weights have moved into this process's own memory: the system, its cache of files and
/// other programs want to live too.
pub(crate) const MOVE_MARGIN_BYTES_MIN: u64 = 1 << 30;

/// And of what is available one in so many.
const MOVE_MARGIN_FRACTION: u64 = 10;

/// Most bytes for states of conversations that nobody asked for.
const PREFIX_BYTES_MAX: u64 = 8 << 30;

/// And where the weights leave no room, one of so many bytes of what is available: reading a long prompt again costs more
/// than the few experts that these bytes would hold.
const PREFIX_FRACTION: u64 = 32;

/// Where everything goes. `Display` prints it part by part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What was wanted.
    pub options: PlanOptions,
    /// Most tokens of a sequence.
    pub context_tokens: usize,
    /// Why so many.
    pub context_reason: String,
    /// Why there are as many sequences as there are.
    pub sequences_reason: String,
    /// The machine.
    pub machine: Machine,
    /// Everything that takes memory.
    pub parts: Vec<Part>,
    /// Bytes of states that may be kept of what was read.
    pub prefix_bytes: u64,
    /// How weights come into memory: [`Loading::Mapped`] where moving them was wanted and no memory is left for it.
    pub loading: Loading,
    /// Bytes of weights that a token reads from the disk again at worst, since the mapped files are larger than the
    /// memory that is left for them.
    pub reread_bytes_per_token: u64,
}

/// Decides what goes where.
///
/// # Errors
/// [`Refusal`] when the memory of this process alone, without a page of a mapped file, exceeds what is available.
pub fn plan(shapes: &Shapes, machine: &Machine, options: &PlanOptions) -> Result<Plan, Box<Refusal>> {
    place(shapes, machine, options)
        .map_err(|needed| Box::new(refusal::refuse(shapes, machine, options, needed)))
}

/// [`plan`] for a server whose user named no number of sequences, whatever `options` says of it.
///
/// [`SEQUENCES_DEFAULT`], fewer where these do not fit or take what makes a context useful; and where all weights fit into memory, more
/// of them, up to [`SEQUENCES_DEFAULT_MAX`], within half of what is left then: the other half is for conversations.
///
/// # Errors
/// As [`plan`], of one sequence.
pub fn plan_sequences(
    shapes: &Shapes,
    machine: &Machine,
    options: &PlanOptions,
) -> Result<Plan, Box<Refusal>> {
    let with = |sequences| PlanOptions { sequences, ..options.clone() };
    let useful = shapes.context_tokens.min(CONTEXT_UNCONTESTED_TOKENS);
    for sequences in (1..=SEQUENCES_DEFAULT).rev() {
        let Ok(mut plan) = place(shapes, machine, &with(sequences)) else { continue };
        if sequences > 1 && options.context_tokens.is_none() && plan.context_tokens < useful {
            continue;
        }
        if sequences < SEQUENCES_DEFAULT {
            plan.sequences_reason = "as many as fit".to_owned();
            return Ok(plan);
        }
        let more = more_sequences(shapes, machine, options, &plan);
        let larger = PlanOptions { context_tokens: Some(plan.context_tokens), ..with(more) };
        if more > SEQUENCES_DEFAULT
            && let Ok(larger) = place(shapes, machine, &larger)
        {
            let options = with(more);
            plan = Plan { options, context_reason: plan.context_reason, ..larger };
        }
        plan.sequences_reason = match more {
            SEQUENCES_DEFAULT => "as always, where memory is left for no more of them",
            SEQUENCES_DEFAULT_MAX => "the most that are planned unasked",
            _ => "as many as half of the memory holds that weights leave",
        }
        .to_owned();
        return Ok(plan);
    }
    plan(shapes, machine, &with(1))
}

/// How many sequences of the context of `plan`, which is of [`SEQUENCES_DEFAULT`], memory can be spared for.
fn more_sequences(shapes: &Shapes, machine: &Machine, options: &PlanOptions, plan: &Plan) -> usize {
    let process = |sequences| {
        let options = PlanOptions { sequences, ..options.clone() };
        process_bytes(&parts::parts(shapes, &options, plan.context_tokens))
    };
    let least = process(SEQUENCES_DEFAULT);
    let taken = least
        .saturating_add(parts::mapped_bytes(&plan.parts))
        .saturating_add(move_margin(machine))
        .saturating_add(options.prefix_bytes.unwrap_or(0));
    let room = machine.available_bytes.saturating_sub(taken) / 2;
    let mut more = (SEQUENCES_DEFAULT + 1..=SEQUENCES_DEFAULT_MAX).rev();
    more.find(|&sequences| process(sequences) - least <= room).unwrap_or(SEQUENCES_DEFAULT)
}

/// [`plan`] without advice: the bytes that are needed are the error.
fn place(shapes: &Shapes, machine: &Machine, options: &PlanOptions) -> Result<Plan, u64> {
    assert!(
        options.sequences > 0 && options.chunk_tokens > 0 && options.output_rows > 0,
        "a plan for nothing"
    );
    let (context_tokens, context_reason) = match options.context_tokens {
        Some(tokens) => (tokens, "as asked for".to_owned()),
        None => largest_context(shapes, machine, options)?,
    };
    let mut parts = parts::parts(shapes, options, context_tokens);
    let prefix_bytes = options.prefix_bytes.unwrap_or_else(|| spare(machine, &parts));
    parts::keep_prefixes(&mut parts, prefix_bytes);
    let process = process_bytes(&parts);
    let left = machine.available_bytes.checked_sub(process).ok_or(process)?;
    parts::keep_mapped(&mut parts, left);
    let moved = parts::moved_bytes(shapes);
    let mut loading = options.loading;
    if loading == Loading::Moved {
        let moves = may_move(machine, process, parts::mapped_bytes(&parts), moved);
        parts::say_moved(&mut parts, moves);
        loading = if moves { Loading::Moved } else { Loading::Mapped };
    }
    let reread_bytes_per_token = reread(shapes, &parts);
    let (options, machine) = (options.clone(), machine.clone());
    Ok(Plan {
        options,
        context_tokens,
        context_reason,
        sequences_reason: "as asked for".to_owned(),
        machine,
        parts,
        prefix_bytes,
        loading,
        reread_bytes_per_token,
    })
}

/// What can be spared for states of conversations beside everything else: half of what is left once all weights are in
/// memory, with the margin that lets them move; or, where they do not fit anyway, one part of many.
fn spare(machine: &Machine, parts: &[Part]) -> u64 {
    let available = machine.available_bytes;
    let process = process_bytes(parts);
    let weights = parts::mapped_bytes(parts);
    let all = process.saturating_add(weights).saturating_add(move_margin(machine));
    let half = available.saturating_sub(all) / 2;
    let least = (available / PREFIX_FRACTION).min(available.saturating_sub(process) / 2);
    half.max(least).min(PREFIX_BYTES_MAX)
}

fn move_margin(machine: &Machine) -> u64 {
    MOVE_MARGIN_BYTES_MIN.max(machine.available_bytes / MOVE_MARGIN_FRACTION)
}

/// Whether `moved` bytes of matrices may leave the mapped files: beside the process's own memory they must leave a margin
/// of what is available, which is in part cache of files and, unlike mapped pages, cannot be taken back from them. Addresses
/// are taken twice.
fn may_move(machine: &Machine, process: u64, mapped: u64, moved: u64) -> bool {
    let margin = move_margin(machine);
    let memory = process.saturating_add(moved).saturating_add(margin);
    memory <= machine.available_bytes && memory.saturating_add(mapped) <= machine.huge_page_room_bytes
}

/// The context of a user who named none, with its reason.
fn largest_context(
    shapes: &Shapes,
    machine: &Machine,
    options: &PlanOptions,
) -> Result<(usize, String), u64> {
    let trained = shapes.context_tokens;
    let available = machine.available_bytes;
    // What every token reads should stay in memory, and the experts of one token.
    let hot = match options.loading {
        Loading::Mapped | Loading::Moved => shapes.active_bytes(),
        Loading::Read => 0,
    };
    // What was asked for conversations is not for the context to take.
    let prefixes = options.prefix_bytes.unwrap_or(0);
    let process = |tokens| process_bytes(&parts::parts(shapes, options, tokens)).saturating_add(prefixes);
    let uncontested = trained.min(CONTEXT_UNCONTESTED_TOKENS);
    let beside_hot = largest(trained, |tokens| process(tokens).saturating_add(hot) <= available).unwrap_or(0);
    if beside_hot >= uncontested {
        let reason = match beside_hot == trained {
            true => "all that the model was trained for",
            false => "the longest that leaves room for the weights of a token",
        };
        return Ok((beside_hot, reason.to_owned()));
    }
    match largest(uncontested, |tokens| process(tokens) <= available) {
        Some(tokens) if tokens == trained => Ok((tokens, "all that the model was trained for".to_owned())),
        Some(tokens) => Ok((tokens, "the longest that fits".to_owned())),
        None => Err(process(trained.min(PARTITION_CELLS))),
    }
}

/// The most tokens up to `tokens_max`, in whole blocks of cells below that, for which `fits` holds; `fits` holds for all
/// smaller ones too.
fn largest(tokens_max: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    if fits(tokens_max) {
        return Some(tokens_max);
    }
    let (mut fitting, mut not) = (0, tokens_max.div_ceil(PARTITION_CELLS));
    while not - fitting > 1 {
        let middle = fitting + (not - fitting) / 2;
        *(if fits(middle * PARTITION_CELLS) { &mut fitting } else { &mut not }) = middle;
    }
    (fitting > 0).then_some(fitting * PARTITION_CELLS)
}

/// Bytes that are this process's own.
fn process_bytes(parts: &[Part]) -> u64 {
    let own = parts.iter().filter(|part| part.place == Place::Process);
    own.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// Dense weights come back with every token, so they are what the system keeps, as long as they fit; what a token finds
/// missing is then a part of its experts. Once they do not fit, a page is dropped before it is read again.
fn reread(shapes: &Shapes, parts: &[Part]) -> u64 {
    let mapped =
        |kind: PartKind| parts.iter().find(|part| part.kind == kind).filter(|p| p.place != Place::Process);
    let (Some(dense), Some(experts)) = (mapped(PartKind::DenseWeights), mapped(PartKind::Experts)) else {
        return match mapped(PartKind::DenseWeights) {
            Some(dense) if dense.dropped_bytes() > 0 => shapes.active_dense_bytes,
            _ => 0,
        };
    };
    if dense.dropped_bytes() > 0 {
        return shapes.active_bytes();
    }
    experts.dropped_bytes().min(shapes.active_expert_bytes)
}

impl Plan {
    /// Bytes of this process's own memory.
    pub fn process_bytes(&self) -> u64 {
        process_bytes(&self.parts)
    }

    /// Bytes of memory that pages of mapped files are expected to take.
    pub fn cached_bytes(&self) -> u64 {
        self.parts.iter().map(Part::cached_bytes).sum()
    }

    /// Bytes of memory altogether; never more than are available.
    pub fn bytes(&self) -> u64 {
        self.process_bytes() + self.cached_bytes()
    }

    /// What loads the model as planned.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions {
            kv: self.options.kv,
            kv_growth: self.options.kv_growth,
            context_tokens: Some(self.context_tokens),
            sequences: Some(self.options.sequences),
            loading: self.loading,
            prefix_bytes: self.prefix_bytes as usize,
            promised_bytes: self.process_bytes(),
            ..LoadOptions::default()
        }
    }
}
