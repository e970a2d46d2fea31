//! Damaged files and numbers that are none: an error that says where, and a process that lives.

mod support;

use engine::error::StepError;
use engine::state::KvType;
use engine::window::{Outputs, Window};
use gguf::ModelFile;
use support::*;

fn window(tokens: &[u32]) -> Window {
    let mut window = Window::default();
    window.push_tokens(0, tokens, 0, Outputs::Last);
    window
}

#[test]
fn a_file_cut_while_mapped_fails_the_pass_and_not_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(f32_model("q4e-tiny"), &path).unwrap();
    let mut stage = stage(&path, KvType::F16, 2);
    let mut state = stage.model().new_state().unwrap();
    stage.run(&window(&[1, 2, 3]), &mut [&mut state], None).unwrap();

    std::fs::File::options().write(true).open(&path).unwrap().set_len(64 * 1024).unwrap();
    let mut state = stage.model().new_state().unwrap();
    let error = stage.run(&window(&[1, 2, 3]), &mut [&mut state], None).unwrap_err();
    assert_eq!(error, StepError::FileDamaged { path: path.clone() });
    // Every later pass fails too: the weights stay damaged until the model is loaded again.
    let mut state = stage.model().new_state().unwrap();
    assert!(stage.run(&window(&[4]), &mut [&mut state], None).is_err());
}

/// A copy of a model with one value of one tensor replaced.
fn with_value(
    name: &str,
    tensor: &str,
    index: u64,
    value: f32,
    folder: &std::path::Path,
) -> std::path::PathBuf {
    let source = f32_model(name);
    let info = ModelFile::open(&source).unwrap().tensor(tensor).unwrap().clone();
    let mut bytes = std::fs::read(&source).unwrap();
    let at = (info.offset + 4 * index) as usize;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let path = folder.join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_number_that_is_none_names_its_layer() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("blk.2.attn_gate.weight", 2, f32::NAN),
        ("blk.3.attn_k.weight", 3, f32::NAN),
        ("blk.5.ffn_gate_inp.weight", 5, f32::NAN),
        ("blk.7.ffn_down_shexp.weight", 7, f32::NAN),
        ("blk.7.ffn_down_shexp.weight", 7, f32::INFINITY),
        ("blk.1.ple_norm_key.weight", 1, f32::NAN),
        ("output.weight", 8, f32::NEG_INFINITY),
    ];
    for (tensor, wanted, value) in cases {
        let path = with_value("q4e-tiny", tensor, 5, value, folder.path());
        let mut stage = stage(&path, KvType::F16, 2);
        let mut state = stage.model().new_state().unwrap();
        let error = stage.run(&window(&[1, 2, 3, 4, 5]), &mut [&mut state], None).unwrap_err();
        let StepError::NotFinite { layer, tensor: named, .. } = &error else { panic!("{tensor}: {error}") };
        assert_eq!((*layer, named.as_deref()), (wanted, Some(tensor)), "{error}");
        assert!(error.to_string().contains(tensor), "{error}");
    }
}

#[test]
fn a_token_outside_the_vocabulary_leaves_the_state_as_it_was() {
    let mut stage = stage(&f32_model("q35-tiny"), KvType::F16, 1);
    let mut state = stage.model().new_state().unwrap();
    let error = stage.run(&window(&[1, 1024]), &mut [&mut state], None).unwrap_err();
    assert_eq!(error, StepError::TokenOutOfRange { token: 1024, vocabulary: 1024 });
    assert_eq!(state.tokens(), 0);
    let after = read(&mut stage, &mut state, &[1, 2], &[2]);
    let mut fresh = stage.model().new_state().unwrap();
    assert_eq!(bits(&after), bits(&read(&mut stage, &mut fresh, &[1, 2], &[2])));
}
