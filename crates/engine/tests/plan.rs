//! The plan over invented machines, and against what a model really takes.

mod support;

use engine::backend::scratch_bytes;
use engine::memory::{
    Machine, PartKind, Place, Plan, PlanOptions, Refusal, SEQUENCES_DEFAULT, SEQUENCES_DEFAULT_MAX, Shapes,
    plan, plan_sequences,
};
use engine::state::{KvGrowth, KvType};
use engine::window::{Outputs, Window};
use engine::{LoadOptions, Loading, Model, State};
use gguf::ModelFile;
use support::sequences::*;
use support::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn shapes(name: &str) -> Shapes {
    Shapes::of_file(&ModelFile::open(&f32_model(name)).unwrap(), None).unwrap()
}

/// Shapes of the size of a model that no small machine holds: 60 GiB of experts of which a token reads 2, 24 KiB of cells
/// and a quarter of a million tokens.
fn large() -> Shapes {
    let mut shapes = shapes("q3moe-tiny");
    (shapes.dense_bytes, shapes.expert_bytes) = (4 * GIB, 60 * GIB);
    (shapes.active_dense_bytes, shapes.active_expert_bytes) = (4 * GIB, 2 * GIB);
    (shapes.context_tokens, shapes.vocabulary) = (262_144, 250_000);
    let layers = shapes.trunk.layout.attention.len();
    for cells in &mut shapes.trunk.layout.attention {
        (cells.kv_heads, cells.head_dim) = (24 / layers, 256);
    }
    shapes
}

fn bytes_of(plan: &Plan, kind: PartKind) -> u64 {
    plan.parts.iter().filter(|part| part.kind == kind).map(|part| part.bytes).sum()
}

/// Any options of a user.
fn any_options(random: &mut Random, trained: usize) -> PlanOptions {
    PlanOptions {
        context_tokens: (random.below(2) == 0).then(|| 1 + random.below(2 * trained)),
        kv: KvType::ALL[random.below(KvType::ALL.len())],
        kv_growth: KvGrowth {
            init_tokens: random.below(2 * trained),
            step_tokens: (random.below(2) == 0).then(|| 1 + random.below(2 * trained)),
            hold: random.below(2) == 0,
        },
        sequences: 1 + random.below(8),
        chunk_tokens: 1 << random.below(12),
        tentative_rows: random.below(3) * 4,
        output_rows: 1 << random.below(8),
        prefix_bytes: [None, Some(0), Some(1 << random.below(36))][random.below(3)],
        saving: random.below(2) == 0,
        loading: Loading::ALL[random.below(3)],
    }
}

/// Bytes of any order of magnitude.
fn any_bytes(random: &mut Random) -> u64 {
    (1000 + random.below(1000) as u64) << (12 + random.below(22))
}

#[test]
fn no_plan_exceeds_its_machine_and_every_suggestion_is_one() {
    let (mut planned, mut refused, mut advised) = (0, 0, 0);
    for (i, shapes) in F32_MODELS.iter().map(|name| shapes(name)).chain([large()]).enumerate() {
        let mut random = Random::new(i as u64);
        for _ in 0..400 {
            let options = any_options(&mut random, shapes.context_tokens);
            let machine = Machine::invented(any_bytes(&mut random));
            match plan(&shapes, &machine, &options) {
                Ok(plan) => {
                    planned += 1;
                    assert!(plan.bytes() <= machine.available_bytes, "{options:?} {machine:?}\n{plan}");
                    assert!(plan.context_tokens <= options.context_tokens.unwrap_or(shapes.context_tokens));
                    assert!(plan.context_tokens > 0);
                    for part in &plan.parts {
                        assert!(
                            part.bytes > 0 && part.cached_bytes() <= part.bytes && !part.reason.is_empty()
                        );
                    }
                }
                Err(refusal) => {
                    refused += 1;
                    assert!(refusal.needed_bytes > machine.available_bytes, "{refusal}");
                    for suggestion in &refusal.suggestions {
                        let planned = plan(&shapes, &machine, &suggestion.options);
                        assert!(planned.is_ok() && suggestion.options != options, "{refusal}");
                        assert!(!suggestion.changes.is_empty());
                    }
                    advised += usize::from(!refusal.suggestions.is_empty());
                    if refusal.suggestions.is_empty() {
                        assert!(refusal.least_bytes > machine.available_bytes, "{refusal}");
                    }
                }
            }
        }
    }
    assert!(planned > 500 && refused > 500 && advised > 50, "{planned} {refused} {advised}");
}

#[test]
fn more_memory_never_gives_a_shorter_context() {
    for (i, shapes) in [large(), shapes("q4e-tiny"), shapes("q35-tiny")].iter().enumerate() {
        let mut random = Random::new(i as u64);
        for _ in 0..20 {
            let options = PlanOptions { context_tokens: None, ..any_options(&mut random, 1000) };
            let mut before = 0;
            for step in 0..400u64 {
                let machine = Machine::invented(2 * step * step * MIB);
                let context = plan(shapes, &machine, &options).map_or(0, |plan| plan.context_tokens);
                assert!(context >= before, "{options:?} {machine:?}: {context} after {before}");
                before = context;
            }
            assert_eq!(before, shapes.context_tokens);
        }
    }
}

/// `serve` had 4 whatever the machine: refused on a small one, and waiting on a large one.
#[test]
fn a_server_has_as_many_sequences_as_there_is_memory_for() {
    for (i, shapes) in [large(), shapes("q4e-tiny"), shapes("q35-tiny")].iter().enumerate() {
        let mut random = Random::new(i as u64);
        for _ in 0..20 {
            let options = any_options(&mut random, 4000);
            let (mut before, mut context) = (0, 0);
            for step in 0..300u64 {
                let machine = Machine::invented(2 * step * step * MIB);
                let one = plan(shapes, &machine, &PlanOptions { sequences: 1, ..options.clone() });
                let Ok(planned) = plan_sequences(shapes, &machine, &options) else {
                    assert!(one.is_err(), "one would fit");
                    continue;
                };
                let sequences = planned.options.sequences;
                assert!(planned.bytes() <= machine.available_bytes, "{planned}");
                assert_eq!(PlanOptions { sequences, ..options.clone() }, planned.options);
                assert!((1..=SEQUENCES_DEFAULT_MAX).contains(&sequences) && sequences >= before, "{planned}");
                assert!(sequences <= SEQUENCES_DEFAULT || planned.context_tokens >= context, "{planned}");
                (before, context) = (sequences, planned.context_tokens);
            }
            let vast = plan_sequences(shapes, &Machine::invented(1 << 50), &options).unwrap();
            assert_eq!(vast.options.sequences, SEQUENCES_DEFAULT_MAX, "{options:?}");
        }
    }
    // The most tokens of one sequence rather than several that are too short for a conversation.
    let shapes = large();
    let tight = plan_sequences(&shapes, &Machine::invented(600 * MIB), &PlanOptions::default()).unwrap();
    assert!(tight.options.sequences < SEQUENCES_DEFAULT, "{tight}");
    assert!(tight.to_string().contains("at once"), "{tight}");
}

#[test]
fn the_last_byte_counts() {
    for shapes in [large(), shapes("q4e-tiny"), shapes("llama-tiny")] {
        for (kv, loading) in [(KvType::F16, Loading::Mapped), (KvType::F32, Loading::Read)] {
            let options = PlanOptions { context_tokens: Some(700), kv, loading, ..PlanOptions::default() };
            let needed = plan(&shapes, &Machine::invented(u64::MAX), &options).unwrap().process_bytes();
            let exact = plan(&shapes, &Machine::invented(needed), &options).unwrap();
            assert_eq!((exact.process_bytes(), exact.cached_bytes()), (needed, 0));
            let refusal = plan(&shapes, &Machine::invented(needed - 1), &options).unwrap_err();
            assert_eq!((refusal.needed_bytes, refusal.machine.available_bytes), (needed, needed - 1));
            let sentence = refusal.to_string();
            assert!(sentence.starts_with(&format!("{needed} bytes of memory are needed and {}", needed - 1)));
        }
    }
}

fn refusal(shapes: &Shapes, available_bytes: u64, options: PlanOptions) -> Refusal {
    *plan(shapes, &Machine::invented(available_bytes), &options).unwrap_err()
}

#[test]
fn a_refusal_names_both_numbers_and_the_nearest_settings() {
    let shapes = large();
    let wanted = PlanOptions { context_tokens: Some(262_144), kv: KvType::F32, ..PlanOptions::default() };
    // 12 GiB of cells in f32, 6 in f16.
    let text = refusal(&shapes, 8 * GIB, wanted.clone()).to_string();
    assert!(text.starts_with("12."), "{text}");
    assert!(
        text.contains("GiB of memory are needed and 8.00 GiB are available (an invented machine)"),
        "{text}"
    );
    assert!(text.contains("it fits with keys and values in f16, or with a context of 16"), "{text}");
    // Neither f16 nor a single sequence alone is enough, int8 is.
    let text = refusal(&shapes, 8 * GIB, PlanOptions { sequences: 2, ..wanted.clone() }).to_string();
    assert!(text.contains("it fits with keys and values in int8, or with a context of 8"), "{text}");
    let two = PlanOptions { sequences: 4, ..wanted.clone() };
    let text = refusal(&shapes, 15 * GIB, two).to_string();
    assert!(text.contains(", or with one sequence at once"), "{text}");
    // Read weights are larger than the machine; mapped they may be, and cells fit in f16.
    let read = PlanOptions { loading: Loading::Read, ..wanted.clone() };
    assert!(refusal(&shapes, 16 * GIB, read.clone()).to_string().contains("it fits with weights mapped"));
    let text = refusal(&shapes, 8 * GIB, read).to_string();
    assert!(text.contains("it fits with weights mapped and a context of 16"), "{text}");
    // A window of many rows.
    let wide = PlanOptions { context_tokens: Some(4096), chunk_tokens: 4096, ..wanted.clone() };
    let most = plan(&shapes, &Machine::invented(u64::MAX), &wide).unwrap().process_bytes();
    let text = refusal(&shapes, most - 2 * MIB, wide).to_string();
    assert!(text.contains(", or with chunks of 2048 tokens"), "{text}");
    let text = refusal(&shapes, 64 * MIB, wanted).to_string();
    assert!(text.contains("no setting fits: even the smallest needs "), "{text}");
}

#[test]
fn mapped_weights_may_be_larger_than_the_memory() {
    let shapes = large();
    let options = PlanOptions { context_tokens: Some(4096), ..PlanOptions::default() };
    let planned = |available: u64| plan(&shapes, &Machine::invented(available), &options).unwrap();
    let whole = planned(100 * GIB);
    assert_eq!((whole.cached_bytes(), whole.reread_bytes_per_token), (64 * GIB, 0));
    assert!(!whole.to_string().contains("warning"));
    // A part of the experts has no room: at worst all that a token is routed to.
    let part = planned(32 * GIB);
    assert_eq!((part.bytes(), part.reread_bytes_per_token), (32 * GIB, 2 * GIB));
    let text = part.to_string();
    assert!(
        text.contains("warning") && text.contains("a token reads 2.00 GiB from the disk again"),
        "{text}"
    );
    let nearly = planned(whole.process_bytes() + 64 * GIB - 5);
    assert_eq!(nearly.reread_bytes_per_token, 5);
    // Not even what every token reads.
    assert_eq!(planned(4 * GIB).reread_bytes_per_token, 6 * GIB);
    let read = PlanOptions { loading: Loading::Read, ..options.clone() };
    let read = plan(&shapes, &Machine::invented(100 * GIB), &read).unwrap();
    assert_eq!((read.cached_bytes(), read.reread_bytes_per_token), (0, 0));
    assert!(read.process_bytes() > 64 * GIB);
}

/// Moved weights are this process's own and cannot be dropped again. A plan that moved them into the last of the memory
/// would leave the system none for anything else.
#[test]
fn weights_move_only_where_enough_memory_stays_free() {
    let shapes = large();
    let options = PlanOptions { context_tokens: Some(4096), ..PlanOptions::default() };
    assert_eq!(options.loading, Loading::Moved);
    let on = |machine: &Machine| plan(&shapes, machine, &options).unwrap();
    let own = on(&Machine::invented(u64::MAX)).process_bytes();
    // A tenth of what is available stays free: own + 64 GiB is nine tenths.
    let enough = (own + 64 * GIB).div_ceil(9) * 10;
    let moved = on(&Machine::invented(enough));
    assert_eq!((moved.loading, moved.load_options().loading), (Loading::Moved, Loading::Moved));
    assert!(moved.to_string().contains("mapped, then moved to huge pages in the background; read for"));
    assert!(moved.to_string().contains("moved to huge pages in the background; a token reads those"));
    let stays = on(&Machine::invented(enough - 20));
    assert_eq!((stays.loading, stays.load_options().loading), (Loading::Mapped, Loading::Mapped));
    assert!(!stays.to_string().contains("moved"), "{stays}");
    // Who asked for it and does not get it is told.
    assert!(stays.to_string().contains("mapped, with no memory left to move it to huge pages"), "{stays}");
    // Where they lie is all that differs.
    assert_eq!((stays.process_bytes(), stays.cached_bytes()), (moved.process_bytes(), moved.cached_bytes()));
    // Addresses are taken by the map and by the copy; without huge pages there is nothing to be had for them.
    let margin = enough / 10;
    let addresses = own + 2 * 64 * GIB + margin;
    let limited = |bytes| on(&Machine { huge_page_room_bytes: bytes, ..Machine::invented(enough) }).loading;
    assert_eq!(limited(addresses), Loading::Moved);
    assert_eq!([limited(addresses - 20), limited(0)], [Loading::Mapped; 2]);
    // A small model on a small machine: 1 GiB stays free.
    let small = crate::shapes("q3moe-tiny");
    let on = |bytes| plan(&small, &Machine::invented(bytes), &options).unwrap();
    let own = on(GIB).process_bytes() + small.dense_bytes + small.expert_bytes;
    assert_eq!([on(own + GIB - 1).loading, on(own + GIB).loading], [Loading::Mapped, Loading::Moved]);
    // Who wants them mapped has them mapped.
    let mapped = PlanOptions { loading: Loading::Mapped, ..options.clone() };
    assert_eq!(plan(&shapes, &Machine::invented(u64::MAX), &mapped).unwrap().loading, Loading::Mapped);
}

/// A context that nobody asked for may push experts out of memory, but not what every token reads; if it would, it is
/// short.
#[test]
fn an_open_context_leaves_room_for_the_weights_of_a_token() {
    let shapes = large();
    let planned =
        |available: u64| plan(&shapes, &Machine::invented(available), &PlanOptions::default()).unwrap();
    let (all, some, few) = (planned(16 * GIB), planned(10 * GIB), planned(2 * GIB));
    assert_eq!((all.context_tokens, &*all.context_reason), (262_144, "all that the model was trained for"));
    assert!((60_000..262_144).contains(&some.context_tokens), "{}", some.context_tokens);
    assert_eq!(some.context_reason, "the longest that leaves room for the weights of a token");
    assert_eq!((few.context_tokens, &*few.context_reason), (4096, "the longest that fits"));
}

/// Section 12 of the specification of `qwen4exp` at its full length, as in the test of states.
#[test]
fn cells_are_counted_by_kind_sequences_and_tokens() {
    let shapes = large();
    let kv = |kv, sequences, context| {
        let options = PlanOptions { context_tokens: Some(context), kv, sequences, ..PlanOptions::default() };
        bytes_of(&plan(&shapes, &Machine::invented(u64::MAX), &options).unwrap(), PartKind::Kv)
    };
    assert_eq!(kv(KvType::F16, 1, 262_144), 6 * GIB);
    assert_eq!(kv(KvType::F32, 1, 262_144), 12 * GIB);
    assert_eq!(kv(KvType::F16, 3, 262_144), 18 * GIB);
    // With heads of 256 values two of them, a key and a value each, take 1056 bytes in int8.
    assert_eq!(kv(KvType::Int8, 1, 262_144), 12 * 1056 * 262_144);
    assert_eq!(kv(KvType::K8V4, 1, 262_144), 12 * 816 * 262_144);
    assert_eq!(kv(KvType::Q4, 1, 262_144), 12 * 576 * 262_144);
    assert_eq!(kv(KvType::F16, 1, 257), kv(KvType::F16, 1, 512));
}

/// Commands that want the logits of many rows took more than was planned, and so did a window of more sequences than its
/// rows, each of which has one at least.
#[test]
fn all_rows_of_the_logits_are_counted() {
    let path = f32_model("q3moe-tiny");
    let shapes = shapes("q3moe-tiny");
    let scratch = |options: &PlanOptions| {
        let plan = plan(&shapes, &Machine::invented(u64::MAX), options).unwrap();
        bytes_of(&plan, PartKind::Scratch) + bytes_of(&plan, PartKind::Logits)
    };
    let base = PlanOptions { context_tokens: Some(300), chunk_tokens: 48, ..PlanOptions::default() };
    let mut one = stage(&path, KvType::F16, 1);
    let mut state = one.model().new_state().unwrap();
    read(&mut one, &mut state, &[7; 48], &[48]);
    let found = one.scratch_bytes() as u64;
    assert!(found > scratch(&base) && found <= scratch(&PlanOptions { output_rows: 48, ..base.clone() }));

    let mut many = stage(&path, KvType::F16, 1);
    let mut states: Vec<State> = (0..80).map(|_| many.model().new_state().unwrap()).collect();
    let mut window = Window::default();
    (0..80).for_each(|i| window.push_tokens(i, &[i as u32], 0, Outputs::Last));
    many.run(&window, &mut states.iter_mut().collect::<Vec<_>>(), None).unwrap();
    let options = PlanOptions { sequences: 80, ..base };
    assert!(many.scratch_bytes() as u64 <= scratch(&options));
}

/// What is planned against what is there once a model has read more than a chunk.
#[test]
fn the_parts_are_what_a_model_takes() {
    for name in F32_MODELS {
        let file = ModelFile::open(&f32_model(name)).unwrap();
        let shapes = Shapes::of_file(&file, None).unwrap();
        let (chunk_tokens, context) = (48, 300);
        let options = PlanOptions { context_tokens: Some(context), chunk_tokens, ..PlanOptions::default() };
        let plan = plan(&shapes, &Machine::here(), &options).unwrap();
        let mut stage = stage(&f32_model(name), KvType::F16, 2);
        let mut state = stage.model().new_state().unwrap();
        let tokens: Vec<u32> = (0..context as u32).map(|i| i * 7 % 1000).collect();
        let mut state_bytes = 0;
        for chunk in tokens.chunks(chunk_tokens) {
            let mut window = Window::default();
            window.push_tokens(0, chunk, state.next_position(), Outputs::Last);
            stage.run(&window, &mut [&mut state], None).unwrap();
            state_bytes = state_bytes.max(state.bytes() as u64);
        }
        let planned: u64 = [PartKind::Kv, PartKind::Recurrent, PartKind::OpenRows]
            .into_iter()
            .map(|kind| bytes_of(&plan, kind))
            .sum();
        assert!(state_bytes <= planned, "{name}: {state_bytes} of {planned}");
        let load = LoadOptions { context_tokens: Some(context), ..plan.load_options() };
        let budgets = Model::load(&f32_model(name), &load).unwrap().kv.counters().budget as u64;
        assert_eq!(budgets, bytes_of(&plan, PartKind::Kv), "{name}");
        assert!(stage.model().kv.counters().committed as u64 <= budgets, "{name}");
        let scratch = bytes_of(&plan, PartKind::Scratch) + bytes_of(&plan, PartKind::Logits);
        let found = stage.scratch_bytes() as u64;
        // A draft layer's pass was not run.
        let trunk = Shapes { draft: None, ..shapes.clone() };
        let trunk =
            bytes_of(&engine::memory::plan(&trunk, &Machine::here(), &options).unwrap(), PartKind::Scratch);
        assert!(found <= scratch && 2 * found > trunk, "{name}: {found} of {scratch}, the trunk's {trunk}");
        let model = stage.model();
        let rows = [chunk_tokens, 1, chunk_tokens * shapes.experts_used];
        assert_eq!(found, scratch_bytes(&model.trunk.buffers, rows), "{name}");
        let held: u64 =
            plan.parts.iter().filter(|part| part.place != Place::Process).map(|part| part.bytes).sum();
        let in_file: u64 = file.tensors.iter().map(|tensor| tensor.len).sum();
        assert!(held <= in_file && held + bytes_of(&plan, PartKind::Vectors) + 4096 > in_file / 2, "{name}");
    }
}
