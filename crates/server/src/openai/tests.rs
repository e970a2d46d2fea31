//! Requests of the OpenAI API in canonical form, and what is refused.

use chat::{ChatRequest, Message, Prompt, Role, Sampling, Thinking, ToolCall};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::request::Asked;
use super::{chat as chat_completions, completions};
use crate::fault::{Fault, Kind};

fn defaults() -> Sampling {
    Sampling { temperature: 0.8, top_k: 40, seed: 7, ..Sampling::default() }
}

fn chat(body: &Value) -> Result<Asked, Fault> {
    chat_completions::parse(body.to_string().as_bytes(), &defaults())
}

/// A minimal request and one field more, whose value is JSON as it is written here.
fn chat_with(name: &str, value: &str) -> Result<Asked, Fault> {
    let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}],\"{name}\":{value}}}");
    chat_completions::parse(body.as_bytes(), &defaults())
}

fn completion_with(name: &str, value: &str) -> Result<Asked, Fault> {
    let body = format!("{{\"prompt\":\"Hi\",\"{name}\":{value}}}");
    completions::parse(body.as_bytes(), &defaults())
}

fn messages(list: Value) -> Result<Vec<Message>, Fault> {
    let asked = chat(&json!({"messages": list}))?;
    match asked.request.prompt {
        Prompt::Messages { messages, .. } => Ok(messages),
        prompt => panic!("{prompt:?}"),
    }
}

fn minimal() -> ChatRequest {
    ChatRequest {
        prompt: Prompt::Messages { messages: vec![Message::new(Role::User, "Hi")], variables: Map::new() },
        sampling: defaults(),
        tokens_max: None,
        fit_tokens_max: false,
        stop_strings: vec![],
        thinking: Thinking::AsTemplate,
        local_time_s: None,
    }
}

/// Requests are compared by what they show.
#[track_caller]
fn check(asked: Result<Asked, Fault>, request: ChatRequest, stream: bool) {
    let wanted = Asked { request, stream, stream_usage: stream };
    assert_eq!(format!("{:?}", asked.expect("taken")), format!("{wanted:?}"));
}

#[test]
fn a_minimal_request_takes_the_defaults() {
    let asked = chat(&json!({"model": "any", "messages": [{"role": "user", "content": "Hi"}]}));
    check(asked, minimal(), false);
}

#[test]
fn every_field_arrives() {
    let asked = chat(&json!({
        "model": "any",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.7, "top_k": 12,
        "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5, "seed": u64::MAX,
        "logit_bias": {"50": -100, "7": 1.5, "8": null},
        "max_tokens": 5, "max_completion_tokens": 6,
        "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
        "n": 1, "logprobs": false, "top_logprobs": 0, "tools": [], "functions": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "modalities": ["text"], "user": "u", "store": true, "metadata": {},
        "service_tier": "auto", "parallel_tool_calls": true, "verbosity": "low", "unknown": [[[]]],
    }));
    let sampling = Sampling {
        temperature: 0.5,
        top_p: 0.9,
        min_p: 0.1,
        typical_p: 0.7,
        top_k: 12,
        presence_penalty: -2.0,
        frequency_penalty: 2.0,
        repetition_penalty: 1.5,
        seed: u64::MAX,
        logit_bias: vec![(7, 1.5), (50, -100.0)],
        ..defaults()
    };
    let stop_strings = vec!["a".into(), "b".into()];
    let request = ChatRequest { sampling, tokens_max: Some(6), stop_strings, ..minimal() };
    check(asked, request, true);
}

#[test]
fn null_is_absent() {
    let fields = [
        "model",
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "top_k",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "repeat_penalty",
        "seed",
        "logit_bias",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "stream",
        "stream_options",
        "n",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
        "modalities",
        "audio",
        "reasoning_effort",
        "chat_template_kwargs",
        "thinking_budget",
        "enable_thinking",
    ];
    for name in fields {
        check(chat_with(name, "null"), minimal(), false);
    }
    for name in ["suffix", "echo", "best_of", "logprobs", "max_tokens"] {
        assert!(completion_with(name, "null").is_ok(), "{name}");
    }
}

/// Temperature 999999 with top_p -1 hung one server and ended another.
#[test]
fn numbers_out_of_range_are_refused_with_field_and_range() {
    let u32_max = u64::from(u32::MAX);
    let numbers: [(&str, &str); 14] = [
        ("temperature", "a number from 0 to 100"),
        ("top_p", "a number from 0 to 1"),
        ("min_p", "a number from 0 to 1"),
        ("typical_p", "a number from 0 to 1"),
        ("presence_penalty", "a number from -100 to 100"),
        ("frequency_penalty", "a number from -100 to 100"),
        ("repetition_penalty", "a number from 0.01 to 100"),
        ("repeat_penalty", "a number from 0.01 to 100"),
        ("top_k", &format!("a whole number from 0 to {u32_max}")),
        ("max_tokens", "a whole number from 0 to 2147483647"),
        ("max_completion_tokens", "a whole number from 0 to 2147483647"),
        ("thinking_budget", "a whole number from 0 to 2147483647"),
        ("n", "a whole number from 1 to 128"),
        ("seed", "a whole number from 0 to 18446744073709551615, or -1 for any"),
    ];
    for (name, wanted) in numbers {
        for wrong in
            ["-101", "1e400", "-1e400", "18446744073709551616", "\"nan\"", "true", "[1]", "{}", "1.5e300"]
        {
            let fault = chat_with(name, wrong).expect_err(name);
            assert_eq!(fault.kind, Kind::Invalid);
            assert_eq!(fault.message, format!("`{name}` must be {wanted}, not {wrong}"));
            assert_eq!(fault.field.as_deref(), Some(name));
        }
    }
    for (name, wrong) in
        [("n", "0"), ("max_tokens", "-1"), ("max_tokens", "9223372036854775808"), ("top_k", "0.5")]
    {
        assert_eq!(chat_with(name, wrong).expect_err(name).kind, Kind::Invalid, "{name} {wrong}");
    }
    assert_eq!(chat_with("max_tokens", "0").expect("none").request.tokens_max, Some(0));
    assert_eq!(chat_with("seed", "-1").expect("any").request.sampling.seed, defaults().seed);
}

/// The ranges here are those of the engine: what passes here passes there, and nothing beyond the edge would.
#[test]
fn the_ranges_are_those_of_the_engine() {
    let edges = [
        ("temperature", 0.0, 100.0),
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("typical_p", 0.0, 1.0),
        ("presence_penalty", -100.0, 100.0),
        ("frequency_penalty", -100.0, 100.0),
        ("repetition_penalty", 0.01, 100.0),
    ];
    for (name, least, most) in edges {
        for edge in [least, most] {
            let sampling = chat_with(name, &format!("{edge}")).expect(name).request.sampling;
            assert!(sampling.validate(100).is_ok(), "{name} {edge}");
        }
        let beyond = |sampling: &mut Sampling, value: f32| match name {
            "temperature" => sampling.temperature = value,
            "top_p" => sampling.top_p = value,
            "min_p" => sampling.min_p = value,
            "typical_p" => sampling.typical_p = value,
            "presence_penalty" => sampling.presence_penalty = value,
            "frequency_penalty" => sampling.frequency_penalty = value,
            _ => sampling.repetition_penalty = value,
        };
        for value in [(least as f32).next_down(), (most as f32).next_up()] {
            let mut sampling = defaults();
            beyond(&mut sampling, value);
            assert!(sampling.validate(100).is_err(), "{name} {value}");
        }
    }
}

#[test]
fn biases_are_of_token_ids() {
    for (wrong, field) in [
        ("{\"-1\":1}", "logit_bias"),
        ("{\"4294967296\":1}", "logit_bias"),
        ("{\"x\":1}", "logit_bias"),
        ("{\"+1\":1}", "logit_bias"),
        ("{\"1\":1e30}", "logit_bias.1"),
        ("{\"1\":\"1\"}", "logit_bias.1"),
        ("[]", "logit_bias"),
        ("3", "logit_bias"),
    ] {
        assert_eq!(chat_with("logit_bias", wrong).expect_err(wrong).field.as_deref(), Some(field));
    }
}

/// A megabyte of zeros in front of a token id was its name in the answer and in the log.
#[test]
fn a_name_that_is_long_is_not_repeated() {
    let fault = chat_with("logit_bias", &format!("{{\"{}5\":101}}", "0".repeat(1000))).expect_err("refused");
    assert_eq!(fault.field.as_deref(), Some("logit_bias"));
    assert!(fault.message.len() < 100, "{}", fault.message);
}

#[test]
fn stops_are_text() {
    let stops = |value: &str| chat_with("stop", value).map(|asked| asked.request.stop_strings);
    assert_eq!(stops("\"a\"").expect("one"), ["a"]);
    assert_eq!(stops("[]").expect("none"), [""; 0]);
    for (wrong, field) in [("1", "stop"), ("{}", "stop"), ("[\"a\",1]", "stop[1]"), ("[null]", "stop[0]")] {
        assert_eq!(stops(wrong).expect_err(wrong).field.as_deref(), Some(field));
    }
}

#[test]
fn what_is_not_there_yet_is_said_to_be_so() {
    let tool = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    for (name, value) in [
        ("n", "2"),
        ("tools", tool),
        ("functions", "[{}]"),
        ("tool_choice", "\"required\""),
        ("tool_choice", "{\"type\":\"function\"}"),
        ("logprobs", "true"),
        ("top_logprobs", "3"),
        ("response_format", "{\"type\":\"json_object\"}"),
        ("response_format", "{\"type\":\"json_schema\",\"json_schema\":{}}"),
        ("response_format", "{}"),
        ("modalities", "[\"text\",\"audio\"]"),
        ("grammar", "\"root ::= x\""),
        ("guided_json", "{}"),
    ] {
        let fault = chat_with(name, value).expect_err(name);
        assert_eq!((fault.kind, fault.field.as_deref()), (Kind::Unsupported, Some(name)), "{value}");
    }
    for (name, value) in [
        ("n", "2"),
        ("best_of", "2"),
        ("suffix", "\"\""),
        ("echo", "true"),
        ("logprobs", "0"),
        ("prompt", "[\"a\",\"b\"]"),
    ] {
        let fault = completion_with(name, value).expect_err(name);
        assert_eq!((fault.kind, fault.field.as_deref()), (Kind::Unsupported, Some(name)), "{value}");
    }
}

#[test]
fn content_comes_in_several_forms() {
    let list = json!([
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D1"}, {"type": "text", "text": "D2"}]},
        {"role": "user", "content": ["U", {"type": "input_text", "text": "V"}]},
        {"role": "assistant", "content": null, "reasoning_content": "R"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "tool", "content": "T", "tool_call_id": "1"},
        {"role": "function", "content": []},
        {"role": "user"},
    ]);
    let found = messages(list).expect("messages");
    let shown: Vec<_> = found.iter().map(|message| (message.role, message.content.as_str())).collect();
    let wanted = [
        (Role::System, "S"),
        (Role::Developer, "D1D2"),
        (Role::User, "UV"),
        (Role::Assistant, ""),
        (Role::Assistant, "No."),
        (Role::Tool, "T"),
        (Role::Tool, ""),
        (Role::User, ""),
    ];
    assert_eq!(shown, wanted);
    assert_eq!(found[3].reasoning.as_deref(), Some("R"));
}

/// One answer that was cut off within a call made every later request of its conversation fail.
#[test]
fn calls_of_tools_in_the_history_are_taken_as_they_are() {
    let calls = |arguments: &str| {
        let body = format!(
            "{{\"messages\":[{{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{{\"id\":\"c\",\"type\":\"function\",\
             \"function\":{{\"name\":\"f\",\"arguments\":{arguments}}}}}]}},\
             {{\"role\":\"tool\",\"tool_call_id\":\"c\",\"name\":\"f\",\"content\":\"1\"}}]}}"
        );
        let asked = chat_completions::parse(body.as_bytes(), &defaults())?;
        let Prompt::Messages { messages, .. } = asked.request.prompt else { panic!("a conversation") };
        assert_eq!(
            (messages[1].tool_call_id.as_deref(), messages[1].name.as_deref()),
            (Some("c"), Some("f"))
        );
        Ok(messages[0].tool_calls.clone())
    };
    for (arguments, wanted) in [
        ("\"{\\\"a\\\":1}\"", json!("{\"a\":1}")),
        ("\"{\"", json!("{")),
        ("\"\"", json!("")),
        ("null", json!("")),
        ("3", json!(3)),
        ("[1]", json!([1])),
        ("{\"a\":1,\"a\":2}", json!({"a": 2})),
    ] {
        let call = ToolCall { id: Some("c".into()), name: "f".into(), arguments: wanted };
        assert_eq!(calls(arguments), Ok(vec![call]), "{arguments}");
    }
    let fault: Fault = calls("{\"a\":1e999}").expect_err("no number");
    assert_eq!(fault.field.as_deref(), Some("messages[0].tool_calls[0].function.arguments"));
    let older = json!([{"role": "assistant", "function_call": {"name": null}}]);
    assert_eq!(messages(older).expect("taken")[0].tool_calls.len(), 1);
    for (call, field) in [
        (json!([1]), "messages[0].tool_calls[0]"),
        (json!([{"id": "c"}]), "messages[0].tool_calls[0].function"),
        (json!([{"function": {"name": 1}}]), "messages[0].tool_calls[0].function.name"),
    ] {
        let list = json!([{"role": "assistant", "tool_calls": call}]);
        assert_eq!(messages(list).expect_err("refused").field.as_deref(), Some(field));
    }
}

/// A template is given what the texts of arguments hold: a list of 15 million numbers took it 4 GB and 20 s.
#[test]
fn messages_have_a_bounded_number_of_values() {
    let numbers = format!("{{\"a\":[{}0]}}", "0,".repeat(1 << 18));
    let text =
        json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": numbers}}]}]);
    let parsed: Value = serde_json::from_str(&numbers).expect("JSON");
    let object =
        json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": parsed}}]}]);
    for list in [text, object, json!(vec![json!({"role": "user"}); 1 << 17])] {
        let fault = messages(list).expect_err("refused");
        assert_eq!(fault.message, "`messages` must have at most 262144 values");
    }
    // Text is none, whatever stands in it.
    assert!(messages(json!([{"role": "user", "content": ",".repeat(1 << 19)}])).is_ok());
}

#[test]
fn messages_that_are_none_are_named() {
    let image = json!([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}]);
    let fault = messages(image).expect_err("an image");
    assert_eq!((fault.kind, fault.field.as_deref()), (Kind::Unsupported, Some("messages[0].content[1]")));
    for (list, field) in [
        (json!(null), "messages"),
        (json!([]), "messages"),
        (json!("x"), "messages"),
        (json!([1]), "messages[0]"),
        (json!([{"role": "user", "content": "x"}, {"content": "x"}]), "messages[1].role"),
        (json!([{"role": "king", "content": "x"}]), "messages[0].role"),
        (json!([{"role": 1}]), "messages[0].role"),
        (json!([{"role": "user", "content": 1}]), "messages[0].content"),
        (json!([{"role": "user", "content": {"text": "x"}}]), "messages[0].content"),
        (json!([{"role": "user", "content": [1]}]), "messages[0].content[0]"),
        (json!([{"role": "user", "content": [{"type": "poem"}]}]), "messages[0].content[0].type"),
        (json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text"),
        (json!([{"role": "user", "content": [{"type": "text", "text": 1}]}]), "messages[0].content[0].text"),
    ] {
        let fault = messages(list.clone()).expect_err("refused");
        assert_eq!((fault.kind, fault.field.as_deref()), (Kind::Invalid, Some(field)), "{list}");
    }
}

#[test]
fn thinking_is_asked_for_in_several_ways() {
    let thinking = |name: &str, value: &str| chat_with(name, value).map(|asked| asked.request.thinking);
    for (name, value, wanted) in [
        ("reasoning_effort", "\"none\"", Thinking::Off),
        ("reasoning_effort", "\"high\"", Thinking::AsTemplate),
        ("enable_thinking", "false", Thinking::Off),
        ("enable_thinking", "true", Thinking::AsTemplate),
        ("chat_template_kwargs", "{\"enable_thinking\":false}", Thinking::Off),
        ("chat_template_kwargs", "{\"enable_thinking\":true}", Thinking::AsTemplate),
        ("thinking_budget", "0", Thinking::Off),
        ("thinking_budget", "64", Thinking::Budget(64)),
    ] {
        assert_eq!(thinking(name, value), Ok(wanted), "{name} {value}");
    }
    for (name, value) in [
        ("reasoning_effort", "\"huge\""),
        ("reasoning_effort", "1"),
        ("enable_thinking", "0"),
        ("chat_template_kwargs", "[]"),
    ] {
        assert_eq!(thinking(name, value).expect_err(name).field.as_deref(), Some(name), "{value}");
    }
}

#[test]
fn prompts_are_text_or_token_ids() {
    let prompt = |value: &str| {
        let body = format!("{{\"prompt\":{value}}}");
        completions::parse(body.as_bytes(), &defaults()).map(|asked| format!("{:?}", asked.request.prompt))
    };
    assert_eq!(prompt("\"a\""), Ok(format!("{:?}", Prompt::Text("a".into()))));
    assert_eq!(prompt("[\"a\"]"), Ok(format!("{:?}", Prompt::Text("a".into()))));
    assert_eq!(prompt("[1,4294967295]"), Ok(format!("{:?}", Prompt::Tokens(vec![1, u32::MAX]))));
    assert_eq!(prompt("[[1,2]]"), Ok(format!("{:?}", Prompt::Tokens(vec![1, 2]))));
    for (wrong, field) in [
        ("null", "prompt"),
        ("3", "prompt"),
        ("{}", "prompt"),
        ("[]", "prompt"),
        ("[[]]", "prompt[0]"),
        ("[-1]", "prompt[0]"),
        ("[1,4294967296]", "prompt[1]"),
        ("[1,9223372036854775808]", "prompt[1]"),
        ("[1,\"a\"]", "prompt[1]"),
        ("[1,1.5]", "prompt[1]"),
        ("[[1,[2]]]", "prompt[0][1]"),
        ("[null]", "prompt[0]"),
    ] {
        let fault = prompt(wrong).expect_err(wrong);
        assert_eq!((fault.kind, fault.field.as_deref()), (Kind::Invalid, Some(field)), "{wrong}");
    }
    assert_eq!(completion_with("n", "1").expect("fine").request.tokens_max, Some(16));
}

/// Any JSON at all, with the names of fields that are looked at.
fn anything() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "messages",
        "role",
        "content",
        "type",
        "text",
        "prompt",
        "stop",
        "stream",
        "stream_options",
        "logit_bias",
        "seed",
        "n",
        "tools",
        "temperature",
        "max_tokens",
        "response_format",
        "chat_template_kwargs",
        "reasoning_effort",
        "5",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["user", "text", "image_url", "none", ""]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..8).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::with_cases(2000) })]

    /// Whatever comes is taken or refused for what it is; what is taken holds numbers that the engine takes too.
    #[test]
    fn no_json_breaks_it(body in anything(), cut in any::<prop::sample::Index>()) {
        let text = body.to_string();
        let parsers: [fn(&[u8], &Sampling) -> Result<Asked, Fault>; 2] = [chat_completions::parse, completions::parse];
        for parse in parsers {
            for bytes in [text.as_bytes(), &text.as_bytes()[..cut.index(text.len())]] {
                match parse(bytes, &defaults()) {
                    Ok(asked) => prop_assert!(asked.request.sampling.validate(1 << 24).is_ok() || text.contains("logit_bias")),
                    Err(fault) => prop_assert!(matches!(fault.kind, Kind::Invalid | Kind::Unsupported), "{fault:?}"),
                }
            }
        }
    }
}
