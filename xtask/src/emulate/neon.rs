//! NEON by QEMU, which runs a program of another processor in this system.
//!
//! Building for it takes a standard library of that processor. Debian has one that fits its own compiler; both are only
//! unpacked, so the system stays one of one architecture.

use std::path::Path;
use std::process::Command;

use super::{PRESENCE_TEST, install, test_program, unpack};
use crate::process::{self, command};

const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/qemu-aarch64", "qemu-user"),
    ("/usr/bin/aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/include/stdio.h", "libc6-dev-arm64-cross"),
];

/// Debian's newest compiler: the package of its libraries and of LLVM carries versions in the name, so apt is asked.
const COMPILER: &str = "rustc-web";
const LIBRARY: &str = "libstd-rust-web-dev";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// See [`super::run`].
pub fn run(root: &Path, folder: &Path, filter: &str) -> Result<(), String> {
    install(NEEDED)?;
    let rust = folder.join("rust").join("usr");
    if !rust.join("lib/rustlib").join(TARGET).exists() {
        compiler(folder)?;
    }
    let mut cargo = command(root, "cargo test --package kernels --test kernels");
    cargo.args(["--target", TARGET, "--target-dir"]).arg(folder.join("target"));
    cargo.env("RUSTC", rust.join("bin/rustc"));
    cargo.env("LD_LIBRARY_PATH", rust.join("lib/x86_64-linux-gnu"));
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    let tests = test_program(cargo)?;
    let emulated = || {
        let mut qemu = Command::new("qemu-aarch64");
        qemu.args(["-cpu", "max", "-L", "/usr/aarch64-linux-gnu"]).arg(&tests);
        qemu
    };
    let mut presence = emulated();
    presence.args(["--include-ignored", "--exact", PRESENCE_TEST]);
    let (outcome, report) = process::run_tests(presence);
    outcome?;
    if report.counts.passed != 1 {
        return Err(format!("`{PRESENCE_TEST}` did not run"));
    }
    let mut all = emulated();
    all.args(Some(filter).filter(|filter| !filter.is_empty()));
    let (outcome, report) = process::run_tests(all);
    match report.counts.passed {
        0 if outcome.is_ok() => Err("no test has that name".into()),
        _ => outcome,
    }
}

/// Unpacks the compiler with its libraries for both processors into `folder/rust`.
fn compiler(folder: &Path) -> Result<(), String> {
    // Lists of its own, in which packages of the other processor may stand.
    let state = folder.join("apt");
    for part in ["state/lists/partial", "cache/archives/partial"] {
        let part = state.join(part);
        std::fs::create_dir_all(&part).map_err(|error| format!("{}: {error}", part.display()))?;
    }
    let apt: Vec<String> = [
        "APT::Architectures::=amd64".to_owned(),
        "APT::Architectures::=arm64".to_owned(),
        format!("Dir::State={}", state.join("state").display()),
        format!("Dir::Cache={}", state.join("cache").display()),
        "Dir::State::status=/var/lib/dpkg/status".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["-o".to_owned(), option])
    .collect();
    let mut update = Command::new("apt-get");
    update.args(&apt).arg("update");
    process::run(update)?;

    let mut depends = Command::new("apt-cache");
    depends.args(&apt).args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts"]);
    depends.args(["--no-breaks", "--no-replaces", "--no-enhances", COMPILER]);
    let names = process::read(depends)?;
    let versioned = |name: &&str| name.starts_with("libstd-rust-web-1") || name.starts_with("libllvm");
    let mut packages: Vec<&str> = names.lines().filter(versioned).collect();
    let other = format!("{LIBRARY}:arm64");
    packages.extend([COMPILER, LIBRARY, &other]);
    unpack(&apt, folder, &packages, "rust").map(|_| ())
}
