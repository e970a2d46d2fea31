//! The first run on somebody's machine: without a home, without streams, without the CPU of a developer.

mod support;

use std::process::{Command, Stdio};

use support::*;

/// What must answer anywhere, with an empty environment and no standard input at all.
#[cfg(unix)]
#[test]
fn help_and_version_need_nothing() {
    let commands = strata(&["--help"]).stdout;
    let listed = commands.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names: Vec<String> =
        listed.map_while(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    let mut calls = vec!["--version".to_owned(), "--help".to_owned(), "help".to_owned()];
    calls.extend(names.into_iter().filter(|name| name != "help").map(|name| format!("{name} --help")));
    for call in calls {
        let line = format!("exec \"$0\" {call} <&- 2>&-");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_strata")]).env_clear().current_dir("/");
        let output = shell.stdout(Stdio::piped()).output().expect("a shell");
        assert_eq!(output.status.code(), Some(0), "{call}");
        assert!(output.stdout.starts_with(b"strata ") || output.stdout.len() > 200, "{call}");
    }
}

/// One failure of each kind; `strata --help` has the table.
#[test]
fn every_kind_of_failure_has_its_own_code() {
    let file = model("q2-tiny-F32");
    let kinds: [(&[&str], i32); 6] = [
        (&["run", "-m", &file, "-p", "x", "--temp", "hot"], 2),
        (&["run", "-m", "/no/such.gguf", "-p", "x"], 3),
        (&["run", "-m", &file, "--raw", "-p", ""], 4),
        (&["perplexity", "-m", &file, "-f", "/no/such.txt"], 6),
        (&["pull", "hf:a/b", "--endpoint", "http://127.0.0.1:1"], 7),
        (&["tokenize", "-m", &file, "-p", "x"], 0),
    ];
    let table = strata(&["--help"]).stdout;
    let table = table.split("Exit codes:").nth(1).expect("a table");
    let data = tempfile::tempdir().expect("a folder");
    for (args, code) in kinds {
        let mut command = program(args);
        command.env("STRATA_HOME", data.path()).env_remove("http_proxy").env_remove("HTTP_PROXY");
        let ran = ran(command.output().expect("started"));
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
        assert!(table.contains(&format!("{code} ")), "{code} in {table}");
        if code > 2 {
            assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {ran:?}");
            assert!(ran.stderr.starts_with("error: "), "{args:?}: {ran:?}");
        }
    }
}

/// An instruction set that this CPU lacks is refused before it is used.
#[test]
fn what_the_cpu_lacks_is_refused_in_words() {
    let file = model("q2-tiny-F32");
    for isa in ["scalar", "avx2", "avx512", "neon"] {
        let ran = strata(&["logits", "-m", &file, "--tokens", "1", "--isa", isa]);
        match ran.code {
            0 => assert_eq!(ran.stderr, "", "{isa}"),
            2 => assert!(ran.stderr.starts_with("error: ") && ran.stderr.contains(isa), "{isa}: {ran:?}"),
            other => panic!("{isa} ended with {other}: {ran:?}"),
        }
    }
}
