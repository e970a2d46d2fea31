//! Scaled rotary positions, and the optional biases of `llama`, against llama.cpp on files with the same keys.

mod rewrite;
mod support;

use engine::state::KvType;
use engine::window::{Input, Row, Span, Window};
use gguf::Value;
use rewrite::{Parts, Tensor};
use serde_json::Value as Json;
use support::*;

/// The oracle's file with the keys and tensors of a case.
fn rewritten(case: &Json) -> Parts {
    let mut parts = Parts::of(&f32_model(case["model"].as_str().unwrap()));
    for (key, value) in case["keys"].as_object().unwrap() {
        let value = match value {
            Json::String(text) => Value::from(text.as_str()),
            Json::Number(n) if n.is_u64() => Value::U32(n.as_u64().unwrap() as u32),
            other => Value::F32(other.as_f64().unwrap() as f32),
        };
        parts.set(key, value);
    }
    for (name, values) in case["tensors"].as_object().unwrap() {
        let values: Vec<f32> =
            values.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        parts.add(Tensor::f32(name, &[values.len() as u64], &values));
    }
    parts
}

fn numbers(value: &Json) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// Text, an image's rows with their position triples, text: as the oracle's image cases.
fn image_window() -> Window {
    let index = &oracle::json("index.json")["q35-tiny-image"];
    let triple =
        |v: &Json| -> [i32; 3] { std::array::from_fn(|i| v[i].as_i64().expect("a position") as i32) };
    let triples = |key: &str| index[key].as_array().unwrap().iter().map(triple).collect::<Vec<_>>();
    let mut window =
        Window { embeddings: oracle::npz("q35-tiny-image")["embd"].f32().to_vec(), ..Window::default() };
    let text = |tokens: &str, positions: &str| -> Vec<Row> {
        let row = |(token, position)| Row {
            input: Input::Token(token),
            ngram_token: token,
            position,
            output: true,
        };
        numbers(&index[tokens]).into_iter().zip(triples(positions)).map(row).collect()
    };
    let image =
        |(i, position)| Row { input: Input::Embedding(i as u32), ngram_token: 0, position, output: true };
    window.rows.extend(text("before", "pos_before"));
    window.rows.extend(triples("pos_image").into_iter().enumerate().map(image));
    window.rows.extend(text("after", "pos_after"));
    window.spans = vec![Span { state: 0, first: 0, count: window.rows.len(), tentative: false }];
    window
}

#[test]
fn scaled_positions_and_biases_equal_llama_cpp() {
    let described = oracle::json("rope_cases.json");
    let golden = oracle::npz("rope_logits");
    let tokens = numbers(&described["tokens"]);
    let kept = numbers(&described["rows"]);
    let folder = tempfile::tempdir().unwrap();
    let cases = described["cases"].as_object().unwrap();
    assert_eq!(cases.len(), golden.len());
    for (name, case) in cases {
        let path = rewritten(case).write(folder.path());
        let mut stage = stage(&path, KvType::F32, 2);
        let mut state = stage.model().new_state().unwrap();
        let wanted = &golden[name.as_str()];
        let found = if name.ends_with("image") {
            stage.run(&image_window(), &mut [&mut state], None).unwrap().logits.to_vec()
        } else {
            let rows = read(&mut stage, &mut state, &tokens, &[tokens.len()]);
            kept.iter().flat_map(|&row| rows[row as usize].clone()).collect()
        };
        let difference = max_difference(&found, wanted.f32());
        assert!(difference < 2e-4, "{name}: {difference}");
    }
}
