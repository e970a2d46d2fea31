//! Answers and token ids, on models whose words mean nothing.

mod support;

use support::*;

const PROMPT: &str = "Grüße, 世界! How are you?";

/// The sentence of the program's own loop against passes of the command `logits` over the whole text.
#[test]
fn greedy_answers_follow_the_logits() {
    for name in ["q2-tiny-F32", "q4e-tiny-F32", "q35moe-tiny-F32"] {
        let file = model(name);
        let prompt = ids(&json(&["tokenize", "-m", &file, "--chat", "-p", PROMPT, "--json"])["tokens"]);
        let args = ["run", "-m", &file, "-p", PROMPT, "--temp", "0", "-n", "6", "--kv", "f32", "--json"];
        let answer = json(&args);
        let tokens = ids(&answer["tokens"]);
        assert_eq!(answer["prompt_tokens"], prompt.len(), "{name}");
        assert_eq!(answer["generated_tokens"], tokens.len(), "{name}");
        assert!(!tokens.is_empty(), "{name}: an answer that shows something");
        let whole = [&prompt[..], &tokens[..]].concat();
        let logits = rows(&json(&["logits", "-m", &file, "--tokens", &listed(&whole), "--json"])["logits"]);
        for (i, &token) in tokens.iter().enumerate() {
            assert_eq!(argmax(&logits[prompt.len() - 1 + i]), token, "{name} token {i}");
        }
        match answer["finish_reason"].as_str() {
            Some("length") => assert_eq!(tokens.len(), 6, "{name}"),
            reason => assert_eq!((reason, tokens.len() < 6), (Some("stop"), true), "{name}"),
        }
        for key in ["read_seconds", "write_seconds", "load_seconds", "read_tokens_per_second"] {
            assert!(answer[key].as_f64().is_some_and(|seconds| seconds >= 0.0), "{name}: {key}");
        }
    }
}

#[test]
fn the_streamed_text_is_that_of_the_object() {
    let file = model("q2-tiny-F32");
    let args = ["run", "-m", &file, "-p", PROMPT, "-n", "40", "--seed", "5", "--temp", "1.5"];
    let streamed = strata(&args);
    let object = json(&[&args[..], &["--json"]].concat());
    assert_eq!(streamed.code, 0, "{}", streamed.stderr);
    let text = object["text"].as_str().expect("a text");
    assert_eq!(streamed.stdout.trim_end_matches('\n'), text.trim_end_matches('\n'));
    assert!(streamed.stdout.ends_with('\n'));
    let count = format!("answer: {} tokens", object["generated_tokens"]);
    for words in ["prompt: ", &count, "tok/s", "memory: ", "seed 5"] {
        assert!(streamed.stderr.contains(words), "{words:?} in {}", streamed.stderr);
    }
    let other =
        json(&["run", "-m", &file, "-p", PROMPT, "-n", "40", "--seed", "6", "--temp", "1.5", "--json"]);
    assert_ne!(other["tokens"], object["tokens"]);
    assert_eq!((&object["seed"], &other["seed"]), (&5.into(), &6.into()));
}

#[test]
fn prompts_come_from_standard_input_too() {
    let file = model("q2-tiny-F32");
    let args = ["run", "-m", &file, "--temp", "0", "-n", "3", "--json", "-p"];
    let given = json(&[&args[..], &["two\nlines"]].concat());
    let read = strata_reading(&[&args[..], &["-"]].concat(), b"two\nlines\n");
    let read: serde_json::Value = serde_json::from_str(&read.stdout).expect("JSON");
    assert_eq!((&read["tokens"], &read["prompt_tokens"]), (&given["tokens"], &given["prompt_tokens"]));
}

#[test]
fn raw_prompts_and_system_texts_change_the_prompt() {
    let file = model("q2-tiny-F32");
    let count = |more: &[&str]| {
        let args = ["run", "-m", &file, "-p", "hello there", "-n", "0", "--json"];
        json(&[&args[..], more].concat())["prompt_tokens"].as_u64().expect("a count")
    };
    let raw = ids(&json(&["tokenize", "-m", &file, "-p", "hello there", "--json"])["tokens"]);
    assert_eq!(count(&["--raw"]), raw.len() as u64);
    assert!(count(&[]) > count(&["--raw"]));
    assert!(count(&["--system", "Be brief."]) > count(&[]));
}

#[test]
fn pieces_join_to_the_text() {
    let file = model("llama-tiny-F32");
    let found = json(&["tokenize", "-m", &file, "-p", "plain words <|im_end|>", "--json"]);
    let pieces = found["pieces"].as_array().expect("an array");
    let joined: String = pieces.iter().map(|piece| piece.as_str().expect("a text")).collect();
    assert_eq!(joined, "plain words <|im_end|>");
    assert_eq!(pieces.last().expect("a piece"), "<|im_end|>");
    let plain = json(&["tokenize", "-m", &file, "-p", "plain words <|im_end|>", "--json", "--no-special"]);
    assert!(ids(&plain["tokens"]).len() > pieces.len());
    let table = strata(&["tokenize", "-m", &file, "-p", "plain words <|im_end|>"]);
    assert_eq!(table.stdout.lines().count(), pieces.len());
}

#[test]
fn any_part_of_a_split_model_will_do() {
    let (first, second) =
        (model("q4e-tiny-split-F16-00001-of-00002"), model("q4e-tiny-split-F16-00002-of-00002"));
    let folder = tempfile::tempdir().expect("a folder");
    for part in [&first, &second] {
        let name = std::path::Path::new(part).file_name().expect("a name");
        std::fs::copy(part, folder.path().join(name)).expect("copied");
    }
    let print = |path: &str| json(&["logits", "-m", path, "--tokens", "5,6,7", "--json"]);
    let whole = print(&model("q4e-tiny-F16"));
    assert_eq!(print(&first), whole);
    assert_eq!(print(&second), whole);
    assert_eq!(print(&text(folder.path())), whole);
}

/// At a temperature that makes all tokens nearly alike, control tokens come too.
#[test]
fn control_tokens_end_an_answer_or_stay_out_of_its_text() {
    let file = model("q2-tiny-F32");
    let wild = ["--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
    let (start, end, other) = (993, 994, 995..1006);
    let mut stopped = 0;
    let mut passed_over = 0;
    for seed in 1..=16 {
        let seed = seed.to_string();
        let args = ["run", "-m", &file, "-p", "hi", "-n", "200", "--seed", &seed, "--json"];
        let answer = json(&[&args[..], &wild].concat());
        let tokens = ids(&answer["tokens"]);
        assert!(!tokens.contains(&end), "seed {seed}: the token that ends an answer is no part of it");
        passed_over += tokens.iter().filter(|&&id| id == start || other.contains(&id)).count();
        let text = answer["text"].as_str().expect("a text");
        assert!(!text.contains("<|"), "seed {seed}: {text}");
        stopped += usize::from(answer["finish_reason"] == "stop");
        assert_eq!(answer["finish_reason"] == "stop", tokens.len() < 200, "seed {seed}");
    }
    assert!(stopped >= 2 && passed_over >= 5, "{stopped} and {passed_over}: a test that shows something");
}

#[test]
fn read_weights_give_the_same_answer() {
    let file = model("q4e-tiny-F32");
    let answer =
        |weights: &str| json(&["logits", "-m", &file, "--tokens", "1,2,3", "--json", "--weights", weights]);
    assert_eq!(answer("read"), answer("mapped"));
    assert_eq!(answer("moved"), answer("mapped"));
}
