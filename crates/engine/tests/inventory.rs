//! What tensors are for, against the files' own sizes and the count of bytes that a token costs.

use engine::inventory::{Role, inventory};
use engine::models::{Form, read_spec};
use engine::{LoadOptions, Model};
use gguf::ModelFile;

const MODELS: [&str; 10] = [
    "llama-tiny-F32",
    "q2-tiny-F32",
    "q3-tiny-F32",
    "q3moe-tiny-F32",
    "q3next-tiny-F32",
    "q35-tiny-F32",
    "q35moe-tiny-F32",
    "q4e-tiny-F16",
    "q4e-quant-Q4_K",
    "q4e-tiny-split-F16-00001-of-00002",
];

#[test]
fn every_tensor_of_a_known_model_has_a_role() {
    for name in MODELS {
        let file = ModelFile::open(&oracle::model(name)).expect("a model");
        let spec = read_spec(&file, None).expect("known");
        let parts = inventory(&file, Some(&spec));
        assert_eq!(parts.len(), file.tensors.len());
        for (part, tensor) in parts.iter().zip(&file.tensors) {
            assert_ne!(part.role, Role::Unused, "{name}: {}", tensor.name);
            assert_eq!(part.bytes, tensor.len);
            assert!(part.active_bytes <= part.bytes && part.active_values <= part.values, "{}", tensor.name);
            assert_eq!(part.active_values == 0, part.role == Role::Draft, "{}", tensor.name);
        }
        let of = |role: Role| parts.iter().filter(|part| part.role == role).count();
        let has_experts = name.contains("moe") || name.contains("next") || name.contains("q4e");
        assert_eq!(of(Role::Experts) > 0, has_experts, "{name}");
        assert_eq!(of(Role::FeedForward) > 0, !has_experts, "{name}");
        let is_hybrid = ["q3next", "q35", "q4e"].iter().any(|family| name.starts_with(family));
        assert_eq!(of(Role::DeltaNet) > 0, is_hybrid, "{name}");
        assert_eq!(of(Role::Ngram) > 0, name.starts_with("q4e"), "{name}");
    }
}

/// The count of bytes that `strata bench` uses leaves out vectors and looked-up rows of the n-gram table, and counts the
/// embedding's row even where the whole table is read as the head.
#[test]
fn bytes_of_a_token_are_those_of_the_loaded_weights() {
    for name in MODELS {
        let path = oracle::model(name);
        let file = ModelFile::open(&path).expect("a model");
        let spec = read_spec(&file, None).expect("known");
        let mut bytes = 0;
        for (part, tensor) in inventory(&file, Some(&spec)).iter().zip(&file.tensors) {
            let binding = spec.tensors.iter().find(|b| b.name == tensor.name).expect("bound");
            let is_table = tensor.name == "per_layer_token_embd.weight";
            if binding.form == Form::Rows && !is_table {
                bytes += part.active_bytes as usize;
            }
        }
        let model = Model::load(&path, &LoadOptions::default()).expect("loaded");
        if spec.output.weight == spec.embedding {
            bytes += model.weights.rows(spec.embedding).row_bytes();
        }
        assert_eq!(bytes, model.active_bytes(), "{name}");
    }
}

#[test]
fn without_a_spec_nothing_has_a_role() {
    let file = ModelFile::open(&oracle::model("q2-tiny-F32")).expect("a model");
    let parts = inventory(&file, None);
    assert!(parts.iter().all(|part| part.role == Role::Unused && part.active_bytes == 0));
    assert_eq!(parts.iter().map(|p| p.bytes).sum::<u64>(), file.tensors.iter().map(|t| t.len).sum::<u64>());
}
