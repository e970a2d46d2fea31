//! What several commands begin with: the model, its tokenizer, the prompt.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use chat::{ChatFormat, ChatModel};
use engine::memory::{self, Machine, Plan, PlanOptions, Refusal, Shapes};
use engine::{Engine, EngineConfig, LoadError, Loading, SavedOptions, Service, ServiceLimits};
use gguf::{Metadata, ModelFile};

use crate::args::{ComputeArgs, ModelArgs};
use crate::error::Error;
use crate::progress::{Progress, Waiting};

/// Most bytes of a text: many times what any context holds.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Plans the memory, loads the model and starts the threads. What the command line says comes before `wanted`; `flags` are
/// those of [`Error::DoesNotFit`].
pub fn engine(
    model: &ModelArgs,
    compute: &ComputeArgs,
    wanted: PlanOptions,
    flags: &'static [&'static str],
) -> Result<Engine, Error> {
    Ok(planned(model, compute, &memory::plan, wanted, flags)?.0)
}

/// What decides where everything goes.
type Planner<'a> = &'a dyn Fn(&Shapes, &Machine, &PlanOptions) -> Result<Plan, Box<Refusal>>;

/// [`engine`] with a plan by `planner`, and how many sequences it has.
fn planned(
    model: &ModelArgs,
    compute: &ComputeArgs,
    planner: Planner<'_>,
    wanted: PlanOptions,
    flags: &'static [&'static str],
) -> Result<(Engine, usize), Error> {
    let path = model.path()?;
    let cannot_load = |source| Error::Load { path: path.clone(), source: Box::new(source) };
    let mut file = file(model)?;
    compute.rope.apply(&mut file, wanted.context_tokens)?;
    let shapes = Shapes::of_file(&file, None).map_err(cannot_load)?;
    let options = PlanOptions {
        kv: compute.kv.unwrap_or(wanted.kv),
        kv_growth: compute.growth.growth(),
        loading: compute.weights,
        ..wanted
    };
    if compute.growth.kv_resident > 0 {
        tracing::warn!(
            "--kv-resident has no effect: there is no device here, all keys and values are in RAM"
        );
    }
    let plan = planner(&shapes, &Machine::here(), &options).map_err(|refusal| Error::DoesNotFit {
        path: path.clone(),
        refusal,
        flags,
    })?;
    plan.to_string().lines().for_each(|line| tracing::info!("{line}"));
    if plan.options.context_tokens.is_none() && plan.context_tokens < shapes.context_tokens {
        tracing::warn!("the context is {} tokens: {}", plan.context_tokens, plan.context_reason);
    }
    let config = EngineConfig {
        load: plan.load_options(),
        threads: compute.threads.unwrap_or_else(sys::topology::threads_default),
        isa: compute.isa,
        chunk_tokens: plan.options.chunk_tokens,
    };
    let nodes = sys::topology::processors().nodes;
    if nodes > 1 {
        tracing::info!(
            "the cores belong to {nodes} memory nodes; one process on each reads memory of its own node"
        );
    }
    let engine = load(file, &config).map_err(cannot_load)?;
    for warning in &engine.model().spec.warnings {
        tracing::warn!("{warning}");
    }
    Ok((engine, plan.options.sequences))
}

/// Loads the model, with a bar where its bytes are read and a spinner where they are mapped.
fn load(file: ModelFile, config: &EngineConfig) -> Result<Engine, LoadError> {
    const WHAT: &str = "loading the model";
    match config.load.loading {
        Loading::Mapped | Loading::Moved => {
            let _waiting = Waiting::start(WHAT);
            Engine::load_file(file, config, &|_, _| ())
        }
        Loading::Read => {
            // How many bytes there are comes with the first of them, from any thread.
            let bar: Mutex<Option<Progress>> = Mutex::new(None);
            Engine::load_file(file, config, &|done, total| {
                // A bar that cannot be drawn is no reason to fail.
                let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
                bar.get_or_insert_with(|| Progress::bytes(WHAT, total)).set(done);
            })
        }
    }
}

/// The metadata of a model that need not be computed with.
pub fn metadata(model: &ModelArgs) -> Result<Metadata, Error> {
    Ok(file(model)?.metadata)
}

/// The model's headers.
pub fn file(model: &ModelArgs) -> Result<ModelFile, Error> {
    let path = model.path()?;
    ModelFile::open(&path).map_err(|source| Error::Load { path, source: Box::new(LoadError::File(source)) })
}

/// The model's side of the text.
pub fn format(model: &ModelArgs, metadata: &Metadata) -> Result<ChatFormat, Error> {
    ChatFormat::from_metadata(metadata)
        .map_err(|source| Error::Tokenizer { path: model.model.clone(), source: Box::new(source) })
}

/// What is kept of conversations.
#[derive(Default)]
pub struct Kept {
    /// Most bytes of memory; what the machine can spare if absent.
    pub prefix_bytes: Option<u64>,
    /// Where they outlive the program.
    pub saved: Option<SavedOptions>,
}

/// How many are answered and how many wait.
pub struct Places {
    /// Most at the same time; as many as the plan has memory for if absent.
    pub parallel_max: Option<usize>,
    /// Most that wait.
    pub queue_max: usize,
}

/// A model that answers conversations, its engine on a thread of its own.
pub fn chat_model(
    model: &ModelArgs,
    compute: &ComputeArgs,
    context_tokens: Option<usize>,
    places: Places,
    kept: Kept,
    flags: &'static [&'static str],
) -> Result<ChatModel, Error> {
    let Places { parallel_max, queue_max } = places;
    let (sequences, prefix_bytes) = (parallel_max.unwrap_or(1), kept.prefix_bytes);
    let saving = kept.saved.is_some();
    let wanted = PlanOptions { context_tokens, sequences, prefix_bytes, saving, ..PlanOptions::default() };
    let planner: Planner<'_> = if parallel_max.is_some() { &memory::plan } else { &memory::plan_sequences };
    let (engine, parallel_max) = planned(model, compute, planner, wanted, flags)?;
    let limits = ServiceLimits { parallel_max, queue_max };
    let service = match kept.saved {
        None => Service::start(engine, limits).map_err(|source| Error::Io {
            action: "start",
            what: "the engine's thread".into(),
            source,
        }),
        Some(saved) => {
            let what = saved.folder.display().to_string();
            Service::start_saving(engine, limits, saved).map_err(|source| Error::Io {
                action: "keep conversations in",
                what,
                source,
            })
        }
    }?;
    let chat = ChatModel::new(service)
        .map_err(|source| Error::Tokenizer { path: model.model.clone(), source: Box::new(source) })?;
    warn_of_long_context(&chat);
    Ok(chat)
}

/// A model that goes on past what it was trained for may write nonsense, which is then not the program's fault.
fn warn_of_long_context(chat: &ChatModel) {
    let (wanted, trained) = (chat.context_tokens(), chat.service().model().spec.context_tokens);
    if wanted > trained {
        tracing::warn!(
            "the context of {wanted} tokens is longer than the {trained} that the model was trained for; \
             --rope-scaling yarn stretches its positions so far"
        );
    }
}

/// The time for templates that write today's date. Of the date in a prompt the zone matters little; the standard library
/// knows none but this.
pub fn local_time_s() -> Option<i64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs() as i64)
}

/// A number to seed choices with where the user gave none: nothing but a random number of the operating system's.
pub fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0) >> 32
}

/// A text from the command line, where `-` stands for standard input.
pub fn text_argument(text: &str) -> Result<String, Error> {
    match text {
        "-" => file_text(Path::new("-")),
        text => Ok(text.to_owned()),
    }
}

/// A file's text without the line end that closes it, where `-` stands for standard input.
pub fn file_text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let mut read = |source: &mut dyn Read| source.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes);
    let (what, read) = if path == Path::new("-") {
        ("the standard input".to_owned(), read(&mut std::io::stdin().lock()))
    } else {
        (path.display().to_string(), File::open(path).and_then(|mut file| read(&mut file)))
    };
    if let Err(source) = read {
        return Err(Error::Io { action: "read", what, source });
    }
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(Error::TextTooLong { what, bytes_max: TEXT_BYTES_MAX });
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|error| Error::NotText { what, at: error.utf8_error().valid_up_to() })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
