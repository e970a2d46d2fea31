//! What only the mission's architecture has: the draft layer, image rows, block selection, quantised mixes.

mod support;

use std::path::{Path, PathBuf};

use engine::model::{LoadOptions, Model};
use engine::stage::{Stage, cpu};
use engine::state::KvType;
use engine::window::{Input, Outputs, Row, Span, Window};
use gguf::{ModelFile, TensorType};
use support::*;

const MIXES: [&str; 8] = ["Q8_0", "Q2_0", "IQ2_XS", "IQ3_XXS", "IQ3_S", "IQ1_M", "Q4_K", "MXFP4"];

fn numbers(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn triples(value: &serde_json::Value) -> Vec<[i32; 3]> {
    let triple = |v: &serde_json::Value| -> [i32; 3] { [0, 1, 2].map(|i| v[i].as_i64().unwrap() as i32) };
    value.as_array().unwrap().iter().map(triple).collect()
}

/// Draft rows: token at p + 1 beside the trunk's residual at p, at rope position p.
fn draft_window(tokens: &[u32], hidden: &[f32], position: i32) -> Window {
    let mut window = Window { hidden: hidden.to_vec(), ..Window::default() };
    window.push_tokens(0, tokens, position, Outputs::All);
    window
}

#[test]
fn the_draft_layer_and_its_chain_equal_the_oracle() {
    let golden = oracle::npz("q4e-tiny-mtp");
    let index = &oracle::json("index.json")["q4e-tiny-mtp"];
    let mut stage = stage(&f32_model("q4e-tiny"), KvType::F32, 2);
    check_draft(&mut stage, &golden, index);
}

fn check_draft(
    stage: &mut Stage,
    golden: &std::collections::BTreeMap<String, oracle::Array>,
    index: &serde_json::Value,
) {
    let (tokens, next) = (numbers(&index["tokens"]), numbers(&index["next_tokens"]));
    let mut trunk = stage.model().new_state().unwrap();
    let mut window = Window::default();
    window.push_tokens(0, &tokens, 0, Outputs::All);
    let hidden = stage.run(&window, &mut [&mut trunk], None).unwrap().residual.to_vec();
    assert!(max_difference(&hidden, golden["hidden"].f32()) < 1e-4);

    let mut state = stage.model().new_draft_state().unwrap();
    let mut compared = 0;
    let mut sink = |name: &str, width: usize, values: &[f32]| {
        let Some(wanted) = golden.get(&format!("full/mtp.{name}")) else { return };
        if let oracle::Data::F32(wanted) = &wanted.data
            && !name.ends_with("weights")
        {
            assert!(max_difference(values, wanted) < 1e-4, "{name} of width {width}");
            compared += 1;
        }
    };
    let window = draft_window(&next, &hidden, 0);
    let output = stage.run_draft(&window, &mut [&mut state], Some(&mut sink)).unwrap();
    assert!(max_difference(output.logits, golden["full/logits"].f32()) < 2e-4);
    assert!(max_difference(output.residual, golden["full/residual"].f32()) < 1e-4);
    assert!(compared > 15, "only {compared} intermediates were compared");

    let vocabulary = stage.model().spec.vocabulary;
    let wanted = numbers(&index["full"]["drafts"]);
    let flat = hidden.len() / tokens.len();
    let mut logits = golden["full/logits"].row(tokens.len() - 1).to_vec();
    let mut residual = golden["full/residual"].row(tokens.len() - 1).to_vec();
    let mut drafts = Vec::new();
    for step in 0..4 {
        let draft = engine::sampler::argmax(&logits);
        drafts.push(draft);
        let window = draft_window(&[draft], &residual, state.next_position());
        let output = stage.run_draft(&window, &mut [&mut state], None).unwrap();
        logits = output.logits.to_vec();
        residual = output.residual.to_vec();
        assert_eq!((logits.len(), residual.len()), (vocabulary, flat));
        let difference = max_difference(&logits, golden["full/chain_logits"].row(step));
        assert!(difference < 2e-4, "step {step}: {difference}");
    }
    assert_eq!(drafts, wanted);
}

/// Splits a model file in two: everything but the draft layer, and the draft layer with embedding and head.
fn separate_draft(path: &Path, folder: &Path) -> (PathBuf, PathBuf) {
    let file = ModelFile::open(path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let layers = file.metadata.integer("qwen4exp.block_count").unwrap().unwrap() - 1;
    let prefix = format!("blk.{layers}.");
    let (mut trunk, mut draft) = (gguf::write::Writer::new(), gguf::write::Writer::new());
    for (key, value) in file.metadata.iter() {
        match key {
            "qwen4exp.block_count" => trunk.set(key, layers as u32),
            "qwen4exp.nextn_predict_layers" => trunk.set(key, 0u32),
            _ => trunk.set(key, value.clone()),
        };
        draft.set(key, value.clone());
    }
    for tensor in &file.tensors {
        let data = bytes[tensor.offset as usize..(tensor.offset + tensor.len) as usize].to_vec();
        let of_draft = tensor.name.starts_with(&prefix);
        if !of_draft {
            trunk.add_tensor(&tensor.name, tensor.dtype, &tensor.shape, data.clone());
        }
        if of_draft || matches!(tensor.name.as_str(), "token_embd.weight" | "output.weight") {
            draft.add_tensor(&tensor.name, tensor.dtype, &tensor.shape, data);
        }
    }
    let paths = (folder.join("trunk.gguf"), folder.join("mtp-trunk.gguf"));
    trunk.write(&paths.0).unwrap();
    draft.write(&paths.1).unwrap();
    paths
}

#[test]
fn a_draft_layer_in_a_file_of_its_own_is_the_same_layer() {
    let folder = tempfile::tempdir().unwrap();
    let (trunk, draft) = separate_draft(&f32_model("q4e-tiny"), folder.path());
    let options = LoadOptions { kv: KvType::F32, draft: Some(draft), ..LoadOptions::default() };
    let model = Model::load(&trunk, &options).unwrap();
    let mut stage = Stage::new(std::sync::Arc::new(model), cpu(1, None).unwrap());
    check_draft(&mut stage, &oracle::npz("q4e-tiny-mtp"), &oracle::json("index.json")["q4e-tiny-mtp"]);
    assert!(Model::load(&trunk, &LoadOptions::default()).unwrap().draft.is_none());
    let wrong = LoadOptions { draft: Some(trunk.clone()), ..LoadOptions::default() };
    let error = Model::load(&trunk, &wrong).err().expect("a file without a draft layer is refused");
    assert!(error.to_string().contains("nextn.eh_proj"), "{error}");
}

#[test]
fn image_rows_equal_the_oracle() {
    for name in ["q4e-tiny", "q35-tiny", "q35moe-tiny"] {
        let golden = oracle::npz(&format!("{name}-image"));
        let index = &oracle::json("index.json")[format!("{name}-image")];
        let mut stage = stage(&f32_model(name), KvType::F32, 2);
        let image_token = index["image_token"].as_u64().unwrap() as u32;
        let mut rows = Vec::new();
        let text = |rows: &mut Vec<Row>, tokens: &str, positions: &str| {
            for (token, position) in numbers(&index[tokens]).into_iter().zip(triples(&index[positions])) {
                rows.push(Row { input: Input::Token(token), ngram_token: token, position, output: true });
            }
        };
        text(&mut rows, "before", "pos_before");
        for (i, position) in triples(&index["pos_image"]).into_iter().enumerate() {
            rows.push(Row {
                input: Input::Embedding(i as u32),
                ngram_token: image_token,
                position,
                output: true,
            });
        }
        text(&mut rows, "after", "pos_after");
        let bound = if name == "q35moe-tiny" { 5e-4 } else { 2e-4 };
        // Whole, and cut inside the image: n-gram history and positions go on over the cut.
        let mut whole = Vec::new();
        for cut in [rows.len(), 9] {
            let mut state = stage.model().new_state().unwrap();
            let mut logits = Vec::new();
            for part in [&rows[..cut], &rows[cut..]] {
                if part.is_empty() {
                    continue;
                }
                let window = Window {
                    rows: part.to_vec(),
                    spans: vec![Span { state: 0, first: 0, count: part.len(), tentative: false }],
                    embeddings: golden["embd"].f32().to_vec(),
                    ..Window::default()
                };
                logits.extend_from_slice(stage.run(&window, &mut [&mut state], None).unwrap().logits);
            }
            let difference = max_difference(&logits, golden["logits"].f32());
            assert!(difference < bound, "{name} cut at {cut}: {difference}");
            let next = triples(&index["pos_after"]).last().unwrap()[0] + 1;
            assert_eq!(state.next_position(), next, "{name}");
            if whole.is_empty() {
                whole = logits;
            } else {
                assert_eq!(bits(&[logits]), bits(&[whole.clone()]), "{name}");
            }
        }
    }
}

#[test]
fn chosen_cells_and_experts_equal_the_oracle() {
    let golden = oracle::npz("q4e-tiny");
    let mut stage = stage(&f32_model("q4e-tiny"), KvType::F32, 2);
    let all = prompts("q4e-tiny");
    let tokens_of = |wanted: &str| all.iter().find(|(name, ..)| name == wanted).unwrap().1.clone();

    let tokens = tokens_of("long");
    let found = taps(&mut stage, &tokens);
    for layer in [3, 7] {
        let (cells, selected) = &found[&format!("L{layer}.idx.selected")];
        let packed = &golden[&format!("long/L{layer}.idx.selected")];
        let packed_width = packed.shape[1];
        for row in 0..tokens.len() {
            for cell in 0..*cells {
                let wanted = packed.u8()[row * packed_width + cell / 8] >> (7 - cell % 8) & 1;
                let found = selected[row * cells + cell];
                assert_eq!(found, f32::from(wanted), "layer {layer} row {row} cell {cell}");
            }
        }
        let last = &selected[(tokens.len() - 1) * cells..];
        assert!((last.iter().sum::<f32>() as usize) < tokens.len(), "the budget is exceeded");
    }

    let found = taps(&mut stage, &tokens_of("short"));
    for layer in 0..8 {
        let (used, ids) = &found[&format!("L{layer}.moe.ids")];
        let weights = &found[&format!("L{layer}.moe.weights")].1;
        let wanted_ids = golden[&format!("short/L{layer}.moe.ids")].i64();
        let wanted_weights = golden[&format!("short/L{layer}.moe.weights")].f32();
        for (i, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
            let row = i / used * used..(i / used + 1) * used;
            let place = wanted_ids[row.clone()].iter().position(|&w| w as f32 == id);
            let place = place.unwrap_or_else(|| panic!("layer {layer}: expert {id} is not wanted"));
            assert!((weight - wanted_weights[row.start + place]).abs() < 1e-5, "layer {layer} expert {id}");
        }
    }
}

/// The same model with every tensor widened to F32.
fn dequantized(path: &Path, folder: &Path) -> PathBuf {
    let file = ModelFile::open(path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let mut writer = gguf::write::Writer::new();
    for (key, value) in file.metadata.iter() {
        writer.set(key, value.clone());
    }
    for tensor in &file.tensors {
        let data = &bytes[tensor.offset as usize..(tensor.offset + tensor.len) as usize];
        let mut values = vec![0.0f32; tensor.shape.iter().product::<u64>() as usize];
        kernels::quant::dequantize_row(tensor.dtype, data, &mut values).unwrap();
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        writer.add_tensor(&tensor.name, TensorType::F32, &tensor.shape, data);
    }
    let out = folder.join(path.file_name().unwrap());
    writer.write(&out).unwrap();
    out
}

#[test]
fn quantised_files_on_dequantised_weights_equal_the_oracle() {
    let folder = tempfile::tempdir().unwrap();
    let files = MIXES.iter().map(|mix| format!("q4e-quant-{mix}"));
    for name in files.chain(["F16", "BF16", "Q8_0"].map(|t| format!("q4e-tiny-{t}"))) {
        let golden = oracle::npz(&name);
        let path = dequantized(&oracle::model(&name), folder.path());
        let mut stage = stage(&path, KvType::F32, 2);
        for (prompt, tokens, greedy_tokens) in prompts(&name) {
            let wanted = &golden[&format!("{prompt}/logits")];
            let mut state = stage.model().new_state().unwrap();
            let rows = read(&mut stage, &mut state, &tokens, &[tokens.len()]);
            let first = rows.len() - wanted.shape[0];
            for (i, row) in rows[first..].iter().enumerate() {
                let difference = max_difference(row, wanted.row(i));
                assert!(difference < 2e-4, "{name} {prompt} row {}: {difference}", first + i);
            }
            let found = greedy(&mut stage, &mut state, rows.last().unwrap(), greedy_tokens.len());
            assert_eq!(found, greedy_tokens, "{name} {prompt}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// Int8 activations move a logit by about as much in any engine; a router or indexer near a tie can go either way, so
/// single prompts scatter around the peer's figures. Over all files the difference must be no larger than the peer's.
#[test]
fn integer_products_are_no_worse_than_those_of_llama_cpp() {
    let peers = oracle::json("llamacpp.json");
    let names = MIXES.iter().map(|mix| format!("q4e-quant-{mix}")).chain(["q4e-tiny-Q8_0".to_owned()]);
    let mut sums = [0.0f64; 4];
    for name in names {
        let golden = oracle::npz(&name);
        let mut stage = stage(&oracle::model(&name), KvType::F32, 2);
        for (prompt, tokens, _) in prompts(&name) {
            let wanted = &golden[&format!("{prompt}/logits")];
            let mut state = stage.model().new_state().unwrap();
            let rows = read(&mut stage, &mut state, &tokens, &[tokens.len()]);
            let (mean, cosine) = distance(&rows[rows.len() - wanted.shape[0]..].concat(), wanted.f32());
            let peer = &peers[&name]["prompts"][&prompt];
            let (peer_mean, peer_cosine) =
                (peer["mean_diff"].as_f64().unwrap(), peer["cosine"].as_f64().unwrap());
            println!(
                "{name} {prompt}: mean {mean:.5} (llama.cpp {peer_mean:.5}), cosine {cosine:.6} ({peer_cosine:.6})"
            );
            assert!(
                mean <= 1.25 * peer_mean,
                "{name} {prompt}: mean difference {mean}, llama.cpp {peer_mean}"
            );
            for (sum, value) in sums.iter_mut().zip([mean, peer_mean, cosine, peer_cosine]) {
                *sum += value;
            }
        }
    }
    let [mean, peer_mean, cosine, peer_cosine] = sums;
    assert!(mean <= peer_mean && cosine >= peer_cosine, "{sums:?}");
}

/// Mean absolute difference and cosine.
fn distance(a: &[f32], b: &[f32]) -> (f64, f64) {
    assert_eq!(a.len(), b.len());
    let pairs = || a.iter().zip(b).map(|(&a, &b)| (f64::from(a), f64::from(b)));
    let mean = pairs().map(|(a, b)| (a - b).abs()).sum::<f64>() / a.len() as f64;
    let (ab, aa, bb) = pairs().fold((0.0, 0.0, 0.0), |s, (a, b)| (s.0 + a * b, s.1 + a * a, s.2 + b * b));
    (mean, ab / (aa * bb).sqrt())
}

#[test]
fn a_split_model_is_the_same_model() {
    let single = oracle::model("q4e-tiny-F16");
    let split = oracle::model("q4e-tiny-split-F16-00002-of-00002");
    let tokens = prompts("q4e-tiny").into_iter().find(|(name, ..)| name == "long").unwrap().1;
    let [a, b] = [single, split].map(|path| {
        let mut stage = stage(&path, KvType::F16, 1);
        let mut state = stage.model().new_state().unwrap();
        bits(&read(&mut stage, &mut state, &tokens, &[tokens.len()]))
    });
    assert_eq!(a, b);
}
