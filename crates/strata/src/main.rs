//! The program: what it is asked, and what it says.
//!
//! Only this crate reads the command line, the standard streams and the environment.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod error;
mod inspect;
mod list;
mod log;
mod logits;
mod models;
mod output;
mod perplexity;
mod plan;
mod prepare;
mod progress;
mod pull;
mod remove;
mod repl;
mod run;
mod saved;
mod serve;
mod tokenize;

use std::io::Write;
use std::process::ExitCode;

use args::{Args, Command};
use clap::Parser;
use error::Error;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string().replace('\n', " ");
        output::note(format_args!("error: this is a defect of strata, please report it: {text}"));
    }));
    let args = Args::parse();
    log::start(args.log_level());
    let result = match args.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => repl::chat(&args),
        Command::Serve(args) => serve::serve(&args),
        Command::Logits(args) => logits::logits(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Tokenize(args) => tokenize::tokenize(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Pull(args) => pull::pull(&args),
        Command::List(args) => list::list(&args),
        Command::Rm(args) => remove::remove(&args),
        Command::Saved(args) => saved::saved(&args),
    };
    match result {
        Ok(()) | Err(Error::ReaderGone) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {}", output::plain(&error.to_string())));
            let _ = std::io::stderr().flush();
            ExitCode::from(error.exit_code())
        }
    }
}
