//! `strata logits`: the numbers, for comparing with other implementations.

use std::collections::BTreeMap;
use std::io::{self, Write};

use chat::Tokenizer;
use engine::memory::PlanOptions;
use engine::window::Outputs;
use engine::{Engine, KvType, StepError, Window};

use crate::args::{ComputeArgs, ModelArgs, parse};
use crate::error::Error;
use crate::output::Output;
use crate::prepare;

/// The arguments of `strata logits`.
#[derive(Debug, clap::Args)]
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
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true, value_parser = parse::token, required = true)]
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

/// Rows of one pass, which bounds the memory for logits.
const ROWS_MAX: usize = 64;

/// Prints the logits after each token.
///
/// # Errors
/// Every kind but those of text.
pub fn logits(args: &LogitsArgs) -> Result<(), Error> {
    let tokens = args.tokens.len();
    let rows_max = if args.taps { tokens } else { tokens.min(ROWS_MAX) };
    let wanted = PlanOptions {
        context_tokens: Some(tokens),
        kv: KvType::F32,
        chunk_tokens: rows_max,
        output_rows: rows_max,
        ..PlanOptions::default()
    };
    let mut engine = prepare::engine(&args.model, &args.compute, wanted, &[])?;
    let available = sys::memory::available().bytes;
    let too_large = || Error::ResultsTooLarge { tokens: args.tokens.len(), available };
    let bytes = (args.tokens.len() * engine.model().spec.vocabulary * size_of::<f32>()) as u64;
    if bytes > available {
        return Err(too_large());
    }
    if args.taps {
        let (rows, taps) =
            tapped_rows(&mut engine, &args.tokens, available - bytes)?.ok_or_else(too_large)?;
        return Output::new().document(|out| {
            out.write_all(b"{\"logits\": ")?;
            write_matrix(out, &rows, engine.model().spec.vocabulary)?;
            out.write_all(b",\n\"taps\": ")?;
            write_taps(out, &taps)?;
            out.write_all(b"}\n")
        });
    }
    // All passes are made before anything is printed, so that an error leaves no half document.
    let rows = rows(&mut engine, &args.tokens)?;
    let vocabulary = engine.model().spec.vocabulary;
    if args.json {
        return Output::new().document(|out| {
            out.write_all(b"{\"logits\": ")?;
            write_matrix(out, &rows, vocabulary)?;
            out.write_all(b"}\n")
        });
    }
    let format = prepare::format(&args.model, &engine.model().metadata).ok();
    let tokenizer = format.as_ref().map(|format| &**format.tokenizer());
    Output::new().document(|out| write_table(out, &args.tokens, &rows, vocabulary, tokenizer))
}

/// Logits of every row, `[tokens][vocabulary]`.
fn rows(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
    let mut state = engine.model().new_state()?;
    let mut rows = Vec::with_capacity(tokens.len() * engine.model().spec.vocabulary);
    for chunk in tokens.chunks(ROWS_MAX) {
        let mut window = Window::default();
        window.push_tokens(0, chunk, state.next_position(), Outputs::All);
        rows.extend_from_slice(engine.stage_mut().run(&window, &mut [&mut state], None)?.logits);
    }
    Ok(rows)
}

/// Width and values, `[rows][width]`, of each intermediate.
type Taps = BTreeMap<String, (usize, Vec<f32>)>;

/// As [`rows`] with the intermediates, in one pass: some intermediates are as wide as the pass is long. Nothing if they
/// take more than `bytes_max`.
fn tapped_rows(
    engine: &mut Engine,
    tokens: &[u32],
    bytes_max: u64,
) -> Result<Option<(Vec<f32>, Taps)>, StepError> {
    let mut state = engine.model().new_state()?;
    let mut window = Window::default();
    window.push_tokens(0, tokens, 0, Outputs::All);
    let mut taps = Taps::new();
    let mut bytes = 0;
    let mut sink = |name: &str, width: usize, values: &[f32]| {
        bytes += size_of_val(values) as u64;
        if bytes <= bytes_max {
            taps.insert(name.to_owned(), (width, values.to_vec()));
        }
    };
    let output = engine.stage_mut().run(&window, &mut [&mut state], Some(&mut sink))?;
    let rows = output.logits.to_vec();
    Ok((bytes <= bytes_max).then_some((rows, taps)))
}

fn write_matrix(out: &mut dyn Write, values: &[f32], width: usize) -> io::Result<()> {
    out.write_all(b"[")?;
    for (i, row) in values.chunks(width.max(1)).enumerate() {
        out.write_all(if i > 0 { b",\n" } else { b"" })?;
        serde_json::to_writer(&mut *out, row).map_err(io::Error::from)?;
    }
    out.write_all(b"]")
}

fn write_taps(out: &mut dyn Write, taps: &Taps) -> io::Result<()> {
    out.write_all(b"{")?;
    for (i, (name, (width, values))) in taps.iter().enumerate() {
        out.write_all(if i > 0 { b",\n" } else { b"" })?;
        let name = serde_json::Value::from(name.as_str());
        write!(out, "{name}: {{\"width\": {width}, \"values\": ")?;
        write_matrix(out, values, *width)?;
        out.write_all(b"}")?;
    }
    out.write_all(b"}")
}

fn write_table(
    out: &mut dyn Write,
    tokens: &[u32],
    rows: &[f32],
    vocabulary: usize,
    tokenizer: Option<&Tokenizer>,
) -> io::Result<()> {
    let piece = |id: u32| {
        let known = tokenizer.filter(|tokenizer| (id as usize) < tokenizer.vocabulary_len());
        known.map_or(String::new(), |known| format!("{:?}", String::from_utf8_lossy(known.token_bytes(id))))
    };
    writeln!(out, "position    token     next       logit  gap to 2nd  text of next")?;
    for (position, (token, row)) in tokens.iter().zip(rows.chunks_exact(vocabulary)).enumerate() {
        let best = engine::sampler::argmax(row);
        let others = row.iter().enumerate().filter(|(id, _)| *id != best as usize);
        let second = others.map(|(_, &logit)| logit).fold(f32::NEG_INFINITY, f32::max);
        let logit = row[best as usize];
        writeln!(
            out,
            "{position:>8} {token:>8} {best:>8} {logit:>11.5} {:>11.5}  {}",
            logit - second,
            piece(best)
        )?;
    }
    Ok(())
}
