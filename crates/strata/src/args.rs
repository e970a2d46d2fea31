//! The command line.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use engine::{Isa, KvType, Loading, Sampling, TEMPERATURE_MAX};

/// Runs language models from GGUF files.
#[derive(Debug, Parser)]
#[command(name = "strata", version, about, arg_required_else_help = true, after_help = EXIT_CODES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done, 2 wrong arguments, 3 the model cannot be loaded, 4 the prompt or text cannot be used,
5 computing failed, 6 a file or stream cannot be read or written, 8 the model does not fit into memory.";

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt
    Run(RunArgs),
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
}

/// Which model.
#[derive(Debug, ClapArgs)]
pub struct ModelArgs {
    /// A GGUF file, any part of a split one, or the folder that holds them
    #[arg(short, long, value_name = "PATH")]
    pub model: PathBuf,
}

/// How it is computed.
#[derive(Debug, ClapArgs)]
pub struct ComputeArgs {
    /// Threads that compute [default: one for each core that this process may use]
    #[arg(short, long, value_name = "N", value_parser = in_range(1..=sys::pool::THREADS_MAX))]
    pub threads: Option<usize>,
    /// Element type of cached keys and values, f16 or f32 [default: f16; f32 for logits]
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub kv: Option<KvType>,
    /// How weights come into memory: mapped (the system may drop pages and read them again), or read
    #[arg(long, value_name = "HOW", default_value = "mapped", value_parser = loading)]
    pub weights: Loading,
    /// Instruction set, scalar, avx2 or avx512; the results are the same bits [default: the best there is]
    #[arg(long, value_name = "NAME", value_parser = instruction_set)]
    pub isa: Option<Isa>,
}

/// `strata run`.
#[derive(Debug, ClapArgs)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata run -m model.gguf -p 'What is the capital of France?'
  strata run -m model.gguf -p 'Count to ten.' --temp 0 -n 64
  strata run -m model.gguf --raw -p 'Once upon a time'
  git diff | strata run -m model.gguf --system 'Review this change.' -p - --json

The answer goes to standard output as it is written, statistics to standard error. With the same model, --kv, prompt,
sampling options and --seed the answer is the same, whatever the number of threads."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The user's message; - reads it from standard input, without the line end that closes it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// What the model is told before the user's message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Take the prompt as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// Most tokens to write [default: until the model ends its answer or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = in_range(0..=usize::MAX))]
    pub tokens_max: Option<usize>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Most tokens of prompt and answer together [default: what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = in_range(1..=CONTEXT_MAX))]
    pub ctx: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print one JSON object instead: text, tokens, finish_reason, counts, times, speeds, peak memory
    #[arg(long)]
    pub json: bool,
}

/// How tokens are chosen. The defaults are those of llama.cpp.
#[derive(Debug, ClapArgs)]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    pub temp: f32,
    /// Only the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, value_parser = in_range(0..=usize::MAX))]
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = fraction)]
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = fraction)]
    pub min_p: f32,
    /// Makes the random choices repeatable [default: another one each time]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// With `seed` where none was given.
    pub fn sampling(&self, seed: u64) -> Sampling {
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or(seed),
            ..Sampling::default()
        }
    }
}

/// `strata logits`.
#[derive(Debug, ClapArgs)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata logits -m model.gguf --tokens 1,2,3
  strata logits -m model.gguf --tokens 1,2,3 --json --taps > out.json

With --json: {\"logits\": [[...], ...]}, one row per token, and with --taps also
{\"taps\": {NAME: {\"width\": W, \"values\": [[...], ...]}}}. Numbers have as many digits as it takes to read back the same
32-bit float; one that is not finite is null. The cache is f32 unless --kv says otherwise, since these numbers are for
comparing with other implementations."
)]
pub struct LogitsArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids, with commas between
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true, value_parser = token, required = true)]
    pub tokens: Vec<u32>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Print named intermediate results too
    #[arg(long, requires = "json")]
    pub taps: bool,
    #[command(flatten)]
    pub compute: ComputeArgs,
}

/// `strata bench`.
#[derive(Debug, ClapArgs)]
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
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = in_range(0..=BENCH_MAX))]
    pub prompt_tokens: usize,
    /// Tokens to write
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = in_range(0..=BENCH_MAX))]
    pub tokens: usize,
    /// Rounds
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = in_range(1..=1000))]
    pub repeat: usize,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `strata perplexity`.
#[derive(Debug, ClapArgs)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata perplexity -m model.gguf -f wiki.test.raw
  strata perplexity -m model.gguf -f book.txt --ctx 2048 --chunks 20 --json

The convention is that of llama.cpp's llama-perplexity, so that the figures can be compared: chunks of --ctx tokens that
do not overlap, the first token of each replaced by the begin-of-text token where the model uses one, and only the second
half of each chunk scored. What is left over at the end is not used."
)]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text; - reads standard input
    #[arg(short, long, value_name = "PATH")]
    pub file: PathBuf,
    /// Tokens of a chunk
    #[arg(short = 'c', long, value_name = "N", default_value_t = 512, value_parser = in_range(4..=CONTEXT_MAX))]
    pub ctx: usize,
    /// Most chunks to score [default: all]
    #[arg(long, value_name = "N", value_parser = in_range(1..=usize::MAX))]
    pub chunks: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `strata plan`.
#[derive(Debug, ClapArgs)]
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
process itself and must fit. With --json: {\"parts\": [...], \"total_bytes\": N, \"available_bytes\": N, ...}."
)]
pub struct PlanArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Most tokens of a sequence [default: the most that fit, up to what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = in_range(1..=CONTEXT_MAX))]
    pub ctx: Option<usize>,
    /// Element type of cached keys and values, f16 or f32
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub kv: KvType,
    /// Sequences in memory at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = in_range(1..=SEQUENCES_MAX))]
    pub parallel: usize,
    /// Most rows of one pass
    #[arg(long, value_name = "N", default_value_t = engine::memory::CHUNK_TOKENS, value_parser = in_range(1..=CHUNK_MAX))]
    pub chunk: usize,
    /// How weights come into memory, mapped or read
    #[arg(long, value_name = "HOW", default_value = "mapped", value_parser = loading)]
    pub weights: Loading,
    /// Plan for a machine with so many bytes available, with K, M, G or T for powers of 1024 [default: this machine]
    #[arg(long, value_name = "BYTES", value_parser = memory_bytes)]
    pub memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `strata tokenize`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  strata tokenize -m model.gguf -p 'Hello, world'
  strata tokenize -m model.gguf -p 'Hello' --chat --json

With --json: {\"tokens\": [...], \"pieces\": [...]}.")]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text; - reads standard input, without the line end that closes it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: String,
    /// Put the text into the model's chat template, as the user's message
    #[arg(long)]
    pub chat: bool,
    /// Do not add the begin-of-text token where the model uses one
    #[arg(long)]
    pub no_bos: bool,
    /// Treat the texts of control tokens as ordinary text
    #[arg(long, conflicts_with = "chat")]
    pub no_special: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Positions are 32-bit numbers.
const CONTEXT_MAX: usize = i32::MAX as usize;

/// More than any machine answers at once.
const SEQUENCES_MAX: usize = 1 << 16;

/// Rows whose buffers fit no machine.
const CHUNK_MAX: usize = 1 << 20;

/// Tokens that nobody waits for.
const BENCH_MAX: usize = 1 << 24;

type Parsed<T> = Result<T, String>;

fn in_range(range: RangeInclusive<usize>) -> impl Fn(&str) -> Parsed<usize> + Clone + Send + Sync {
    move |text| {
        let wanted = || format!("a whole number from {} to {} is needed", range.start(), range.end());
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(wanted)
    }
}

fn token(text: &str) -> Parsed<u32> {
    text.trim().parse().map_err(|_| format!("a token id is a whole number from 0 to {}", u32::MAX))
}

fn seed(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", u64::MAX))
}

fn kv_type(name: &str) -> Parsed<KvType> {
    KvType::from_name(name).ok_or_else(|| "f16 or f32 is needed".into())
}

fn loading(name: &str) -> Parsed<Loading> {
    Loading::from_name(name).ok_or_else(|| "mapped or read is needed".into())
}

fn memory_bytes(text: &str) -> Parsed<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(shift).and_then(|(n, shift)| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("a number of bytes from 0 to {} is needed, such as 32G or 34359738368", u64::MAX)
    })
}

fn instruction_set(name: &str) -> Parsed<Isa> {
    Isa::from_name(name).ok_or_else(|| "scalar, avx2 or avx512 is needed".into())
}

fn temperature(text: &str) -> Parsed<f32> {
    let number = text.parse().ok().filter(|t: &f32| (0.0..=TEMPERATURE_MAX).contains(t));
    number.ok_or_else(|| format!("a number from 0 to {TEMPERATURE_MAX} is needed"))
}

fn fraction(text: &str) -> Parsed<f32> {
    let number = text.parse().ok().filter(|p: &f32| (0.0..=1.0).contains(p));
    number.ok_or_else(|| "a number from 0 to 1 is needed".into())
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
        for right in ["32G", "32GiB", "34359738368", "33554432k"] {
            assert_eq!(memory_bytes(right), Ok(32 << 30), "{right}");
        }
        for wrong in ["", "G", "-1", "1.5G", "1 G", "16777216T", "12X", "0x10"] {
            assert!(memory_bytes(wrong).is_err(), "{wrong}");
        }
        let sentence = refusal("strata logits -m m --tokens -1,2").expect("-1");
        assert!(sentence.contains("from 0 to 4294967295"), "{sentence}");
    }
}
