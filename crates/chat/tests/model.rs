//! Conversations with models whose words mean nothing: events, accounts, ends.

use chat::{ChatEnd, ChatError, ChatEvent, ChatModel, ChatRequest, Finish, Message, Prompt, Role, Thinking};
use engine::{
    EndReason, Engine, EngineConfig, LoadOptions, RequestError, Sampling, Service, ServiceLimits, StopReason,
    SubmitError,
};

fn model(name: &str) -> ChatModel {
    let load = LoadOptions { context_tokens: Some(512), ..LoadOptions::default() };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens: 64 };
    let engine = Engine::load(&oracle::model(name), &config).expect("a model");
    let service = Service::start(engine, ServiceLimits { parallel_max: 4, queue_max: 8 });
    ChatModel::new(service.expect("a thread")).expect("a tokenizer")
}

/// What follows a text: the templates of these models would have it begin with thinking.
fn request(text: &str) -> ChatRequest {
    let sampling = Sampling { temperature: 1.5, seed: 7, ..Sampling::default() };
    ChatRequest {
        prompt: Prompt::Text(text.into()),
        sampling,
        tokens_max: Some(40),
        ..ChatRequest::default()
    }
}

/// Thinking, text, tokens and the end of an answer; events in their order.
fn heard(model: &ChatModel, request: ChatRequest) -> (String, String, Vec<u32>, ChatEnd) {
    let mut answer = model.generate(request).expect("taken");
    let (mut thinking, mut text, mut read) = (String::new(), String::new(), 0);
    loop {
        match answer.next_blocking().expect("an end before the last event") {
            ChatEvent::Reading { done, of } => {
                assert!(thinking.is_empty() && text.is_empty());
                assert!(done >= read && of == answer.prompt_tokens(), "{done} of {of}");
                read = done;
            }
            ChatEvent::Thinking(piece) => {
                assert!(text.is_empty() && !piece.is_empty());
                thinking += &piece;
            }
            ChatEvent::Text(piece) => {
                assert!(!piece.is_empty());
                text += &piece;
            }
            ChatEvent::End(end) => {
                assert_eq!(answer.next_blocking(), None, "an event after the end");
                assert_eq!(read, end.usage.prompt_tokens);
                return (thinking, text, answer.tokens().to_vec(), end);
            }
        }
    }
}

#[test]
fn an_answer_is_its_tokens_text_and_its_accounts_add_up() {
    for name in ["q2-tiny-F32", "q3-tiny-F32", "q4e-tiny-F32"] {
        let model = model(name);
        let (_, text, tokens, end) = heard(&model, request("Grüße"));
        assert!(!text.is_empty(), "{name}: an answer that shows something");
        assert_eq!(end.usage.completion_tokens, tokens.len(), "{name}");
        assert_eq!(end.engine.generated_tokens, tokens.len());
        assert_eq!(end.engine.prompt_tokens, end.usage.prompt_tokens);
        let prompt = model.format().prompt_tokens(&request("Grüße")).expect("a prompt");
        assert_eq!(prompt.len(), end.usage.prompt_tokens);
        // The same tokens as a prompt, the same numbers: the same answer.
        let again = ChatRequest { prompt: Prompt::Tokens(prompt), ..request("") };
        assert_eq!(heard(&model, again).2, tokens, "{name}");
    }
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let model = model("q2-tiny-F32");
    let (_, whole, _, end) = heard(&model, request("Hello"));
    assert_eq!(end.reason, Ok(Finish::Length), "an answer long enough to cut");
    let stop: String = whole.chars().skip(whole.chars().count() / 2).take(2).collect();
    let before = &whole[..whole.find(&stop).expect("a part of it")];
    let stops = vec!["never to be seen, this".to_owned(), stop];
    let (_, text, tokens, end) = heard(&model, ChatRequest { stop_strings: stops, ..request("Hello") });
    assert_eq!(text, before);
    assert_eq!(end.reason, Ok(Finish::Stop(StopReason::Sequence(1))));
    assert_eq!(end.usage.completion_tokens, tokens.len());
}

#[test]
fn limits_and_refusals() {
    let model = model("q2-tiny-F32");
    let refused = |request: ChatRequest| model.generate(request).map(drop).expect_err("refused");
    let (_, text, _, end) = heard(&model, ChatRequest { tokens_max: Some(0), ..request("Hello") });
    assert_eq!((text.as_str(), end.reason), ("", Ok(Finish::Length)));
    let none = ChatRequest { prompt: Prompt::Tokens(vec![]), ..request("") };
    assert!(matches!(refused(none), ChatError::Submit(SubmitError::Request(RequestError::EmptyPrompt))));
    let long = request(&"word ".repeat(2000));
    let Err(ChatError::Submit(SubmitError::Request(RequestError::PromptTooLong {
        prompt_tokens,
        context_tokens: 512,
    }))) = model.generate(long).map(drop)
    else {
        panic!("a prompt that does not fit")
    };
    assert!(prompt_tokens > 2000);
    // More than the context holds beside the prompt: refused, or as much as it holds where that was asked for.
    let greedy = ChatRequest { tokens_max: Some(512), ..request("Hello") };
    let Err(ChatError::Submit(SubmitError::Request(error))) = model.generate(greedy.clone()).map(drop) else {
        panic!("an answer that does not fit")
    };
    assert!(matches!(error, RequestError::AnswerTooLong { tokens_max: 512, context_tokens: 512, .. }));
    let (.., end) = heard(&model, ChatRequest { fit_tokens_max: true, ..greedy });
    assert!(end.usage.prompt_tokens + end.usage.completion_tokens <= 512);
    let empty = ChatRequest { stop_strings: vec![String::new()], ..request("Hello") };
    assert!(matches!(refused(empty), ChatError::Constraint(_)));
    // What is refused leaves nothing behind.
    assert_eq!(model.service().counts().queued, 0);
    assert!(!heard(&model, request("Hello")).1.is_empty());
}

#[test]
fn who_leaves_gets_no_end_and_others_theirs() {
    let model = model("q2-tiny-F32");
    let expected = heard(&model, request("Hello")).1;
    let leaving = model.generate(ChatRequest { tokens_max: Some(400), ..request("Bye") }).expect("taken");
    let staying = std::thread::scope(|scope| {
        let staying = scope.spawn(|| heard(&model, request("Hello")));
        drop(leaving);
        staying.join().expect("an answer")
    });
    assert_eq!(staying.1, expected);
    assert_ne!(staying.3.engine.reason, EndReason::Cancelled);
}

#[test]
fn thinking_is_told_from_text_and_can_be_cut_or_left_out() {
    let model = model("q3-tiny-F32");
    let ask = |thinking| {
        let prompt = Prompt::Messages {
            messages: vec![Message::new(Role::System, "Be brief."), Message::new(Role::User, "Why?")],
            variables: serde_json::Map::new(),
        };
        heard(&model, ChatRequest { prompt, thinking, ..request("") })
    };
    // The template opens the thinking, and models that were never trained do not close it.
    let (thinking, text, tokens, end) = ask(Thinking::AsTemplate);
    assert!(!thinking.is_empty() && text.is_empty());
    assert_eq!(end.usage.thinking_tokens, tokens.len());
    let (thinking, text, tokens, end) = ask(Thinking::Budget(5));
    assert!(!thinking.is_empty() && !text.is_empty());
    assert_eq!(end.usage.thinking_tokens, 6, "five, and the mark that closes");
    let close = model.format().tokenizer().id_of("</think>").expect("a mark");
    assert_eq!(tokens.iter().position(|&token| token == close), Some(5));
    assert!(!text.contains("think>"));
    for off in [Thinking::Off, Thinking::Budget(0)] {
        let (thinking, text, _, end) = ask(off);
        assert!(thinking.is_empty() && !text.is_empty() && !text.contains("think>"), "{off:?}");
        assert!(end.usage.thinking_tokens <= 1, "{off:?}: {}", end.usage.thinking_tokens);
    }
}

#[test]
fn repeated_sequences_are_broken_where_a_text_is() {
    let model = model("q2-tiny-F32");
    let breakers = model.format().sequence_breakers();
    let text = |id: u32| String::from_utf8_lossy(model.format().tokenizer().token_bytes(id)).into_owned();
    assert!(breakers.len() > 4 && breakers.iter().all(|&id| text(id).contains(['\n', ':', '"', '*'])));
    let dry = engine::Dry { multiplier: 5.0, ..engine::Dry::default() };
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let ask = |dry| {
        let sampling = Sampling { dry, ..greedy.clone() };
        heard(&model, ChatRequest { sampling, tokens_max: Some(200), ..request("Why") }).2
    };
    assert_ne!(ask(Some(dry)), ask(None), "what goes round in circles is led out of them");
}
