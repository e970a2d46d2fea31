//! Child processes: run and check one, read one, run a test runner and count its tests.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// A command that starts in the root of the checkout; `line` is split at spaces.
pub fn command(root: &Path, line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a command names a program"));
    command.args(words).current_dir(root);
    command
}

/// Runs to the end with the terminal's own input and output.
///
/// # Errors
/// A sentence that names the program: it is not installed, or how it ended.
pub fn run(mut command: Command) -> Result<(), String> {
    let status = command.status().map_err(|error| not_started(&command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", shown(&command))) }
}

/// Runs to the end and returns what it wrote to standard output; its errors go to the terminal.
///
/// # Errors
/// As [`run`].
pub fn read(mut command: Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| not_started(&command, &error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("`{}` ended with {}", shown(&command), output.status))
    }
}

/// Whether the command starts and ends well; nothing is shown.
pub fn works(mut command: Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Tests that a runner reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that did not.
    pub failed: u64,
}

impl Counts {
    /// What one line of output reports, for nextest's summary and for the result line of `cargo test`.
    pub fn of_line(line: &str) -> Counts {
        let line = without_colour(line);
        let line = line.trim_start();
        if !line.starts_with("Summary [") && !line.starts_with("test result:") {
            return Counts::default();
        }
        let words: Vec<&str> = line.split([' ', ',', ';', ':']).filter(|word| !word.is_empty()).collect();
        let before = |name: &str| -> u64 {
            let counts = words.windows(2).filter(|pair| pair[1] == name);
            counts.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
        };
        Counts { passed: before("passed"), failed: before("failed") + before("timed") }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// What a runner's output tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its tests.
    pub counts: Counts,
    /// What follows `figures: ` on the last line that begins so.
    pub figures: Option<String>,
}

/// Runs a test runner or a benchmark, passes its output on as it comes, and keeps what it reports.
///
/// The outcome is the runner's own; the report is there in both cases.
pub fn run_tests(mut command: Command) -> (Result<(), String>, Report) {
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return (Err(not_started(&command, &error)), Report::default()),
    };
    let stderr = child.stderr.take().expect("stderr is piped");
    let stdout = child.stdout.take().expect("stdout is piped");
    let other = std::thread::spawn(move || pass_on(stderr, std::io::stderr()));
    let mut report = pass_on(stdout, std::io::stdout());
    report.counts += other.join().expect("passing lines on does not panic").counts;
    let outcome = match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", shown(&command))),
        Err(error) => Err(format!("`{}` could not be waited for: {error}", shown(&command))),
    };
    (outcome, report)
}

fn pass_on(from: impl Read, mut to: impl Write) -> Report {
    let mut report = Report::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        // A closed terminal must not end the run: the counts still matter.
        let _ = to.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        report.counts += Counts::of_line(&text);
        if let Some(figures) = text.strip_prefix("figures: ") {
            report.figures = Some(figures.trim().to_owned());
        }
        line.clear();
    }
    report
}

/// The line without terminal colour sequences (ESC, `[`, digits and `;`, `m`).
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            characters.by_ref().find(|&end| end == 'm');
        } else {
            plain.push(character);
        }
    }
    plain
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn not_started(command: &Command, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            format!("`{}` is not installed", command.get_program().to_string_lossy())
        }
        _ => format!("`{}` could not be started: {error}", shown(command)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_both_runners_are_counted() {
        let cases = [
            ("     Summary [   0.018s] 12 tests run: 11 passed (1 slow), 1 failed, 2 skipped", 11, 1),
            ("     Summary [   0.018s] 3 tests run: 3 passed, 0 skipped", 3, 0),
            (
                "\u{1b}[32;1m     Summary\u{1b}[0m [   0.0s] \u{1b}[1m3\u{1b}[0m tests run: \u{1b}[1m3\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m",
                3,
                0,
            ),
            ("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured", 7, 0),
            ("test result: FAILED. 6 passed; 2 failed; 0 ignored", 6, 2),
            ("my test printed 5 passed", 0, 0),
        ];
        for (line, passed, failed) in cases {
            assert_eq!(Counts::of_line(line), Counts { passed, failed }, "{line}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let message = run(Command::new("no-such-program-here")).unwrap_err();
        assert_eq!(message, "`no-such-program-here` is not installed");
    }
}
