//! `strata serve` with models whose words mean nothing: what it says, counts, refuses, and how it ends.

#![forbid(unsafe_code)]
#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};

use serde_json::{Value, json};
use support::{model, program, strata};

/// The program, serving.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(log_level: &str) -> Serving {
        Serving::start_with(&["--log-level", log_level])
    }

    fn start_with(more: &[&str]) -> Serving {
        Serving::start_in("256", more)
    }

    /// With a context of so many tokens.
    fn start_in(context_tokens: &str, more: &[&str]) -> Serving {
        let file = model("q2-tiny-F32");
        let args = ["serve", "-m", &file, "--port", "0", "--parallel", "2", "--threads", "1"];
        let more = [&["--ctx", context_tokens], more].concat();
        let mut child = program(&[&args[..], &more].concat()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.strip_prefix("listening on http://").expect("an address").trim().to_owned();
        Serving { child, address }
    }

    /// Status and body of an answer.
    fn ask(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let length = body.len();
        let request =
            format!("{head} HTTP/1.0\r\nHost: {}\r\nContent-Length: {length}\r\n\r\n{body}", self.address);
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.ask(&format!("POST {path}"), &body.to_string());
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// Ends it as an init system does; what it left on standard error.
    fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("a kill").success());
        let mut stderr = String::new();
        self.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
        (self.child.wait().expect("its end").code(), stderr)
    }
}

#[test]
fn a_model_is_served_and_the_program_ends_well() {
    let serving = Serving::start("warn");
    let (status, health) = serving.ask("GET /health", "");
    assert_eq!(
        (status, health.as_str()),
        (200, r#"{"status":"ok","queued":0,"running":0,"parallel_max":2}"#)
    );
    let (_, models) = serving.ask("GET /v1/models", "");
    assert!(
        models.contains("\"id\":\"q2-tiny-F32\"") && models.contains("\"context_length\":256"),
        "{models}"
    );
    let request = json!({"prompt": "Hello", "max_tokens": 20, "seed": 3, "temperature": 1.5});
    let (status, whole) = serving.post("/v1/completions", &request);
    assert_eq!(status, 200, "{whole}");
    let (text, usage) = (whole["choices"][0]["text"].as_str().expect("text"), &whole["usage"]);
    assert!(!text.is_empty());
    let mut request = request;
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let (_, stream) = serving.ask("POST /v1/completions", &request.to_string());
    let pieces: Vec<Value> = stream
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: {"))
        .map(|json| serde_json::from_str(&format!("{{{json}")).expect("JSON"))
        .collect();
    let joined: String = pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
    // The same answer, to a prompt of which all but the last token need not be read again.
    let again = &pieces.last().expect("usage")["usage"];
    assert_eq!((joined.as_str(), &again["completion_tokens"]), (text, &usage["completion_tokens"]));
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
    assert_eq!((cached(usage), cached(again)), (0, again["prompt_tokens"].as_u64().expect("a number") - 1));
    assert_eq!(serving.stop(), (Some(0), String::new()));
}

/// A server that was stopped had read everything for nothing.
#[test]
fn conversations_outlive_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().join("states").to_str().expect("text").to_owned();
    let request = json!({"prompt": vec![7; 100], "max_tokens": 20, "seed": 3, "temperature": 1.5});
    let ask = |states: &[&str]| {
        let serving = Serving::start_with(&[&["--log-level", "warn"], states].concat());
        let (status, answer) = serving.post("/v1/completions", &request);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(serving.stop(), (Some(0), String::new()));
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (answer["choices"][0]["text"].clone(), cached)
    };
    let (text, cached) = ask(&[]);
    assert_eq!(cached, 0);
    assert_eq!(ask(&["--state-dir", &states]), (text.clone(), 0));
    assert_eq!(ask(&["--state-dir", &states]), (text.clone(), 99));
    the_saved_conversation_is_listed_and_deleted(&states);
    assert_eq!(ask(&["--state-dir", &states]), (text.clone(), 0));
    // In no more bytes than were given.
    assert_eq!(ask(&["--state-dir", &states, "--state-bytes", "1K"]), (text, 0));
    assert!(saved(&states).is_empty());
    let file = folder.path().join("file").to_str().expect("text").to_owned();
    std::fs::write(&file, "no folder").expect("written");
    let refused = strata(&["serve", "-m", &model("q2-tiny-F32"), "--port", "0", "--state-dir", &file]);
    assert!(refused.stderr.contains("cannot keep conversations in"), "{}", refused.stderr);
}

/// The files of conversations in a folder.
fn saved(states: &str) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(states).expect("a folder").map(|entry| entry.expect("an entry").path());
    all.filter(|path| path.extension().is_some_and(|text| text == "conversation")).collect()
}

/// A server that was killed had saved nothing while it was busy.
#[test]
fn who_kills_a_server_loses_what_is_under_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().to_str().expect("text").to_owned();
    let start = || Serving::start_in("60000", &["--log-level", "error", "--state-dir", &states]);
    let request = json!({"prompt": vec![7; 100], "max_tokens": 20, "seed": 3, "temperature": 1.5});
    let mut serving = start();
    let long =
        json!({"prompt": vec![9; 50], "max_tokens": 50_000, "temperature": 1.5, "stream": true}).to_string();
    let mut under_way = TcpStream::connect(&serving.address).expect("a connection");
    let head = format!("POST /v1/completions HTTP/1.0\r\nHost: a\r\nContent-Length: {}\r\n\r\n", long.len());
    under_way.write_all((head + &long).as_bytes()).expect("sent");
    let mut first = [0; 200];
    under_way.read_exact(&mut first).expect("the beginning of an answer");
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let (_, before) = serving.post("/v1/completions", &request);
    assert_eq!(cached(&before), Some(0));
    let begun = std::time::Instant::now();
    while saved(&states).is_empty() {
        assert!(begun.elapsed().as_secs() < 120, "it was never saved");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Nobody else has the folder while it runs.
    let file = model("q2-tiny-F32");
    let second = strata(&["serve", "-m", &file, "--port", "0", "--state-dir", &states]);
    assert!(second.code != 0 && second.stderr.contains("another server that runs has"), "{}", second.stderr);
    serving.child.kill().expect("killed");
    serving.child.wait().expect("its end");
    let mut rest = Vec::new();
    // What had come, or that the connection was cut.
    let _ = under_way.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"), "it was no longer under way");
    let serving = start();
    let (_, after) = serving.post("/v1/completions", &request);
    assert_eq!((cached(&after), &after["choices"]), (Some(99), &before["choices"]));
    assert_eq!(serving.stop(), (Some(0), String::new()));
}

fn the_saved_conversation_is_listed_and_deleted(states: &str) {
    let listed = strata(&["saved", "list", "--state-dir", states, "--json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let [one] = &listed["conversations"].as_array().expect("an array")[..] else { panic!("{listed}") };
    let name = one["name"].as_str().expect("a name");
    assert_eq!((one["tokens"].as_u64(), one["kv"].as_str()), (Some(119), Some("f16")), "{listed}");
    assert_eq!(one["bytes"], listed["bytes"]);
    let table = strata(&["saved", "list", "--state-dir", states]).stdout;
    assert!(table.contains(&format!("{name}  119 tokens, 1 states, f16, used just now")), "{table}");
    let delete = |name: &str, yes: &[&str]| {
        let ran = strata(&[&["saved", "delete", "--state-dir", states, name], yes].concat());
        (ran.code, ran.stdout + &ran.stderr)
    };
    let (code, said) = delete(name, &[]);
    assert!(code == 2 && said.contains("give --yes"), "{said}");
    let (code, said) = delete("0000000000000000", &["--yes"]);
    assert!(code == 2 && said.contains("strata saved list prints the names"), "{said}");
    let (code, said) = delete("../../secret", &["--yes"]);
    assert!(code == 2 && said.contains("sixteen hexadecimal digits"), "{said}");
    let (code, said) = delete(name, &["--yes"]);
    assert!(code == 0 && said.contains("are free again: "), "{said}");
    assert!(strata(&["saved", "list", "--state-dir", states]).stdout.starts_with("No conversations in "));
    assert_eq!(strata(&["saved", "list", "--state-dir", "no such folder"]).code, 6);
}

/// Token -1 as a prompt ended one server, and was a fault of another's own.
#[test]
fn what_the_engine_would_refuse_is_refused() {
    let serving = Serving::start("warn");
    let refused = |path: &str, body: Value| {
        let (status, answer) = serving.post(path, &body);
        assert_eq!(status, 400, "{body}: {answer}");
        let error = &answer["error"];
        (error["param"].as_str().map(str::to_owned), error["message"].as_str().expect("a text").to_owned())
    };
    let field = |body: Value| refused("/v1/completions", body).0;
    for tokens in
        [json!([-1]), json!([1u64 << 31]), json!([1u64 << 63]), json!([100_000_000]), json!([]), json!([[]])]
    {
        assert!(field(json!({"prompt": tokens})).expect("a field").starts_with("prompt"), "{tokens}");
    }
    assert_eq!(field(json!({"prompt": "x", "stop": ""})).as_deref(), Some("stop"));
    assert_eq!(field(json!({"prompt": "x", "stop": vec!["a"; 10_000]})).as_deref(), Some("stop"));
    assert_eq!(field(json!({"prompt": "x", "stop": "a".repeat(1 << 20)})).as_deref(), Some("stop"));
    assert_eq!(field(json!({"prompt": "x", "logit_bias": {"100000000": 1}})).as_deref(), Some("logit_bias"));
    let (_, message) = refused("/v1/completions", json!({"prompt": vec![1; 256]}));
    assert!(message.contains("the prompt has 256 tokens; the context holds 256"), "{message}");
    let (_, message) = refused("/v1/completions", json!({"prompt": vec![1; 255], "max_tokens": 100}));
    assert!(message.contains("255 tokens") && message.contains("the context holds 256"), "{message}");
    // Nobody asked for the default.
    let (status, answer) = serving.post("/v1/completions", &json!({"prompt": vec![1; 255]}));
    assert_eq!((status, answer["usage"]["completion_tokens"].as_u64()), (200, Some(1)), "{answer}");
    assert_eq!(serving.stop().0, Some(0));
}

/// A coding agent's line that is other in every request had all of its instructions read again. And where prompts part is told.
#[test]
fn what_agents_change_is_left_out_and_where_prompts_part_is_told() {
    let ask = |serving: &Serving, checksum: &str, question: &str| {
        let line =
            format!("x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch={checksum};");
        let messages = json!([
            {"role": "system", "content": format!("{line}\n\nsesame is a seed")},
            {"role": "user", "content": question},
        ]);
        let (status, answer) =
            serving.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1}));
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        (usage["prompt_tokens"].as_u64(), usage["prompt_tokens_details"]["cached_tokens"].as_u64())
    };
    let serving = Serving::start("info");
    let (tokens, _) = ask(&serving, "71fea", "why");
    let tokens = tokens.expect("a number");
    assert_eq!(ask(&serving, "00a1b", "why"), (Some(tokens), Some(tokens - 1)));
    let (_, reused) = ask(&serving, "2c3d4", "how");
    let (_, log) = serving.stop();
    let told: Vec<_> = log.lines().filter(|line| line.starts_with("info: a prompt of ")).collect();
    assert_eq!(told.len(), 2, "nothing is known when the first one comes: {log}");
    assert!(told[0].ends_with(&format!("the nearest known one, of {tokens} tokens, has all of it")), "{log}");
    let parting = format!("parts from it at token {}, in message 1 of ", reused.expect("a number"));
    assert!(told[1].contains(&parting), "{parting:?} in {log}");
    assert!(!log.contains("sesame"), "{log}");
    let serving = Serving::start_with(&["--keep-attribution"]);
    let (longer, _) = ask(&serving, "71fea", "why");
    assert!(longer > Some(tokens + 20), "{longer:?} of {tokens}");
    let (_, reused) = ask(&serving, "00a1b", "why");
    let (longer, reused) = (longer.expect("a number"), reused.expect("a number"));
    assert!(reused + tokens / 2 < longer, "all behind the line is read again: {reused} of {longer}");
    serving.stop();
}

/// Prompts were cut from the front where they were longer than the window, and answered with status 200.
#[test]
fn a_window_is_never_exceeded_and_no_prompt_cut() {
    for fit in [false, true] {
        let flags = ["--log-level", "warn", "--fit-max-tokens"];
        let serving = Serving::start_in("512", &flags[..if fit { 3 } else { 2 }]);
        let ask = |path: &str, mut body: Value, tokens_max: Option<u64>| {
            if let Some(tokens_max) = tokens_max {
                body["max_tokens"] = tokens_max.into();
            }
            let (status, answer) = serving.post(path, &body);
            if status == 200 {
                let usage = |field: &str| answer["usage"][field].as_u64().expect("a number");
                return Ok((usage("prompt_tokens"), usage("completion_tokens")));
            }
            let error = &answer["error"];
            assert_eq!((status, error["code"].as_str()), (400, Some("context_length_exceeded")), "{answer}");
            Err(error["message"].as_str().expect("a text").to_owned())
        };
        for tokens_max in [None, Some(1), Some(100_000)] {
            let refused = tokens_max == Some(100_000) && !fit;
            for len in [511, 512, 513, 5000] {
                let found = ask("/v1/completions", json!({"prompt": vec![7; len]}), tokens_max);
                match (len, &found) {
                    (511, Ok(usage)) if !refused => assert_eq!(*usage, (511, 1)),
                    (512.., Err(text)) => assert!(text.contains(&format!("the prompt has {len} tokens"))),
                    (_, Err(text)) if refused => {
                        assert!(text.contains("511 tokens") && text.contains("100000"))
                    }
                    _ => panic!("{len} tokens, {tokens_max:?}: {found:?}"),
                }
                assert!(found.is_ok() || found.unwrap_err().contains("512"));
            }
            // A chat's prompt has words around it that nobody counts: found out by what it is said to have.
            let chat = |words: usize| {
                let messages = json!([{"role": "system", "content": "the"},
                    {"role": "user", "content": " the".repeat(words)}]);
                ask("/v1/chat/completions", json!({"messages": messages}), tokens_max)
            };
            if !refused {
                let (around, _) = chat(0).expect("short");
                let most = 511 - around as usize;
                assert_eq!(chat(most).expect("it fits"), (511, 1));
                for more in [1, 2, 4489] {
                    let text = chat(most + more).expect_err("it does not fit");
                    assert!(
                        text.contains(&format!("{} tokens", 511 + more)) && text.contains("512"),
                        "{text}"
                    );
                }
            }
        }
        assert_eq!(serving.stop().0, Some(0));
    }
}

/// One line for each request, with figures and without words.
#[test]
fn requests_are_logged_without_what_they_say() {
    let serving = Serving::start("info");
    serving.post("/v1/completions", &json!({"prompt": "sesame", "max_tokens": 3, "stop": "abracadabra"}));
    serving.post("/v1/completions", &json!({"prompt": "sesame", "max_tokens": 3, "temperature": "sesame"}));
    serving.post("/v1/completions", &json!({"prompt": "sesame".repeat(1000), "max_tokens": 3}));
    serving.ask("POST /v1/completions", "{sesame");
    let (_, log) = serving.stop();
    let of = |start: &str| log.lines().filter(|line| line.starts_with(start)).collect::<Vec<_>>();
    let answered = of("info: answered ");
    assert_eq!((answered.len(), of("info: refused ").len()), (1, 3), "{log}");
    for figure in
        ["status=200", "completion_tokens=", "prompt_tokens=", "queue_ms=", "path=\"/v1/completions\""]
    {
        assert!(answered[0].contains(figure), "{log}");
    }
    assert!(!log.contains("sesame") && !log.contains("abracadabra"), "{log}");
}

#[test]
fn an_address_that_cannot_be_had_is_one_sentence() {
    let file = model("q2-tiny-F32");
    let check = |host: &str, port: &str, wanted: &str| {
        let ran = strata(&["serve", "-m", &file, "--host", host, "--port", port]);
        assert_eq!((ran.code, ran.stderr.lines().count(), ran.stdout.as_str()), (9, 1, ""), "{ran:?}");
        assert!(ran.stderr.starts_with(&format!("error: {wanted}")), "{}", ran.stderr);
    };
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    check("127.0.0.1", &port.to_string(), &format!("port {port} of 127.0.0.1 is in use by another program"));
    check("192.0.2.1", "0", "192.0.2.1 is no address of this machine");
    check("no host", "0", "the name no host has no address");
    let ran = strata(&["serve", "-m", "none.gguf", "--port", "0"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{ran:?}");
    for wrong in
        [["--port", "65536"], ["--port", "-1"], ["--parallel", "0"], ["--api-key", ""], ["--temp", "-1"]]
    {
        assert_eq!(strata(&[&["serve", "-m", &file][..], &wrong].concat()).code, 2, "{wrong:?}");
    }
}
