//! `strata plan`: what goes where in memory, part by part, without loading anything.

use engine::KvType;
use engine::Loading;
use engine::memory::{self, Machine, Part, Place, Plan, PlanOptions, Shapes};
use serde_json::json;

use crate::args::{KvArgs, ModelArgs, RopeArgs, parse};
use crate::error::Error;
use crate::output::Output;
use crate::prepare;

/// The arguments of `strata plan`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata plan -m model.gguf
  strata plan -m model.gguf --ctx 131072 --kv f16 --parallel 4
  strata plan -m model.gguf --memory 32G      # of a machine that has so much available

Reads headers only, so it takes no time and no memory whatever the size of the model. What is available is the least of
the machine's available memory and the room in this process's control groups; file cache that can be dropped counts as
free. A mapped part is pages of the model's file, which the system may drop and read again; all else is memory of the
process itself and must fit. Weights that are moved begin mapped; they stay so unless all of them fit beside everything
else and 1 GiB or a tenth of what is available, whichever is more, stays free.
With --json: {\"parts\": [...], \"total_bytes\": N, \"available_bytes\": N, ...}."
)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Most tokens of a sequence [default: the most that fit, up to what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub ctx: Option<usize>,
    /// How keys and values are cached, f32, f16, int8, k8v4 or q4
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = parse::kv_type)]
    pub kv: KvType,
    #[command(flatten)]
    pub growth: KvArgs,
    #[command(flatten)]
    pub rope: RopeArgs,
    /// Sequences in memory at once [default: as many as `strata serve` would have; `strata run` has one]
    #[arg(long, value_name = "N", value_parser = parse::in_range(1..=parse::SEQUENCES_MAX))]
    pub parallel: Option<usize>,
    /// Most rows of one pass
    #[arg(long, value_name = "N", default_value_t = engine::memory::CHUNK_TOKENS, value_parser = parse::in_range(1..=parse::CHUNK_MAX))]
    pub chunk: usize,
    /// Most bytes of conversations that are kept to be gone on from, as `strata serve` does [default: what the machine can spare]
    #[arg(long, value_name = "BYTES", value_parser = parse::memory_bytes)]
    pub prefix_cache: Option<u64>,
    /// How weights come into memory, moved, mapped or read
    #[arg(long, value_name = "HOW", default_value = "moved", value_parser = parse::loading)]
    pub weights: Loading,
    /// Plan for a machine with so many bytes available, with K, M, G or T for powers of 1024 [default: this machine]
    #[arg(long, value_name = "BYTES", value_parser = parse::memory_bytes)]
    pub memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the plan.
///
/// # Errors
/// Those of the model's headers, [`Error::DoesNotFit`], and those of the streams.
pub fn plan(args: &PlanArgs) -> Result<(), Error> {
    let path = || args.model.model.clone();
    let mut file = prepare::file(&args.model)?;
    args.rope.apply(&mut file, args.ctx)?;
    let shapes = Shapes::of_file(&file, None)
        .map_err(|source| Error::Load { path: path(), source: Box::new(source) })?;
    let machine = match args.memory {
        Some(bytes) => Machine { source: "as --memory says".into(), ..Machine::invented(bytes) },
        None => Machine::here(),
    };
    let options = PlanOptions {
        context_tokens: args.ctx,
        kv: args.kv,
        kv_growth: args.growth.growth(),
        sequences: args.parallel.unwrap_or(1),
        chunk_tokens: args.chunk,
        prefix_bytes: args.prefix_cache,
        loading: args.weights,
        ..PlanOptions::default()
    };
    let plan = match args.parallel {
        Some(_) => memory::plan(&shapes, &machine, &options),
        None => memory::plan_sequences(&shapes, &machine, &options),
    };
    let plan = plan.map_err(|refusal| Error::DoesNotFit {
        path: path(),
        refusal,
        flags: &["--ctx", "--parallel", "--chunk", "--prefix-cache"],
    })?;
    match args.json {
        true => Output::new().json(&object(&plan)),
        false => Output::new().document(|out| write!(out, "{plan}")),
    }
}

fn object(plan: &Plan) -> serde_json::Value {
    let part = |part: &Part| {
        let place = match part.place {
            Place::Process => "process",
            Place::Mapped { .. } => "mapped",
        };
        json!({
            "name": part.kind.name(),
            "bytes": part.bytes,
            "place": place,
            "cached_bytes": part.cached_bytes(),
            "reason": part.reason,
        })
    };
    json!({
        "parts": plan.parts.iter().map(part).collect::<Vec<_>>(),
        "total_bytes": plan.bytes(),
        "process_bytes": plan.process_bytes(),
        "cached_bytes": plan.cached_bytes(),
        "reread_bytes_per_token": plan.reread_bytes_per_token,
        "available_bytes": plan.machine.available_bytes,
        "available_source": plan.machine.source,
        "memory_bytes": plan.machine.total_bytes,
        "context_tokens": plan.context_tokens,
        "context_reason": plan.context_reason,
        "kv": plan.options.kv.name(),
        "parallel": plan.options.sequences,
        "parallel_reason": plan.sequences_reason,
        "chunk_tokens": plan.options.chunk_tokens,
        "weights": plan.loading.name(),
    })
}
