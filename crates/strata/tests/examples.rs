//! Every example that `--help` prints is run as printed, in a folder that holds what the examples speak of.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use sha2::{Digest, Sha256};
use support::stub::{Reply, Stub};
use support::*;

/// Commands whose examples run until they are stopped: their own tests start them.
const UNENDING: [&str; 1] = ["serve"];

/// The commands that `strata --help` lists, in its order, which is that of a model's life: pull before list before rm.
fn commands() -> Vec<String> {
    let help = strata(&["--help"]).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.map_while(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help" && !UNENDING.contains(&name.as_str())).collect()
}

/// The lines between `Examples:` and the next empty line; `strata --help` has some too.
fn examples(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    lines.take_while(|line| !line.is_empty()).map(|line| line.trim().to_owned()).collect()
}

/// The hub of the examples: OWNER/REPO with a model of one quantization, and at v1.0 of another.
fn hub() -> Stub {
    let bytes = std::fs::read(oracle::model("q2-tiny-F32")).expect("read");
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    Stub::start(move |request| {
        let list = |name: &str| {
            let file = json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": sum}});
            Reply::new(200, json!({"siblings": [file]}).to_string())
        };
        match request.path.as_str() {
            "/api/models/OWNER/REPO/revision/main?blobs=true" => list("model-Q4_K_M.gguf"),
            "/api/models/OWNER/REPO/revision/v1.0?blobs=true" => list("model-Q8_0.gguf"),
            path if path.starts_with("/OWNER/REPO/resolve/") => Reply::file(request, &bytes, "\"1\""),
            _ => Reply::new(404, "no"),
        }
    })
}

/// What the examples speak of.
fn furnished() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::copy(oracle::model("q2-tiny-F32"), path("model.gguf")).expect("copied");
    // Enough for a chunk of 2048 tokens.
    let text = "The quick brown fox jumps over the lazy dog, and 1234 other words follow it.\n".repeat(100);
    for name in ["wiki.test.raw", "book.txt"] {
        std::fs::write(path(name), &text).expect("written");
    }
    std::fs::create_dir(path("states")).expect("made");
    std::fs::write(path("states/0123456789abcdef.conversation"), "").expect("written");
    fake_llama_bench(&path("llama-bench"));
    // For `git diff |`: a repository without a change will do.
    let git = Command::new("git").args(["init", "--quiet"]).current_dir(folder.path()).status();
    assert!(git.is_ok_and(|status| status.success()), "git is needed here, as for a checkout");
    folder
}

fn run(line: &str, folder: &Path, endpoint: &str) -> std::process::Output {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_strata"));
    let mut path = program.parent().expect("a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder).stdin(Stdio::null()).env("PATH", path);
    shell.env("STRATA_HOME", folder.join("data")).env("HF_ENDPOINT", endpoint);
    shell.output().expect("a shell")
}

#[test]
fn every_example_of_every_help_works() {
    let stub = hub();
    let folder = furnished();
    let mut lines = examples(&strata(&["--help"]).stdout);
    for command in commands() {
        let found = examples(&strata(&[&command, "--help"]).stdout);
        assert!(!found.is_empty(), "{command} has examples");
        assert!(found.iter().all(|line| line.contains(&format!("strata {command}"))), "{command}: {found:?}");
        lines.extend(found);
    }
    assert!(lines.len() > 15, "{lines:?}");
    for line in lines {
        let output = run(&line, folder.path(), &stub.endpoint());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "`{line}` ended with {}:\n{errors}", output.status);
    }
}
