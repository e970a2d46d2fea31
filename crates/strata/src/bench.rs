//! `strata bench`: how fast, and how fast it could be.

use std::time::Instant;

use engine::memory::PlanOptions;
use engine::{Engine, Model, State, StepError};
use serde_json::json;
use sys::bandwidth::read_bandwidth;
use sys::pool::Pool;

use crate::args::{ComputeArgs, ModelArgs, parse};
use crate::error::Error;
use crate::output::Output;
use crate::prepare;
use crate::progress::Progress;

/// The arguments of `strata bench`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata bench -m model.gguf
  strata bench -m model.gguf -p 512 -n 128 --repeat 5 --json
  strata bench -m model.gguf -p 0 -n 128     # writing from an empty context

Each round measures the memory's read bandwidth, reads a prompt of -p tokens, and writes -n tokens after it. Medians of
all rounds are printed. Writing is bound by the bytes it reads per token, so their rate is put against the bandwidth
measured in the same round; reading is bound by multiplications."
)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompt tokens to read
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = parse::in_range(0..=parse::BENCH_MAX))]
    pub prompt_tokens: usize,
    /// Tokens to write
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = parse::in_range(0..=parse::BENCH_MAX))]
    pub tokens: usize,
    /// Rounds
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = parse::in_range(1..=1000))]
    pub repeat: usize,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Bytes read to measure the bandwidth: many times the last cache of any desktop.
const BANDWIDTH_BYTES: u64 = 1 << 29;

/// Passes over them in each round.
const BANDWIDTH_PASSES: usize = 3;

/// Rows that are read before the first round, so that no round pays for pages that were never touched.
const WARM_UP_TOKENS: usize = 32;

/// Measures and prints.
///
/// # Errors
/// Those of the model, of computing and of the streams.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    let context_tokens = (args.prompt_tokens + args.tokens).max(WARM_UP_TOKENS) + 1;
    let wanted = PlanOptions { context_tokens: Some(context_tokens), sequences: 2, ..PlanOptions::default() };
    let mut engine = prepare::engine(&args.model, &args.compute, wanted, &[])?;
    let threads = engine.stage().backend().pool().threads();
    let pool = Pool::new(threads).map_err(|error| Error::Measure(error.to_string()))?;
    let prompt = prompt(args.prompt_tokens.max(WARM_UP_TOKENS), engine.model().spec.vocabulary);
    let mut state = engine.model().new_state()?;
    engine.read(&mut state, &prompt[..WARM_UP_TOKENS])?;
    let mut rounds = Vec::with_capacity(args.repeat);
    let progress = Progress::count("measuring, rounds", args.repeat as u64);
    for round in 1..=args.repeat {
        let measured = measure(&mut engine, &pool, &prompt[..args.prompt_tokens], args.tokens)?;
        tracing::info!("round {round} of {} is done", args.repeat);
        progress.set(round as u64);
        rounds.push(measured);
    }
    drop(progress);
    let report = Report::new(engine.model(), args, &rounds);
    if args.json {
        return Output::new().json(&report.json(&engine, args, &rounds));
    }
    report.print(&engine, args)
}

/// One round.
struct Round {
    /// Bytes per second.
    bandwidth: f64,
    read_seconds: f64,
    write_seconds: f64,
}

fn measure(engine: &mut Engine, pool: &Pool, prompt: &[u32], tokens: usize) -> Result<Round, Error> {
    // A quarter of what is left, so that the measurement pushes nobody's pages out, the model's least of all.
    let bytes = BANDWIDTH_BYTES.min(sys::memory::available().bytes / 4) as usize;
    let bandwidth = read_bandwidth(pool, bytes, BANDWIDTH_PASSES)
        .map_err(|error| Error::Measure(error.to_string()))?
        .best;
    let mut state = engine.model().new_state()?;
    let start = Instant::now();
    let mut next = 0;
    if !prompt.is_empty() {
        next = engine::sampler::argmax(engine.read(&mut state, prompt)?);
    }
    let read_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    write(engine, &mut state, next, tokens)?;
    Ok(Round { bandwidth, read_seconds, write_seconds: start.elapsed().as_secs_f64() })
}

fn write(engine: &mut Engine, state: &mut State, first: u32, tokens: usize) -> Result<(), StepError> {
    let mut next = first;
    for _ in 0..tokens {
        next = engine::sampler::argmax(engine.read(state, &[next])?);
    }
    Ok(())
}

/// Token ids all over the vocabulary, the same every time (steps of a linear congruential generator; Numerical Recipes'
/// constants).
fn prompt(tokens: usize, vocabulary: usize) -> Vec<u32> {
    let mut number = 1u32;
    let mut next = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(number) * vocabulary as u64) >> 32) as u32
    };
    (0..tokens).map(|_| next()).collect()
}

/// Medians of the rounds; nothing where nothing was done.
struct Report {
    bandwidth: f64,
    read_rate: Option<f64>,
    products_rate: Option<f64>,
    write_rate: Option<f64>,
    /// Bytes that writing a token reads, at the middle of what was written.
    write_bytes: usize,
    /// Bytes per second of writing.
    write_bytes_rate: Option<f64>,
    /// Of the bandwidth of the same round.
    fraction: Option<f64>,
}

impl Report {
    fn new(model: &Model, args: &BenchArgs, rounds: &[Round]) -> Report {
        let write_bytes = model.active_bytes() + model.state_bytes_read(args.prompt_tokens + args.tokens / 2);
        let of = |count: usize, value: &dyn Fn(&Round) -> f64| {
            (count > 0).then(|| median(rounds.iter().map(value).collect()))
        };
        let read = |round: &Round| args.prompt_tokens as f64 / round.read_seconds;
        let write = |round: &Round| args.tokens as f64 / round.write_seconds;
        Report {
            bandwidth: median(rounds.iter().map(|round| round.bandwidth).collect()),
            read_rate: of(args.prompt_tokens, &read),
            products_rate: of(args.prompt_tokens, &|round| read(round) * model.layer_products() as f64),
            write_rate: of(args.tokens, &write),
            write_bytes,
            write_bytes_rate: of(args.tokens, &|round| write(round) * write_bytes as f64),
            fraction: of(args.tokens, &|round| write(round) * write_bytes as f64 / round.bandwidth),
        }
    }

    fn json(&self, engine: &Engine, args: &BenchArgs, rounds: &[Round]) -> serde_json::Value {
        let round = |round: &Round| {
            json!({
                "bandwidth_bytes_per_second": round.bandwidth,
                "read_seconds": round.read_seconds,
                "write_seconds": round.write_seconds,
            })
        };
        let backend = engine.stage().backend();
        json!({
            "architecture": engine.model().spec.architecture,
            "threads": backend.pool().threads(),
            "isa": backend.kernels().isa().name(),
            "kv": engine.model().layout.kv.name(),
            "prompt_tokens": args.prompt_tokens,
            "generated_tokens": args.tokens,
            "bandwidth_bytes_per_second": self.bandwidth,
            "read_tokens_per_second": self.read_rate,
            "read_products_per_second": self.products_rate,
            "write_tokens_per_second": self.write_rate,
            "write_bytes_per_token": self.write_bytes,
            "write_bytes_per_second": self.write_bytes_rate,
            "bandwidth_fraction": self.fraction,
            "peak_memory_bytes": sys::memory::peak_resident_bytes(),
            "rounds": rounds.iter().map(round).collect::<Vec<_>>(),
        })
    }

    fn print(&self, engine: &Engine, args: &BenchArgs) -> Result<(), Error> {
        const GIGA: f64 = 1e9;
        let backend = engine.stage().backend();
        Output::new().document(|out| {
            writeln!(
                out,
                "{} on {} threads, {} kernels, {} cache; medians of {} rounds",
                engine.model().spec.architecture,
                backend.pool().threads(),
                backend.kernels().isa(),
                engine.model().layout.kv.name(),
                args.repeat
            )?;
            writeln!(out, "memory: {:.2} GB/s read bandwidth", self.bandwidth / GIGA)?;
            if let (Some(rate), Some(products)) = (self.read_rate, self.products_rate) {
                let (tokens, products) = (args.prompt_tokens, products / GIGA);
                writeln!(out, "read {tokens} tokens: {rate:.2} tok/s, {products:.2} GMAC/s")?;
            }
            if let (Some(rate), Some(bytes), Some(fraction)) =
                (self.write_rate, self.write_bytes_rate, self.fraction)
            {
                writeln!(
                    out,
                    "write {} tokens: {rate:.2} tok/s, {:.2} GB/s ({:.1} MB a token), {:.1} % of the bandwidth",
                    args.tokens,
                    bytes / GIGA,
                    self.write_bytes as f64 / 1e6,
                    fraction * 100.0
                )?;
            }
            Ok(())
        })
    }
}

/// The middle value; of an even number, the upper one of the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
