//! `cargo xtask test`: everything a change must pass, in the order that fails soonest.

use std::path::Path;
use std::time::Instant;

use crate::process::{self, Counts, command};

/// Runs every step, also after one failed, and closes with the counted tests.
///
/// # Errors
/// The names of the steps that failed.
pub fn run(root: &Path) -> Result<(), String> {
    let mut steps = Steps::default();
    let cargo = |line: &str| process::run(command(root, line));
    steps.run("format", || cargo("cargo fmt --all --check"));
    steps.run("tidy", || crate::tidy::run(root));
    steps.run("lints", || cargo("cargo clippy --workspace --all-targets -- -D warnings"));
    let mut counts = Counts::default();
    steps.run("tests", || count(&mut counts, root, test_runner(root)));
    steps.run("doc tests", || count(&mut counts, root, "cargo test --workspace --doc"));

    println!();
    for (name, seconds, outcome) in &steps.done {
        println!("{:<10} {seconds:>6.1} s  {}", name, if outcome.is_ok() { "ok" } else { "FAILED" });
    }
    println!("tests: {} passed, {} failed", counts.passed, counts.failed);
    let failed: Vec<&str> = steps.done.iter().filter(|step| step.2.is_err()).map(|step| step.0).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The command that runs all tests but the documentation's: nextest where it is installed, which runs the
/// test programs of several crates at once.
pub fn test_runner(root: &Path) -> &'static str {
    if process::works(command(root, "cargo nextest --version")) {
        "cargo nextest run --workspace --no-tests pass"
    } else {
        "cargo test --workspace --tests"
    }
}

fn count(counts: &mut Counts, root: &Path, line: &str) -> Result<(), String> {
    let (outcome, report) = process::run_tests(command(root, line));
    *counts += report.counts;
    outcome
}

#[derive(Default)]
struct Steps {
    done: Vec<(&'static str, f64, Result<(), String>)>,
}

impl Steps {
    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<(), String>) {
        println!("== {name}");
        let start = Instant::now();
        let outcome = step();
        let seconds = start.elapsed().as_secs_f64();
        match &outcome {
            Ok(()) => println!("== {name}: ok, {seconds:.1} s"),
            Err(message) => println!("== {name}: FAILED, {seconds:.1} s: {message}"),
        }
        self.done.push((name, seconds, outcome));
    }
}
