//! The oracle's models, written by the Python package gguf and by llama.cpp, open with what those say they hold.

use std::collections::BTreeSet;

use gguf::{ModelFile, TensorType};

/// (name, tensors, keys) as the Python package's reader counts them; the two files with Q2_0 tensors, which it does not
/// know, by the two counts at their start.
const MODELS: &[(&str, usize, usize)] = &[
    ("llama-tiny-F32", 30, 27),
    ("q2-tiny-F32", 39, 23),
    ("q3-tiny-F32", 36, 25),
    ("q35-tiny-F32", 56, 34),
    ("q35moe-tiny-F32", 76, 37),
    ("q3moe-tiny-F32", 39, 28),
    ("q3next-tiny-F32", 73, 37),
    ("q4e-quant-IQ1_M", 113, 53),
    ("q4e-quant-IQ2_XS", 113, 53),
    ("q4e-quant-IQ3_S", 113, 53),
    ("q4e-quant-IQ3_XXS", 113, 53),
    ("q4e-quant-MXFP4", 113, 53),
    ("q4e-quant-Q2_0", 145, 54),
    ("q4e-quant-Q4_K", 113, 53),
    ("q4e-quant-Q8_0", 113, 53),
    ("q4e-tiny-BF16", 246, 54),
    ("q4e-tiny-F16", 246, 54),
    ("q4e-tiny-F32", 246, 54),
    ("q4e-tiny-Q8_0", 246, 54),
];

#[test]
fn whole_models_open() {
    for &(name, tensors, keys) in MODELS {
        let model = ModelFile::open(&oracle::model(name)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((model.tensors.len(), model.metadata.len()), (tensors, keys), "{name}");
        assert_eq!(model.shards.len(), 1);
        for tensor in &model.tensors {
            assert_eq!(model.tensor(&tensor.name), Some(tensor));
        }
    }
}

#[test]
fn no_model_of_the_oracle_is_left_out() {
    let listed: BTreeSet<String> = MODELS.iter().map(|(name, ..)| format!("{name}.gguf")).collect();
    let present: BTreeSet<String> = std::fs::read_dir(oracle::folder().join("models"))
        .expect("the oracle has models")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .filter(|name| name.ends_with(".gguf") && !name.contains("-of-"))
        .collect();
    assert_eq!(present, listed);
}

#[test]
fn the_split_model_opens_by_either_part() {
    let parts = [1, 2].map(|no| oracle::model(&format!("q4e-tiny-split-F16-{no:05}-of-00002")));
    let model = ModelFile::open(&parts[0]).unwrap_or_else(|e| panic!("{e}"));
    let other = ModelFile::open(&parts[1]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(model.tensors, other.tensors);
    assert_eq!(model.shards, other.shards);
    assert_eq!(model.metadata, other.metadata);
    assert_eq!((model.tensors.len(), model.metadata.len(), model.shards.len()), (246, 57, 2));
    let table = model.tensor("per_layer_token_embd.weight").expect("the n-gram table");
    assert_eq!(table.shard, 1);
    // The same tensors, type and shape alike, as in the file that is not split.
    let whole = ModelFile::open(&oracle::model("q4e-tiny-F16")).unwrap_or_else(|e| panic!("{e}"));
    for tensor in &whole.tensors {
        let split = model.tensor(&tensor.name).expect("in both");
        assert_eq!((split.dtype, &split.shape, split.len), (tensor.dtype, &tensor.shape, tensor.len));
    }
}

#[test]
fn metadata_of_the_product_model_is_readable_by_type() {
    let model = ModelFile::open(&oracle::model("q4e-quant-Q4_K")).unwrap_or_else(|e| panic!("{e}"));
    let metadata = &model.metadata;
    assert_eq!(metadata.string("general.architecture").unwrap(), Some("qwen4exp"));
    assert!(metadata.integer("qwen4exp.expert_count").unwrap().is_some());
    assert_eq!(metadata.float("qwen4exp.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-6));
    let layers = metadata.integer("qwen4exp.block_count").unwrap().expect("block_count") as usize;
    assert_eq!(
        metadata.integers("qwen4exp.attention.compress_ratios").unwrap().map(|v| v.len()),
        Some(layers)
    );
    assert_eq!(metadata.integers("qwen4exp.ple.layer_multipliers").unwrap().map(|v| v.len()), Some(3));
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().expect("a vocabulary");
    let table = model.tensor("token_embd.weight").expect("embeddings");
    assert_eq!(table.rows(), tokens.len() as u64);
    assert!(model.tensors.iter().any(|t| t.dtype == TensorType::Q4_K));
}
