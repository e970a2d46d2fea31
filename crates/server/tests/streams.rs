//! Answers in their exact form: streamed and whole, of every shape, and one equal to the other.

#![forbid(unsafe_code)]

mod support;

use chat::{Finish, StopReason};
use serde_json::{Value, json};
use support::{Reply, Served, Step, end, failure, minimal, reading, streamed, text, thinking};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The body with what differs from run to run replaced.
fn stable(reply: &Reply) -> String {
    let body = reply.text();
    let first = body.lines().find_map(|line| line.strip_prefix("data: {")).map(|rest| format!("{{{rest}"));
    let first: Value = serde_json::from_str(&first.unwrap_or_else(|| body.clone())).expect("JSON");
    let (id, created) = (first["id"].as_str().expect("an id"), first["created"].as_u64().expect("a time"));
    body.replace(id, "ID").replace(&created.to_string(), "NOW")
}

fn stop() -> Finish {
    Finish::Stop(StopReason::Token(2))
}

fn lines(events: &[&str]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

#[test]
fn a_chat_stream_byte_for_byte() {
    let served = Served::start();
    served.script.say(vec![reading(5), thinking("Hm."), text("Hel"), text("lo \"€\"\n"), end(stop(), 7, 2)]);
    let mut body = streamed();
    body["stream_options"] = json!({"include_usage": true});
    let reply = served.post(CHAT, &body);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    let piece = |delta: &str, reason: &str| {
        format!(
            r#"{{"id":"ID","object":"chat.completion.chunk","created":NOW,"model":"scripted","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}],"usage":null}}"#
        )
    };
    let wanted = lines(&[
        &piece(r#"{"role":"assistant","content":""}"#, "null"),
        &piece(r#"{"reasoning_content":"Hm."}"#, "null"),
        &piece(r#"{"content":"Hel"}"#, "null"),
        &piece(r#"{"content":"lo \"€\"\n"}"#, "null"),
        &piece("{}", "\"stop\""),
        r#"{"id":"ID","object":"chat.completion.chunk","created":NOW,"model":"scripted","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}"#,
        "[DONE]",
    ]);
    assert_eq!(stable(&reply), wanted);
}

#[test]
fn a_completion_stream_byte_for_byte() {
    let served = Served::start();
    served.script.say(vec![text("a"), text("b"), end(Finish::Length, 2, 0)]);
    let reply = served.post(COMPLETIONS, &json!({"prompt": "x", "stream": true}));
    let piece = |text: &str, reason: &str| {
        format!(
            r#"{{"id":"ID","object":"text_completion","created":NOW,"model":"scripted","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{reason}}}]}}"#
        )
    };
    let wanted = lines(&[&piece("a", "null"), &piece("b", "null"), &piece("", "\"length\""), "[DONE]"]);
    assert_eq!(stable(&reply), wanted);
}

#[test]
fn whole_answers_byte_for_byte() {
    let served = Served::start();
    served.script.say(vec![thinking("Hm."), text("Hel"), text("lo"), end(stop(), 7, 2)]);
    let reply = served.post(CHAT, &minimal());
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    assert_eq!(
        stable(&reply),
        r#"{"id":"ID","object":"chat.completion","created":NOW,"model":"scripted","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null,"reasoning_content":"Hm."},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}"#
    );
    served.script.say(vec![text("ab"), end(Finish::Length, 2, 0)]);
    let reply = served.post(COMPLETIONS, &json!({"prompt": "x"}));
    assert_eq!(
        stable(&reply),
        r#"{"id":"ID","object":"text_completion","created":NOW,"model":"scripted","choices":[{"index":0,"text":"ab","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}}}"#
    );
}

/// What a chat stream amounts to, if it is one.
#[derive(Debug, PartialEq)]
struct Joined {
    thinking: String,
    text: String,
    reason: String,
    usage: Value,
}

/// Checks a chat stream against the API's rules and joins it.
fn validate(body: &str, usage_wanted: bool) -> Result<Joined, String> {
    let mut joined =
        Joined { thinking: String::new(), text: String::new(), reason: String::new(), usage: Value::Null };
    let events: Vec<&str> = body.split_terminator("\n\n").filter(|event| !event.starts_with(':')).collect();
    let (last, events) = events.split_last().ok_or("no event")?;
    if *last != "data: [DONE]" {
        return Err(format!("the last event is {last}"));
    }
    let mut ids = Vec::new();
    for (i, event) in events.iter().enumerate() {
        let json =
            event.strip_prefix("data: ").filter(|json| !json.contains('\n')).ok_or("no line of data")?;
        let piece: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        ids.push((
            piece["id"].clone(),
            piece["created"].clone(),
            piece["model"].clone(),
            piece["object"].clone(),
        ));
        let choices = piece["choices"].as_array().ok_or("no choices")?;
        if choices.is_empty() {
            if !usage_wanted || i + 1 != events.len() || joined.reason.is_empty() {
                return Err("a piece without choices in the wrong place".into());
            }
            joined.usage = piece["usage"].clone();
            continue;
        }
        if piece.get("usage").is_some_and(|usage| !usage.is_null())
            || piece.get("usage").is_some() != usage_wanted
        {
            return Err("usage in the wrong place".into());
        }
        let [choice] = choices.as_slice() else { return Err("more than one choice".into()) };
        if choice["index"] != 0 || !joined.reason.is_empty() {
            return Err("a piece after the end".into());
        }
        if (choice["delta"]["role"] == "assistant") != (i == 0) {
            return Err("the role comes once, first".into());
        }
        joined.thinking += choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
        joined.text += choice["delta"]["content"].as_str().unwrap_or_default();
        joined.reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    ids.dedup();
    match ids.len() {
        _ if joined.reason.is_empty() => Err("no reason to end".into()),
        1 if joined.usage.is_null() != usage_wanted => Ok(joined),
        1 => Err("usage is missing".into()),
        _ => Err("pieces of different answers".into()),
    }
}

#[test]
fn the_validator_finds_faults() {
    let piece = |delta: &str, reason: &str| {
        format!(r#"data: {{"id":"a","choices":[{{"index":0,"delta":{delta},"finish_reason":{reason}}}]}}"#)
    };
    let (role, a) = (piece(r#"{"role":"assistant"}"#, "null"), piece(r#"{"content":"a"}"#, "null"));
    let (last, done) = (piece("{}", "\"stop\""), "data: [DONE]".to_owned());
    let check = |events: &[&String]| {
        let body: String = events.iter().map(|event| format!("{event}\n\n")).collect();
        validate(&body, false).map(|joined| joined.text)
    };
    assert_eq!(check(&[&role, &a, &last, &done]), Ok("a".into()));
    let wrong: [&[&String]; 6] = [
        &[&role, &a, &last],
        &[&role, &a, &done],
        &[&a, &last, &done],
        &[&role, &role, &last, &done],
        &[&role, &last, &a, &done],
        &[&done],
    ];
    for events in wrong {
        assert!(check(events).is_err(), "{events:?}");
    }
}

/// Every order of kinds and every end, streamed with and without usage and whole: each well formed, all alike.
#[test]
fn streams_of_every_shape_are_well_formed_and_equal_the_whole_answer() {
    let served = Served::start();
    let bodies: [&[Step]; 7] = [
        &[],
        &[text("a")],
        &[thinking("t")],
        &[thinking("t"), text("a")],
        &[thinking("t"), thinking("u"), text("a"), text("b")],
        &[reading(1), reading(11), text("a"), text("🦀é"), text("\u{fffd}")],
        &[text("data: [DONE]\n\n"), text(": x\r\n\0")],
    ];
    let ends = [stop(), Finish::Stop(StopReason::Sequence(0)), Finish::Length];
    for body in bodies {
        for finish in ends {
            let steps = [body, &[end(finish, 5, 1)]].concat();
            for _ in 0..3 {
                served.script.say(steps.clone());
            }
            let whole = served.post(CHAT, &minimal()).json();
            let message = &whole["choices"][0]["message"];
            let plain = Joined {
                thinking: message["reasoning_content"].as_str().unwrap_or_default().into(),
                text: message["content"].as_str().expect("text").into(),
                reason: whole["choices"][0]["finish_reason"].as_str().expect("a reason").into(),
                usage: Value::Null,
            };
            assert_eq!(validate(&served.post(CHAT, &streamed()).text(), false).as_ref(), Ok(&plain));
            let mut request = streamed();
            request["stream_options"] = json!({"include_usage": true});
            let with_usage = Joined { usage: whole["usage"].clone(), ..plain };
            assert_eq!(validate(&served.post(CHAT, &request).text(), true), Ok(with_usage));
        }
    }
}

/// A failure after the status is an event; one before it has a status of its own.
#[test]
fn failures_come_in_form() {
    let served = Served::start();
    let error = r#"{"error":{"message":"the engine has stopped before the answer was whole","type":"server_error","param":null,"code":null}}"#;
    served.script.say(vec![text("a"), failure()]);
    let body = served.post(CHAT, &streamed()).text();
    assert!(body.ends_with(&format!("\"finish_reason\":null}}]}}\n\ndata: {error}\n\n")), "{body}");
    served.script.say(vec![text("a"), failure()]);
    let reply = served.post(CHAT, &minimal());
    assert_eq!((reply.status, reply.text().as_str()), (500, error));
    // Nor does a model that just stops leave a reader waiting.
    served.script.say(vec![text("a")]);
    assert!(served.post(CHAT, &streamed()).text().contains("\"type\":\"server_error\""));
    served.script.say(vec![text("a")]);
    assert_eq!(served.post(CHAT, &minimal()).status, 500);
    served.is_well();
}
