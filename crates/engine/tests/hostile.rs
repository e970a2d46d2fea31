//! Files that lie: every key and tensor that is wrong is named in one sentence, at once and without a panic.

mod rewrite;
mod support;

use engine::graph;
use engine::memory::{Machine, PlanOptions, Shapes, plan};
use engine::models::{ModelSpec, read_spec};
use engine::state::{KvType, StateLayout};
use engine::{LoadError, LoadOptions, Model};
use gguf::{Array, ModelFile, TensorType, Value};
use rewrite::{Parts, Tensor};
use support::*;

/// An oracle model with zeros of a small type for its tensors: only names and shapes matter here.
fn light(name: &str) -> Parts {
    let mut parts = Parts::of(&f32_model(name));
    for tensor in &mut parts.tensors {
        tensor.dtype = match tensor.shape[0] {
            n if n % 64 == 0 => TensorType::Q2_0,
            n if n % 32 == 0 => TensorType::Q4_0,
            _ => TensorType::F16,
        };
        tensor.data = vec![0; tensor.dtype.tensor_bytes(&tensor.shape).expect("a size") as usize];
    }
    parts
}

fn spec(parts: &Parts) -> Result<ModelSpec, LoadError> {
    let bytes = parts.writer().to_bytes();
    read_spec(&ModelFile::parse(&bytes).unwrap_or_else(|e| panic!("{e}")), None)
}

/// The sentence of the refusal.
fn refusal(parts: &Parts, what: &str) -> String {
    match spec(parts) {
        Ok(_) => panic!("{what} is accepted"),
        Err(error) => error.to_string(),
    }
}

/// 2^31 and the like, as u64.
fn int(value: u64) -> Value {
    Value::U64(value)
}

/// A key of a model, a value it must not have, and what the refusal names.
fn bad_keys() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    const HUGE: u64 = 1 << 31;
    let ints = |values: &[u64]| Value::from(values.to_vec());
    let mut cases = Vec::new();
    let mut key = |model: &'static str, key: &'static str, values: Vec<Value>| {
        cases.extend(values.into_iter().map(|value| (model, key, value, key)));
    };
    let sizes = || vec![int(0), int(HUGE + 1), int(u64::MAX), Value::I32(-1), Value::from("many")];
    for name in ["llama-tiny", "q35-tiny", "q4e-tiny"] {
        for size in ["embedding_length", "attention.head_count", "attention.key_length", "context_length"] {
            key(name, size, sizes());
        }
        key(name, "block_count", [sizes(), vec![int(HUGE), int(4097)]].concat());
        key(name, "attention.head_count", vec![int(3), ints(&[4, 4, 2])]);
        key(name, "attention.head_count_kv", vec![int(0), int(3), int(8), int(HUGE)]);
        key(name, "attention.key_length", vec![int(HUGE)]);
        key(name, "attention.value_length", vec![int(0), int(24)]);
        key(name, "rope.dimension_count", vec![int(0), int(7), int(34), int(HUGE), Value::from("8")]);
        let floats = [f32::NAN, f32::INFINITY, 1.0, -2.0, 0.0].map(Value::from);
        key(name, "rope.freq_base", floats.to_vec());
        let eps = [Value::from(f32::NAN), Value::from(-1e-6f32), int(1)];
        key(name, "attention.layer_norm_rms_epsilon", eps.to_vec());
        key(name, "rope.scaling.type", vec!["longrope".into(), "su".into(), int(1)]);
        key(name, "rope.scaling.factor", vec![(-1.0f32).into(), f32::NAN.into()]);
        key(name, "rope.scaling.attn_factor", vec![0.0f32.into(), (-1.0f32).into()]);
    }
    key("llama-tiny", "feed_forward_length", sizes());
    key("q3moe-tiny", "expert_count", sizes());
    key("q3moe-tiny", "expert_used_count", [sizes(), vec![int(17), int(HUGE)]].concat());
    key("q3moe-tiny", "expert_weights_scale", vec![f32::NAN.into()]);
    for name in ["q3next-tiny", "q35-tiny", "q4e-tiny"] {
        for size in ["group_count", "time_step_rank", "inner_size", "conv_kernel", "state_size"] {
            let key_name: &'static str = ["ssm.", size].concat().leak();
            key(name, key_name, sizes());
        }
        key(name, "ssm.time_step_rank", vec![int(5), int(3)]);
        key(name, "ssm.inner_size", vec![int(97), int(6 * (HUGE / 6))]);
        key(name, "ssm.conv_kernel", vec![int(1), int(65), int(HUGE)]);
        key(name, "attention.recurrent_layers", vec![ints(&[1, 1, 1]), true.into(), "all".into()]);
        key(name, "nextn_predict_layers", vec![int(9), int(HUGE), int(HUGE + 1)]);
    }
    let sections = || {
        let wide = 1u64 << 62;
        vec![ints(&[wide; 4]), ints(&[2, 2, 2, 0]), ints(&[4]), ints(&[1; 5]), ints(&[u64::MAX, 0, 0, 0])]
    };
    key("q35-tiny", "rope.dimension_sections", sections());
    let name = "q4e-tiny";
    key(name, "rope.dimension_sections", sections());
    key(name, "hyper_connection.count", [sizes(), vec![int(17), int(HUGE)]].concat());
    key(name, "hyper_connection.low_rank", sizes());
    let ratios = [vec![3u64; 9], vec![257; 9], vec![u64::MAX; 9], vec![0, 0, 0, 4]];
    key(name, "attention.compress_ratios", ratios.map(Value::from).to_vec());
    for size in ["head_count", "key_length", "top_k"] {
        let key_name: &'static str = ["attention.indexer.", size].concat().leak();
        key(name, key_name, sizes());
    }
    key(name, "attention.indexer.head_count", vec![int(HUGE)]);
    key(name, "attention.indexer.key_length", vec![int(6)]);
    key(name, "attention.indexer.top_k", vec![int(3)]);
    key(name, "ple.layers", vec![ints(&[1, 2]), int(8), int(u64::MAX >> 1), Value::I32(-1)]);
    key(name, "ple.ngram_size", [sizes(), vec![int(1), int(9), int(HUGE)]].concat());
    key(name, "ple.heads_per_ngram", sizes());
    key(name, "ple.conv_kernel", [sizes(), vec![int(1), int(HUGE)]].concat());
    key(name, "ple.eos_token_id", vec![int(HUGE + 1), "eos".into()]);
    key(name, "ple.layer_multipliers", vec![ints(&[1, 2]), int(u64::MAX)]);
    key(
        name,
        "ple.head_vocab_sizes",
        vec![ints(&[307, 311, 313]), ints(&[307, 311, 313, 350]), ints(&[0; 4])],
    );
    key(name, "embedding_length_per_layer_input", sizes());
    // Sizes that are possible by themselves show as a tensor of another shape, or as another key.
    cases.extend([
        ("llama-tiny", "embedding_length", int(HUGE), "token_embd.weight"),
        ("llama-tiny", "attention.head_count", int(HUGE), "attention.head_count"),
        ("llama-tiny", "feed_forward_length", int(HUGE), "blk.0.ffn_gate.weight"),
        ("llama-tiny", "block_count", int(4), "blk.3.attn_norm.weight"),
        ("q3moe-tiny", "expert_count", int(HUGE), "blk.0.ffn_gate_exps.weight"),
        ("q3moe-tiny", "expert_feed_forward_length", int(HUGE), "blk.0.ffn_gate_exps.weight"),
        ("q35moe-tiny", "expert_shared_feed_forward_length", int(HUGE), "blk.0.ffn_gate_shexp.weight"),
        ("q35-tiny", "ssm.state_size", int(HUGE), "ssm.inner_size"),
        ("q4e-tiny", "ssm.group_count", int(6), "blk.0.attn_qkv.weight"),
        ("q4e-tiny", "hyper_connection.low_rank", int(HUGE), "output_hc_down.weight"),
        ("q4e-tiny", "attention.indexer.key_length", int(HUGE), "attention.indexer.head_count"),
        ("q4e-tiny", "ple.heads_per_ngram", int(HUGE), "ple.head_vocab_sizes"),
        ("q4e-tiny", "embedding_length_per_layer_input", int(HUGE), "per_layer_token_embd.weight"),
        ("q4e-tiny", "ple.head_offsets", ints(&[i64::MAX as u64; 4]), "ple.head_vocab_sizes"),
        ("q4e-tiny", "ple.head_offsets", ints(&[u64::MAX; 4]), "ple.head_offsets"),
    ]);
    cases
}

#[test]
fn bad_keys_are_named() {
    let cases = bad_keys();
    assert!(cases.len() > 250);
    for model in F32_MODELS {
        let original = light(model);
        for (_, key, value, named) in cases.iter().filter(|(m, ..)| *m == model) {
            let mut changed = original.clone();
            changed.set(key, value.clone());
            let what = format!("{model}: {key} = {value}");
            let text = refusal(&changed, &what);
            assert!(text.contains(named), "{what}: {text}");
            assert!(text.len() < 400 && !text.contains('\n'), "{what}: {text}");
        }
    }
}

#[test]
fn an_interval_of_layers_is_checked_where_it_is_needed() {
    for interval in [0, (1 << 31) + 1] {
        let mut changed = light("q35-tiny");
        changed.remove("attention.recurrent_layers").set("full_attention_interval", int(interval));
        let text = refusal(&changed, "an interval that is none");
        assert!(text.contains("full_attention_interval"), "{text}");
    }
}

#[test]
fn keys_without_a_default_are_named_when_absent() {
    for (model, keys) in [
        ("llama-tiny", &["block_count", "context_length", "embedding_length", "feed_forward_length"][..]),
        ("q3-tiny", &["attention.head_count", "attention.layer_norm_rms_epsilon"]),
        ("q3moe-tiny", &["expert_count", "expert_used_count"]),
        ("q35-tiny", &["ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank"]),
        ("q3next-tiny", &["ssm.inner_size"]),
        ("q4e-tiny", &["hyper_connection.count", "hyper_connection.low_rank", "attention.indexer.top_k"]),
        ("q4e-tiny", &["attention.indexer.head_count", "attention.indexer.key_length", "ple.layers"]),
        ("q4e-tiny", &["ple.ngram_size", "ple.heads_per_ngram", "ple.conv_kernel", "ple.eos_token_id"]),
        ("q4e-tiny", &["ple.layer_multipliers", "ple.head_vocab_sizes", "ple.head_offsets"]),
        ("q4e-tiny", &["embedding_length_per_layer_input"]),
    ] {
        for key in keys {
            let mut changed = light(model);
            let full = changed.full(key);
            assert!(changed.get(key).is_some(), "{model}: {key}");
            let text = refusal(changed.remove(key), key);
            assert!(text.contains(&full), "{model}: {key}: {text}");
        }
    }
}

/// Tensors of the embedding, the head and one layer of each kind.
fn sample(parts: &Parts) -> Vec<String> {
    let kept = |name: &str| match name.strip_prefix("blk.") {
        Some(rest) => ["0.", "3.", "8.", "1.ple"].iter().any(|layer| rest.starts_with(layer)),
        None => true,
    };
    parts.tensors.iter().map(|tensor| tensor.name.clone()).filter(|name| kept(name)).collect()
}

#[test]
fn missing_tensors_are_named() {
    for model in F32_MODELS {
        let original = light(model);
        let names = sample(&original);
        assert!(names.len() > 10, "{model}");
        for name in names {
            let optional = ["output.weight", "blk.8.nextn.eh_proj.weight"].contains(&name.as_str())
                || name.ends_with(".bias") && !name.contains("ssm_dt");
            let mut changed = original.clone();
            changed.take(&name);
            match spec(&changed) {
                Ok(_) => assert!(optional, "{model} without {name} is accepted"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!optional && text.contains(&format!("`{name}`")), "{model} {name}: {text}");
                }
            }
        }
    }
}

#[test]
fn tensors_of_another_shape_are_named() {
    for model in F32_MODELS {
        let original = light(model);
        for name in sample(&original) {
            let mut changed = original.clone();
            let tensor = changed.tensor(&name);
            let (first, second) = (tensor.shape[0], tensor.shape.get(1).copied().unwrap_or(1));
            let shape = match first == second {
                true => vec![first / 2, second * 2],
                false => vec![second, first],
            };
            let rest = tensor.shape.get(2..).unwrap_or_default().to_vec();
            tensor.shape = [shape, rest].concat();
            tensor.dtype = TensorType::F16;
            tensor.data = vec![0; 2 * tensor.shape.iter().product::<u64>() as usize];
            let text = refusal(&changed, &format!("{model}: {name} of another shape"));
            assert!(text.contains(&format!("`{name}`")), "{model} {name}: {text}");
        }
    }
}

#[test]
fn wrong_scales_and_biases_are_named() {
    for (model, name, len) in [
        ("llama-tiny", "blk.0.attn_q.scale", 2),
        ("llama-tiny", "blk.0.attn_q.bias", 63),
        ("llama-tiny", "rope_freqs.weight", 7),
        ("q4e-tiny", "blk.0.ffn_down_exps.scale", 15),
        ("q4e-tiny", "blk.3.attn_output.bias", 65),
    ] {
        let mut changed = light(model);
        changed.add(Tensor::f32(name, &[len], &vec![1.0; len as usize]));
        let text = refusal(&changed, name);
        assert!(text.contains(&format!("`{name}`")), "{text}");
    }
}

#[test]
fn types_that_cannot_be_computed_with_are_named() {
    let mut changed = light("llama-tiny");
    let tensor = changed.tensor("blk.1.attn_k.weight");
    let bytes = 4 * tensor.shape.iter().product::<u64>() as usize;
    (tensor.dtype, tensor.data) = (TensorType::I32, vec![0; bytes]);
    let folder = tempfile::tempdir().unwrap();
    let error = Model::load(&changed.write(folder.path()), &LoadOptions::default()).err();
    let text = error.expect("integers are no weights").to_string();
    assert!(text.contains("blk.1.attn_k.weight") && text.contains("I32"), "{text}");
}

#[test]
fn architectures_are_told_apart() {
    let mut changed = light("llama-tiny");
    let name = &mut changed.keys.iter_mut().find(|(key, _)| key == "general.architecture").unwrap().1;
    *name = "mamba".into();
    let text = refusal(&changed, "an unknown architecture");
    let known = ["llama", "qwen2", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp"];
    assert!(text.contains("`mamba`") && known.iter().all(|name| text.contains(name)), "{text}");
    changed.keys.retain(|(key, _)| key != "general.architecture");
    assert!(refusal(&changed, "no architecture").contains("general.architecture"));
}

#[test]
fn draft_files_that_do_not_go_with_the_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut container = light("llama-tiny");
    container.keys.retain(|(key, _)| key != "general.architecture");
    container.keys.push(("general.architecture".into(), "qwen4exp-mtp".into()));
    let container = container.write(folder.path());
    let load = |model: &std::path::Path, draft: Option<&std::path::Path>| {
        let options = LoadOptions { draft: draft.map(Into::into), ..LoadOptions::default() };
        Model::load(model, &options).err().expect("a refusal").to_string()
    };
    let (model, llama) = (f32_model("q4e-tiny"), f32_model("llama-tiny"));
    for text in [load(&container, None), load(&model, Some(&container))] {
        assert!(text.contains("`qwen4exp-mtp`") && text.contains("`qwen4exp`"), "{text}");
    }
    let text = load(&model, Some(&llama));
    assert!(text.contains("`llama`") && text.contains("`qwen4exp`"), "{text}");
    let text = load(&llama, Some(&model));
    assert!(text.contains("`qwen4exp`") && text.contains("`llama`"), "{text}");
}

/// Whatever a key holds, reading it ends in a sentence or in a description of which graphs can be built.
#[test]
fn no_value_of_any_key_makes_the_reader_panic() {
    let values = [0, 1, 2, 3, 5, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, i64::MAX as u64, u64::MAX];
    let mut accepted = 0;
    for model in F32_MODELS {
        let mut original = light(model);
        let prefix = original.full("");
        let keys: Vec<String> =
            original.keys.iter().filter_map(|(key, _)| key.strip_prefix(&prefix)).map(Into::into).collect();
        original.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 2.0f32);
        for key in keys {
            let lists = [4usize, 9].map(|len| values.map(|v| Value::Array(Array::U64(vec![v; len]))));
            let floats = [0.0, -0.0, 1e-38, 1e38, -1.0, f32::NAN, f32::NEG_INFINITY].map(Value::F32);
            for value in values.map(Value::U64).into_iter().chain(lists.into_iter().flatten()).chain(floats) {
                let mut changed = original.clone();
                changed.set(&key, value);
                let Ok(spec) = spec(&changed) else { continue };
                accepted += 1;
                let file = ModelFile::parse(&changed.writer().to_bytes()).expect("read before");
                let shapes = Shapes::of_file(&file, None).expect("read before");
                let machine = Machine::invented(1 << 30);
                for context_tokens in [None, Some(usize::MAX >> 1)] {
                    let _ =
                        plan(&shapes, &machine, &PlanOptions { context_tokens, ..PlanOptions::default() });
                }
                let f32 = |_| TensorType::F32;
                graph::trunk(&spec, &f32);
                StateLayout::new(spec.layers.iter(), KvType::F16, spec.context_tokens);
                if let Some(draft) = &spec.draft {
                    graph::draft(&spec, draft, &f32);
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}
