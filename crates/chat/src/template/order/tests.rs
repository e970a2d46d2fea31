//! Templates with the strictness of several model families, and the conversations that clients send.

use crate::{Error, Message, RenderInput, Role, Template, ToolCall};

/// As Qwen3's later ones: a system message first or not at all, and a user somewhere.
const SYSTEM_FIRST: &str = "{%- set ns = namespace(asked=false) %}{%- for m in messages %}\
    {%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}\
    {%- elif m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('Unexpected message role.') }}\
    {%- elif m.role == 'user' %}{% set ns.asked = true %}{% endif %}\
    {{- '<' ~ m.role ~ '>' ~ m.content | trim ~ '</>' }}\
    {%- endfor %}{% if not ns.asked %}{{ raise_exception('No user query found in messages.') }}{% endif %}\
    {%- if add_generation_prompt %}<assistant>{% endif %}";

/// As Mistral's and the older Llama's: after a system message, user and assistant in turn; calls and results between.
const ALTERNATING: &str = "{%- if messages[0].role == 'system' %}<system>{{ messages[0].content }}</>\
    {%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}\
    {%- set ns = namespace(turn=0) %}{%- for m in rest %}\
    {%- if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}\
    {%- if (m.role == 'user') != (ns.turn % 2 == 0) %}\
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
    {%- set ns.turn = ns.turn + 1 %}{% elif m.role not in ['assistant', 'tool'] %}\
    {{- raise_exception('Only user and assistant roles are supported!') }}{% endif %}\
    {{- '<' ~ m.role ~ '>' ~ m.content ~ '</>' }}{%- endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// As Gemma's: the model and the user in turn, and no system.
const NO_SYSTEM: &str = "{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
    {%- for m in messages | rejectattr('role', 'equalto', 'tool') %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}\
    {{- '<' ~ ('model' if m.role == 'assistant' else m.role) ~ '>' ~ m.content | trim ~ '</>' }}\
    {%- endfor %}{% if add_generation_prompt %}<model>{% endif %}";

/// Drops what it does not know, and a system message that is not the first.
const FORGETFUL: &str = "{%- for m in messages %}\
    {%- if m.role in ['user', 'assistant', 'tool'] or m.role == 'system' and loop.first %}<{{ m.role }}>{{ m.content }}</>\
    {%- endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

/// As SmolLM2's: takes anything.
const LENIENT: &str = "{%- for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}\
    {%- if add_generation_prompt %}<assistant>{% endif %}";

const FAMILIES: [&str; 5] = [SYSTEM_FIRST, ALTERNATING, NO_SYSTEM, FORGETFUL, LENIENT];

/// A conversation from letters: Developer, System, User, Assistant, Tool; a call of a tool: C; an empty system message: E.
/// Each message says its place.
fn conversation(letters: &str) -> Vec<Message> {
    let message = |(at, letter): (usize, char)| {
        let (role, said) = match letter {
            'D' => (Role::Developer, "D"),
            'S' => (Role::System, "S"),
            'E' => return Message::new(Role::System, ""),
            'U' => (Role::User, "U"),
            'A' => (Role::Assistant, "A"),
            'T' => (Role::Tool, "T"),
            'C' => (Role::Assistant, "C"),
            other => panic!("{other}"),
        };
        let mut message = Message::new(role, format!("{said}{at}"));
        if letter == 'C' {
            message.tool_calls = vec![ToolCall { id: None, name: "f".into(), arguments: "{}".into() }];
        }
        message
    };
    letters.chars().enumerate().map(message).collect()
}

fn render(source: &str, messages: &[Message], add_generation_prompt: bool) -> Result<String, Error> {
    let input = RenderInput { messages, add_generation_prompt, ..RenderInput::default() };
    Template::new(source, &[])?.render_prompt(&input).map(|rendered| rendered.text)
}

/// Each was an error 500 for some model's users (llama.cpp #27367, vllm #41114).
const ORDERS: [&str; 24] = [
    "U", "S", "D", "A", "T", "E", "SU", "DU", "EU", "USU", "UDU", "SSU", "SDU", "DSU", "UAS", "UAUS", "USS",
    "UCTS", "UCTSU", "AU", "UU", "UUAAU", "CTU", "UCUA",
];

#[test]
fn every_plausible_order_renders_and_stays_in_order() {
    for source in FAMILIES {
        for order in ORDERS {
            let messages = conversation(order);
            let prompt =
                render(source, &messages, true).unwrap_or_else(|error| panic!("{order}: {error}\n{source}"));
            let mut from = 0;
            for message in messages.iter().filter(|m| m.role != Role::Tool || source != NO_SYSTEM) {
                let at = prompt[from..].find(&message.content);
                from += at.unwrap_or_else(|| panic!("{order}: {} is not in {prompt}", message.content));
            }
        }
    }
}

#[test]
fn the_other_orders_are_these() {
    let check =
        |source, order, expected| assert_eq!(render(source, &conversation(order), true).unwrap(), expected);
    check(SYSTEM_FIRST, "SU", "<system>S0</><user>U1</><assistant>");
    check(SYSTEM_FIRST, "DU", "<system>D0</><user>U1</><assistant>");
    check(SYSTEM_FIRST, "SDUS", "<system>S0\n\nD1</><user>U2</><user>S3</><assistant>");
    check(SYSTEM_FIRST, "S", "<system>S0</><user></><assistant>");
    check(SYSTEM_FIRST, "UCTS", "<user>U0</><assistant>C1</><tool>T2</><user>S3</><assistant>");
    check(ALTERNATING, "USU", "<user>U0\n\nS1\n\nU2</><assistant>");
    check(ALTERNATING, "AU", "<user></><assistant>A0</><user>U1</><assistant>");
    check(ALTERNATING, "UCTS", "<user>U0</><assistant>C1</><tool>T2</><assistant></><user>S3</><assistant>");
    check(NO_SYSTEM, "SSU", "<user>S0\n\nS1\n\nU2</><model>");
    check(NO_SYSTEM, "S", "<user>S0</><model>");
    check(NO_SYSTEM, "SA", "<user>S0</><model>A1</><model>");
    check(
        NO_SYSTEM,
        "SUCTU",
        "<user>S0\n\nU1</><model>C2\n\n{\"name\":\"f\",\"arguments\":\"{}\"}</><user>T3\n\nU4</><model>",
    );
    check(FORGETFUL, "DU", "<system>D0</><user>U1</><assistant>");
    check(FORGETFUL, "USU", "<user>U0</><user>S1</><user>U2</><assistant>");
    check(LENIENT, "USSDE", "<user>U0</><system>S1</><system>S2</><developer>D3</><system></><assistant>");
}

/// What was read of a prompt need not be read again when an instruction comes late.
#[test]
fn a_late_message_leaves_the_prompt_before_it() {
    for source in FAMILIES {
        for (before, after) in
            [("U", "US"), ("SU", "SUS"), ("SUA", "SUAS"), ("UCT", "UCTS"), ("SUAU", "SUAUD")]
        {
            let first = render(source, &conversation(before), false).unwrap();
            let second = render(source, &conversation(after), true).unwrap();
            // Where turns must alternate, the user's last message goes on: all but its end stays.
            let joined = [ALTERNATING, NO_SYSTEM].contains(&source) && before.ends_with('U');
            let kept = if joined { first.trim_end_matches("</>") } else { &*first };
            assert!(second.starts_with(kept), "{first} then {second}");
        }
    }
}

#[test]
fn nothing_to_say_is_an_error() {
    for source in FAMILIES {
        assert!(matches!(render(source, &[], true), Err(Error::NoMessages)));
    }
}

/// The reason is the one for the messages as they were given.
#[test]
fn a_refusal_of_every_order_gives_the_first_reason() {
    let source = "{{ raise_exception(messages | map(attribute='role') | join(',')) }}";
    match render(source, &conversation("USU"), true) {
        Err(Error::TemplateRefused { reason }) => assert_eq!(reason, "user,system,user"),
        other => panic!("{other:?}"),
    }
}

/// Reasoning and names go along when messages become one.
#[test]
fn joined_messages_keep_what_they_have() {
    let mut messages = conversation("UAAU");
    messages[1].reasoning = Some("R1".into());
    messages[2].reasoning = Some("R2".into());
    messages[2].name = Some("N".into());
    let joined = super::alternating(messages);
    assert_eq!(joined.len(), 3);
    assert_eq!(joined[1].reasoning.as_deref(), Some("R1\n\nR2"));
    assert_eq!((&*joined[1].content, joined[1].name.as_deref()), ("A1\n\nA2", Some("N")));
}
