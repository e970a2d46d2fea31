//! `strata bench`: how fast, how fast it could be, and how fast others are.

mod measure;
mod parts;
mod peer;
mod report;
mod server;

use engine::PARTITION_CELLS;
use engine::memory::PlanOptions;

use crate::args::{ComputeArgs, ModelArgs, parse};
use crate::error::Error;
use crate::output::{Output, plain};
use crate::prepare;
use crate::progress::Progress;
use measure::{Bench, Test};
use peer::Peer;
use report::Report;

/// The arguments of `strata bench`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata bench -m model.gguf
  strata bench -m model.gguf -p 128,512 -n 64 -d 0,2048 --repeat 5 --json
  strata bench -m model.gguf -p 0 -n 32 -b 1,8     # writing alone, eight sequences at once too
  strata bench -m model.gguf -p 128 -n 16 --parts
  strata bench -m model.gguf -p 128 -n 16 --against ./llama-bench

Each round measures what the machine can do, then reads each prompt, then writes after each depth. Medians of all rounds
are printed. Writing is bound by the bytes it reads (of weights, and of the state that lies before), so their rate is put
against the bandwidth measured in the same round; reading is bound by multiplications, which are put against the int8
multiply-adds measured in the same round. Of routed experts those count that the router chose, once in a step of several
sequences; a column says how many these were. With --parts the time of each part of the model is put against the same bounds;
taking it costs about a hundredth of the speed of small models.

A peer takes turns with strata in every round and is measured in the same tests, on the same file and as many threads;
behind its figure stands how many times as fast strata is. It is one of
  a program like llama-bench, which takes its flags and prints its JSON, with flags of its own: \"llama-bench --repack 0\"
  a Python module, through bench/peer.py of the source: \"python3 bench/peer.py ik_llama_cpp\"
  the address of a server that has the same model and completes lists of token ids: http://127.0.0.1:8080"
)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Lengths of prompts to read, with commas between; 0 for none
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_values_t = [512], value_parser = parse::in_range(0..=parse::BENCH_MAX))]
    pub prompt_tokens: Vec<usize>,
    /// Tokens to write; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = parse::in_range(0..=parse::BENCH_MAX))]
    pub tokens: usize,
    /// Tokens that lie before those that are written, with commas between
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_values_t = [0], value_parser = parse::in_range(0..=parse::BENCH_MAX))]
    pub depth: Vec<usize>,
    /// Sequences that are written at once, with commas between
    #[arg(short, long, value_name = "N,..", value_delimiter = ',', default_values_t = [1], value_parser = parse::in_range(1..=parse::SEQUENCES_MAX))]
    pub batch: Vec<usize>,
    /// Rounds
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = parse::in_range(1..=1000))]
    pub repeat: usize,
    /// Print where the time goes, part by part of the model
    #[arg(long)]
    pub parts: bool,
    /// A peer to take turns with; can be given several times
    #[arg(long, value_name = "PEER", value_parser = Peer::parse)]
    pub against: Vec<Peer>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// What is measured, in groups that a peer measures in one go.
    fn groups(&self) -> Vec<Vec<Test>> {
        let prompts = self.prompt_tokens.iter().filter(|&&tokens| tokens > 0);
        let prompts: Vec<Test> = prompts.map(|&tokens| Test::Prompt { tokens }).collect();
        let write = |alone: bool| -> Vec<Test> {
            let batches = self.batch.iter().filter(|&&sequences| (sequences == 1) == alone);
            let tests = batches.flat_map(|&sequences| {
                self.depth.iter().map(move |&depth| Test::Write { tokens: self.tokens, depth, sequences })
            });
            if self.tokens > 0 { tests.collect() } else { Vec::new() }
        };
        let groups = [prompts, write(true), write(false)];
        groups.into_iter().filter(|group| !group.is_empty()).collect()
    }

    fn prompt_max(&self) -> usize {
        self.prompt_tokens.iter().copied().max().unwrap_or(0)
    }

    /// Room for all tests: the most tokens of a sequence, and sequences.
    fn room(&self) -> (usize, usize) {
        let prompt = self.prompt_max();
        let depth = self.depth.iter().copied().max().unwrap_or(0);
        // A token before those that are timed, and for each depth the block of cells that it shares with the next one.
        let written = depth + self.tokens + 1 + self.depth.len() * PARTITION_CELLS;
        let sequences = self.batch.iter().copied().max().unwrap_or(1) + 1;
        (prompt.max(written) + 1, sequences)
    }
}

/// Measures and prints.
///
/// # Errors
/// Those of the model, of computing and of the streams, and [`Error::Peer`] for a peer that cannot be started.
pub fn bench(args: &BenchArgs) -> Result<(), Error> {
    let (context_tokens, sequences) = args.room();
    let wanted = PlanOptions { context_tokens: Some(context_tokens), sequences, ..PlanOptions::default() };
    let engine = prepare::engine(&args.model, &args.compute, wanted, &[])?;
    let path = prepare::file(&args.model)?.shards.remove(0).path;
    let mut bench = Bench::new(engine, args.prompt_max(), context_tokens, args.parts)?;
    bench.fill(&args.depth)?;
    let groups = args.groups();
    let mut report = Report::new(&groups, &args.against);
    let progress = Progress::count("measuring, rounds", args.repeat as u64);
    for round in 1..=args.repeat {
        for (index, group) in groups.iter().enumerate() {
            let limits = bench.limits()?;
            for test in group {
                let taken = bench.measure(test)?;
                report.add(test, &limits, taken);
            }
            for (number, peer) in args.against.iter().enumerate().filter(|(_, peer)| peer.takes(group)) {
                if report.has_failed(number, index) {
                    continue;
                }
                match peer.measure(group, &path, bench.threads(), bench.kv(), round) {
                    Ok(rates) => report.add_peer(number, group, &rates),
                    Err(fault @ peer::Fault::Start(_)) => {
                        return Err(Error::Peer { peer: peer.name(), problem: fault.to_string() });
                    }
                    Err(fault) => {
                        tracing::warn!("{} is not measured: {}", peer.name(), plain(&fault.to_string()));
                        report.peer_failed(number, index, fault.to_string());
                    }
                }
            }
        }
        if groups.is_empty() {
            report.add_limits(&bench.limits()?);
        }
        tracing::info!("round {round} of {} is done", args.repeat);
        progress.set(round as u64);
    }
    drop(progress);
    match args.json {
        true => Output::new().json(&report.json(&bench)),
        false => Output::new().document(|out| report.write(out, &bench, args.repeat)),
    }
}
