//! `strata perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use chat::{Specials, Tokenizer};
use engine::memory::PlanOptions;
use engine::window::Outputs;
use engine::{Engine, StepError, Window};
use serde_json::json;

use crate::args::{ComputeArgs, ModelArgs, parse};
use crate::error::Error;
use crate::output::Output;
use crate::prepare;
use crate::progress::Progress;

/// The arguments of `strata perplexity`.
#[derive(Debug, clap::Args)]
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
    #[arg(short = 'c', long, value_name = "N", default_value_t = 512, value_parser = parse::in_range(4..=parse::CONTEXT_MAX))]
    pub ctx: usize,
    /// Most chunks to score [default: all]
    #[arg(long, value_name = "N", value_parser = parse::in_range(1..=usize::MAX))]
    pub chunks: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Rows of one pass that want logits, which bounds the memory for them.
const SCORED_ROWS_MAX: usize = 64;

/// Computes and prints the perplexity, by the convention of llama.cpp (tools/perplexity).
///
/// # Errors
/// Every kind.
pub fn perplexity(args: &PerplexityArgs) -> Result<(), Error> {
    let text = prepare::file_text(&args.file)?;
    let wanted = PlanOptions {
        context_tokens: Some(args.ctx),
        output_rows: SCORED_ROWS_MAX,
        ..PlanOptions::default()
    };
    let mut engine = prepare::engine(&args.model, &args.compute, wanted, &["--ctx"])?;
    let format = prepare::format(&args.model, &engine.model().metadata)?;
    let tokenizer = format.tokenizer();
    // A text's "<|im_end|>" is text here.
    let tokens = tokenizer.encode_prompt(&text, Specials::AsText);
    if tokens.len() < args.ctx {
        return Err(Error::TextTooShort { found: tokens.len(), needed: args.ctx });
    }
    let vocabulary = engine.model().spec.vocabulary;
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
        return Err(StepError::TokenOutOfRange { token, vocabulary }.into());
    }
    let chunks = (tokens.len() / args.ctx).min(args.chunks.unwrap_or(usize::MAX));
    let mut scores = Scores::default();
    let progress = Progress::count("scoring, chunks", chunks as u64);
    for (i, chunk) in tokens.chunks_exact(args.ctx).take(chunks).enumerate() {
        score(&mut engine, tokenizer, chunk, &mut scores)?;
        let so_far = scores.perplexity();
        tracing::info!("chunk {} of {chunks}: perplexity {so_far:.4} so far", i + 1);
        progress.set(i as u64 + 1);
    }
    drop(progress);
    let (perplexity, error) = (scores.perplexity(), scores.standard_error());
    if args.json {
        return Output::new().json(&json!({
            "perplexity": perplexity,
            "standard_error": error,
            "mean_nll": scores.mean(),
            "scored_tokens": scores.count,
            "chunks": chunks,
            "ctx": args.ctx,
            "tokens": tokens.len(),
        }));
    }
    let scored = scores.count;
    Output::new().document(|out| {
        writeln!(
            out,
            "perplexity {perplexity:.4} +/- {error:.5} ({scored} tokens scored in {chunks} chunks of {})",
            args.ctx
        )
    })
}

/// Scores the second half of a chunk: each token from the logits before it, but for the first.
fn score(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    chunk: &[u32],
    scores: &mut Scores,
) -> Result<(), StepError> {
    let mut tokens = chunk.to_vec();
    if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
        tokens[0] = bos;
    }
    let first = tokens.len() / 2;
    let mut state = engine.model().new_state()?;
    engine.read(&mut state, &tokens[..first])?;
    let vocabulary = engine.model().spec.vocabulary;
    let last = tokens.len() - 1;
    for start in (first..last).step_by(SCORED_ROWS_MAX) {
        let rows = start..last.min(start + SCORED_ROWS_MAX);
        let mut window = Window::default();
        window.push_tokens(0, &tokens[rows.clone()], state.next_position(), Outputs::All);
        let output = engine.stage_mut().run(&window, &mut [&mut state], None)?;
        for (row, logits) in rows.zip(output.logits.chunks_exact(vocabulary)) {
            scores.push(negative_log_likelihood(logits, tokens[row + 1]));
        }
    }
    Ok(())
}

/// `-ln softmax(logits)[token]`.
fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln() - f64::from(logits[token as usize])
}

/// Sums over the scored tokens.
#[derive(Default)]
struct Scores {
    count: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Scores {
    fn push(&mut self, nll: f64) {
        self.count += 1;
        self.sum += nll;
        self.sum_of_squares += nll * nll;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Of the perplexity: that of the mean, times the perplexity. 0 for a single token.
    fn standard_error(&self) -> f64 {
        let variance = self.sum_of_squares / self.count as f64 - self.mean() * self.mean();
        (variance.max(0.0) / (self.count - 1).max(1) as f64).sqrt() * self.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_choice_among_four_has_perplexity_four() {
        let mut scores = Scores::default();
        for token in 0..4 {
            scores.push(negative_log_likelihood(&[-3.0; 4], token));
        }
        assert!((scores.perplexity() - 4.0).abs() < 1e-12 && scores.standard_error() < 1e-6);
        // Likelihoods 1/2 and 1/8: the mean is ln 4, its standard error ln 2.
        let mut scores = Scores::default();
        [0.5f64, 0.125].iter().for_each(|p| scores.push(-p.ln()));
        assert!((scores.perplexity() - 4.0).abs() < 1e-12);
        assert!((scores.standard_error() - 4.0 * 2f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        assert!(negative_log_likelihood(&[3e38, -3e38], 0).abs() < 1e-12);
        assert_eq!(negative_log_likelihood(&[1000.0, 0.0], 1), 1000.0);
    }
}
