//! What the engine's tests share.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod conductor;
pub mod sequences;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use engine::backend::Cpu;
use engine::model::{LoadOptions, Model};
use engine::stage::{Stage, cpu};
use engine::state::{KvType, State};
use engine::window::{Outputs, Window};
use engine::{Engine, EngineConfig, Service, ServiceLimits};
use kernels::Isa;

/// The oracle's models in F32 of every architecture.
pub const F32_MODELS: [&str; 8] =
    ["llama-tiny", "q2-tiny", "q3-tiny", "q3moe-tiny", "q3next-tiny", "q35-tiny", "q35moe-tiny", "q4e-tiny"];

/// A stage of a model file.
pub fn stage(path: &Path, kv: KvType, threads: usize) -> Stage<Cpu> {
    Stage::new(model(path, kv), cpu(threads, None).expect("threads"))
}

/// A loaded model.
pub fn model(path: &Path, kv: KvType) -> Arc<Model> {
    let options = LoadOptions { kv, ..LoadOptions::default() };
    Arc::new(Model::load(path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// The F32 file of an oracle model.
pub fn f32_model(name: &str) -> std::path::PathBuf {
    oracle::model(&format!("{name}-F32"))
}

/// Logits of all rows of `tokens`, read in chunks of these lengths (the last one repeats) into `state`.
pub fn read(stage: &mut Stage<Cpu>, state: &mut State, tokens: &[u32], chunks: &[usize]) -> Vec<Vec<f32>> {
    let vocabulary = stage.model().spec.vocabulary;
    let mut logits = Vec::new();
    let mut rest = tokens;
    let mut sizes = chunks.iter().chain(std::iter::repeat(chunks.last().expect("a chunk length")));
    while !rest.is_empty() {
        let (chunk, tail) = rest.split_at(rest.len().min(*sizes.next().expect("endless")));
        rest = tail;
        let mut window = Window::default();
        window.push_tokens(0, chunk, state.next_position(), Outputs::All);
        let output = stage.run(&window, &mut [state], None).unwrap_or_else(|e| panic!("{e}"));
        logits.extend(output.logits.chunks_exact(vocabulary).map(<[f32]>::to_vec));
    }
    logits
}

/// Reads all tokens in one window and records every tap.
pub fn taps(stage: &mut Stage<Cpu>, tokens: &[u32]) -> BTreeMap<String, (usize, Vec<f32>)> {
    let mut state = stage.model().new_state().expect("memory");
    let mut window = Window::default();
    window.push_tokens(0, tokens, 0, Outputs::All);
    let mut found = BTreeMap::new();
    let mut sink = |name: &str, width: usize, values: &[f32]| {
        found.insert(name.to_owned(), (width, values.to_vec()));
    };
    stage.run(&window, &mut [&mut state], Some(&mut sink)).unwrap_or_else(|e| panic!("{e}"));
    found
}

/// Greedy continuation.
pub fn greedy(stage: &mut Stage<Cpu>, state: &mut State, logits: &[f32], count: usize) -> Vec<u32> {
    let mut next = engine::sampler::argmax(logits);
    let mut tokens = Vec::new();
    for _ in 0..count {
        tokens.push(next);
        let rows = read(stage, state, &[next], &[1]);
        next = engine::sampler::argmax(&rows[0]);
    }
    tokens
}

/// Largest absolute difference.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| if x.is_finite() && y.is_finite() { (x - y).abs() } else { f32::INFINITY })
        .fold(0.0, f32::max)
}

/// Bits of all rows.
pub fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|v| v.to_bits()).collect()).collect()
}

/// The prompts of an oracle model: name, tokens, greedy continuation.
pub fn prompts(name: &str) -> Vec<(String, Vec<u32>, Vec<u32>)> {
    let index = oracle::json("index.json");
    let numbers = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().expect("an array").iter().map(|n| n.as_u64().expect("an id") as u32).collect()
    };
    let prompts = index[name]["prompts"].as_object().unwrap_or_else(|| panic!("{name} has prompts"));
    prompts.iter().map(|(k, v)| (k.clone(), numbers(&v["tokens"]), numbers(&v["greedy"]))).collect()
}

/// The whole model of a file on the CPU, for comparisons of bits: loaded once, run by several stages.
pub fn stage_of(model: &Arc<Model>, threads: usize, isa: Option<Isa>) -> Stage<Cpu> {
    Stage::new(model.clone(), cpu(threads, isa).expect("threads"))
}

/// A service on one thread.
pub fn started(
    name: &str,
    context_tokens: usize,
    prefix_bytes: usize,
    parallel_max: usize,
    chunk_tokens: usize,
) -> Service {
    let load = LoadOptions {
        context_tokens: Some(context_tokens),
        sequences: Some(parallel_max),
        prefix_bytes,
        ..LoadOptions::default()
    };
    let config = EngineConfig { load, threads: 1, isa: None, chunk_tokens };
    let engine = Engine::load(&f32_model(name), &config).expect("a model");
    Service::start(engine, ServiceLimits { parallel_max, queue_max: 64 }).expect("a thread")
}

/// `len` tokens that no other seed gives.
pub fn text(service: &Service, seed: usize, len: usize) -> Vec<u32> {
    let vocabulary = service.model().spec.vocabulary;
    (0..len).map(|i| ((seed * 131 + i * i * 7 + i * seed) % vocabulary) as u32).collect()
}
