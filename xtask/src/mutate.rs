//! `cargo xtask mutate`: shows that the purity suite can fail. Each rule of "a row's logits do not depend on its
//! company" is broken once in a copy of the tree, and the named test must see it.

mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use crate::process;
pub use table::{MUTANTS, Mutant};

/// A broken tree must not hang its test for longer.
const TEST_TIME_MAX: Duration = Duration::from_secs(600);

/// Runs all mutants, the quick ones (`--quick`), or those named.
///
/// # Errors
/// A mutant that its test did not see, that did not compile or whose text is no longer there; a test that fails
/// without any mutant.
pub fn run(root: &Path, arguments: &[String]) -> Result<(), String> {
    let mutants = chosen(arguments)?;
    let copy = Copy::new(root)?;
    let start = Instant::now();
    let tests: BTreeSet<(&str, &str)> = mutants.iter().map(|mutant| mutant.test).collect();
    for &test in &tests {
        match copy.test(test)? {
            Outcome::Passed => {}
            outcome => return Err(format!("without a mutant, {} {}: {outcome}", test.0, test.1)),
        }
    }
    println!("without a mutant: {} tests pass, {:.0} s", tests.len(), start.elapsed().as_secs_f64());
    let mut missed = Vec::new();
    for mutant in &mutants {
        let start = Instant::now();
        let outcome = copy.with(mutant, || copy.test(mutant.test))?;
        let caught = matches!(outcome, Outcome::Failed);
        let shown = if caught { "caught" } else { "NOT CAUGHT" };
        println!("{:<62} {shown}: {outcome}, {:.0} s", mutant.name, start.elapsed().as_secs_f64());
        if !caught {
            missed.push(mutant.name);
        }
    }
    // The line that counts for `cargo xtask qualify`.
    println!("test result: {} passed; {} failed", mutants.len() - missed.len(), missed.len());
    if missed.is_empty() { Ok(()) } else { Err(format!("not caught: {}", missed.join("; "))) }
}

fn chosen(arguments: &[String]) -> Result<Vec<&'static Mutant>, String> {
    if arguments.is_empty() {
        return Ok(MUTANTS.iter().collect());
    }
    if arguments == ["--quick"] {
        return Ok(MUTANTS.iter().filter(|mutant| mutant.quick).collect());
    }
    let found: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| arguments.iter().any(|name| mutant.name.contains(name))).collect();
    match found.is_empty() {
        false => Ok(found),
        true => {
            let names: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
            Err(format!("no mutant is called {arguments:?}; there are:\n{}", names.join("\n")))
        }
    }
}

/// What a test said.
enum Outcome {
    Passed,
    Failed,
    DoesNotCompile(String),
    NoSuchTest,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("its test passes"),
            Outcome::Failed => f.write_str("its test fails"),
            Outcome::DoesNotCompile(error) => write!(f, "it does not compile: {error}"),
            Outcome::NoSuchTest => f.write_str("there is no such test"),
        }
    }
}

/// A copy of the tracked files, with its own build output: both stay for the next call.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    fn new(root: &Path) -> Result<Copy, String> {
        let folder = root.join("target").join("mutants");
        let copy = Copy { tree: folder.join("tree"), target: folder.join("target") };
        let listed = process::read(process::command(root, "git ls-files -z --cached"))?;
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            let Ok(wanted) = fs::read(root.join(name)) else { continue };
            let path = copy.tree.join(name);
            // What is the same keeps its time, so that nothing is built without need.
            if fs::read(&path).is_ok_and(|found| found == wanted) {
                continue;
            }
            write(&path, &wanted)?;
        }
        Ok(copy)
    }

    /// Calls `f` while `mutant` is in the tree.
    fn with<T>(&self, mutant: &Mutant, f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let path = self.tree.join(mutant.file);
        let original = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mutated = mutated(mutant, &original)?;
        write(&path, mutated.as_bytes())?;
        let result = f();
        write(&path, original.as_bytes())?;
        result
    }

    /// Runs one test of a package, after it was built.
    fn test(&self, (target, filter): (&str, &str)) -> Result<Outcome, String> {
        let build = self.cargo(target).args(["--no-run", "--quiet"]).output();
        let build = build.map_err(|error| format!("cargo could not be started: {error}"))?;
        if !build.status.success() {
            let errors = String::from_utf8_lossy(&build.stderr);
            let first = errors.lines().find(|line| line.starts_with("error")).unwrap_or("no error shown");
            return Ok(Outcome::DoesNotCompile(first.to_owned()));
        }
        let output = self.tree.with_file_name("output.txt");
        let file = fs::File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        let mut run = self.cargo(target);
        run.args(["--quiet", "--", filter]).stdout(file).stderr(Stdio::null());
        let success = wait(run)?;
        let text = fs::read_to_string(&output).map_err(|error| format!("{}: {error}", output.display()))?;
        let counts = text.lines().map(process::Counts::of_line);
        let (passed, failed) = counts.fold((0, 0), |sum, c| (sum.0 + c.passed, sum.1 + c.failed));
        Ok(match (success, passed, failed) {
            (true, 0, _) => Outcome::NoSuchTest,
            (true, ..) => Outcome::Passed,
            (false, ..) => Outcome::Failed,
        })
    }

    fn cargo(&self, target: &str) -> Command {
        let mut cargo = process::command(&self.tree, "cargo test --package engine --offline");
        cargo.args(target.split_whitespace()).env("CARGO_TARGET_DIR", &self.target).stdin(Stdio::null());
        cargo
    }
}

/// Whether the command ended well; one that takes too long is ended and did not.
fn wait(mut command: Command) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("cargo: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status.success());
        }
        if start.elapsed() > TEST_TIME_MAX {
            child.kill().map_err(failed)?;
            child.wait().map_err(failed)?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The file with the mutant's text in place of the one occurrence of the old one.
fn mutated(mutant: &Mutant, original: &str) -> Result<String, String> {
    match original.matches(mutant.old).count() {
        1 => Ok(original.replacen(mutant.old, mutant.new, 1)),
        n => Err(format!("mutant {:?}: its text stands {n} times in {}, not once", mutant.name, mutant.file)),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let folder = path.parent().expect("a file lies in a folder");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, bytes));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code moves on; the table must follow.
    #[test]
    fn every_mutant_applies() {
        let root = crate::root();
        for mutant in MUTANTS {
            let original = fs::read_to_string(root.join(mutant.file)).expect(mutant.file);
            let text = mutated(mutant, &original).unwrap_or_else(|message| panic!("{message}"));
            assert_ne!(text, original, "{}", mutant.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = chosen(&["nonsense".to_owned()]).unwrap_err();
        assert!(message.contains(MUTANTS[0].name));
    }
}
