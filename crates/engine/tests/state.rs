//! What a sequence keeps: its size, its values, how it is stored, and that errors leave it usable.

mod support;

use std::sync::Arc;

use engine::backend::{Backend, Buffers, Cpu, Pass};
use engine::graph::Node;
use engine::models::{LayerSpec, Mixer, ReadSpec};
use engine::stage::Stage;
use engine::state::{CellArray, CellBlock, KvGrowth, KvPool, KvType, ModelIdentity, State, StateLayout};
use engine::window::{Input, Window};
use engine::{LoadOptions, Model, StateError, StepError};
use kernels::PARTITION_CELLS;
use support::sequences::*;
use support::*;

/// The layers of the real `qwen4exp` model: those of the tiny one, six times, with the real shapes.
fn real_layers(tiny: &[LayerSpec]) -> Vec<LayerSpec> {
    let mut layers: Vec<LayerSpec> = (0..6).flat_map(|_| tiny.to_vec()).collect();
    for layer in &mut layers {
        match &mut layer.mixer {
            Mixer::Attention(spec) => {
                (spec.kv_heads, spec.head_dim) = (2, 256);
                let indexer = spec.indexer.as_mut().expect("sparse attention");
                (indexer.head_dim, indexer.block_cells) = (128, 4);
            }
            Mixer::DeltaNet(spec) => {
                (spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim) = (16, 48, 128, 128);
                spec.taps = 4;
            }
        }
        if let Some(ngram) = &mut layer.ngram {
            (ngram.ngram, ngram.taps, ngram.dilation) = (3, 4, 3);
        }
        if let ReadSpec::Streams { down, .. } = &mut layer.mixer_read {
            down.inputs = 10240;
        }
    }
    layers
}

/// `qwen4exp` with 36 delta-net and 12 attention layers: section 12 of its specification.
#[test]
fn the_real_model_keeps_what_its_specification_says() {
    let tiny = model(&f32_model("q4e-tiny"), KvType::F16);
    let layers = real_layers(&tiny.spec.layers);
    let layout = |kv| Arc::new(StateLayout::new(layers.iter(), kv, 262_144));
    let half = layout(KvType::F16);
    assert_eq!((half.delta.len(), half.attention.len()), (36, 12));

    let matrices = 36 * 48 * 128 * 128 * 4;
    let tails = 36 * 3 * 10240 * 4;
    let ngram_tail = 9 * 10240 * 4;
    assert_eq!(matrices, 108 << 20);
    assert_eq!((tails / 36, ngram_tail), (120 << 10, 360 << 10));
    let empty = State::new(half.clone(), &KvPool::new(&half, None, 0, KvGrowth::default()).unwrap()).unwrap();
    assert_eq!(empty.bytes(), matrices + tails + ngram_tail);
    assert_eq!(empty.ngram_history().len(), 2);

    let bytes_of_context = |kv| 262_144 / PARTITION_CELLS * layout(kv).block_bytes;
    let cells = 12 * 2 * 2 * 256 * 262_144;
    let pooled = 12 * 128 * 262_144 / 4;
    assert_eq!((cells * 2, pooled * 2), (6 << 30, 192 << 20));
    assert_eq!(bytes_of_context(KvType::F16), cells * 2 + pooled * 2);
    assert_eq!(bytes_of_context(KvType::F32), cells * 4 + pooled * 4);
    // Per cell of a layer 1024 values: codes, and scales of two bytes for 64 of them, or 32; pooled keys stay in half precision.
    let coded = |bytes_of_cell: usize| 12 * 262_144 * bytes_of_cell + pooled * 2;
    assert_eq!(bytes_of_context(KvType::Int8), coded(1024 + 32));
    assert_eq!(bytes_of_context(KvType::K8V4), coded(512 + 16 + 256 + 32));
    assert_eq!(bytes_of_context(KvType::Q4), coded(512 + 64));
}

/// The same sums for the tiny model while it reads: memory grows partition by partition.
#[test]
fn a_state_grows_by_partitions_of_cells() {
    for kv in KvType::ALL {
        let model = model(&f32_model("q4e-tiny"), kv);
        let mut stage = stage_of(&model, 2, None);
        let mut state = model.new_state().unwrap();
        let fixed = 6 * (6 * 16 * 16 + 3 * 160) * 4 + 9 * 256 * 4;
        // Two layers with two heads of 32 values, and 64 pooled keys of 16.
        let of_head = kv.keys().bytes(32) + kv.values().bytes(32);
        let partition = 2 * (2 * of_head * 256 + kv.indexer_keys().bytes(16) * 64);
        let tokens = Prompt::random(&model.spec, 262, &mut Random::new(5));
        for (at, partitions) in [(0, 0), (1, 1), (7, 1), (256, 1), (257, 2), (262, 2)] {
            let more = at - state.tokens();
            if more > 0 {
                let mut window = Window::default();
                let part = Part { outputs: Wanted::None, ..Part::of(0, more) };
                tokens.push(&model.spec, &mut window, state.tokens()..at, &part);
                run(&mut stage, &window, &mut [&mut state]).unwrap();
            }
            let raw_keys = 2 * (at % 4) * 16 * 4;
            assert_eq!(state.bytes(), fixed + partitions * partition + raw_keys, "{at} tokens");
        }
    }
}

/// The first vectors of an array in f32.
fn values(block: &CellBlock, array: &CellArray, count: usize) -> Vec<f32> {
    match block.cells(array, 0..count) {
        kernels::Cells::F32(values) => values.to_vec(),
        _ => panic!("read in F32"),
    }
}

/// Everything that the reference implementation kept after the long prompt.
#[test]
fn states_equal_the_oracle() {
    for name in F32_MODELS {
        let golden = oracle::npz(name);
        let mut stage = stage(&f32_model(name), KvType::F32, 2);
        let (_, tokens, _) = prompts(name).into_iter().find(|(prompt, ..)| prompt == "long").unwrap();
        let mut state = stage.model().new_state().unwrap();
        read(&mut stage, &mut state, &tokens, &[tokens.len()]);
        let mut compared = 0;
        let mut compare = |what: String, found: &[f32]| {
            let wanted = golden.get(&what).unwrap_or_else(|| panic!("{name} has no {what}"));
            let difference = max_difference(found, wanted.f32());
            let bound = if name == "q35moe-tiny" { 5e-4 } else { 1e-4 };
            assert!(difference < bound, "{name} {what}: {difference}");
            compared += 1;
        };
        let (mut attention, mut delta) = (0, 0);
        for layer in &stage.model().spec.layers {
            let l = layer.index;
            match &layer.mixer {
                Mixer::Attention(spec) => {
                    let cells = state.layout().attention[attention];
                    let row = |head: CellArray, t: usize| {
                        values(state.block(0), &head, t + 1).split_off(t * spec.head_dim)
                    };
                    let heads = || (0..tokens.len()).flat_map(|t| (0..spec.kv_heads).map(move |h| (t, h)));
                    let k: Vec<f32> = heads().flat_map(|(t, h)| row(cells.keys(h), t)).collect();
                    let v: Vec<f32> = heads().flat_map(|(t, h)| row(cells.values(h), t)).collect();
                    compare(format!("long.state/L{l}.k"), &k);
                    compare(format!("long.state/L{l}.v"), &v);
                    if let Some(indexer) = cells.indexer {
                        let blocks = tokens.len() / indexer.block_cells;
                        let pooled = cells.pooled().expect("a sparse layer");
                        compare(format!("long/L{l}.idx.pooled"), &values(state.block(0), &pooled, blocks));
                    }
                    attention += 1;
                }
                Mixer::DeltaNet(_) => {
                    assert_eq!(state.delta(delta).pending.rows, 0);
                    compare(format!("long.state/L{l}.S"), &state.delta(delta).matrices);
                    compare(
                        format!("long.state/L{l}.conv"),
                        &tail(&state, engine::state::TailSlot::Delta(delta)),
                    );
                    delta += 1;
                }
            }
        }
        if state.layout().ngram.is_some() {
            compare("long.state/ple_conv".into(), &tail(&state, engine::state::TailSlot::Ngram));
            let wanted = golden["long.state/ple_prev"].i64();
            let found: Vec<i64> = state.ngram_history().iter().map(|&t| i64::from(t)).collect();
            assert_eq!(found, wanted);
        }
        let stored = golden.keys().filter(|key| key.starts_with("long.state/") && !key.contains("idx_kraw"));
        let stored = stored.filter(|key| !key.ends_with("ple_prev")).count();
        assert!(compared >= stored, "{name}: {compared} of {stored} arrays were compared");
    }
}

/// Rows of a convolution's tail, oldest first.
fn tail(state: &State, slot: engine::state::TailSlot) -> Vec<f32> {
    let tail = state.tail(slot);
    (1..=tail.rows()).rev().flat_map(|back| tail.before(back).to_vec()).collect()
}

/// The raw indexer keys of the block that is not yet complete.
#[test]
fn raw_indexer_keys_equal_the_oracle() {
    let golden = oracle::npz("q4e-tiny");
    let mut stage = stage(&f32_model("q4e-tiny"), KvType::F32, 1);
    let (_, tokens, _) = prompts("q4e-tiny").into_iter().find(|(prompt, ..)| prompt == "long").unwrap();
    let mut state = stage.model().new_state().unwrap();
    read(&mut stage, &mut state, &tokens, &[tokens.len()]);
    for (slot, layer) in [(0, 3), (1, 7)] {
        let wanted = golden[&format!("long.state/L{layer}.idx_kraw")].f32();
        let found = state.raw_keys(slot);
        assert_eq!(found.len(), tokens.len() % 4 * 16);
        assert!(max_difference(found, &wanted[wanted.len() - found.len()..]) < 1e-4);
    }
}

/// A state of the tiny model with rows that wait to be replayed.
fn busy_state(stage: &mut Stage<Cpu>, prompt: &Prompt) -> State {
    let model = stage.model().clone();
    let mut state = model.new_state().unwrap();
    for part in [Part::of(0, 14), Part::draft(0, 5, 3, 3)] {
        let mut window = Window::default();
        prompt.push(&model.spec, &mut window, state.tokens()..state.tokens() + part.rows, &part);
        run(stage, &window, &mut [&mut state]).unwrap();
        state.keep(if part.tentative { part.keep } else { 0 });
    }
    assert!(state.delta(0).pending.rows == 3 && state.tokens() == 17);
    state
}

fn tiny(kv: KvType) -> (Arc<Model>, Stage<Cpu>, Prompt) {
    let model = model(&f32_model("q4e-tiny"), kv);
    let stage = stage_of(&model, 1, None);
    let prompt = Prompt::random(&model.spec, 60, &mut Random::new(3));
    (model, stage, prompt)
}

#[test]
fn a_stored_state_is_restored_or_refused_whole() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let bytes = busy_state(&mut stage, &prompt).to_bytes(model.identity);
    let restore = |bytes: &[u8]| State::from_bytes(bytes, model.layout.clone(), model.identity, &model.kv);
    assert_eq!(restore(&bytes).unwrap().to_bytes(model.identity), bytes);

    let len = bytes.len();
    let edges = (0..2000).chain(len - 2000..len);
    for cut in edges.chain((2000..len - 2000).step_by(97)) {
        assert!(restore(&bytes[..cut]).is_err(), "cut after {cut} of {len} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(restore(&longer).is_err());

    let mut damaged = bytes.clone();
    let edges = (0..400).chain(len - 400..len);
    for at in edges.chain((400..len - 400).step_by(61)) {
        let bit = 1 << (at % 8);
        damaged[at] ^= bit;
        assert!(restore(&damaged).is_err(), "byte {at} of {len} changed");
        damaged[at] ^= bit;
    }
}

/// A file may be damaged and its checksum right: whatever it says, reading it neither panics nor takes more memory than
/// its own size justifies, and what was accepted can be used.
#[test]
fn a_lying_state_is_refused_or_harmless() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let bytes = busy_state(&mut stage, &prompt).to_bytes(model.identity);
    let mut random = Random::new(11);
    let mut window = Window::default();
    prompt.push(&model.spec, &mut window, 20..23, &Part::of(0, 3));
    let body = bytes.len() - 4;
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..500 {
        let mut lying = bytes[..body].to_vec();
        // The first bytes are counts and positions; of the rest most are values.
        let at = if round < 350 { random.below(160) } else { random.below(body) };
        match random.below(3) {
            0 => lying[at] ^= 1 << random.below(8),
            1 => lying[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff),
            _ => lying[at] = random.below(256) as u8,
        }
        if round % 10 == 0 {
            lying.truncate(random.below(body));
        }
        let checksum = crc32fast::hash(&lying);
        lying.extend_from_slice(&checksum.to_le_bytes());
        match State::from_bytes(&lying, model.layout.clone(), model.identity, &model.kv) {
            Err(_) => refused += 1,
            Ok(mut state) => {
                accepted += 1;
                // Numbers that are none are noticed by the pass, not here.
                let outcome = run(&mut stage, &window, &mut [&mut state]);
                assert!(matches!(outcome, Ok(_) | Err(StepError::NotFinite { .. })), "{outcome:?}");
            }
        }
    }
    assert!(accepted > 40 && refused > 150, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_foreign_state_is_refused_by_name() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let bytes = busy_state(&mut stage, &prompt).to_bytes(model.identity);
    let refusal = |bytes: &[u8], layout: &Arc<StateLayout>, identity| {
        State::from_bytes(bytes, layout.clone(), identity, &model.kv).err().expect("a refusal").to_string()
    };
    for other in KvType::ALL.into_iter().filter(|&kv| kv != KvType::F16) {
        let layout = Arc::new(model.layout.stored_as(other, model.layout.context_tokens));
        let name = other.name();
        let wanted = format!("the stored state belongs to another KV format: f16, wanted {name}");
        assert_eq!(refusal(&bytes, &layout, model.identity), wanted);
        // And the other way round.
        let (coded, mut stage, prompt) = tiny(other);
        let bytes = busy_state(&mut stage, &prompt).to_bytes(coded.identity);
        let wanted = format!("the stored state belongs to another KV format: {name}, wanted f16");
        assert_eq!(refusal(&bytes, &model.layout, model.identity), wanted);
    }
    let other = ModelIdentity(model.identity.0 ^ 1);
    assert!(refusal(&bytes, &model.layout, other).starts_with("the stored state belongs to another model: "));
    let draft = model.draft_layout.as_ref().unwrap();
    assert!(
        refusal(&bytes, draft, model.identity).starts_with("the stored state belongs to another shape: ")
    );

    for (at, name) in [(8, "version"), (12, "numeric definition")] {
        let mut newer = bytes.clone();
        newer[at] += 1;
        let body = newer.len() - 4;
        let checksum = crc32fast::hash(&newer[..body]);
        newer[body..].copy_from_slice(&checksum.to_le_bytes());
        let message = refusal(&newer, &model.layout, model.identity);
        assert!(message.starts_with(&format!("the stored state belongs to another {name}: ")), "{message}");
    }
}

/// Two trainings of one model have the same shapes and the same size.
#[test]
fn other_weights_make_another_model() {
    let path = f32_model("q4e-tiny");
    let identity = model(&path, KvType::F16).identity;
    let file = gguf::ModelFile::open(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.gguf");
    for name in ["token_embd.weight", "blk.3.attn_q_norm.weight", "blk.0.ffn_gate_exps.weight"] {
        let mut bytes = bytes.clone();
        bytes[file.tensor(name).unwrap_or_else(|| panic!("{name}")).offset as usize] ^= 1;
        std::fs::write(&other, &bytes).unwrap();
        assert_ne!(model(&other, KvType::F16).identity, identity, "{name}");
    }
    std::fs::write(&other, &bytes).unwrap();
    assert_eq!(model(&other, KvType::F16).identity, identity);
}

/// The limit of the context may change between saving and restoring.
#[test]
fn a_state_fits_wherever_its_tokens_do() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let bytes = busy_state(&mut stage, &prompt).to_bytes(model.identity);
    let layout = |context_tokens| Arc::new(StateLayout { context_tokens, ..(*model.layout).clone() });
    assert!(State::from_bytes(&bytes, layout(17), model.identity, &model.kv).is_ok());
    let error = State::from_bytes(&bytes, layout(16), model.identity, &model.kv).err().unwrap();
    assert_eq!(error, StateError::TooLong { tokens: 17, context_tokens: 16 });
}

/// A pool for one sequence of 300 tokens holds a step of 16 MiB: some conversations of the tiny model, then no more. What
/// is refused changes nothing, and memory comes back when states go.
#[test]
fn cells_come_from_a_budget_and_go_back() {
    let options = LoadOptions { context_tokens: Some(300), sequences: Some(1), ..LoadOptions::default() };
    let model = Arc::new(Model::load(&f32_model("q4e-tiny"), &options).unwrap());
    let mut stage = stage_of(&model, 1, None);
    let prompt = Prompt::random(&model.spec, 300, &mut Random::new(7));
    let read = |stage: &mut Stage<Cpu>, state: &mut State, rows: usize| {
        let mut window = Window::default();
        let part = Part { outputs: Wanted::None, ..Part::of(0, rows) };
        prompt.push(&model.spec, &mut window, state.tokens()..state.tokens() + rows, &part);
        run(stage, &window, &mut [state]).map(|_| ())
    };
    let (block, budget) = (model.layout.block_bytes, model.kv.counters().budget);
    assert_eq!((budget, model.kv.counters().committed), (16 << 20, 0));
    let mut first = model.new_state().unwrap();
    read(&mut stage, &mut first, 200).unwrap();
    assert_eq!((model.kv.counters().committed, model.kv.counters().leased), (16 << 20, block));
    let before = first.to_bytes(model.identity);
    // A fork takes nothing until one side writes.
    let mut forks: Vec<State> = (0..budget / block - 1).map(|_| first.clone()).collect();
    assert_eq!(model.kv.counters().leased, block);
    for fork in &mut forks {
        read(&mut stage, fork, 1).unwrap();
    }
    let mut last = first.clone();
    let error = read(&mut stage, &mut last, 1).unwrap_err();
    let left_bytes = Some(budget % block);
    assert_eq!(error, StepError::OutOfMemory { what: "keys and values", bytes: block, left_bytes });
    assert!(error.to_string().starts_with(&format!("no memory for {block} more bytes of keys and values: ")));
    assert_eq!(last.to_bytes(model.identity), before);
    forks.pop();
    read(&mut stage, &mut last, 1).unwrap();
    drop((first, forks, last));
    assert_eq!((model.kv.counters().committed, model.kv.counters().leased), (0, 0));
}

/// What a conversation left in a block that went back was stored with the next one's state.
#[test]
fn a_block_that_was_used_before_shows_nothing_of_it() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let stored = |stage: &mut Stage<Cpu>, rows: usize| {
        let mut state = model.new_state().unwrap();
        let mut window = Window::default();
        prompt.push(&model.spec, &mut window, 0..rows, &Part::of(0, rows));
        run(stage, &window, &mut [&mut state]).unwrap();
        state.to_bytes(model.identity)
    };
    let fresh = stored(&mut stage, 3);
    // Its step stays committed, since another state has a block of it.
    let mut other = model.new_state().unwrap();
    let mut window = Window::default();
    prompt.push(&model.spec, &mut window, 0..3, &Part::of(0, 3));
    let mut long = model.new_state().unwrap();
    let mut window_long = Window::default();
    prompt.push(&model.spec, &mut window_long, 0..20, &Part::of(0, 20));
    run(&mut stage, &window_long, &mut [&mut long]).unwrap();
    run(&mut stage, &window, &mut [&mut other]).unwrap();
    drop(long);
    assert_eq!(stored(&mut stage, 3), fresh);
}

/// A window that is refused because one sequence has no room leaves all of its sequences as they were, those with
/// accepted rows that wait to be replayed too.
#[test]
fn a_refused_window_changes_no_state() {
    let options = LoadOptions { kv: KvType::F16, context_tokens: Some(24), ..LoadOptions::default() };
    let model = Arc::new(Model::load(&f32_model("q4e-tiny"), &options).unwrap());
    let mut stage = stage_of(&model, 1, None);
    let prompt = Prompt::random(&model.spec, 40, &mut Random::new(3));
    let mut waiting = busy_state(&mut stage, &prompt);
    let mut full = model.new_state().unwrap();
    let push = |window: &mut Window, state: &State, rows: usize, tentative: bool| {
        let part = Part { tentative, ..Part::of(0, rows) };
        prompt.push(&model.spec, window, state.tokens()..state.tokens() + rows, &part);
    };
    let mut window = Window::default();
    push(&mut window, &full, 22, false);
    run(&mut stage, &window, &mut [&mut full]).unwrap();
    let before = [waiting.to_bytes(model.identity), full.to_bytes(model.identity)];
    for tentative in [false, true] {
        let mut window = Window::default();
        push(&mut window, &waiting, 2, tentative);
        push(&mut window, &full, 3, tentative);
        let error = run(&mut stage, &window, &mut [&mut waiting, &mut full]).unwrap_err();
        assert_eq!(error, StepError::ContextFull { tokens: 25, context_tokens: 24 });
        window.rows[1].input = Input::Token(1 << 30);
        let error = run(&mut stage, &window, &mut [&mut waiting, &mut full]).unwrap_err();
        assert!(matches!(error, StepError::TokenOutOfRange { token: 1_073_741_824, .. }));
        let after = [waiting.to_bytes(model.identity), full.to_bytes(model.identity)];
        assert!(before == after, "tentative: {tentative}");
    }
    // What is left of the context can be used.
    let mut window = Window::default();
    push(&mut window, &full, 2, false);
    run(&mut stage, &window, &mut [&mut full]).unwrap();
    assert_eq!(full.tokens(), 24);
}

/// A verdict that comes twice, or before any span, takes nothing away.
#[test]
fn a_verdict_without_an_open_span_changes_nothing() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let mut state = busy_state(&mut stage, &prompt);
    let before = state.to_bytes(model.identity);
    state.keep(0);
    assert!(state.to_bytes(model.identity) == before);
}

/// Fails at the n-th operation.
struct Failing {
    inner: Cpu,
    operations_left: usize,
}

impl Backend for Failing {
    fn run(
        &mut self,
        node: &Node,
        later: &[Node],
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError> {
        if self.operations_left == 0 {
            return Err(StepError::NotFinite { layer: 0, value: "a number", tensor: None });
        }
        self.operations_left -= 1;
        self.inner.run(node, later, buffers, pass)
    }
}

/// Wherever a window fails, sequences whose rows were tentative go on as if it had not been, those with accepted rows
/// that were about to be replayed too.
#[test]
fn a_failed_window_leaves_tentative_sequences_as_they_were() {
    let (model, mut stage, prompt) = tiny(KvType::F16);
    let wanted = whole(&mut stage, &prompt, &model.new_state().unwrap());
    let waiting = busy_state(&mut stage, &prompt);
    let mut failures = 0;
    for operations in (0..).step_by(13) {
        let failing = Failing { inner: engine::stage::cpu(1, None).unwrap(), operations_left: operations };
        let mut failing = Stage::new(model.clone(), failing);
        let mut state = waiting.clone();
        let mut window = Window::default();
        prompt.push(&model.spec, &mut window, 17..21, &Part::draft(0, 4, 1, 1));
        if run(&mut failing, &window, &mut [&mut state]).is_ok() {
            break;
        }
        failures += 1;
        let mut readers = [Reader { prompt: &prompt, wanted: &wanted, at: 17, state }];
        let what = format!("failed after {operations} operations");
        step(&what, &mut stage, &mut readers, &[Part::draft(0, 3, 1, 1)]);
        step(&what, &mut stage, &mut readers, &[Part::of(0, 3)]);
    }
    assert!(failures > 10, "{failures}");
}
