//! Routed experts and how weights come into memory: the same bits from wherever they are.

mod support;

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::experts::{PARTS_MAX, Role};
use engine::state::KvType;
use engine::{LoadError, LoadOptions, Loading, Model};
use support::*;

fn load(path: &std::path::Path, loading: Loading) -> std::sync::Arc<Model> {
    let options = LoadOptions { kv: KvType::F16, loading, ..LoadOptions::default() };
    std::sync::Arc::new(Model::load(path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

fn files() -> Vec<std::path::PathBuf> {
    let quantised =
        ["q4e-quant-Q4_K", "q4e-quant-IQ3_S", "q4e-tiny-Q8_0", "q4e-tiny-split-F16-00001-of-00002"];
    F32_MODELS
        .iter()
        .map(|name| f32_model(name))
        .chain(quantised.iter().map(|name| oracle::model(name)))
        .collect()
}

#[test]
fn read_weights_give_the_bits_of_mapped_ones() {
    for path in files() {
        let tokens: Vec<u32> = (0..40).map(|i| i * 13 % 500).collect();
        let logits = |loading| {
            let model = load(&path, loading);
            let mut state = model.new_state().unwrap();
            let logits = read(&mut stage_of(&model, 2, None), &mut state, &tokens, &[17, 1, 1]);
            (bits(&logits), state.to_bytes(model.identity), model.active_bytes())
        };
        assert!(logits(Loading::Mapped) == logits(Loading::Read), "{}", path.display());
    }
}

/// The matrices of an expert are those of the stacked tensors, and lie apart in a slot.
#[test]
fn an_experts_matrices_are_its_part_of_the_tensors() {
    let mut layers_seen = 0;
    for path in files() {
        for loading in Loading::ALL {
            let model = load(&path, loading);
            for layer in model.experts.layers() {
                layers_seen += 1;
                let ids = [0, layer.experts as u32 - 1, 1];
                let held = model.experts.acquire(layer.layer, ids.into_iter());
                assert!(layer.parts.len() <= PARTS_MAX);
                assert_eq!(layer.parts.last().map(|part| part.role), Some(Role::Down));
                let mut end = 0;
                for part in &layer.parts {
                    assert!(
                        part.slot_offset >= end && part.slot_offset < end + 64 && part.slot_offset % 64 == 0
                    );
                    end = part.slot_offset + part.bytes;
                    let stack = model.weights.rows(part.tensor);
                    assert_eq!(stack.bytes.len(), part.bytes * layer.experts);
                    let rows = stack.rows() / layer.experts;
                    for (i, &id) in ids.iter().enumerate() {
                        let wanted = stack.slice(id as usize * rows, rows);
                        let found = held.rows(part.tensor, i);
                        assert_eq!((found.dtype, found.k, found.rows()), (wanted.dtype, wanted.k, rows));
                        // The same memory and not only the same values.
                        assert_eq!(found.bytes.as_ptr_range(), wanted.bytes.as_ptr_range());
                    }
                }
                assert!(layer.slot_bytes() >= end && layer.slot_bytes() < end + 64);
            }
        }
    }
    assert!(layers_seen > 40, "{layers_seen}");
}

/// What was read needs its file no more. Mapped weights would fail the pass and name the file.
#[test]
fn read_weights_outlive_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(f32_model("q3moe-tiny"), &path).unwrap();
    let tokens: Vec<u32> = (1..20).collect();
    let logits = |model: &std::sync::Arc<Model>| {
        let mut state = model.new_state().unwrap();
        bits(&read(&mut stage_of(model, 1, None), &mut state, &tokens, &[19]))
    };
    let whole = logits(&load(&path, Loading::Mapped));
    let held = load(&path, Loading::Read);
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(logits(&held), whole);
}

/// A file that was cut while it was read would have been taken for zeros.
#[test]
fn a_file_cut_while_it_is_read_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(f32_model("q3moe-tiny"), &path).unwrap();
    let options = LoadOptions { loading: Loading::Read, ..LoadOptions::default() };
    let (last, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let watch = |done, all| {
        last.fetch_max(done, Ordering::Relaxed);
        total.store(all, Ordering::Relaxed);
    };
    Model::load_file(gguf::ModelFile::open(&path).unwrap(), &options, &watch).unwrap();
    assert!(
        last.load(Ordering::Relaxed) == total.load(Ordering::Relaxed) && total.load(Ordering::Relaxed) > 0
    );

    let cut = |_, _| File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error =
        Model::load_file(gguf::ModelFile::open(&path).unwrap(), &options, &cut).err().expect("a refusal");
    assert!(matches!(&error, LoadError::Read(read) if read.path == path), "{error}");
    let text = error.to_string();
    assert!(text.contains("model.gguf: ") && text.contains("the file was cut"), "{text}");
}
