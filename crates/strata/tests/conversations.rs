//! `strata chat`, in a pipe and on a terminal.

mod support;

use std::io::Write;
use std::process::Command;

use rexpect::session::{PtySession, spawn_command};
use support::*;

/// Long enough for a busy machine; what goes wrong waits this long before it is told.
const PATIENCE_MS: u64 = 60_000;

const MODEL: &str = "q2-tiny-F32";

#[test]
fn a_pipe_gets_one_answer_a_line_and_nothing_else() {
    let file = model(MODEL);
    let args = ["chat", "-m", &file, "--temp", "0", "--thinking", "off", "-n", "8"];
    let both = strata_reading(&args, b"Hello\nAnd you?\n");
    assert_eq!(both.code, 0, "{}", both.stderr);
    let first = strata_reading(&args, b"Hello\n");
    assert!(!first.stdout.trim().is_empty() && first.stdout.ends_with('\n'));
    assert!(both.stdout.starts_with(&first.stdout), "{:?} then {:?}", first.stdout, both.stdout);
    assert!(both.stdout.len() > first.stdout.len());
    assert!(!both.stdout.contains('\x1b') && !both.stdout.contains("> "), "{:?}", both.stdout);
    // The same message later is another prompt: it comes after what was said.
    let twice = strata_reading(&args, b"Hello\nHello\n");
    let again = strata_reading(&args, b"Hello\n/reset\nHello\n");
    assert_ne!(twice.stdout, again.stdout);
    assert_eq!(again.stdout, first.stdout.repeat(2));
    let joined = strata_reading(&args, b"Hello\\\nworld");
    assert_eq!((joined.code, joined.stdout.is_empty()), (0, false));
    assert_ne!(joined.stdout, first.stdout);
    assert_eq!(strata_reading(&args, b"").stdout, "");
    assert_eq!(strata_reading(&args, b"\n  \n/quit\nHello\n").stdout, "");
}

#[test]
fn a_conversation_is_saved_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let talk = text(&folder.path().join("a talk.json"));
    let file = model(MODEL);
    let args = ["chat", "-m", &file, "--temp", "0", "--thinking", "off", "-n", "8", "--system", "Be brief."];
    let whole = strata_reading(&args, b"Hello\nAnd you?\n");
    let saved = strata_reading(&args, format!("Hello\n/save {talk}\n").as_bytes());
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    let stored: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&talk).expect("a file")).expect("JSON");
    assert_eq!(stored["messages"][0]["content"], "Be brief.");
    assert_eq!(stored["messages"][1]["content"], "Hello");
    assert_eq!(stored["messages"][2]["role"], "assistant");
    let args = ["chat", "-m", &file, "--temp", "0", "--thinking", "off", "-n", "8"];
    let loaded = strata_reading(&args, format!("/load {talk}\nAnd you?\n").as_bytes());
    assert_eq!(saved.stdout + &loaded.stdout, whole.stdout);
    let told = strata_reading(&args, b"/stats\nHello\n/stats\n/system\n/system Be kind.\n/system\n/help\n");
    for words in ["no answer yet", "all: 1 answers", "no system text", "system: Be kind.", "/save FILE"] {
        assert!(told.stderr.contains(words), "{words:?} in {}", told.stderr);
    }
}

#[test]
fn in_a_pipe_what_goes_wrong_ends_it() {
    let file = model(MODEL);
    for (input, code, said) in [
        (&b"/etc\n"[..], 4, "there is no command /etc"),
        (b"/save\n", 4, "/save needs the name of a file"),
        (b"/load /nowhere/talk.json\n", 6, "cannot read /nowhere/talk.json"),
        (b"/load /dev/null\n", 4, "holds no conversation"),
        (b"\xff\n", 4, "not UTF-8"),
    ] {
        let ran = strata_reading(&["chat", "-m", &file], input);
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{said:?} in {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    let long = strata_reading(&["chat", "-m", &file, "--ctx", "32"], "word ".repeat(100).as_bytes());
    assert_eq!(long.code, 4);
    assert!(long.stderr.contains("more than the context of 32") && long.stderr.contains("/reset"));
    let ran = strata(&["chat", "-m", &file, "--thinking", "maybe"]);
    assert_eq!(ran.code, 2, "{}", ran.stderr);
}

/// The program on a terminal, with a history of its own.
fn terminal(home: &std::path::Path, args: &[&str]) -> PtySession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(args).env("STRATA_HOME", home).env("TERM", "xterm").env_remove("NO_COLOR");
    spawn_command(command, Some(PATIENCE_MS)).expect("a terminal")
}

#[test]
fn on_a_terminal_ctrl_c_stops_the_answer_and_not_the_program() {
    let home = tempfile::tempdir().expect("a folder");
    let file = model(MODEL);
    // The greedy answer to this goes round in circles until the context is full: not soon.
    let args = ["chat", "-m", &file, "--temp", "0", "--thinking", "off", "--ctx", "1000000"];
    let mut session = terminal(home.path(), &args);
    session.exp_string("> ").expect("a prompt");
    session.send_line("Why").expect("a keyboard");
    session.exp_string("Why").expect("the echo");
    session.exp_regex("[^\r\n]{20}").expect("some of the answer");
    session.send_control('c').expect("a keyboard");
    session.exp_string("(stopped)").expect("a stop");
    session.exp_string("> ").expect("a prompt: the program goes on");
    session.send_control('c').expect("a keyboard");
    session.exp_string("Ctrl-D or /quit").expect("advice");
    session.exp_string("> ").expect("a prompt");
    session.send_line("/stats").expect("a keyboard");
    session.exp_string("all: 1 answers").expect("figures");
    session.exp_string("> ").expect("a prompt");
    session.send_line("/nonsense").expect("a keyboard");
    session.exp_string("there is no command /nonsense").expect("a sentence");
    session.exp_string("> ").expect("a prompt");
    session.send_control('d').expect("a keyboard");
    session.exp_eof().expect("an end");
    let status = format!("{:?}", session.process().wait().expect("a status"));
    assert!(status.starts_with("Exited(") && status.ends_with(", 0)"), "{status}");
    let history = std::fs::read_to_string(home.path().join("chat_history")).expect("a history");
    assert!(history.contains("Why\n") && history.contains("/stats\n"), "{history:?}");
    // The next time, the last line is one key away.
    let mut session = terminal(home.path(), &args);
    session.exp_string("> ").expect("a prompt");
    session.send("\x1b[A\x1b[A").expect("two times up");
    session.flush().expect("a keyboard");
    session.exp_string("/stats").expect("the line before the last");
}

#[test]
fn thinking_is_dimmed_on_a_terminal_and_left_out_in_a_pipe() {
    let home = tempfile::tempdir().expect("a folder");
    let file = model("q3-tiny-F32");
    let args = ["chat", "-m", &file, "--temp", "0", "-n", "30", "--thinking", "5"];
    let mut session = terminal(home.path(), &args);
    session.exp_string("> ").expect("a prompt");
    session.send_line("Why?").expect("a keyboard");
    session.exp_string("\x1b[2m").expect("dimmed");
    session.exp_string("\x1b[0m").expect("and back");
    session.exp_string("> ").expect("a prompt");
    session.send_line("/quit").expect("a keyboard");
    session.exp_eof().expect("an end");
    let piped = strata_reading(&args, b"Why?\n");
    assert_eq!(piped.code, 0, "{}", piped.stderr);
    let object = json(&["run", "-m", &file, "-p", "Why?", "--temp", "0", "-n", "30", "--json"]);
    assert!(!object["thinking"].as_str().expect("a text").is_empty());
    assert!(!piped.stdout.trim().is_empty() && !piped.stdout.contains('\x1b'), "{:?}", piped.stdout);
}

/// Ctrl-C was only waited for once the prompt had been turned into tokens, so that it ended the program before.
#[test]
fn ctrl_c_while_a_long_text_becomes_tokens_does_not_end_the_program() {
    let home = tempfile::tempdir().expect("a folder");
    let talk = text(&home.path().join("talk.json"));
    let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
    let messages = [message("user", &"a ".repeat(4_000_000)), message("assistant", "b")];
    let stored = serde_json::json!({"format": "strata-conversation-1", "messages": messages});
    std::fs::write(&talk, stored.to_string()).expect("written");
    let file = model(MODEL);
    let mut session = terminal(home.path(), &["chat", "-m", &file]);
    session.exp_string("> ").expect("a prompt");
    session.send_line(&format!("/load {talk}")).expect("a keyboard");
    session.exp_string("2 messages loaded").expect("a conversation");
    session.exp_string("> ").expect("a prompt");
    session.send_line("And?").expect("a keyboard");
    // The editor has left the terminal to the program.
    session.exp_string("\x1b[?2004l\r\n").expect("the end of the line");
    session.send_control('c').expect("a keyboard");
    session.exp_string("> ").expect("a prompt: the program goes on");
    session.send_line("/stats").expect("a keyboard");
    session.exp_string("no answer yet").expect("figures");
}

/// A byte that is no text, as of a terminal in another encoding, ended the program, and the conversation was lost.
#[test]
fn bytes_that_are_no_text_do_not_end_the_program() {
    let home = tempfile::tempdir().expect("a folder");
    let file = model(MODEL);
    let mut session = terminal(home.path(), &["chat", "-m", &file]);
    session.exp_string("> ").expect("a prompt");
    let mut keyboard = session.process().get_file_handle().expect("a handle");
    keyboard.write_all(b"gr\xfc\xdfe\r").expect("a keyboard");
    session.exp_string("not UTF-8 text: type it again").expect("a sentence");
    session.exp_string("> ").expect("a prompt: the program goes on");
    session.send_control('d').expect("a keyboard");
    session.exp_eof().expect("an end");
}

/// `strata run` dimmed thinking whatever `NO_COLOR` and the terminal said.
#[test]
fn no_escapes_where_they_are_not_wanted() {
    let file = model("q3-tiny-F32");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
        command.args(["run", "-m", &file, "-p", "Why?", "--temp", "0", "-n", "30"]);
        command.env("TERM", "xterm").env_remove("NO_COLOR").env(name, value);
        let mut session = spawn_command(command, Some(PATIENCE_MS)).expect("a terminal");
        let told = session.exp_eof().expect("an end");
        assert!(told.contains("answer: ") && !told.contains('\x1b'), "{name}: {told:?}");
    }
}
