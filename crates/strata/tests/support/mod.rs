//! Running the program.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod stub;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run of the program left behind.
#[derive(Debug)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The program, not yet started.
pub fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub fn strata(args: &[&str]) -> Ran {
    ran(program(args).output().expect("the program starts"))
}

/// As [`strata`], with this on its standard input.
pub fn strata_reading(args: &[&str], input: &[u8]) -> Ran {
    let mut child = program(args).stdin(Stdio::piped()).spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("the program reads");
    ran(child.wait_with_output().expect("the program ends"))
}

/// What a program that has ended left behind.
pub fn ran(output: std::process::Output) -> Ran {
    Ran {
        code: output.status.code().expect("an exit code"),
        stdout: String::from_utf8(output.stdout).expect("whole characters"),
        stderr: String::from_utf8(output.stderr).expect("whole characters"),
    }
}

/// Runs a command that must succeed and print one JSON value.
pub fn json(args: &[&str]) -> Value {
    let ran = strata(args);
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", ran.stdout))
}

/// Path of an oracle model as an argument.
pub fn model(name: &str) -> String {
    text(&oracle::model(name))
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_str().expect("a path that is text").to_owned()
}

/// An array of token ids.
pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Token ids as an argument.
pub fn listed(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// An array of rows.
pub fn rows(value: &Value) -> Vec<Vec<f32>> {
    let row = |row: &Value| -> Vec<f32> {
        row.as_array().expect("a row").iter().map(|v| v.as_f64().expect("a number") as f32).collect()
    };
    value.as_array().expect("rows").iter().map(row).collect()
}

/// Index of the largest value.
pub fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a))).expect("a value") as u32
}

/// Writes a program that answers as `llama-bench` does: each prompt of -p at 64 tokens per second and -n tokens after each
/// depth of -d at 8.
#[cfg(unix)]
pub fn fake_llama_bench(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    const SCRIPT: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -m) model=$2 ;; -p) prompts=$2 ;; -n) tokens=$2 ;; -d) depths=$2 ;; esac
  shift 2
done
[ -f "$model" ] || { echo "no model $model" >&2; exit 3; }
entry() { printf '%s{"n_prompt": %s, "n_gen": %s, "n_depth": %s, "avg_ts": %s}' "$comma" "$@"; comma=,; }
echo loading
printf '['
for prompt in $(echo "$prompts" | tr , ' '); do [ "$prompt" = 0 ] || entry "$prompt" 0 0 64.0; done
for depth in $(echo "$depths" | tr , ' '); do [ "$tokens" = 0 ] || entry 0 "$tokens" "$depth" 8.0; done
echo ']'
"#;
    std::fs::write(path, SCRIPT).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("executable");
}
