//! The command line: the commands, and what several of them are told. What one alone is told stands beside its code.

mod context;
pub mod parse;
mod sampling;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use engine::{Isa, KvType, Loading};
use tracing::Level;

pub use context::{KvArgs, RopeArgs};
pub use sampling::SamplingArgs;

use crate::bench::BenchArgs;
use crate::error::Error;
use crate::inspect::InspectArgs;
use crate::list::ListArgs;
use crate::logits::LogitsArgs;
use crate::models;
use crate::perplexity::PerplexityArgs;
use crate::plan::PlanArgs;
use crate::pull::PullArgs;
use crate::remove::RemoveArgs;
use crate::repl::ChatArgs;
use crate::run::RunArgs;
use crate::saved::SavedArgs;
use crate::serve::ServeArgs;
use crate::tokenize::TokenizeArgs;

/// Runs language models from GGUF files.
#[derive(Debug, Parser)]
#[command(name = "strata", version, about, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Least weighty messages on standard error: error, warn, info, debug or trace [default: warn; info for serve]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = parse::log_level)]
    log_level: Option<Level>,
}

impl Args {
    /// The least weight of messages that are shown. A server says at its start what goes where in memory, and a line for
    /// each request.
    pub fn log_level(&self) -> Level {
        let usual = if matches!(self.command, Command::Serve(_)) { Level::INFO } else { Level::WARN };
        self.log_level.unwrap_or(usual)
    }
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 2 wrong arguments, 3 the model cannot be loaded, 4 the prompt or text cannot be used,
5 computing failed, 6 a file or stream cannot be read or written, 7 the network or what came over it cannot be used,
8 the model does not fit into memory, 9 the address to serve at cannot be had.";

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt
    Run(RunArgs),
    /// Converse in the terminal
    Chat(ChatArgs),
    /// Answer requests over HTTP
    Serve(ServeArgs),
    /// Print the logits after each of the given tokens
    Logits(LogitsArgs),
    /// Measure the speed of reading and writing against the memory's bandwidth
    Bench(BenchArgs),
    /// Compute the perplexity of a text
    Perplexity(PerplexityArgs),
    /// Print what of a model goes where in this machine's memory, and why
    Plan(PlanArgs),
    /// Print the token ids of a text
    Tokenize(TokenizeArgs),
    /// Tell what a model file holds
    Inspect(InspectArgs),
    /// Get a model from the hub
    Pull(PullArgs),
    /// List the models in the data folder
    List(ListArgs),
    /// Remove a model from the data folder
    Rm(RemoveArgs),
    /// List or remove saved conversations
    Saved(SavedArgs),
}

/// Which model.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// A GGUF file, any part of a split one, the folder that holds them, or a name as `strata list` prints it
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
}

impl ModelArgs {
    /// Where it lies.
    pub fn path(&self) -> Result<PathBuf, Error> {
        models::locate(&self.model)
    }
}

/// How it is computed.
#[derive(Debug, clap::Args)]
pub struct ComputeArgs {
    /// Threads that compute [default: one for each fast core that this process may use]
    #[arg(short, long, value_name = "N", value_parser = parse::in_range(1..=sys::pool::THREADS_MAX))]
    pub threads: Option<usize>,
    /// How keys and values are cached: f32, f16, int8, k8v4 (keys in 8 bits, values in 4) or q4; smaller ones leave room for
    /// more context and answer less exactly [default: f16; f32 for logits]
    #[arg(long, value_name = "TYPE", value_parser = parse::kv_type)]
    pub kv: Option<KvType>,
    #[command(flatten)]
    pub growth: KvArgs,
    #[command(flatten)]
    pub rope: RopeArgs,
    /// How weights come into memory: mapped from the file, page by page as they are used; moved, which is mapped and then
    /// copied to huge pages in the background where memory is left for that; or read whole at the start
    #[arg(long, value_name = "HOW", default_value = "moved", value_parser = parse::loading)]
    pub weights: Loading,
    /// Instruction set, scalar, avx2, avx512 or neon; the results are the same bits [default: the best there is]
    #[arg(long, value_name = "NAME", value_parser = parse::instruction_set)]
    pub isa: Option<Isa>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_level_of_messages_stands_before_the_command_or_after() {
        let level = |text: &str| Args::try_parse_from(text.split(' ')).expect(text).log_level();
        assert_eq!(level("strata run -m m -p t"), Level::WARN);
        assert_eq!(level("strata --log-level trace run -m m -p t"), Level::TRACE);
        assert_eq!(level("strata run -m m --log-level error -p t"), Level::ERROR);
        assert_eq!(level("strata serve -m m"), Level::INFO);
        assert_eq!(level("strata serve -m m --log-level warn"), Level::WARN);
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        let refusal =
            |text: &str| Args::try_parse_from(text.split(' ')).map_err(|error| error.to_string()).err();
        let refused = |text: &str| refusal(text).is_some();
        assert!(!refused("strata run -m m -p t --temp 0 --top-p 1 --threads 1"));
        for wrong in
            ["--temp nan", "--temp=-1", "--top-p 1.5", "--min-p=-0.1", "--threads 0", "--ctx 0", "--kv q8"]
        {
            assert!(refused(&format!("strata run -m m -p t {wrong}")), "{wrong}");
        }
        // A negative number was taken for a flag that is not known, and what does not fit into 64 bits was an invalid
        // digit: the range was never said.
        for wrong in [
            "-n -1",
            "-n 1e3",
            "--temp -1",
            "--temp 1e40",
            // Refused only by the engine, after the model was loaded.
            "--temp 101",
            "--top-k -1",
            "--top-p -1",
            "--seed -1",
            "--seed 18446744073709551616",
            "--threads -1",
            "--ctx -1",
        ] {
            let sentence = refusal(&format!("strata run -m m -p t {wrong}")).expect(wrong);
            assert!(sentence.contains("number from ") && sentence.contains(" to "), "{wrong}: {sentence}");
        }
        assert!(refusal("strata --log-level loud run -m m -p t").is_some());
        let sentence = refusal("strata logits -m m --tokens -1,2").expect("-1");
        assert!(sentence.contains("from 0 to 4294967295"), "{sentence}");
    }
}
