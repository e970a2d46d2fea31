//! Damaged files and numbers that are none: an error that says where, and a process that lives.

mod support;

use engine::error::StepError;
use engine::state::{KvType, State};
use engine::window::{Input, Outputs, Row, Window};
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
        ("blk.3.attn_v.weight", 3, f32::INFINITY),
        ("blk.5.ffn_gate_inp.weight", 5, f32::NAN),
        ("blk.7.ffn_down_shexp.weight", 7, f32::NAN),
        ("blk.7.ffn_down_shexp.weight", 7, f32::INFINITY),
        ("blk.1.ple_norm_key.weight", 1, f32::NAN),
        ("output.weight", 8, f32::NEG_INFINITY),
    ];
    for (tensor, wanted, value) in cases {
        let path = with_value("q4e-tiny", tensor, 5, value, folder.path());
        for kv in KvType::ALL {
            let mut stage = stage(&path, kv, 2);
            let mut state = stage.model().new_state().unwrap();
            let error = stage.run(&window(&[1, 2, 3, 4, 5]), &mut [&mut state], None).unwrap_err();
            let StepError::NotFinite { layer, tensor: named, .. } = &error else {
                panic!("{tensor}: {error}")
            };
            assert_eq!((*layer, named.as_deref()), (wanted, Some(tensor)), "{error}");
            assert!(error.to_string().contains(tensor), "{error}");
        }
    }
}

/// What no scale reaches must not come back as zeros. In f32 it fits.
#[test]
fn a_value_too_large_for_its_cell_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    for tensor in ["blk.0.attn_k.weight", "blk.0.attn_v.weight"] {
        let path = with_value("llama-tiny", tensor, 5, 1e20, folder.path());
        for kv in KvType::ALL {
            let mut stage = stage(&path, kv, 1);
            let mut state = stage.model().new_state().unwrap();
            match stage.run(&window(&[1, 2, 3, 4, 5]), &mut [&mut state], None) {
                Ok(_) => assert_eq!(kv, KvType::F32, "{tensor}"),
                Err(StepError::NotFinite { layer: 0, .. }) => assert_ne!(kv, KvType::F32, "{tensor}"),
                Err(error) => panic!("{tensor}, cells in {}: {error}", kv.name()),
            }
        }
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

/// A row of embeddings from outside, of zeros but for one value.
fn embedding_row(window: &mut Window, width: usize, value: f32, position: i32) -> Row {
    let embedding = (window.embeddings.len() / width) as u32;
    window.embeddings.resize(window.embeddings.len() + width, 0.0);
    *window.embeddings.last_mut().unwrap() = value;
    Row { input: Input::Embedding(embedding), ngram_token: 3, position: [position; 3], output: true }
}

/// Two healthy sequences and a poisoned one between them, in one window.
fn poisoned(
    width: usize,
    prompts: &[[u32; 5]; 2],
    states: &[State; 3],
    value: f32,
    tentative: bool,
) -> Window {
    let mut window = Window::default();
    window.push_tokens(0, &prompts[0], states[0].next_position(), Outputs::All);
    window.push_tokens(1, &[1, 2, 3], states[1].next_position(), Outputs::All);
    window.rows[6] = embedding_row(&mut window, width, value, states[1].next_position() + 1);
    if tentative {
        window.tentative();
    }
    window.push_tokens(2, &prompts[1], states[2].next_position(), Outputs::All);
    window
}

/// One NaN among the rows of one sequence failed every sequence of the window, and left all their states unusable.
#[test]
fn a_poisoned_sequence_fails_alone() {
    let prompts = [[5, 6, 7, 8, 9], [40, 30, 20, 10, 0]];
    let cases = F32_MODELS.iter().flat_map(|name| [false, true].map(|tentative| (*name, tentative)));
    for (name, tentative) in cases {
        let what = format!("{name}, tentative: {tentative}");
        let mut stage = stage(&f32_model(name), KvType::F16, 2);
        let (width, vocabulary) = (stage.model().spec.width, stage.model().spec.vocabulary);
        let alone: Vec<Vec<Vec<f32>>> = prompts
            .iter()
            .map(|prompt| {
                let mut state = stage.model().new_state().unwrap();
                read(&mut stage, &mut state, &[&prompt[..], &[11, 12]].concat(), &[7])
            })
            .collect();
        let mut states = [(); 3].map(|()| stage.model().new_state().unwrap());
        // Something to lose.
        read(&mut stage, &mut states[1], &[50, 51, 52], &[3]);
        let before = sequences::contents(&states[1]);

        let window = poisoned(width, &prompts, &states, f32::NAN, tentative);
        let [first, second, third] = &mut states;
        let output = stage.run(&window, &mut [first, second, third], None).unwrap();
        let [failure] = output.failed else { panic!("{what}: {:?}", output.failed) };
        assert_eq!(failure.state, 1, "{what}");
        assert!(
            matches!(&failure.error, StepError::NotFinite { layer: 0 | 1, tensor: None, .. }),
            "{what}: {:?}",
            failure.error
        );
        let rows: Vec<Vec<f32>> = output.logits.chunks_exact(vocabulary).map(<[f32]>::to_vec).collect();
        assert!(bits(&rows[..5]) == bits(&alone[0][..5]), "{what}: the first sequence");
        assert!(bits(&rows[8..]) == bits(&alone[1][..5]), "{what}: the last sequence");
        for (state, alone) in [(0, &alone[0]), (2, &alone[1])] {
            let after = read(&mut stage, &mut states[state], &[11, 12], &[1]);
            assert!(bits(&after) == bits(&alone[5..]), "{what}: state {state} afterwards");
        }
        let recurrent = !stage.model().layout.delta.is_empty();
        assert_eq!(states[1].is_lost(), recurrent && !tentative, "{what}");
        if !states[1].is_lost() {
            assert!(sequences::contents(&states[1]) == before, "{what}: the poisoned state");
        }
    }
}

#[test]
#[should_panic(expected = "the state was lost in a pass that failed")]
fn a_lost_state_is_not_used_again() {
    let mut stage = stage(&f32_model("q35-tiny"), KvType::F16, 1);
    let mut state = stage.model().new_state().unwrap();
    let mut bad = Window::default();
    bad.push_tokens(0, &[1, 2], 0, Outputs::All);
    bad.rows[1] = embedding_row(&mut bad, stage.model().spec.width, f32::INFINITY, 1);
    assert!(matches!(stage.run(&bad, &mut [&mut state], None), Err(StepError::NotFinite { .. })));
    let _ = stage.run(&window(&[1]), &mut [&mut state], None);
}

/// A damaged row of the embedding table was blamed on no tensor, and found only after a search through a whole layer.
#[test]
fn a_bad_embedding_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let width = stage(&f32_model("llama-tiny"), KvType::F16, 1).model().spec.width as u64;
    let path = with_value("llama-tiny", "token_embd.weight", 3 * width, f32::NAN, folder.path());
    let mut stage = stage(&path, KvType::F16, 1);
    let mut states = [(); 2].map(|()| stage.model().new_state().unwrap());
    let mut window = Window::default();
    window.push_tokens(0, &[1, 3], 0, Outputs::Last);
    window.push_tokens(1, &[1, 2], 0, Outputs::Last);
    let [bad, good] = &mut states;
    let failed = stage.run(&window, &mut [bad, good], None).unwrap().failed;
    assert_eq!(failed.iter().map(|failure| failure.state).collect::<Vec<_>>(), [0]);
    assert!(failed[0].error.to_string().contains("token_embd.weight"), "{}", failed[0].error);
}

/// A NaN among an indexer's scores counted as 0, so a damaged indexer quietly chose other cells than the model would.
#[test]
fn a_score_that_is_no_number_fails_the_sequence() {
    let folder = tempfile::tempdir().unwrap();
    let path = with_value("q4e-tiny", "blk.3.indexer.k_norm.weight", 1, f32::NAN, folder.path());
    let mut stage = stage(&path, KvType::F16, 2);
    let mut states = [(); 2].map(|()| stage.model().new_state().unwrap());
    let long: Vec<u32> = (0..60).collect();
    let mut window = Window::default();
    window.push_tokens(0, &long, 0, Outputs::Last);
    // Within the budget nothing is scored.
    window.push_tokens(1, &[1, 2], 0, Outputs::Last);
    let [bad, good] = &mut states;
    let failed = stage.run(&window, &mut [bad, good], None).unwrap().failed;
    let [failure] = failed else { panic!("{failed:?}") };
    assert_eq!(failure.state, 0);
    assert_eq!(
        failure.error,
        StepError::NotFinite {
            layer: 3,
            value: "a score of the indexer",
            tensor: Some("blk.3.indexer.k_norm.weight".into())
        }
    );
}

#[test]
#[should_panic(expected = "states that are not of this model's trunk")]
fn a_draft_state_is_no_state_of_the_trunk() {
    let mut stage = stage(&f32_model("q4e-tiny"), KvType::F16, 1);
    let mut state = stage.model().new_draft_state().unwrap();
    let _ = stage.run(&window(&[1]), &mut [&mut state], None);
}

/// Counting past the largest position wrapped to negative ones, or panicked.
#[test]
fn positions_end_at_the_largest() {
    let mut stage = stage(&f32_model("llama-tiny"), KvType::F16, 1);
    let mut state = stage.model().new_state().unwrap();
    let mut far = Window::default();
    far.push_tokens(0, &[1, 2, 3], i32::MAX - 1, Outputs::All);
    assert_eq!(
        far.rows.iter().map(|row| row.position[0]).collect::<Vec<_>>(),
        [i32::MAX - 1, i32::MAX, i32::MAX]
    );
    assert!(stage.run(&far, &mut [&mut state], None).unwrap().failed.is_empty());
    assert_eq!(state.next_position(), i32::MAX);
}

#[test]
fn windows_without_rows_or_without_outputs_give_nothing() {
    for name in F32_MODELS {
        let mut stage = stage(&f32_model(name), KvType::F16, 2);
        assert!(stage.run(&Window::default(), &mut [], None).unwrap().logits.is_empty());
        let mut state = stage.model().new_state().unwrap();
        let mut silent = Window::default();
        silent.push_tokens(0, &[1, 2, 3], 0, Outputs::None);
        assert!(stage.run(&silent, &mut [&mut state], None).unwrap().logits.is_empty(), "{name}");
        assert_eq!(state.tokens(), 3);
    }
}

/// A file that became shorter after its header was read was sliced beyond its end: a panic.
#[test]
fn a_file_changed_between_header_and_map_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::copy(f32_model("llama-tiny"), &path).unwrap();
    let file = ModelFile::open(&path).unwrap();
    let spec = engine::models::read_spec(&file, None).unwrap();
    let load = |loading| engine::Weights::load(&file, None, &spec, loading, &|_, _| ());
    assert!(engine::Loading::ALL.into_iter().all(|loading| load(loading).is_ok()));
    let wanted = file.shards[0].len;
    for found in [0, wanted - 1, wanted + 1] {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(found).unwrap();
        let error = load(engine::Loading::Read).err().expect("a refusal").to_string();
        assert_eq!(error, load(engine::Loading::Mapped).err().expect("a refusal").to_string());
        let sentence = format!("has {found} bytes but had {wanted} when its header was read");
        assert!(error.contains("model.gguf") && error.contains(&sentence), "{error}");
    }
}
