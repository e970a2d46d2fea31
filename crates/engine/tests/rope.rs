//! Scaled rotary positions, and the optional biases of `llama`, against llama.cpp on files with the same keys.

mod rewrite;
mod support;

use std::sync::Arc;

use engine::stage::{Stage, cpu};
use engine::state::KvType;
use engine::window::{Input, Row, Span, Window};
use engine::{LoadOptions, Model, RopeOverride, RopeScaling};
use gguf::{ModelFile, Value};
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

/// The keys of a case as a user says them, if all of them can be said.
fn said(case: &Json) -> Option<RopeOverride> {
    let mut over = RopeOverride::default();
    for (key, value) in case["keys"].as_object().unwrap() {
        let number = value.as_f64().map(|number| number as f32);
        match key.as_str() {
            "rope.scaling.type" => over.scaling = RopeScaling::from_name(value.as_str()?),
            "rope.scaling.factor" => over.factor = number.filter(|&factor| factor > 0.0),
            "rope.scaling.original_context_length" => {
                over.original_context_tokens = number.map(|tokens| tokens as usize);
            }
            "rope.freq_base" => over.freq_base = number,
            "rope.scaling.yarn_ext_factor" => over.yarn_ext_factor = number,
            "rope.scaling.attn_factor" => over.attn_factor = number,
            "rope.scaling.yarn_beta_fast" => over.yarn_beta_fast = number,
            "rope.scaling.yarn_beta_slow" => over.yarn_beta_slow = number,
            _ => return None,
        }
    }
    let plain = case["tensors"].as_object().unwrap().is_empty() && over != RopeOverride::default();
    plain.then_some(over)
}

/// A model of the oracle with positions that the user scales.
fn overridden(name: &str, over: RopeOverride, context_tokens: Option<usize>) -> Model {
    let mut file = ModelFile::open(&f32_model(name)).unwrap();
    over.apply(&mut file, context_tokens).unwrap();
    // Longer than some of the cases say: what is compared is the arithmetic.
    let options = LoadOptions { kv: KvType::F32, context_tokens: Some(256), ..LoadOptions::default() };
    Model::load_file(file, &options, &|_, _| ()).unwrap()
}

/// Flags over a file without the keys give what llama.cpp makes of a file that has them.
#[test]
fn positions_scaled_by_the_user_equal_llama_cpp() {
    let described = oracle::json("rope_cases.json");
    let golden = oracle::npz("rope_logits");
    let tokens = numbers(&described["tokens"]);
    let kept = numbers(&described["rows"]);
    let mut compared = 0;
    for (name, case) in
        described["cases"].as_object().unwrap().iter().filter(|(name, _)| !name.ends_with("image"))
    {
        let Some(over) = said(case) else { continue };
        let model = Arc::new(overridden(case["model"].as_str().unwrap(), over, None));
        let mut stage = Stage::new(model, cpu(2, None).unwrap());
        let mut state = stage.model().new_state().unwrap();
        let rows = read(&mut stage, &mut state, &tokens, &[tokens.len()]);
        let found: Vec<f32> = kept.iter().flat_map(|&row| rows[row as usize].clone()).collect();
        let difference = max_difference(&found, golden[name.as_str()].f32());
        assert!(difference < 2e-4, "{name}: {difference}");
        compared += 1;
    }
    assert!(compared >= 14, "{compared} cases");
}

/// What is scaled reaches farther, and states of one scaling are none of another.
#[test]
fn a_scaled_context_is_longer_and_another_identity() {
    let plain = overridden("q4e-tiny", RopeOverride::default(), None);
    let trained = plain.spec.context_tokens;
    let yarn = RopeOverride { scaling: Some(RopeScaling::Yarn), ..RopeOverride::default() };
    let scaled = overridden("q4e-tiny", RopeOverride { factor: Some(2.0), ..yarn }, None);
    assert_eq!(scaled.spec.context_tokens, 2 * trained);
    assert_ne!(scaled.identity, plain.identity);
    // The factor follows from the context that is wanted.
    let wanted = overridden("q4e-tiny", yarn, Some(2 * trained));
    assert_eq!((wanted.spec.context_tokens, wanted.identity), (2 * trained, scaled.identity));
    assert_eq!(wanted.spec.rope.frequencies, scaled.spec.rope.frequencies);
    // A context within the trained one needs none, and taking it back gives the plain frequencies.
    let within = overridden("q4e-tiny", yarn, Some(trained));
    assert_eq!(within.spec.rope.frequencies, plain.spec.rope.frequencies);
    let none = RopeOverride { scaling: Some(RopeScaling::None), ..yarn };
    assert_eq!(overridden("q4e-tiny", none, Some(4 * trained)).spec.context_tokens, trained);
}

/// `--rope-scaling yarn` without a factor changed nothing and said nothing, and a factor for a file that says it is not scaled made
/// its context longer and left its positions.
#[test]
fn scaling_that_has_no_effect_is_told() {
    let applied = |over: RopeOverride, scaling: Option<&str>, context_tokens| {
        let mut file = ModelFile::open(&f32_model("llama-tiny")).unwrap();
        if let Some(scaling) = scaling {
            file.metadata.set("llama.rope.scaling.type", scaling.into());
        }
        let trained = file.metadata.integer("llama.context_length").unwrap().unwrap();
        let scaled = over.apply(&mut file, context_tokens).unwrap();
        (scaled, file.metadata.integer("llama.context_length").unwrap().unwrap() / trained)
    };
    let yarn = RopeOverride { scaling: Some(RopeScaling::Yarn), ..RopeOverride::default() };
    let twice = RopeOverride { factor: Some(2.0), ..RopeOverride::default() };
    assert_eq!(applied(yarn, None, None), (false, 1));
    assert_eq!(applied(RopeOverride { factor: Some(2.0), ..yarn }, None, None), (true, 2));
    assert_eq!(applied(twice, None, None), (true, 2));
    assert_eq!(applied(twice, Some("none"), None), (false, 1));
    assert_eq!(applied(RopeOverride { factor: Some(2.0), ..yarn }, Some("none"), None), (true, 2));
    let none = RopeOverride { scaling: Some(RopeScaling::None), ..RopeOverride::default() };
    assert_eq!(applied(none, None, None), (true, 1));
}
