//! Routed experts and how weights come into memory: the same bits from wherever they are.

mod support;

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::experts::{LayerExperts, PARTS_MAX, Role};
use engine::models::TensorId;
use engine::stage::Touched;
use engine::state::KvType;
use engine::window::{Outputs, Window};
use engine::{Engine, EngineConfig, LoadError, LoadOptions, Loading, Model};
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

/// Weights move while passes run: before, in the middle of it (a copy that was begun is dropped there), beside it and after
/// it the results are the same bits. Stacks of experts move as the other matrices do.
#[test]
fn moved_weights_give_the_bits_of_mapped_ones() {
    for path in files() {
        let tokens: Vec<u32> = (0..40).map(|i| i * 13 % 500).collect();
        let model = load(&path, Loading::Moved);
        let mut stage = stage_of(&model, 2, None);
        let mut logits = || {
            let mut state = model.new_state().unwrap();
            let logits = read(&mut stage, &mut state, &tokens, &[17, 1, 1]);
            (bits(&logits), state.to_bytes(model.identity))
        };
        let before = logits();
        let place = |id: TensorId| model.weights.rows(id).bytes.as_ptr();
        let experts: Vec<TensorId> =
            model.experts.layers().iter().flat_map(|layer| &layer.parts).map(|part| part.tensor).collect();
        let mapped: Vec<_> = experts.iter().map(|&id| place(id)).collect();
        let mut total = 0;
        model
            .weights
            .move_matrices(&mut |copied| {
                total = copied;
                copied < 100_000
            })
            .unwrap();
        assert!(logits() == before, "{}", path.display());
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| model.weights.move_matrices(&mut |_| true).unwrap());
            for _ in 0..3 {
                assert!(logits() == before, "{}", path.display());
            }
            assert!(moving.join().unwrap() > 0 && total > 0);
        });
        assert!(logits() == before, "{}", path.display());
        assert_eq!(model.weights.move_matrices(&mut |_| true).unwrap(), 0, "all was moved");
        let moved = experts.iter().zip(mapped).all(|(&id, before)| place(id) != before);
        assert!(moved, "{}: experts stayed in the file", path.display());
    }
}

/// What was moved needs its file no more, and what cannot be read stays where it is.
#[test]
fn moving_ends_at_what_cannot_be_read_and_keeps_what_was_moved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(f32_model("q3moe-tiny"), &path).unwrap();
    let tokens: Vec<u32> = (1..20).collect();
    let logits = |model: &std::sync::Arc<Model>| {
        let mut state = model.new_state().unwrap();
        bits(&read(&mut stage_of(model, 1, None), &mut state, &tokens, &[19]))
    };
    let (moved, cut) = (load(&path, Loading::Moved), load(&path, Loading::Moved));
    let whole = logits(&moved);
    assert!(moved.weights.move_matrices(&mut |_| true).unwrap() > 0);
    File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert_eq!(logits(&moved), whole);
    let error = cut.weights.move_matrices(&mut |_| true).unwrap_err();
    assert!(matches!(&error, LoadError::Read(read) if read.path == path), "{error}");
    // No pass is spoilt by the attempt; one that uses the file is, and says so.
    assert!(cut.weights.damaged().is_none());
}

/// An engine moves its weights after its first pass, and may go while that lasts.
#[test]
fn an_engine_that_moves_its_weights_can_go_at_any_time() {
    let path = f32_model("q3moe-tiny");
    let config = |loading| EngineConfig {
        load: LoadOptions { loading, ..LoadOptions::default() },
        threads: 2,
        isa: None,
        chunk_tokens: 8,
    };
    let tokens: Vec<u32> = (1..30).collect();
    let mut whole: Option<Vec<f32>> = None;
    for passes in 0..24 {
        let mut engine = Engine::load(&path, &config(Loading::ALL[passes % 3])).unwrap();
        for _ in 0..passes % 4 {
            let mut state = engine.model().new_state().unwrap();
            let logits = engine.read(&mut state, &tokens).unwrap().to_vec();
            assert_eq!(bits(&[whole.get_or_insert(logits.clone()).clone()]), bits(&[logits]));
        }
        if passes % 8 == 1 {
            let all = engine.model().weights.move_matrices(&mut |_| true);
            engine.settle_weights().unwrap();
            assert!(all.is_ok());
        }
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

/// `bench` counted experts of several sequences as if chosen by chance: what windows touched is the union of their rows' choices.
#[test]
fn experts_of_a_window_are_counted_once() {
    for name in ["q3moe-tiny", "q35moe-tiny", "q4e-tiny", "llama-tiny"] {
        let model = load(&f32_model(name), Loading::Mapped);
        let mut stage = stage_of(&model, 1, None);
        let mut states: Vec<_> = (0..3).map(|_| model.new_state().unwrap()).collect();
        let mut window = Window::default();
        for (i, tokens) in [&[1, 2, 3][..], &[7], &[9, 9]].into_iter().enumerate() {
            window.push_tokens(i, tokens, 0, Outputs::Last);
        }
        let mut union = 0;
        let mut states: Vec<_> = states.iter_mut().collect();
        let mut tap = |name: &str, _: usize, values: &[f32]| {
            if name.ends_with(".moe.ids") {
                let mut ids: Vec<u32> = values.iter().map(|&id| id as u32).collect();
                ids.sort_unstable();
                ids.dedup();
                union += ids.len() as u64;
            }
        };
        stage.run(&window, &mut states, Some(&mut tap)).unwrap();
        let touched = stage.take_touched();
        assert_eq!((touched.windows, touched.experts), (1, union), "{name}");
        let layers = model.experts.layers();
        let one =
            |layer: &LayerExperts| layer.parts.iter().map(|part| part.range(0).len() as u64).sum::<u64>();
        let equal = layers.iter().all(|layer| one(layer) == one(&layers[0]));
        assert!(equal && touched.bytes == union * layers.first().map_or(0, one), "{name}: {touched:?}");
        assert_eq!(stage.take_touched(), Touched::default(), "counted anew");
    }
}
