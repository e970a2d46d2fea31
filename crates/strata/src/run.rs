//! `strata run`: answers a prompt.

use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use chat::{Decoder, Specials, Tokenizer};
use engine::{EndReason, Ended, Engine, KvType, Request};
use serde_json::json;

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, parse};
use crate::error::Error;
use crate::output::{self, Output};
use crate::prepare;

/// The arguments of `strata run`.
#[derive(Debug, clap::Args)]
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
    #[arg(short = 'n', long, value_name = "N", value_parser = parse::in_range(0..=usize::MAX))]
    pub tokens_max: Option<usize>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Most tokens of prompt and answer together [default: what the model was trained for]
    #[arg(short = 'c', long, value_name = "N", value_parser = parse::in_range(1..=parse::CONTEXT_MAX))]
    pub ctx: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print one JSON object instead: text, tokens, finish_reason, counts, times, speeds, peak memory
    #[arg(long)]
    pub json: bool,
}

/// Answers the prompt.
///
/// # Errors
/// Every kind.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let prompt = prepare::text_argument(&args.prompt)?;
    let start = Instant::now();
    let mut engine = prepare::engine(&args.model, &args.compute, KvType::F16, args.ctx)?;
    let tokenizer = prepare::tokenizer(&args.model, &engine.model().metadata)?;
    let load_time = start.elapsed();
    warn_of_long_context(&engine);

    let text = if args.raw {
        prompt
    } else {
        prepare::chat_prompt(&engine.model().metadata, &tokenizer, args.system.as_deref(), &prompt)?
    };
    // Nothing but a random number of the operating system's.
    let sampling = args.sampling.sampling(RandomState::new().hash_one(0) >> 32);
    let seed = sampling.seed;
    let request = Request {
        prompt: tokenizer.encode_prompt(&text, Specials::Parse),
        sampling,
        tokens_max: args.tokens_max.unwrap_or(usize::MAX),
        stop_tokens: tokenizer.end_of_generation().iter().copied().collect(),
    };
    let mut answer = Answer::new(&tokenizer, (!args.json).then(Output::new));
    let ended = engine.generate(&request, |token| answer.push(token))?;
    let answer = answer.finish()?;
    let summary = Summary { load_time, seed, ended };
    match args.json {
        true => Output::new().json(&summary.json(&answer)),
        false => {
            summary.print();
            Ok(())
        }
    }
}

/// A model that goes on past what it was trained for may write nonsense, which is then not the program's fault.
fn warn_of_long_context(engine: &Engine) {
    let (wanted, trained) = (engine.model().layout.context_tokens, engine.model().spec.context_tokens);
    if wanted > trained {
        tracing::warn!(
            "the context of {wanted} tokens is longer than the {trained} that the model was trained for"
        );
    }
}

/// The answer as far as it is written.
struct Answer<'a> {
    tokenizer: &'a Tokenizer,
    decoder: Decoder,
    /// Where pieces go as they come; nowhere with `--json`.
    output: Option<Output>,
    text: String,
    tokens: Vec<u32>,
    fault: Option<Error>,
}

/// A whole answer.
struct Written {
    text: String,
    tokens: Vec<u32>,
}

impl Answer<'_> {
    fn new(tokenizer: &Tokenizer, output: Option<Output>) -> Answer<'_> {
        Answer {
            tokenizer,
            decoder: Decoder::new(),
            output,
            text: String::new(),
            tokens: Vec::new(),
            fault: None,
        }
    }

    fn push(&mut self, token: u32) -> ControlFlow<()> {
        self.tokens.push(token);
        let piece = self.decoder.push(prepare::answer_bytes(self.tokenizer, token));
        self.write(&piece);
        if self.fault.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn write(&mut self, piece: &str) {
        self.text.push_str(piece);
        if let Some(output) = self.output.as_mut().filter(|_| self.fault.is_none() && !piece.is_empty()) {
            self.fault = output.piece(piece).err();
        }
    }

    fn finish(mut self) -> Result<Written, Error> {
        let rest = self.decoder.finish();
        self.write(&rest);
        if self.output.is_some() && !self.text.ends_with('\n') {
            let end = self.text.len();
            self.write("\n");
            self.text.truncate(end);
        }
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(Written { text: self.text, tokens: self.tokens }),
        }
    }
}

/// What is told about an answer.
struct Summary {
    load_time: Duration,
    seed: u64,
    ended: Ended,
}

impl Summary {
    /// Tokens per second of reading.
    fn read_rate(&self) -> Option<f64> {
        rate(self.ended.prompt_tokens, self.ended.read_time)
    }

    /// Passes per second of writing. The first token comes out of reading, so the last one of an answer that was cut
    /// off costs no pass; that of a whole answer gave the token that ended it.
    fn write_rate(&self) -> Option<f64> {
        let unpaid = usize::from(self.ended.reason != EndReason::Stop);
        rate(self.ended.generated_tokens.saturating_sub(unpaid), self.ended.write_time)
    }

    fn json(&self, answer: &Written) -> serde_json::Value {
        json!({
            "text": answer.text,
            "tokens": answer.tokens,
            "finish_reason": match self.ended.reason {
                EndReason::Stop => "stop",
                EndReason::Length => "length",
                EndReason::Cancelled => "cancelled",
            },
            "prompt_tokens": self.ended.prompt_tokens,
            "generated_tokens": self.ended.generated_tokens,
            "load_seconds": self.load_time.as_secs_f64(),
            "read_seconds": self.ended.read_time.as_secs_f64(),
            "read_tokens_per_second": self.read_rate(),
            "write_seconds": self.ended.write_time.as_secs_f64(),
            "write_tokens_per_second": self.write_rate(),
            "peak_memory_bytes": sys::memory::peak_resident_bytes(),
            "seed": self.seed,
        })
    }

    fn print(&self) {
        let Ended { prompt_tokens, generated_tokens, read_time, write_time, .. } = self.ended;
        let per_second = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!(", {rate:.2} tok/s"));
        let reason = match self.ended.reason {
            EndReason::Stop => "the model ended it",
            EndReason::Length => "cut off at the limit",
            EndReason::Cancelled => "cancelled",
        };
        let peak = sys::memory::peak_resident_bytes()
            .map_or("unknown".into(), |bytes| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20)));
        output::note(format_args!(
            "\nprompt: {prompt_tokens} tokens in {:.2} s{}\nanswer: {generated_tokens} tokens in {:.2} s{} ({reason})\n\
             memory: {peak} at most; loaded in {:.2} s; seed {}",
            read_time.as_secs_f64(),
            per_second(self.read_rate()),
            write_time.as_secs_f64(),
            per_second(self.write_rate()),
            self.load_time.as_secs_f64(),
            self.seed
        ));
    }
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}
