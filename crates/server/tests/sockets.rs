//! What clients can do to a server on the level of bytes: each gets its answer, and the next one too.

#![forbid(unsafe_code)]

mod support;

use std::time::Duration;

use serde_json::json;
use server::{Limits, Settings};
use support::{Raw, Reply, Served, minimal};

const CHAT: &str = "/v1/chat/completions";

fn settings(limits: Limits) -> Settings {
    Settings { model_name: "scripted".into(), limits, ..Settings::default() }
}

/// Sends bytes on a connection of their own.
fn exchange(served: &Served, bytes: &str) -> Reply {
    let mut raw = served.connect();
    raw.send(bytes.as_bytes());
    raw.reply()
}

#[test]
fn errors_have_the_form_of_the_api() {
    let served = Served::start();
    let reply = served.post(CHAT, &json!({"messages": [], "temperature": 1}));
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.json(),
        json!({"error": {
            "message": "`messages` must be a list of at least one message",
            "type": "invalid_request_error",
            "param": "messages",
            "code": null,
        }})
    );
    let status_and_code = |request: &str| {
        let reply = exchange(&served, request);
        (reply.status, reply.code())
    };
    let at = |line: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(status_and_code(&at("GET /v2/x")), (404, "unknown_url".into()));
    assert_eq!(status_and_code(&at("GET /v1/chat/completions")), (405, "method_not_allowed".into()));
    assert_eq!(status_and_code(&at("GET /v1/models/other")), (404, "unknown_url".into()));
    // A name that is no text was refused in the framework's words.
    assert_eq!(status_and_code(&at("GET /v1/models/%ff")), (404, "unknown_url".into()));
    served.is_well();
}

#[test]
fn the_model_is_listed_with_its_context() {
    let served = Served::start();
    let list = served.get("/v1/models").json();
    let model = &list["data"][0];
    assert_eq!((model["id"].as_str(), model["context_length"].as_u64()), (Some("scripted"), Some(512)));
    assert_eq!(&served.get("/v1/models/scripted").json(), model);
}

/// A web page could ask a server on this machine through a name of its own.
#[test]
fn requests_that_a_web_page_could_send_are_not_answered() {
    let served = Served::start();
    let body = minimal().to_string();
    let length = body.len();
    let post = |target: &str, headers: &str| {
        exchange(
            &served,
            &format!("POST {target} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n{body}"),
        )
        .status
    };
    assert_eq!(post(CHAT, "Host: LOCALHOST:8080\r\n"), 200);
    assert_eq!(post(CHAT, "Host: [::1]\r\n"), 200);
    assert_eq!(post("http://localhost/v1/chat/completions", "Host: localhost\r\n"), 200);
    served.script.wait_begun(3);
    assert_eq!(post(CHAT, "Host: evil.example\r\n"), 403);
    assert_eq!(post(CHAT, "Host: 127.0.0.1.evil.example:80\r\n"), 403);
    assert_eq!(post("http://evil.example/v1/chat/completions", "Host: localhost\r\n"), 403);
    assert_eq!(post(CHAT, "Host: localhost\r\nHost: localhost\r\n"), 400);
    assert_eq!(post(CHAT, ""), 400);
    // A simple request, which the browser sends without asking.
    assert_eq!(
        post(CHAT, "Host: localhost\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n"),
        403
    );
    assert_eq!(post(CHAT, "Host: localhost\r\nOrigin: null\r\n"), 403);
    // Of all these, none was begun.
    served.is_well();
    served.script.wait_begun(4);
    let asked = exchange(
        &served,
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\
         Access-Control-Request-Method: POST\r\n\r\n",
    );
    assert_eq!((asked.status, asked.header("access-control-allow-origin")), (403, None));
    assert_eq!(exchange(&served, "GET /health HTTP/1.0\r\n\r\n").status, 403);
    assert_eq!(exchange(&served, "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n").status, 200);
}

#[test]
fn a_key_opens_all_but_health() {
    let served = Served::with(Settings { api_key: Some("sesame".into()), ..settings(Limits::default()) });
    let get = |path: &str, key: &str| {
        exchange(&served, &format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{key}\r\n"))
    };
    let reply = get("/v1/models", "");
    assert_eq!((reply.status, reply.code().as_str()), (401, "invalid_api_key"));
    assert_eq!(get("/v1/models", "Authorization: Bearer sesam\r\n").status, 401);
    assert_eq!(get("/v1/models", "Authorization: Bearer sesame\r\n").status, 200);
    assert_eq!(get("/v1/none", "").status, 401);
    assert_eq!(get("/health", "").status, 200);
}

#[test]
fn bodies_come_in_every_form_that_http_has() {
    let served = Served::start();
    let body = minimal().to_string();
    let mut raw = served.connect();
    raw.send(
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(),
    );
    for byte in body.bytes() {
        raw.send(format!("1\r\n{}\r\n", char::from(byte)).as_bytes());
    }
    raw.send(b"0\r\n\r\n");
    assert_eq!(raw.reply().status, 200);
    // The same connection goes on.
    raw.post(CHAT, &minimal());
    assert_eq!(raw.reply().status, 200);
    // A client that asks first.
    let length = body.len();
    raw.send(
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n")
            .as_bytes(),
    );
    assert_eq!(raw.reply().status, 100);
    raw.send(body.as_bytes());
    assert_eq!(raw.reply().status, 200);
    // A wrong length, in either direction.
    let head = |length: usize| {
        format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
    };
    assert_eq!(exchange(&served, &format!("{}{body}", head(length - 1))).status, 400);
    let mut raw = served.connect();
    raw.send(format!("{}{body}", head(length + 1)).as_bytes());
    raw.half_close();
    assert!(matches!(raw.reply().status, 400 | 0));
    served.is_well();
}

#[test]
fn bodies_that_are_too_large_are_refused_announced_or_not() {
    let served = Served::with(settings(Limits { body_bytes_max: 1000, ..Limits::default() }));
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n");
    for (headers, body) in [
        ("Content-Length: 1001\r\n\r\n", " ".repeat(1001)),
        ("Content-Length: 4294967296\r\nExpect: 100-continue\r\n\r\n", String::new()),
        ("Transfer-Encoding: chunked\r\n\r\n", format!("{:x}\r\n{}\r\n0\r\n\r\n", 5000, " ".repeat(5000))),
    ] {
        let reply = exchange(&served, &format!("{head}{headers}{body}"));
        assert_eq!((reply.status, reply.code().as_str()), (413, "request_too_large"), "{headers}");
        assert_eq!(reply.header("connection"), Some("close"));
    }
    served.is_well();
}

/// One that sends a byte now and then held a connection for ever.
#[test]
fn bodies_and_headers_that_do_not_come_are_given_up() {
    let times = Limits {
        headers_time: Duration::from_millis(50),
        body_time: Duration::from_millis(50),
        ..Limits::default()
    };
    let served = Served::with(settings(times));
    let mut raw = served.connect();
    raw.send(b"GET /health HTTP/1.1\r\nHost: loc");
    assert!(raw.is_closed());
    let reply =
        exchange(&served, &format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{{"));
    assert_eq!((reply.status, reply.code().as_str()), (408, "request_timeout"));
    assert!(served.connect().is_closed(), "a connection on which nothing is asked");
    served.is_well();
}

#[test]
fn floods_of_headers_end_their_connection() {
    let served = Served::start();
    for count in [101, 100_000] {
        let headers: String = (0..count).map(|i| format!("X-{i}: 1\r\n")).collect();
        let mut raw = served.connect();
        raw.send(format!("GET /health HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes());
        assert!(matches!(raw.connection_status(), 431 | 400 | 0), "{count}");
    }
    let mut raw = served.connect();
    raw.send(
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).as_bytes(),
    );
    assert!(matches!(raw.connection_status(), 431 | 400 | 0));
    for garbage in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1}",
        "GET / HTTP/9.9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut raw = served.connect();
        raw.send(garbage.as_bytes());
        raw.half_close();
        assert!(matches!(raw.connection_status(), 400..=505 | 0), "{garbage:?}");
    }
    served.is_well();
}

/// Brackets 3,000 deep in a field ended another server, 10,000 deep even in one that it ignored.
#[test]
fn depth_is_refused_or_ignored() {
    let served = Served::start();
    for depth in [100, 1_000, 10_000, 100_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let objects = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        for (field, wanted) in [
            (format!("\"ignored\":{deep}"), 200),
            (format!("\"tools\":{deep}"), 400),
            (format!("\"stop\":{deep}"), 400),
            (format!("\"chat_template_kwargs\":{objects}"), if depth < 128 { 200 } else { 400 }),
            (format!("\"logit_bias\":{objects}"), 400),
        ] {
            let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}],{field}}}");
            let length = body.len();
            let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
            let shown: String = field.chars().take(30).collect();
            assert_eq!(exchange(&served, &format!("{head}{body}")).status, wanted, "{depth} {shown}");
        }
    }
    served.is_well();
}

#[test]
fn connections_beyond_the_limit_wait_for_others_to_leave() {
    let served = Served::with(settings(Limits { connections_max: 2, ..Limits::default() }));
    let mut first = served.connect();
    let second = served.connect();
    first.post(CHAT, &minimal());
    assert_eq!(first.reply().status, 200);
    let mut third = Raw::connect(served.address);
    third.post(CHAT, &minimal());
    drop(second);
    assert_eq!(third.reply().status, 200);
}
