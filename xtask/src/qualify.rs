//! `cargo xtask qualify`: the long checks, run by hand, their figures kept in `bench/qualify.csv`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::process::{self, command};

/// A check that is too long for every change: its name and its command. A test runner is known by the number of its
/// tests that passed, a benchmark by the line of figures it prints.
const STEPS: &[(&str, &str)] = &[
    ("release-tests", "cargo test --workspace --release"),
    ("conversations", "cargo test --release -p engine --test conversations -- --ignored --nocapture"),
    ("markers", "cargo test --release -p engine --test markers -- --ignored --nocapture"),
    ("turns", "cargo test --release -p engine --test prefix -- --ignored --nocapture"),
    ("chats", "cargo test --release -p engine --test resident -- --ignored --nocapture"),
    ("long-context", "cargo test --release -p engine --test long_context two -- --ignored --nocapture"),
    ("whole-context", "cargo test --release -p engine --test long_context whole -- --ignored --nocapture"),
    ("depth", "bench/depth"),
    ("mutants", "cargo xtask mutate"),
    ("avx512", "cargo xtask emulate avx512"),
    ("neon", "cargo xtask emulate neon"),
    ("llamacpp", "bench/llamacpp"),
    ("speed", "bench/speed"),
];

/// Runs every step and appends one row for each.
///
/// # Errors
/// The names of the steps that failed, after all have run; or the table could not be written.
pub fn run(root: &Path) -> Result<(), String> {
    let date = process::read(command(root, "date -u +%Y-%m-%dT%H:%MZ"))?.trim().to_owned();
    let commit = process::read(command(root, "git describe --always --dirty --abbrev=12"))?.trim().to_owned();
    let mut failed = Vec::new();
    for &(name, line) in STEPS {
        println!("== {name}: {line}");
        let start = Instant::now();
        let (outcome, report) = process::run_tests(command(root, line));
        let seconds = start.elapsed().as_secs_f64();
        let result = if outcome.is_ok() { "ok" } else { "failed" };
        let counts = report.counts;
        println!("== {name}: {result}, {seconds:.0} s, {} passed, {} failed", counts.passed, counts.failed);
        let figures = report.figures.unwrap_or_default().replace([',', '"'], ";");
        let row = format!(
            "{date},{commit},{name},{result},{seconds:.0},{},{},{figures}",
            counts.passed, counts.failed
        );
        append(&root.join("bench").join("qualify.csv"), &row)?;
        if outcome.is_err() {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

fn append(table: &Path, row: &str) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(table.parent().expect("the table lies in a folder"))?;
        let mut file = OpenOptions::new().create(true).append(true).open(table)?;
        if file.metadata()?.len() == 0 {
            writeln!(file, "date,commit,step,result,seconds,passed,failed,figures")?;
        }
        writeln!(file, "{row}")
    };
    write().map_err(|error| format!("{}: {error}", table.display()))
}
