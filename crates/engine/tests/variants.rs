//! The layouts files of one architecture come in: each must give the numbers of the oracle's own layout, bit for bit
//! wherever the same products are computed.

mod rewrite;
mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;

use engine::model::{LoadOptions, Model};
use engine::models::Warning;
use engine::stage::{Stage, cpu};
use engine::state::KvType;
use engine::window::{Outputs, Window};
use gguf::{Array, TensorType, Value};
use rewrite::{Parts, Tensor};
use support::*;

/// Architectures with experts.
const ROUTED: [&str; 4] = ["q3moe-tiny", "q3next-tiny", "q35moe-tiny", "q4e-tiny"];
/// Architectures with delta-net layers.
const HYBRIDS: [&str; 4] = ["q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];
/// Tokens of the text: more than the 35 cells that sparse attention of the tiny model sees at most.
const TOKENS: usize = 44;
/// Layers of an oracle model, the draft layer's included.
const LAYERS_MAX: usize = 9;

fn parts(name: &str) -> Parts {
    Parts::of(&f32_model(name))
}

fn load(path: &std::path::Path) -> Stage {
    let options = LoadOptions { kv: KvType::F32, ..LoadOptions::default() };
    let model = Model::load(path, &options).unwrap_or_else(|e| panic!("{e}"));
    Stage::new(std::sync::Arc::new(model), cpu(2, None).expect("threads"))
}

/// Logits of a text that goes beyond the block budget, and of the draft layer on it.
fn numbers_of(stage: &mut Stage, name: &str) -> Vec<f32> {
    let all = prompts(name).into_iter().find(|(prompt, ..)| prompt == "long").expect("a long prompt").1;
    let tokens = &all[..TOKENS];
    let mut state = stage.model().new_state().expect("memory");
    let mut window = Window::default();
    window.push_tokens(0, tokens, 0, Outputs::All);
    let output = stage.run(&window, &mut [&mut state], None).unwrap_or_else(|e| panic!("{e}"));
    let (mut numbers, hidden) = (output.logits.to_vec(), output.residual.to_vec());
    if stage.model().draft.is_some() {
        let mut state = stage.model().new_draft_state().expect("memory");
        let mut window = Window { hidden, ..Window::default() };
        window.push_tokens(0, tokens, 0, Outputs::All);
        let output = stage.run_draft(&window, &mut [&mut state], None).unwrap_or_else(|e| panic!("{e}"));
        numbers.extend_from_slice(output.logits);
    }
    numbers
}

fn numbers(parts: &Parts, name: &str) -> Vec<f32> {
    let folder = tempfile::tempdir().expect("a folder");
    numbers_of(&mut load(&parts.write(folder.path())), name)
}

/// The numbers of both files are the same bits.
fn same(name: &str, what: &str, changed: &Parts) {
    assert_same(&original_numbers(name), &numbers(changed, name), &format!("{name}: {what}"));
}

/// The numbers of the oracle's own file, computed once.
fn original_numbers(name: &str) -> Vec<f32> {
    static KNOWN: Mutex<BTreeMap<String, Vec<f32>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().expect("no test panics in here");
    known.entry(name.to_owned()).or_insert_with(|| numbers(&parts(name), name)).clone()
}

fn assert_same(wanted: &[f32], found: &[f32], what: &str) {
    let difference = max_difference(wanted, found);
    let equal = wanted.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(equal, "{what}: {difference}");
}

fn spec_warnings(parts: &Parts) -> Vec<Warning> {
    let file = gguf::ModelFile::parse(&parts.writer().to_bytes()).expect("a file");
    engine::models::read_spec(&file, None).unwrap_or_else(|e| panic!("{e}")).warnings
}

/// Joins matrices of the same input row by row, expert by expert where they are stacked.
fn join(name: &str, parts: &[Tensor]) -> Tensor {
    let experts = parts[0].shape.get(2).copied().unwrap_or(1) as usize;
    let mut data = Vec::new();
    for expert in 0..experts {
        for part in parts {
            let len = part.data.len() / experts;
            data.extend_from_slice(&part.data[expert * len..][..len]);
        }
    }
    let mut shape = parts[0].shape.clone();
    shape[1] = parts.iter().map(|part| part.shape[1]).sum();
    Tensor { name: name.into(), dtype: parts[0].dtype, shape, data }
}

#[test]
fn gate_and_up_of_experts_in_one_tensor() {
    for name in ROUTED {
        let mut changed = parts(name);
        for layer in 0..LAYERS_MAX {
            let b = format!("blk.{layer}.ffn_");
            if changed.has(&format!("{b}gate_exps.weight")) {
                let both = ["gate", "up"].map(|t| changed.take(&format!("{b}{t}_exps.weight")));
                changed.add(join(&format!("{b}gate_up_exps.weight"), &both));
            }
        }
        same(name, "fused gate and up", &changed);
    }
}

#[test]
fn queries_keys_and_values_in_one_tensor() {
    for name in F32_MODELS {
        let mut changed = parts(name);
        let mut fused = 0;
        for layer in 0..LAYERS_MAX {
            let b = format!("blk.{layer}.attn_");
            if !changed.has(&format!("{b}q.weight")) {
                continue;
            }
            let three = ["q", "k", "v"].map(|t| changed.take(&format!("{b}{t}.weight")));
            changed.add(join(&format!("{b}qkv.weight"), &three));
            if changed.has(&format!("{b}q.bias")) {
                let biases = ["q", "k", "v"].map(|t| changed.take(&format!("{b}{t}.bias")).values());
                let biases = biases.concat();
                changed.add(Tensor::f32(&format!("{b}qkv.bias"), &[biases.len() as u64], &biases));
            }
            fused += 1;
        }
        assert!(fused > 0, "{name}");
        same(name, "fused attention", &changed);
    }
}

#[test]
fn one_input_matrix_per_delta_layer_as_old_qwen3next_files_have_it() {
    let name = "q3next-tiny";
    let mut changed = parts(name);
    let (key_heads, d, ratio) = (2, 16, 3);
    for layer in 0..3 {
        let b = format!("blk.{layer}.");
        let qkv = changed.take(&format!("{b}attn_qkv.weight"));
        let z = changed.take(&format!("{b}attn_gate.weight"));
        let row = qkv.row_bytes();
        let rows = |t: &Tensor, first: usize, count: usize| t.data[first * row..][..count * row].to_vec();
        let mut data = Vec::new();
        for head in 0..key_heads {
            data.extend(rows(&qkv, head * d, d));
            data.extend(rows(&qkv, (key_heads + head) * d, d));
            data.extend(rows(&qkv, 2 * key_heads * d + head * ratio * d, ratio * d));
            data.extend(rows(&z, head * ratio * d, ratio * d));
        }
        let shape = vec![qkv.shape[0], qkv.shape[1] + z.shape[1]];
        changed.add(Tensor { name: format!("{b}ssm_in.weight"), dtype: qkv.dtype, shape, data });
    }
    same(name, "ssm_in", &changed);
}

/// Tensors that are multiplied with an activation.
fn is_linear(tensor: &Tensor) -> bool {
    let table = ["token_embd", "per_layer_token_embd"].iter().any(|t| tensor.name.starts_with(t));
    tensor.shape.len() > 1 && !table && !tensor.name.contains("conv1d")
}

#[test]
fn a_scale_beside_a_tensor_multiplies_its_products() {
    for name in F32_MODELS {
        for per_expert in [false, true] {
            let mut changed = parts(name);
            let mut scales = Vec::new();
            for tensor in changed.tensors.iter_mut().filter(|t| is_linear(t)) {
                let experts = tensor.shape.get(2).copied().unwrap_or(1);
                let values: Vec<f32> = match per_expert {
                    true => (0..experts).map(|e| [2.0, 0.5, 4.0][e as usize % 3]).collect(),
                    false => vec![2.0],
                };
                let len = tensor.values().len() / values.len();
                *tensor = tensor.map(|i, v| v / values[i / len]);
                let scale = tensor.name.replace(".weight", ".scale");
                scales.push(Tensor::f32(&scale, &[values.len() as u64], &values));
            }
            assert!(scales.len() > 15, "{name}");
            changed.tensors.extend(scales);
            same(name, "scales", &changed);
        }
    }
}

#[test]
fn recurrent_layers_as_any_list_or_by_interval() {
    for name in HYBRIDS {
        let mut original = parts(name);
        let Some(Value::Array(Array::Bool(list))) = original.get("attention.recurrent_layers").cloned()
        else {
            panic!("{name} has no list of bools");
        };
        let lists: [Value; 4] = [
            list.iter().map(|&b| u32::from(b)).collect::<Vec<_>>().into(),
            list.iter().map(|&b| i32::from(b)).collect::<Vec<_>>().into(),
            list.iter().map(|&b| u8::from(b)).collect::<Vec<_>>().into(),
            list.iter().map(|&b| u64::from(b)).collect::<Vec<_>>().into(),
        ];
        for value in lists {
            same(name, "another list", original.set("attention.recurrent_layers", value));
        }
        same(name, "interval", original.remove("attention.recurrent_layers"));
        same(name, "default interval", original.remove("full_attention_interval"));
    }
}

/// `value` as another type that holds the same; `None` where it does not fit.
fn retyped(value: &Value, to: &str) -> Option<Value> {
    let numbers: Vec<i128> = match value {
        Value::U32(v) => vec![i128::from(*v)],
        Value::Array(Array::I32(v)) => v.iter().map(|&v| i128::from(v)).collect(),
        Value::Array(Array::U32(v)) => v.iter().map(|&v| i128::from(v)).collect(),
        Value::Array(Array::U64(v)) => v.iter().map(|&v| i128::from(v)).collect(),
        Value::F32(v) if to == "other floats" => return Some(Value::F64(f64::from(*v))),
        _ => return None,
    };
    fn list<T: TryFrom<i128>>(numbers: &[i128]) -> Option<Vec<T>> {
        numbers.iter().map(|&n| T::try_from(n).ok()).collect()
    }
    let scalar = matches!(value, Value::U32(_));
    Some(match (to, scalar) {
        ("u64", true) => Value::U64(*list(&numbers)?.first()?),
        ("u64", false) => Value::Array(Array::U64(list(&numbers)?)),
        ("i32", true) => Value::I32(*list(&numbers)?.first()?),
        ("i32", false) => Value::Array(Array::I32(list(&numbers)?)),
        ("u32", false) => Value::Array(Array::U32(list(&numbers)?)),
        ("i64", true) => Value::I64(*list(&numbers)?.first()?),
        ("i64", false) => Value::Array(Array::I64(list(&numbers)?)),
        ("u16", true) => Value::U16(*list(&numbers)?.first()?),
        ("u16", false) => Value::Array(Array::U16(list(&numbers)?)),
        ("arrays", true) => Value::Array(Array::U32(vec![*list(&numbers)?.first()?; 3])),
        _ => return None,
    })
}

#[test]
fn numbers_in_keys_of_any_type() {
    for name in ["llama-tiny", "q3moe-tiny", "q35-tiny", "q4e-tiny"] {
        let original = parts(name);
        let prefix = original.full("");
        for to in ["u64", "i32", "u32", "i64", "u16", "arrays", "other floats"] {
            let mut changed = original.clone();
            let mut count = 0;
            for (_, value) in changed.keys.iter_mut().filter(|(key, _)| key.starts_with(&prefix)) {
                if let Some(other) = retyped(value, to) {
                    *value = other;
                    count += 1;
                }
            }
            assert!(count > 0 || to == "u32", "{name} {to}");
            same(name, to, &changed);
        }
    }
}

#[test]
fn keys_with_defaults_may_be_absent() {
    // Each of these has its default in the oracle's file.
    for (name, keys) in [
        ("llama-tiny", &["vocab_size", "rope.freq_base", "rope.dimension_count", "attention.key_length"][..]),
        ("llama-tiny", &["attention.value_length"]),
        ("q3-tiny", &["attention.value_length"]),
        ("q4e-tiny", &["attention.value_length", "expert_shared_feed_forward_length"]),
        ("q4e-tiny", &["full_attention_interval", "ple.image_token_id", "rope.dimension_sections"]),
    ] {
        let mut changed = parts(name);
        for key in keys {
            assert!(changed.get(key).is_some(), "{name} {key}");
            changed.remove(key);
        }
        same(name, "absent keys", &changed);
    }
    // As many key/value heads as query heads.
    let mut all = parts("llama-tiny");
    for layer in 0..3 {
        for kind in ["k", "v"] {
            let tensor = all.take(&format!("blk.{layer}.attn_{kind}.weight"));
            all.add(join(&tensor.name.clone(), &[tensor.clone(), tensor]));
        }
    }
    all.set("attention.head_count_kv", 4u32);
    let wanted = numbers(&all, "llama-tiny");
    assert_same(&wanted, &numbers(all.remove("attention.head_count_kv"), "llama-tiny"), "all heads");
}

#[test]
fn embedding_rows_hash_the_reset_token_where_no_image_token_is_named() {
    let mut changed = parts("q4e-tiny");
    changed.remove("ple.image_token_id");
    let file = gguf::ModelFile::parse(&changed.writer().to_bytes()).unwrap();
    let spec = engine::models::read_spec(&file, None).unwrap();
    let ngram = spec.layers[1].ngram.as_ref().expect("an n-gram block");
    assert_eq!((ngram.image_token, ngram.reset_token), (992, 992));
}

#[test]
fn an_absent_head_is_the_embedding() {
    for name in ["llama-tiny", "q4e-tiny"] {
        let mut tied = parts(name);
        tied.take("output.weight");
        let mut copied = tied.clone();
        let mut head = copied.tensor("token_embd.weight").clone();
        head.name = "output.weight".into();
        copied.add(head);
        assert_same(&numbers(&copied, name), &numbers(&tied, name), name);
    }
}

#[test]
fn block_sizes_that_a_converter_lost_are_assumed_with_a_warning() {
    let name = "q4e-tiny";
    let mut changed = parts(name);
    assert_eq!(spec_warnings(&changed), []);
    let warning =
        || Warning::IndexerBlocksAssumed { key: "qwen4exp.attention.compress_ratios".into(), block_cells: 4 };
    let key = "attention.compress_ratios";
    for zeros in [Value::from(vec![0i32; 9]), Value::from(vec![0i32; 8]), Value::from(0u32)] {
        changed.set(key, zeros);
        assert_eq!(spec_warnings(&changed), [warning()]);
        same(name, "zeros", &changed);
    }
    // The trunk's are lost, the draft layer's is there.
    changed.set(key, vec![0i32, 0, 0, 0, 0, 0, 0, 0, 4]);
    assert_eq!(spec_warnings(&changed), [warning()]);
    same(name, "zeros in the trunk", &changed);
    changed.remove(key);
    assert_eq!(spec_warnings(&changed), [warning()]);
    same(name, "absent", &changed);
    assert!(warning().to_string().contains("`qwen4exp.attention.compress_ratios`"));
    for good in [Value::from(4u32), Value::from(vec![4u32]), Value::from(vec![0u32, 0, 0, 4, 0, 0, 0, 4])] {
        changed.set(key, good);
        assert_eq!(spec_warnings(&changed), []);
        same(name, "another form", &changed);
    }
}

#[test]
fn a_file_without_an_indexer_attends_to_every_cell() {
    let name = "q4e-tiny";
    let mut changed = parts(name);
    changed.set("attention.compress_ratios", vec![0i32; 9]);
    changed.tensors.retain(|tensor| !tensor.name.contains(".indexer."));
    assert_eq!(spec_warnings(&changed), []);
    let (wanted, found) = (numbers(&parts(name), name), numbers(&changed, name));
    // Until the budget of 32 cells and an open block is used up, sparse attention is dense.
    let exact = 32 * 1024;
    assert!(max_difference(&wanted[..exact], &found[..exact]) < 1e-6);
    assert!(max_difference(&wanted, &found) > 1e-2);
}

#[test]
fn the_ngram_table_in_a_shard_of_its_own() {
    let name = "q4e-tiny";
    let original = parts(name);
    let names: Vec<&str> = original.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let (table, rest): (Vec<&str>, Vec<&str>) =
        names.iter().partition(|name| **name == "per_layer_token_embd.weight");
    let folder = tempfile::tempdir().unwrap();
    for groups in [[&rest[..], &table[..]], [&[], &names[..]]] {
        let shards = original.writer().write_split(&folder.path().join("m"), &groups).unwrap();
        let wanted = numbers(&original, name);
        for path in [&shards[0], &shards[1]] {
            assert_same(&wanted, &numbers_of(&mut load(path), name), "split");
        }
    }
}

/// The bytes of a value that both F16 and BF16 hold exactly.
fn half_bytes(value: f32, dtype: TensorType) -> [u8; 2] {
    let bits = value.to_bits();
    let half = match dtype {
        TensorType::BF16 => bits >> 16,
        _ if value == 0.0 => bits >> 16,
        _ => (bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff),
    };
    (half as u16).to_le_bytes()
}

#[test]
fn short_tensors_in_half_precision() {
    let name = "q4e-tiny";
    for dtype in [TensorType::F16, TensorType::BF16] {
        let (mut full, mut half) = (parts(name), parts(name));
        let mut changed = 0;
        for tensor in &mut full.tensors {
            let short = tensor.shape.len() == 1 || tensor.name.contains("conv1d");
            if !short {
                continue;
            }
            // Eight significant bits fit into both, as long as the exponent is that of a normal F16.
            *tensor = tensor.map(|_, v| if v.abs() < 1e-4 { 0.0 } else { v });
            *tensor = tensor.map(|_, v| f32::from_bits(v.to_bits() & 0xffff_0000));
            let data = tensor.values().iter().flat_map(|&v| half_bytes(v, dtype)).collect();
            *half.tensor(&tensor.name) = Tensor { dtype, data, ..tensor.clone() };
            changed += 1;
        }
        assert!(changed > 50 && half.tensor("blk.1.ple_conv1d.weight").dtype == dtype);
        assert_same(&numbers(&full, name), &numbers(&half, name), dtype.name());
    }
}

#[test]
fn extents_of_one_may_be_left_out() {
    for name in ["q3next-tiny", "q35moe-tiny", "q4e-tiny"] {
        let mut changed = parts(name);
        let mut count = 0;
        for tensor in changed.tensors.iter_mut().filter(|t| t.name.ends_with("ffn_gate_inp_shexp.weight")) {
            assert_eq!(tensor.shape, [64, 1]);
            tensor.shape.pop();
            count += 1;
        }
        assert!(count > 0);
        for tensor in changed.tensors.iter_mut().filter(|t| t.name.ends_with("_norm.weight")) {
            tensor.shape.push(1);
        }
        same(name, "extents of one", &changed);
    }
}

/// `llama-tiny` with four copies of its block in every layer as experts, of which two are used.
fn mixtral(router: impl Fn(usize) -> f32) -> Parts {
    let mut changed = parts("llama-tiny");
    for layer in 0..3 {
        let b = format!("blk.{layer}.ffn_");
        for kind in ["gate", "up", "down"] {
            let dense = changed.take(&format!("{b}{kind}.weight"));
            let shape = vec![dense.shape[0], dense.shape[1], 4];
            let name = format!("{b}{kind}_exps.weight");
            changed.add(Tensor { name, shape, data: dense.data.repeat(4), ..dense });
        }
        let values: Vec<f32> = (0..4 * 64).map(&router).collect();
        changed.add(Tensor::f32(&format!("{b}gate_inp.weight"), &[64, 4], &values));
    }
    changed.set("expert_count", 4u32).set("expert_used_count", 2u32);
    changed
}

#[test]
fn llama_with_experts() {
    // Two halves of the same row are the row; other weights add up to 1 up to rounding.
    same("llama-tiny", "equal experts", &mixtral(|_| 0.0));
    let uneven = numbers(&mixtral(|i| (i * 37 % 61) as f32 / 61.0 - 0.5), "llama-tiny");
    let difference = max_difference(&numbers(&parts("llama-tiny"), "llama-tiny"), &uneven);
    assert!(difference > 0.0 && difference < 1e-4, "{difference}");
    // The width of an expert by its own key, and a factor on the routing weights.
    let mut scaled = mixtral(|_| 0.0);
    scaled.set("expert_feed_forward_length", 96u32).set("feed_forward_length", 7u32);
    scaled.set("expert_weights_scale", 2.0f32);
    for layer in 0..3 {
        let down = scaled.tensor(&format!("blk.{layer}.ffn_down_exps.weight"));
        *down = down.map(|_, v| v / 2.0);
    }
    same("llama-tiny", "scaled weights", &scaled);
}

#[test]
fn zero_biases_change_nothing() {
    // Biases that are not zero are compared with llama.cpp, beside the rotary positions.
    let mut changed = parts("llama-tiny");
    for layer in 0..3 {
        for (kind, len) in [
            ("attn_q", 64),
            ("attn_k", 32),
            ("attn_v", 32),
            ("attn_output", 64),
            ("ffn_gate", 96),
            ("ffn_up", 96),
            ("ffn_down", 64),
        ] {
            let zeros = vec![0.0; len as usize];
            changed.add(Tensor::f32(&format!("blk.{layer}.{kind}.bias"), &[len], &zeros));
        }
    }
    same("llama-tiny", "zero biases", &changed);
}

#[test]
fn divisors_of_the_frequencies() {
    let name = "llama-tiny";
    let mut ones = parts(name);
    ones.add(Tensor::f32("rope_freqs.weight", &[8], &[1.0; 8]));
    same(name, "divisors of 1", &ones);
    let mut twos = parts(name);
    twos.add(Tensor::f32("rope_freqs.weight", &[8], &[2.0; 8]));
    let mut linear = parts(name);
    linear.set("rope.scaling.type", "linear").set("rope.scaling.factor", 2.0f32);
    assert_same(&numbers(&linear, name), &numbers(&twos, name), "divisors of 2");
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        twos.tensor("rope_freqs.weight").data[4..8].copy_from_slice(&bad.to_le_bytes());
        let folder = tempfile::tempdir().unwrap();
        let error = Model::load(&twos.write(folder.path()), &LoadOptions::default()).err();
        let text = error.expect("a divisor that cannot be used").to_string();
        assert!(text.contains("rope_freqs.weight"), "{text}");
    }
}
