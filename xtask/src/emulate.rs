//! `cargo xtask emulate`: the kernels' tests on a CPU that this machine does not have.
//!
//! An instruction set that no machine at hand can run would otherwise be code that nobody ever ran. Emulated it is slow and
//! says nothing about speed, but every bit of a result is that of the instructions.

mod avx512;
mod neon;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process;

/// The test that fails where the CPU lacks the instruction set, so that a run without it cannot pass unseen.
const PRESENCE_TEST: &str = "the_best_instruction_set_is_there";

/// Runs the tests of `kernels` on the processor named first, `avx512` or `neon`; those whose name contains the
/// filter that may follow. Everything is kept below `target/emulate`.
///
/// # Errors
/// What is missing on this machine and how to install it, the step that failed, or the tests that failed.
pub fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let run_on = match arguments.first().map(String::as_str) {
        Some("avx512") => avx512::run,
        Some("neon") => neon::run,
        _ => return Err("avx512 or neon is needed, then a filter of test names if not all shall run".into()),
    };
    let filter = match &arguments[1..] {
        [] => "",
        [filter] if filter.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c)) => filter,
        other => return Err(format!("one filter of test names is taken, not {other:?}")),
    };
    let folder = root.join("target").join("emulate").join(&arguments[0]);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    run_on(root, &folder, filter)
}

/// Installs the Debian packages of which one of the files is not there: (file, package).
fn install(needed: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> =
        needed.iter().filter(|(file, _)| !Path::new(file).exists()).map(|&(_, package)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
    process::run(install).map_err(|error| {
        format!("{error}; these Debian packages are needed: apt-get install {}", missing.join(" "))
    })
}

/// Unpacks Debian packages that need not be installed: downloads into `folder/packages`, files into `folder/NAME`.
fn unpack(apt: &[String], folder: &Path, packages: &[&str], name: &str) -> Result<PathBuf, String> {
    let (downloads, unpacked) = (folder.join("packages"), folder.join(name));
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if downloads.exists() {
        fs::remove_dir_all(&downloads).map_err(failed)?;
    }
    fs::create_dir_all(&downloads).map_err(failed)?;
    let mut download = Command::new("apt-get");
    // Apt's own user, which it would rather be when root starts it, may not write here.
    download.current_dir(&downloads).args(["-o", "APT::Sandbox::User=root"]);
    download.args(apt).arg("download").args(packages);
    process::run(download)?;
    for package in fs::read_dir(&downloads).map_err(failed)?.flatten() {
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.arg("--extract").arg(package.path()).arg(&unpacked);
        process::run(dpkg)?;
    }
    fs::remove_dir_all(&downloads).map_err(failed)?;
    Ok(unpacked)
}

/// Builds by `cargo test ... --no-run` and returns the test program.
fn test_program(mut cargo: Command) -> Result<PathBuf, String> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let messages = process::read(cargo)?;
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = parsed.filter(|message| message["profile"]["test"] == true);
    programs
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .ok_or_else(|| "cargo built no test program".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_could_take_otherwise_is_no_filter() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let root = Path::new("/nonexistent");
        for (arguments, wanted) in
            [("sse", "avx512 or neon"), ("neon a b", "one filter"), ("avx512 $(x)", "one filter")]
        {
            let message = run(root, &words(arguments)).unwrap_err();
            assert!(message.contains(wanted), "{arguments}: {message}");
        }
    }
}
