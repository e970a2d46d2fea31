//! Every failure is one plain sentence, and an exit code that says of which kind.

mod support;

use std::path::Path;

use support::*;

/// The program fails with this code and one line that holds these words; nothing is printed as a result.
fn check(args: &[&str], code: i32, words: &str) {
    assert_failure(&strata(args), args, code, words);
}

fn assert_failure(ran: &Ran, args: &[&str], code: i32, words: &str) {
    assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    assert_eq!(ran.stdout, "", "{args:?}");
    assert!(ran.stderr.contains(words), "{args:?}: {words:?} in {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: "), "{args:?}: {}", ran.stderr);
    for panic in ["panicked", "RUST_BACKTRACE", "defect"] {
        assert!(!ran.stderr.contains(panic), "{args:?}: {}", ran.stderr);
    }
    // The parser of arguments adds how to get help.
    if code != 2 {
        assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{args:?}: {}", ran.stderr);
    }
}

fn written(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("written");
    text(&path)
}

/// The value of a text key, put in the place of another of the same length.
fn replaced(bytes: &[u8], key: &str, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let entry = |value: &str| [&string(key)[..], &8u32.to_le_bytes(), &string(value)].concat();
    let (old, new) = (entry(from), entry(to));
    let at = bytes.windows(old.len()).position(|window| window == old).expect("the key is there");
    [&bytes[..at], &new, &bytes[at + old.len()..]].concat()
}

#[test]
fn models_that_cannot_be_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = std::fs::read(oracle::model("q2-tiny-F32")).expect("read");
    let write = |name: &str, bytes: &[u8]| written(folder.path(), name, bytes);
    let cut = write("cut.gguf", &good[..good.len() / 2]);
    let header = write("header.gguf", &good[..1000]);
    let empty = write("empty.gguf", b"");
    let other = write("text größe.gguf", b"this is no model at all, but some text");
    let architecture = write("arch.gguf", &replaced(&good, "general.architecture", "qwen2", "qwen9"));
    let missing = text(&folder.path().join("missing.gguf"));
    let no_models = tempfile::tempdir().expect("a folder");
    let cases: [(&str, &str); 7] = [
        (&missing, "cannot open"),
        (&text(no_models.path()), "holds no model file"),
        (&other, "is not a GGUF file"),
        (&cut, "incomplete or damaged"),
        (&header, "incomplete or damaged"),
        (&empty, "is empty"),
        (&architecture, "architecture `qwen9` is not known; known are"),
    ];
    for (path, words) in cases {
        check(&["logits", "-m", path, "--tokens", "1"], 3, words);
        check(&["run", "-m", path, "-p", "x"], 3, words);
        let ran = strata(&["logits", "-m", path, "--tokens", "1"]);
        assert_eq!(ran.stderr.matches(path).count(), 1, "the path is named once: {}", ran.stderr);
    }
}

#[test]
fn a_tokenizer_that_is_not_known_stops_text_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = std::fs::read(oracle::model("q2-tiny-F32")).expect("read");
    let pre = written(folder.path(), "pre.gguf", &replaced(&good, "tokenizer.ggml.pre", "qwen2", "qwen9"));
    let kind = written(folder.path(), "kind.gguf", &replaced(&good, "tokenizer.ggml.model", "gpt2", "bert"));
    for (path, words) in [(&pre, "pre-tokenizer `qwen9` is not known"), (&kind, "tokenizer model is `bert`")]
    {
        check(&["run", "-m", path, "-p", "x"], 3, words);
        check(&["tokenize", "-m", path, "-p", "x"], 3, words);
        assert_eq!(strata(&["logits", "-m", path, "--tokens", "1,2"]).code, 0);
    }
}

#[test]
fn texts_and_tokens_that_cannot_be_used() {
    let file = model("q2-tiny-F32");
    check(
        &["logits", "-m", &file, "--tokens", "1,1024"],
        4,
        "token id 1024 is outside the vocabulary of 1024 tokens",
    );
    check(&["run", "-m", &file, "--raw", "-p", ""], 4, "the prompt is empty");
    check(&["run", "-m", &file, "-p", "x", "--ctx", "2"], 4, "do not fit into the context of 2 tokens");
    let args = ["run", "-m", &file, "-p", "-"];
    assert_failure(&strata_reading(&args, b"ab\xff"), &args, 4, "is not UTF-8 text: byte 2");
    let folder = tempfile::tempdir().expect("a folder");
    let short = written(folder.path(), "short.txt", b"too short\n");
    check(&["perplexity", "-m", &file, "-f", &short], 4, "one chunk needs 512");
}

/// A pipe that never ends was read until no memory was left.
#[cfg(target_os = "linux")]
#[test]
fn a_text_without_end_is_refused() {
    let file = model("q2-tiny-F32");
    check(&["perplexity", "-m", &file, "-f", "/dev/zero"], 4, "/dev/zero holds more than 67108864 bytes");
    let zero = std::fs::File::open("/dev/zero").expect("a device that never ends");
    let args = ["tokenize", "-m", &file, "-p", "-"];
    let child = program(&args).stdin(zero).output().expect("started");
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(4), "{stderr}");
    assert!(stderr.starts_with("error: the standard input holds more than"), "{stderr}");
}

/// A path, and the words that a model's template raises, went to the terminal as they were: several lines, escape
/// sequences, megabytes.
#[test]
fn text_from_outside_cannot_break_the_sentence() {
    check(&["tokenize", "-m", "no\nfile\u{1b}[31m", "-p", "x"], 3, "cannot open no\\nfile\\u{1b}[31m: ");
    let long = "x".repeat(5000);
    let ran = strata(&["tokenize", "-m", &long, "-p", "x"]);
    assert!(ran.code == 3 && ran.stderr.len() < 1100, "{ran:?}");
}

#[test]
fn files_that_cannot_be_read() {
    let file = model("q2-tiny-F32");
    check(&["perplexity", "-m", &file, "-f", "/no such/file"], 6, "cannot read /no such/file: ");
    check(&["perplexity", "-m", &file, "-f", "/"], 6, "cannot read /: ");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_fault_of_the_output() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    let file = model("q2-tiny-F32");
    let child = program(&["run", "-m", &file, "-p", "x", "-n", "3"]).stdout(full).output().expect("started");
    let stderr = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(6), "{stderr}");
    assert!(stderr.starts_with("error: cannot write to the standard output: "), "{stderr}");
}

#[test]
fn wrong_arguments() {
    let file = model("q2-tiny-F32");
    check(&["logits", "-m", &file, "--tokens", "1,x"], 2, "a token id is a whole number");
    check(&["logits", "-m", &file, "--tokens", ""], 2, "a token id is a whole number");
    check(&["logits", "-m", &file, "--tokens", "1", "--taps"], 2, "--json");
    check(&["run", "-m", &file, "-p", "x", "--threads", "0"], 2, "from 1 to 4096");
    check(&["run", "-m", &file, "-p", "x", "--isa", "sse"], 2, "scalar, avx2, avx512 or neon");
    check(&["run", "-m", &file], 2, "--prompt");
    check(&["plan", "-m", &file, "--memory", "lots"], 2, "such as 32G");
    check(&["plan", "-m", &file, "--weights", "some"], 2, "moved, mapped or read");
    check(&["dance"], 2, "dance");
}

/// `head` and pagers close the pipe when they have seen enough; that is no failure.
#[test]
fn a_reader_that_leaves_ends_the_program_quietly() {
    let file = model("q2-tiny-F32");
    let tokens = listed(&[5; 200]);
    let commands: [&[&str]; 4] = [
        &["run", "-m", &file, "-p", "x", "-n", "200", "--temp", "0"],
        &["run", "-m", &file, "-p", "x", "-n", "2", "--json"],
        &["logits", "-m", &file, "--tokens", &tokens, "--json"],
        &["--help"],
    ];
    for args in commands {
        let mut child = program(args).spawn().expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the program ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn help_is_there_for_every_command() {
    let help = strata(&["--help"]);
    assert!(help.code == 0 && help.stdout.contains("Exit codes"), "{help:?}");
    let commands = help.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = commands.map_while(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.len() > 7, "{}", help.stdout);
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = strata(&[command, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.stdout.contains(&format!("Examples:\n  strata {command}")), "{}", help.stdout);
    }
    assert!(strata(&["--version"]).stdout.starts_with("strata "));
}

/// What is told on the way: its weight first, one line each, and no more of it than was asked for.
#[test]
fn messages_have_a_weight() {
    let file = model("q2-tiny-F32");
    let long = ["run", "-m", &file, "-p", "x", "-n", "0", "--ctx", "100000", "--json"];
    let stderr = |more: &[&str]| strata(&[&long[..], more].concat()).stderr;
    assert!(
        stderr(&[]).starts_with("warning: the context of 100000 tokens is longer than"),
        "{}",
        stderr(&[])
    );
    assert_eq!(stderr(&[]).lines().count(), 1);
    assert_eq!(stderr(&["--log-level", "error"]), "");
    let bench = ["bench", "-m", &file, "-p", "1", "-n", "1", "--repeat", "1", "--json"];
    assert_eq!(strata(&bench).stderr, "");
    let told = strata(&[&["--log-level", "info"], &bench[..]].concat());
    assert!(told.stderr.contains("info: round 1 of 1 is done\n"), "{told:?}");
}
