//! `strata run`: answers a prompt.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use chat::{ChatEnd, ChatEvent, ChatRequest, Finish, Message, Prompt, Role, Thinking};
use engine::Ended;
use serde_json::json;

use crate::args::{ComputeArgs, ModelArgs, SamplingArgs, parse};
use crate::error::Error;
use crate::output::{self, Output};
use crate::prepare::{self, Kept, Places};
use crate::progress::Progress;

/// The arguments of `strata run`.
#[derive(Debug, clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Examples:
  strata run -m model.gguf -p 'What is the capital of France?'
  strata run -m model.gguf -p 'Count to ten.' --temp 0 -n 64
  strata run -m model.gguf --raw -p 'Once upon a time' --stop 'The End'
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
    /// End the answer before this text; may be given again and again
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Whether a model that can think does so before it answers: auto, off, or on with at most so many tokens
    #[arg(long, value_name = "auto|off|N", default_value = "auto", value_parser = parse::thinking)]
    pub thinking: Thinking,
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
    let alone = Places { parallel_max: Some(1), queue_max: 0 };
    let chat = prepare::chat_model(
        &args.model,
        &args.compute,
        args.ctx,
        alone,
        Kept { prefix_bytes: Some(0), saved: None },
        &["--ctx"],
    )?;
    let load_time = start.elapsed();
    let prompt = if args.raw {
        Prompt::Text(prompt)
    } else {
        let system = args.system.as_deref().map(|text| Message::new(Role::System, text));
        let messages = system.into_iter().chain([Message::new(Role::User, prompt)]).collect();
        Prompt::Messages { messages, variables: serde_json::Map::new() }
    };
    let sampling = args.sampling.sampling(prepare::fresh_seed());
    let seed = sampling.seed;
    let mut answer = chat.generate(ChatRequest {
        prompt,
        sampling,
        tokens_max: args.tokens_max,
        fit_tokens_max: false,
        stop_strings: args.stop.clone(),
        thinking: args.thinking,
        local_time_s: prepare::local_time_s(),
    })?;
    let mut written = Written { output: (!args.json).then(Output::new), ..Written::default() };
    let mut reading: Option<Progress> = None;
    let end = loop {
        let event = answer.next_blocking().expect("an end before the last event");
        if !matches!(event, ChatEvent::Reading { .. }) {
            reading = None;
        }
        match event {
            ChatEvent::Reading { done, of } => {
                reading.get_or_insert_with(|| Progress::count("reading", of as u64)).set(done as u64);
            }
            ChatEvent::Thinking(piece) => written.thinking(&piece),
            ChatEvent::Text(piece) => written.text(&piece)?,
            ChatEvent::End(end) => break end,
        }
    };
    written.end()?;
    let ChatEnd { reason, engine, .. } = end;
    let summary = Summary { load_time, seed, finish: reason?, ended: engine };
    if args.json {
        return Output::new().json(&summary.json(&written, answer.tokens()));
    }
    summary.print();
    Ok(())
}

/// The answer as far as it is written.
#[derive(Default)]
struct Written {
    /// Where pieces go as they come; nowhere with `--json`.
    output: Option<Output>,
    thinking: String,
    text: String,
}

impl Written {
    /// Thinking is shown to who looks on, and is no part of the answer.
    fn thinking(&mut self, piece: &str) {
        self.thinking.push_str(piece);
        let mut errors = std::io::stderr().lock();
        if self.output.is_some() && errors.is_terminal() {
            let (dim, plain) = if output::colours() { (output::DIM, output::PLAIN) } else { ("", "") };
            let piece = output::harmless(piece);
            let _ = write!(errors, "{dim}{piece}{plain}").and_then(|()| errors.flush());
        }
    }

    fn text(&mut self, piece: &str) -> Result<(), Error> {
        let Some(output) = &mut self.output else {
            self.text.push_str(piece);
            return Ok(());
        };
        if self.text.is_empty() && !self.thinking.is_empty() && std::io::stderr().is_terminal() {
            output::note(format_args!("\n"));
        }
        self.text.push_str(piece);
        output.piece(piece)
    }

    /// Closes the last line.
    fn end(&mut self) -> Result<(), Error> {
        match &mut self.output {
            Some(output) if !self.text.ends_with('\n') => output.piece("\n"),
            _ => Ok(()),
        }
    }
}

/// What is told about an answer.
struct Summary {
    load_time: Duration,
    seed: u64,
    finish: Finish,
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
        let unpaid = usize::from(!matches!(self.finish, Finish::Stop(_)));
        rate(self.ended.generated_tokens.saturating_sub(unpaid), self.ended.write_time)
    }

    fn json(&self, answer: &Written, tokens: &[u32]) -> serde_json::Value {
        json!({
            "text": answer.text,
            "thinking": answer.thinking,
            "tokens": tokens,
            "finish_reason": match self.finish {
                Finish::Stop(_) => "stop",
                Finish::Length => "length",
                Finish::Cancelled => "cancelled",
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
        let reason = match self.finish {
            Finish::Stop(_) => "the model ended it",
            Finish::Length => "cut off at the limit",
            Finish::Cancelled => "cancelled",
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
