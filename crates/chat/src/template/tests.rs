use super::*;
use crate::{Role, ToolCall, Vocabulary};
use serde_json::json;

/// The template of SmolLM2-135M-Instruct, as its file has it.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A template in the manner of the Qwen family: blocks on their own lines, dashes, tools, thinking.
const QWEN: &str = r#"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'].strip() }}
    {%- else %}
        {{- 'You are helpful.' }}
    {%- endif %}
    {{- "\n\n# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content is defined and message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"#;

fn conversation(turns: &[(Role, &str)]) -> Vec<Message> {
    turns.iter().map(|&(role, content)| Message::new(role, content)).collect()
}

fn render(source: &str, input: &RenderInput) -> Result<String, Error> {
    // What stops a template is its fuel, on a machine that is busy with other tests too.
    let limits = Limits { time_max: Duration::from_secs(600), ..Limits::default() };
    text(&Template::with_limits(source, &[], limits)?, input)
}

/// The prompt without control tokens; a conversation without messages gets an empty one.
fn text(template: &Template, input: &RenderInput) -> Result<String, Error> {
    let empty = [Message::new(Role::User, "")];
    let messages = if input.messages.is_empty() { &empty } else { input.messages };
    Ok(template.render_prompt(&RenderInput { messages, ..input.clone() })?.text)
}

/// A template that needs nothing of the input.
fn check(source: &str, expected: &str) {
    assert_eq!(render(source, &RenderInput::default()).unwrap(), expected, "{source}");
}

#[test]
fn smollm2() {
    let messages =
        conversation(&[(Role::User, "Hi <b>'&\""), (Role::Assistant, "Hello!"), (Role::User, "Bye")]);
    let mut input =
        RenderInput { messages: &messages, add_generation_prompt: true, ..RenderInput::default() };
    let default = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";
    let turns = "<|im_start|>user\nHi <b>'&\"<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n";
    assert_eq!(render(SMOLLM2, &input).unwrap(), format!("{default}{turns}<|im_start|>assistant\n"));
    input.add_generation_prompt = false;
    assert_eq!(render(SMOLLM2, &input).unwrap(), format!("{default}{turns}"));
    let messages = conversation(&[(Role::System, "Be brief."), (Role::User, "Hi")]);
    input.messages = &messages;
    assert_eq!(
        render(SMOLLM2, &input).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    );
}

#[test]
fn qwen_with_thinking_and_tools() {
    let mut messages = conversation(&[(Role::User, "1+1?"), (Role::Assistant, "2"), (Role::User, "Sure?")]);
    messages[1].reasoning = Some("\nEasy.\n".into());
    let mut input =
        RenderInput { messages: &messages, add_generation_prompt: true, ..RenderInput::default() };
    let turns = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n2<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render(QWEN, &input).unwrap(), turns);
    input.enable_thinking = Some(false);
    let closed = format!("{turns}<think>\n\n</think>\n\n");
    assert_eq!(render(QWEN, &input).unwrap(), closed);
    let tool = json!({"type": "function", "function": {"name": "grüße", "a": [1, 2.5, true, null, "<&'>"]}});
    input.extra.insert("tools".into(), json!([tool]));
    let system = "<|im_start|>system\nYou are helpful.\n\n# Tools\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"grüße\", \"a\": [1, 2.5, true, null, \"<&'>\"]}}\n</tools><|im_end|>\n";
    let expected = format!("{system}{closed}");
    assert_eq!(render(QWEN, &input).unwrap(), expected);
}

#[test]
fn what_the_template_raises_is_a_refusal_in_its_words() {
    let source = "a{% if true %}{{ raise_exception('not ' ~ messages[0].content) }}{% endif %}";
    let messages = conversation(&[(Role::User, "Hi"), (Role::System, "Late.")]);
    let input = RenderInput { messages: &messages, ..RenderInput::default() };
    match render(source, &input) {
        Err(Error::TemplateRefused { reason }) => assert_eq!(reason, "not Hi"),
        other => panic!("{other:?}"),
    }
    let nested = "{% macro f() %}{{ raise_exception('no') }}{% endmacro %}{% set x %}{{ f() }}{% endset %}";
    assert!(
        matches!(render(nested, &RenderInput::default()), Err(Error::TemplateRefused { reason }) if reason == "no")
    );
}

#[test]
fn the_conventions_of_apply_chat_template() {
    // Blocks on their own line leave nothing behind; the last newline of the source is not output.
    check("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    check("{{ undefined_thing }}|{{ tools is none }}|{{ tools is defined }}", "|True|True");
    check("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13");
    check(
        "{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 %}{% endfor %}{{ ns.n }}",
        "8",
    );
    check(
        "{{ 'a b'.split()[1].upper() }}{{ {'k': 1}.items()|list|length }}{{ 'x'.startswith('x') }}",
        "B1True",
    );
    check("{{ [1, 2][::-1] }}{{ 'abc'[::-1] }}{{ 'abc'[-1] }}", "[2, 1]cbac");
    check("a{% generation %}b{% endgeneration %}c{%- generation -%} d {%- endgeneration -%} e", "abcde");
    check("{{ '{% generation' }}", "{% generation");
    let input = RenderInput { local_time_s: Some(86_400), ..RenderInput::default() };
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}", &input).unwrap(), "02 Jan 1970");
    let input = RenderInput { bos_token: Some("<s>"), eos_token: Some("</s>"), ..RenderInput::default() };
    assert_eq!(render("{{ bos_token + eos_token }}", &input).unwrap(), "<s></s>");
}

#[test]
fn tojson_is_json_dumps() {
    check("{{ {'b': [], 'a': {'é\n\x01': 1.0}} | tojson }}", r#"{"b": [], "a": {"é\n\u0001": 1.0}}"#);
    check(
        "{{ {'b': 1, 'a': '🙂'} | tojson(sort_keys=true, ensure_ascii=true) }}",
        r#"{"a": "\ud83d\ude42", "b": 1}"#,
    );
    check("{{ [1, {'a': []}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": []\n  }\n]");
    check("{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", r#"[1,{"a":2}]"#);
    check("{{ {2: none, true: false} | tojson }}", r#"{"2": null, "true": false}"#);
    let error = render("{{ missing | tojson }}", &RenderInput::default()).unwrap_err();
    assert!(error.to_string().contains("undefined"), "{error}");
}

#[test]
fn faults_say_template_and_the_line() {
    for (source, line) in
        [("a\n{% if %}", 2), ("a\n\n{{ 'x' | nothing }}", 3), ("{{ missing.attribute }}", 1), ("{% for", 1)]
    {
        let error = render(source, &RenderInput::default()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("template") && text.contains(&format!("line {line}")), "{text}");
    }
    // What does not parse is found when a model is loaded, the rest when a prompt is made.
    for source in [
        "{% if true %}",
        "{% for m in messages %}{{ m }}",
        "{{ 'x }}",
        "{% endif %}",
        "{% nothing %}",
        "{{ ((( }}",
    ] {
        let error = Template::new(source, &[]).unwrap_err();
        assert!(matches!(error, Error::TemplateSyntax { .. }), "{source}: {error}");
    }
    for source in [
        "{% include 'chat_template' %}",
        "{% extends 'x' %}",
        "{% import 'chat_template' as t %}",
        "{{ debug() }}",
    ] {
        let error = render(source, &RenderInput::default()).unwrap_err();
        assert!(matches!(error, Error::TemplateRun { .. }), "{source}: {error}");
    }
    let error = Template::new(&"x".repeat(10 << 20), &[]).unwrap_err();
    assert!(matches!(error, Error::TemplateLength { .. }), "{error}");
    assert!(
        render("{% include 'x' %}", &RenderInput::default()).unwrap_err().to_string().contains("template")
    );
}

/// Programs whose work or memory has no bound: each ends with an error that says so, on a small stack.
#[test]
fn a_template_cannot_take_unbounded_work() {
    let long = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
    let sources = [
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% for i in range(1000) %}{% for j in range(1000) %}{% for k in range(1000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ ('abc ' * 100000) | upper | lower | title | replace('b', 'bbbb' * 10000) | length }}",
        "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns | tojson }}",
        long,
    ];
    let work = move || {
        for source in sources {
            let error = render(source, &RenderInput::default()).expect_err(source);
            assert!(error.to_string().contains("template"), "{error}");
        }
        assert!(matches!(render(sources[1], &RenderInput::default()), Err(Error::TemplateBudget { .. })));
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap();
}

/// The engine recurses over the parts of a template: twenty thousand minus signs in a row ended the process with a stack
/// overflow.
#[test]
fn deep_templates_do_not_exhaust_the_stack() {
    let chain = |start: &str, link: &str, end: &str| {
        let links = (SOURCE_BYTES_MAX - start.len() - end.len()) / link.len();
        [start, &link.repeat(links), end].concat()
    };
    let sources = [
        chain("{{ ", "-", "1 }}"),
        chain("{{ ", "1~", "1 }}"),
        chain("{{ ", "not ", "1 }}"),
        chain("{{ 1", "|e", " }}"),
        chain("{{ a", ".a", " }}"),
        chain("{% if 0 %}", "{%elif 0%}", "{% endif %}"),
        format!("{} {{{{ x == [x] }}}}", chain("{% set x = [] %}", "{%set x=[x]%}", "               ")),
    ];
    for source in sources {
        // Whether it is an error does not matter; that it comes back does.
        let _ = Template::new(&source, &[]).and_then(|t| text(&t, &RenderInput::default()));
    }
}

/// A namespace that held itself overflowed the stack when it was written, and ended the process.
#[test]
fn a_namespace_cannot_hold_itself() {
    for source in [
        "{% set ns.a = ns %}{{ ns }}",
        "{% set ns.a = [ns] %}{{ ns ~ '' }}",
        "{% set ns.a = {'k': (1, [ns])} %}{{ ns == other }}",
        "{% set other.a = ns %}{% set ns.a = other %}{{ ns == other }}",
        "{% set other.a = [ns, 1] %}",
        "{% set other = namespace(a=ns) %}{% set ns.a = other %}{{ {ns: 1} }}",
        "{% set ns.a = [ns] | list %}{{ [ns, other] | sort }}",
        "{% for ns.a in [ns] %}{{ ns in [other] }}{% endfor %}",
        "{% set ns.a, x = ns, 1 %}{{ ns | tojson }}",
        "{% with ns.a = ns %}{{ [ns] | join }}{% endwith %}",
        "{% set ns.a = dict(k=ns) %}{% set x %}{{ ns }}{% endset %}",
        "{% set ns.a = {'k': ns} | items %}{{ ns }}",
    ] {
        let source = format!("{{% set ns = namespace() %}}{{% set other = namespace() %}}{source}");
        let error = render(&source, &RenderInput::default()).expect_err(&source);
        let refused = matches!(error, Error::TemplateRun { .. } | Error::TemplateSyntax { .. });
        assert!(refused, "{source}: {error}");
    }
    check("{% set ns = namespace(a=1) %}{{ ns.a }}{{ ns }}{{ namespace(b=ns).b.a }}", "1{'a': 1}1");
}

/// Sixty lists, each holding the one before twice, are small, and have 2^60 elements to compare: the engine counts that
/// as one step, so it went on for ever, on a thread that nobody could stop.
#[test]
fn no_step_is_longer_than_its_fuel() {
    let doubled = "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}\
                   {% set ns.b = [ns.b, ns.b] %}{% endfor %}";
    let wide = "{% set a = [[[[[1] * 999] * 999] * 999] * 999] * 999 %}{% set b = [[[[[1] * 999] * 999] * 999] * 999] * 999 %}";
    let long = "{% set a = [['x' * 100000] * 9999] * 9999 %}{% set b = a + [] %}";
    let limits = Limits { fuel: 100_000, ..Limits::default() };
    let set = |source: &str| format!("{doubled}{{% set a = ns.a %}}{{% set b = ns.b %}}{source}");
    for start in [&*set(""), wide, long] {
        for source in [
            "{{ a == b }}",
            "{{ a != b }}",
            "{{ 1 if a < b }}",
            "{{ a >= b }}",
            "{{ a < b < a }}",
            "{{ b in [a] }}",
            "{{ a not in [b, a] }}",
            "{{ b in {} }}",
            "{{ {a: 1} }}",
            "{{ {}[a] }}",
            "{{ {}.get(a) }}",
            "{{ [b].index(a) }}",
            "{{ [b].count(a) }}",
            "{{ a }}",
            "{{ a ~ '' }}",
            "{{ '%s' | format(a) }}",
            "{{ '{}'.format(a) }}",
            "{{ '' in a | string }}",
            "{{ [a, b] | join }}",
            "{{ ''.join([a, b]) }}",
            "{{ [a, b] | sort }}",
            "{{ [a, b] | unique | list }}",
            "{{ [a, b] | min }}",
            "{{ [{'k': a}, {'k': b}] | groupby('k') }}",
            "{{ {'x': a, 'y': b} | dictsort(by='value') }}",
            "{{ [a] | map('string') | list }}",
            "{{ [{'k': a}] | selectattr('k', 'eq', b) | list }}",
            "{{ a is eq b }}",
            "{{ a is in [b] }}",
            "{{ a | pprint }}",
            "{{ a | tojson }}",
            "{{ a | upper }}",
            "{{ raise_exception(a) }}",
            "{{ namespace(a) }}",
            "{% set x %}{{ a }}{% endset %}",
            "{% filter upper %}{{ a }}{% endfilter %}",
            "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(a) }}",
            "{% call raise_exception(a) %}{% endcall %}",
            "{% set a = [a] %}{% for x in a recursive %}{% if x is iterable %}{{ loop(x) }}{% endif %}{% endfor %}",
        ] {
            let source = format!("{start}{source}");
            match text(&Template::with_limits(&source, &[], limits).unwrap(), &RenderInput::default()) {
                Err(Error::TemplateBudget { .. } | Error::TemplateRun { .. }) => {}
                other => panic!("{source}: {other:?}"),
            }
        }
    }
    check(
        "{% set a = [1, 'x'] %}{{ 1 < 2 < 3 }}{{ a == [1, 'x'] }}{{ 1 in a }}{{ {1: a}[1] }}",
        "TrueTrueTrue[1, 'x']",
    );
}

/// A value made of values by a loop without end is stopped before it can overflow the stack when it is let go.
#[test]
fn nesting_by_a_loop_is_stopped() {
    for grow in ["[ns.x]", "{'x': ns.x}", "(ns.x, 1)", "[ns.x, ns.x]", "{1: [ns.x]}"] {
        let source = format!(
            "{{% set ns = namespace(x=1) %}}{{% for i in range(1000) %}}{{% for j in range(1000) %}}\
             {{% set ns.x = {grow} %}}{{% endfor %}}{{% endfor %}}"
        );
        let error = render(&source, &RenderInput::default()).unwrap_err();
        assert!(matches!(error, Error::TemplateRun { .. } | Error::TemplateBudget { .. }), "{error}");
    }
}

/// To fold a long chain of constants took the engine minutes.
#[test]
fn a_tag_has_a_length() {
    let chain = |links: usize| format!("a\n{{{{ {}1 }}}}", "1 ~ ".repeat(links));
    assert!(Template::new(&chain(900), &[]).is_ok());
    match Template::new(&chain(1100), &[]) {
        Err(Error::TemplateSyntax { line: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    let error = Template::new("{{ range(*[1]) }}", &[]).unwrap_err();
    assert!(matches!(error, Error::TemplateSyntax { line: 1, .. }), "{error}");
}

/// The engine has no thread to itself: what takes too long is not waited for.
#[test]
fn time_is_bounded() {
    let limits = Limits { time_max: Duration::ZERO, ..Limits::default() };
    let template = Template::with_limits("x", &[], limits);
    let error = template.and_then(|template| text(&template, &RenderInput::default())).unwrap_err();
    assert_eq!(error.to_string(), "the chat template takes more than 0 seconds");
}

/// A width in a format and a separator of `tojson` took gigabytes before the engine saw, and charged for, the result.
#[test]
fn memory_is_paid_for_before_it_is_taken() {
    for source in [
        "{{ '{:4000000000}'.format(1) | length }}",
        "{{ '{:99999999999999999999}'.format(1) | length }}",
        "{{ (range(99999) | list) | tojson(separators=['x' * 1000000, 'y']) | length }}",
        "{{ ('x ' * 10000000).split() | length }}",
        "{{ ('x,' * 10000000).split(',') | length }}",
        "{{ ('x\n' * 10000000).splitlines() | length }}",
        "{{ ('x\n' * 10000000) | lines | length }}",
        "{{ ('x' * 10000000) | split('x') | length }}",
        "{{ {1: 2, 3: 4, 5: 6} | tojson(separators=[',', 'x' * 100000000]) | length }}",
    ] {
        let error = render(source, &RenderInput::default()).unwrap_err();
        assert!(matches!(error, Error::TemplateBudget { .. }), "{source}: {error}");
    }
    check("{{ '{:>6}|{}'.format(1, 'é') }}", "     1|é");
}

#[test]
fn output_is_bounded() {
    let limits = Limits { output_bytes_max: 10, ..Limits::default() };
    let render = |source| text(&Template::with_limits(source, &[], limits).unwrap(), &RenderInput::default());
    assert_eq!(render("0123456789").unwrap(), "0123456789");
    assert!(matches!(render("0123456789x"), Err(Error::TemplateOutput { max: 10 })));
}

/// The budget is for programs that run wild, not for long conversations.
#[test]
fn a_long_conversation_fits_the_budget() {
    let turns: Vec<_> = (0..1000).map(|i| if i % 2 == 0 { Role::User } else { Role::Assistant }).collect();
    let messages: Vec<Message> = turns.iter().map(|&role| Message::new(role, "word ".repeat(1000))).collect();
    let input = RenderInput { messages: &messages, add_generation_prompt: true, ..RenderInput::default() };
    assert!(render(QWEN, &input).unwrap().len() > 5_000_000);
    assert!(render(SMOLLM2, &input).unwrap().len() > 5_000_000);
}

#[test]
fn a_file_without_template_gets_chatml_if_its_vocabulary_has_the_marks() {
    let tokenizer = |text: &str| {
        let tokens = vec![text.to_owned()];
        Tokenizer::new(Vocabulary {
            model: "gpt2".into(),
            pre: "qwen2".into(),
            tokens,
            ..Vocabulary::default()
        })
        .unwrap()
    };
    let nothing = gguf::Metadata::new(Vec::new()).unwrap();
    let template = Template::from_metadata(&nothing, &tokenizer("<|im_start|>")).unwrap();
    let messages = conversation(&[(Role::System, "S"), (Role::User, "U")]);
    let input = RenderInput { messages: &messages, add_generation_prompt: true, ..RenderInput::default() };
    assert_eq!(
        template.render_prompt(&input).unwrap().text,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    );
    let error = Template::from_metadata(&nothing, &tokenizer("x")).unwrap_err();
    assert!(error.to_string().contains("--raw"), "{error}");
    let own =
        ("tokenizer.chat_template".to_owned(), gguf::Value::String(b"{{ messages | length }}".to_vec()));
    let template =
        Template::from_metadata(&gguf::Metadata::new(vec![own]).unwrap(), &tokenizer("x")).unwrap();
    assert_eq!(template.render_prompt(&input).unwrap().text, "2");
}

/// Puts the text of arguments together itself, as older templates do; fails on an object.
const CALLS_AS_TEXT: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
    {{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{{ m.tool_call_id }}{{ m.content }}{% endfor %}";

/// Goes through the fields; fails on a text.
const CALLS_AS_FIELDS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}\
    {{ c.function.name }}:{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}\
    {% endfor %}{{ m.content }}{% endfor %}";

const CALLS_AS_JSON: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}";

/// A conversation whose last call was cut off could not be rendered any more (llama.cpp #25510).
#[test]
fn imperfect_arguments_of_calls_render() {
    let render = |source: &str, arguments: serde_json::Value| {
        let mut messages = conversation(&[(Role::User, ""), (Role::Assistant, ""), (Role::Tool, "r")]);
        messages[1].tool_calls = vec![ToolCall { id: Some("1".into()), name: "f".into(), arguments }];
        messages[2].tool_call_id = Some("1".into());
        text(
            &Template::new(source, &[]).unwrap(),
            &RenderInput { messages: &messages, ..RenderInput::default() },
        )
        .unwrap()
    };
    let json = |arguments: &str| format!(r#"{{"name": "f", "arguments": {arguments}}}"#);
    let cases = [
        (json!(r#"{"a": 1, "b": "x"}"#), r#"{"a": 1, "b": "x"}"#, r#"{"a": 1, "b": "x"}"#, "a=1;b=x;"),
        (json!({"a": [1, null]}), r#"{"a": [1, null]}"#, r#"{"a":[1,null]}"#, "a=[1, None];"),
        (json!("{"), r#""{""#, "{", "arguments={;"),
        (json!(""), r#""""#, "", ""),
        (json!("weather"), r#""weather""#, "weather", "arguments=weather;"),
        (json!("7"), r#""7""#, "7", "arguments=7;"),
        (json!(7), "7", "7", "arguments=7;"),
        (json!([1, 2]), "[1, 2]", "[1,2]", "arguments=[1, 2];"),
        (json!(null), "null", "null", "arguments=None;"),
        (json!(r#"{"a": 1, "a": 2}"#), r#"{"a": 2}"#, r#"{"a": 1, "a": 2}"#, "a=2;"),
        (json!(r#"{"a": NaN}"#), r#""{\"a\": NaN}""#, r#"{"a": NaN}"#, r#"arguments={"a": NaN};"#),
    ];
    for (arguments, as_json, as_text, as_fields) in cases {
        assert_eq!(render(CALLS_AS_JSON, arguments.clone()), json(as_json));
        assert_eq!(render(CALLS_AS_TEXT, arguments.clone()), format!("f({as_text})1r"));
        assert_eq!(render(CALLS_AS_FIELDS, arguments), format!("f:{as_fields}r"));
    }
    let deep = "[".repeat(100_000);
    let long = format!(r#"{{"a": "{}"}}"#, "x".repeat(1 << 20));
    for (text, expected) in [(&deep, json(&format!("\"{deep}\""))), (&long, json(&long))] {
        assert_eq!(render(CALLS_AS_JSON, json!(text)), expected);
    }
}

/// Ids and names may be absent, twice, or without their other half: the template decides.
#[test]
fn calls_and_results_need_not_match() {
    let call =
        |id: Option<&str>| ToolCall { id: id.map(str::to_owned), name: String::new(), arguments: json!({}) };
    let mut messages = conversation(&[(Role::Tool, "r"), (Role::Assistant, "")]);
    messages[1].tool_calls = vec![call(Some("1")), call(Some("1")), call(None)];
    let input = RenderInput { messages: &messages, ..RenderInput::default() };
    let source = "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}{% endfor %}";
    assert_eq!(render(source, &input).unwrap(), "toolassistant[1][1][]");
}
