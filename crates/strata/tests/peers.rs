//! `strata bench --against`: what a peer is asked, and what becomes of its answers.
#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use serde_json::Value;
use support::*;

const TESTS: [&str; 10] = ["-p", "8,16", "-n", "2", "-d", "0,8", "--repeat", "2", "--threads", "1"];

fn bench<'a>(file: &'a str, peers: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let against = peers.iter().flat_map(|peer| ["--against", peer]);
    let fixed = ["bench", "-m", file].into_iter().chain(TESTS);
    fixed.chain(against).chain(more.iter().copied()).collect()
}

/// A server of completions that writes 50 tokens in a second and reads 1000, by what it says.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    // Ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
            let mut length = 0;
            for line in reader.by_ref().lines().map(|line| line.expect("a line")) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a number");
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let asked: Value = serde_json::from_slice(&body).expect("JSON");
            let prompt = asked["prompt"].as_array().expect("token ids").len();
            let reply = serde_json::json!({
                "usage": {"prompt_tokens": prompt, "completion_tokens": asked["max_tokens"]},
                "timings": {"prompt_per_second": 1000.0, "predicted_per_second": 50.0},
            })
            .to_string();
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", reply.len());
            stream.write_all((head + &reply).as_bytes()).expect("sent");
        }
    });
    address
}

#[test]
fn peers_stand_beside_our_figures() {
    let (file, folder) = (model("q2-tiny-F32"), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("llama-bench");
    fake_llama_bench(&path);
    let (program, server) = (text(&path), server());
    let peers = [&program[..], &server];
    let report = json(&bench(&file, &peers, &["--json"]));
    let tests = report["tests"].as_array().expect("a list");
    assert_eq!(tests.len(), 4);
    for test in tests {
        let expected = if test["kind"] == "read" { [64.0, 1000.0] } else { [8.0, 50.0] };
        for (peer, rate) in test["peers"].as_array().expect("a list").iter().zip(expected) {
            assert_eq!(peer["tokens_per_second"], rate, "{test}");
            assert_eq!(peer["rounds"].as_array().expect("a list").len(), 2);
            assert_eq!(peer["failed"], Value::Null);
            // The upper one of two rounds in both, so they are of the same round.
            let ours = test["tokens_per_second"].as_f64().expect("a number");
            let ratio = peer["ratio"].as_f64().expect("a number");
            assert!((ratio / (ours / rate) - 1.0).abs() < 1e-9, "{test}");
        }
    }
    let table = strata(&bench(&file, &peers, &[])).stdout;
    assert!(table.contains("\n[1] llama-bench,") && table.contains(&format!("\n[2] {server},")), "{table}");
    let line = table.lines().find(|line| line.starts_with("write 2 after 8 ")).expect("a line");
    assert!(line.contains(" 8.00 (") && line.contains(" 50.00 ("), "{table}");
}

/// A peer that cannot read the file costs its column only; one that is not there was meant to be.
#[test]
fn peers_that_fail_are_told_of() {
    let (file, folder) = (model("q2-tiny-F32"), tempfile::tempdir().expect("a folder"));
    let write = |name: &str, script: &str| {
        let path = folder.path().join(name);
        fake_llama_bench(&path);
        std::fs::write(&path, script).expect("written");
        text(&path)
    };
    let unknown = write("unknown", "#!/bin/sh\necho 'error: unknown architecture qwen2' >&2\nexit 3\n");
    let talker = write("talker", "#!/bin/sh\necho hello\n");
    let ran = strata(&bench(&file, &[&unknown, &talker], &["--json"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let said = |words: &str| assert_eq!(ran.stderr.matches(words).count(), 2, "once for each group: {ran:?}");
    said("warning: unknown is not measured: it ended with exit status: 3: error: unknown architecture qwen2");
    said("warning: talker is not measured: its output is not the JSON of llama-bench");
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let peers = &report["tests"][0]["peers"];
    assert_eq!((&peers[0]["tokens_per_second"], &peers[0]["ratio"]), (&Value::Null, &Value::Null));
    assert!(peers[1]["failed"].as_str().expect("a sentence").contains("llama-bench"), "{peers}");

    let missing = text(&folder.path().join("missing/llama-bench"));
    let ran = strata(&bench(&file, &[&missing], &[]));
    assert_eq!((ran.code, &ran.stdout[..]), (2, ""), "{ran:?}");
    assert!(ran.stderr.contains("cannot measure against llama-bench: it cannot be started"), "{ran:?}");
    let nobody = strata(&bench(&file, &["http://127.0.0.1:1"], &[]));
    assert!(nobody.code == 0 && nobody.stderr.contains("it cannot be asked"), "{nobody:?}");
    let wrong = strata(&["bench", "-m", &file, "-d", "0,x"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("a whole number from 0"), "{wrong:?}");
}
