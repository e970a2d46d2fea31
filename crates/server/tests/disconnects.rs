//! Clients that leave, at every point of an answer, and servers that do.

#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use chat::{ChatError, RequestError, SubmitError};
use serde_json::{Value, json};
use server::{Limits, Settings};
use support::{Raw, Served, Step, minimal, reading, streamed, text, thinking};

const CHAT: &str = "/v1/chat/completions";

fn settings(limits: Limits) -> Settings {
    Settings { model_name: "scripted".into(), limits, ..Settings::default() }
}

/// The steps before the point at which nothing more comes: queued, reading, thinking, writing.
fn points() -> [Vec<Step>; 4] {
    [
        vec![Step::Forever],
        vec![reading(5), Step::Forever],
        vec![reading(11), thinking("t"), Step::Forever],
        vec![reading(11), text("a"), Step::Forever],
    ]
}

/// A server went on to write for clients that had left, until its context was full.
#[test]
fn a_client_that_leaves_ends_the_work_wherever_it_is() {
    let served = Served::start();
    for leave in [
        |raw: Raw| drop(raw),
        |mut raw: Raw| {
            raw.half_close();
            assert!(raw.drain());
        },
    ] {
        for point in points() {
            for body in [minimal(), streamed()] {
                let begun = served.script.begun();
                served.script.say(point.clone());
                let mut raw = served.connect();
                raw.post(CHAT, &body);
                served.script.wait_begun(begun + 1);
                leave(raw);
                served.script.wait_open(0);
            }
        }
    }
    served.is_well();
}

/// What was sent behind the request hid from the server that its client had left.
#[test]
fn a_client_that_leaves_in_the_middle_of_its_next_request() {
    let served =
        Served::with(settings(Limits { silence_time: Duration::from_millis(10), ..Limits::default() }));
    for body in [streamed(), minimal()] {
        served.script.say(vec![Step::Forever]);
        let mut raw = served.connect();
        let begun = served.script.begun();
        raw.post(CHAT, &body);
        raw.send(b"\r\nPOST /v1/");
        served.script.wait_begun(begun + 1);
        drop(raw);
        served.script.wait_open(0);
    }
    served.is_well();
}

#[test]
fn many_that_leave_at_once() {
    let served = Served::start();
    let begun = served.script.begun();
    let mut raws = Vec::new();
    for i in 0..64 {
        served.script.say(vec![text("a"), Step::Forever]);
        let mut raw = served.connect();
        raw.post(CHAT, &if i % 2 == 0 { minimal() } else { streamed() });
        raws.push(raw);
    }
    served.script.wait_begun(begun + 64);
    drop(raws);
    served.script.wait_open(0);
    served.is_well();
}

/// What nobody reads stays in the answer, is not made into bytes, and holds up nobody.
#[test]
fn a_reader_that_does_not_read_holds_up_nobody() {
    let served = Served::start();
    let begun = served.script.begun();
    // More than all buffers between the two hold.
    let much = text(&"x".repeat(1 << 20));
    served.script.say(vec![much; 64]);
    let mut slow = served.connect();
    slow.post(CHAT, &streamed());
    served.script.wait_begun(begun + 1);
    for _ in 0..8 {
        assert_eq!(served.post(CHAT, &minimal()).status, 200);
    }
    served.script.wait_open(1);
    drop(slow);
    served.is_well();
}

/// Headers come at once, and comments while there is nothing to say; clients gave up after minutes without a byte.
#[test]
fn a_stream_in_which_nothing_happens_shows_signs_of_life() {
    let served =
        Served::with(settings(Limits { silence_time: Duration::from_millis(10), ..Limits::default() }));
    served.script.say(vec![Step::Forever]);
    let mut raw = served.connect();
    raw.post(CHAT, &streamed());
    raw.read_to("\"role\":\"assistant\"");
    raw.read_to(": waiting\n\n");
    raw.read_to(": waiting\n\n");
    served.script.say(vec![reading(5), Step::Forever]);
    let mut raw = served.connect();
    raw.post(CHAT, &streamed());
    raw.read_to(": 5 of 11 tokens of the prompt are read\n\n");
    served.script.say(vec![Step::Forever]);
    let mut raw = served.connect();
    raw.post("/v1/completions", &json!({"prompt": "x", "stream": true}));
    raw.read_to("x-accel-buffering: no\r\n");
    raw.read_to(": waiting\n\n");
}

#[test]
fn what_the_model_refuses_has_its_status() {
    let served = Served::start();
    let refused = |error: ChatError| {
        served.script.refuse(error);
        let reply = served.post(CHAT, &minimal());
        let retry = reply.header("retry-after").is_some();
        (
            reply.status,
            reply.code(),
            retry,
            reply.json()["error"]["message"].as_str().expect("a text").to_owned(),
        )
    };
    let (status, code, retry, message) = refused(ChatError::Submit(SubmitError::QueueFull { queue_max: 3 }));
    assert_eq!((status, code.as_str(), retry), (429, "queue_full", true));
    assert!(message.contains('3'));
    let too_long = RequestError::PromptTooLong { prompt_tokens: 513, context_tokens: 512 };
    let (status, code, retry, message) = refused(ChatError::Submit(SubmitError::Request(too_long)));
    assert_eq!((status, code.as_str(), retry), (400, "context_length_exceeded", false));
    assert!(message.contains("513") && message.contains("512"));
    assert_eq!(refused(ChatError::Submit(SubmitError::Stopped)).0, 503);
    served.is_well();
}

#[test]
fn health_tells_loading_ready_failed() {
    let listening = Served::loading(settings(Limits::default()));
    let mut raw = Raw::connect(listening.address());
    let mut get = |path: &str| {
        raw.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        raw.reply()
    };
    assert_eq!((get("/health").status, get("/health").json()["status"].as_str()), (503, Some("loading")));
    let reply = get("/v1/models");
    assert_eq!((reply.status, reply.code().as_str()), (503, "model_loading"));
    let script = support::Script::default();
    listening.ready(script.clone());
    let health: Value = get("/health").json();
    assert_eq!(health, json!({"status": "ok", "queued": 0, "running": 0, "parallel_max": 4}));
    script.die();
    assert_eq!((get("/health").status, get("/health").json()["status"].as_str()), (503, Some("failed")));
    listening.stop().expect("a good end");
}

/// Streams ended in form when the server does, and those that are nearly done are finished.
#[test]
fn stopping_ends_answers_in_form() {
    let served = Served::with(settings(Limits { stop_time: Duration::from_millis(50), ..Limits::default() }));
    let begun = served.script.begun();
    for _ in 0..2 {
        served.script.say(vec![text("a"), Step::Forever]);
    }
    let (mut stream, mut whole, mut idle) = (served.connect(), served.connect(), served.connect());
    stream.post(CHAT, &streamed());
    whole.post(CHAT, &minimal());
    served.script.wait_begun(begun + 2);
    idle.post(CHAT, &minimal());
    assert_eq!(idle.reply().status, 200);
    let script = served.script.clone();
    served.stop();
    script.wait_open(0);
    let body = stream.reply().text();
    assert!(
        body.contains("\"content\":\"a\"") && body.ends_with("\"code\":\"server_stopping\"}}\n\n"),
        "{body}"
    );
    let reply = whole.reply();
    assert_eq!((reply.status, reply.code().as_str()), (503, "server_stopping"));
    assert!(idle.is_closed());
}
