//! Row purity: the logits of a row are a function of the model, the KV format and the rows before it, and of nothing
//! else. Everything here compares bits with a reading of the whole prompt alone, in one window, on one thread, with
//! the scalar kernels.

mod rewrite;
mod support;

use std::sync::Arc;

use engine::backend::Cpu;
use engine::model::Model;
use engine::stage::Stage;
use engine::state::{KvType, State};
use kernels::Isa;
use rewrite::Parts;
use support::sequences::*;
use support::*;

/// A model with prompts and what they give.
struct Case {
    name: String,
    model: Arc<Model>,
    prompts: Vec<Prompt>,
    wanted: Vec<Whole>,
    empty: State,
}

impl Case {
    /// Random prompts of these lengths.
    fn new(file: &str, kv: KvType, lengths: &[usize]) -> Case {
        let model = model(&oracle::model(file), kv);
        let mut random = Random::new(lengths.len() as u64);
        let prompts = lengths.iter().map(|&len| Prompt::random(&model.spec, len, &mut random)).collect();
        let empty = model.new_state().unwrap();
        Case::of(format!("{file}, {} cells", kv.name()), model, prompts, empty)
    }

    /// The draft layer over the trunk's residuals of random tokens.
    fn draft(file: &str, kv: KvType, lengths: &[usize]) -> Case {
        let model = model(&oracle::model(file), kv);
        let mut random = Random::new(7);
        let mut trunk = stage_of(&model, 1, Some(Isa::Scalar));
        let mut prompts = Vec::new();
        for &len in lengths {
            let tokens: Vec<u32> = (0..=len).map(|_| random.below(model.spec.vocabulary) as u32).collect();
            let mut window = engine::Window::default();
            window.push_tokens(0, &tokens[..len], 0, engine::window::Outputs::All);
            let mut state = model.new_state().unwrap();
            let output = trunk.run(&window, &mut [&mut state], None).unwrap();
            prompts.push(Prompt::draft(&tokens[1..], output.residual));
        }
        let empty = model.new_draft_state().unwrap();
        Case::of(format!("draft layer of {file}, {} cells", kv.name()), model, prompts, empty)
    }

    fn of(name: String, model: Arc<Model>, prompts: Vec<Prompt>, empty: State) -> Case {
        let mut stage = stage_of(&model, 1, Some(Isa::Scalar));
        let wanted = prompts.iter().map(|prompt| whole(&mut stage, prompt, &empty)).collect();
        Case { name, model, prompts, wanted, empty }
    }

    fn stage(&self, threads: usize) -> Stage<Cpu> {
        stage_of(&self.model, threads, None)
    }

    fn reader(&self, prompt: usize) -> Reader<'_> {
        Reader::new(&self.prompts[prompt], &self.wanted[prompt], &self.empty)
    }

    /// Reads a prompt to its end, the parts as `next` says.
    fn read(&self, what: &str, stage: &mut Stage<Cpu>, prompt: usize, mut next: impl FnMut(usize) -> Part) {
        let what = format!("{}: {what}", self.name);
        let mut readers = [self.reader(prompt)];
        while readers[0].left() > 0 {
            let part = next(readers[0].at);
            step(&what, stage, &mut readers, &[part]);
        }
    }
}

/// One row at a time (a short prompt), and random chunks.
fn chunks_equal_the_whole(case: &Case, times: usize) {
    let mut stage = case.stage(1);
    case.read("row by row", &mut stage, case.prompts.len() - 1, |_| Part::of(0, 1));
    let mut random = Random::new(1);
    for time in 0..times {
        let largest = [9, 40, 3, 100][time % 4];
        case.read("chunks", &mut stage, 0, |_| Part::of(0, random.within(1..=largest)));
    }
}

/// Every instruction set there is and up to three threads, on windows large enough that work is shared out. Where
/// `bounds` are given, chunks end there.
fn threads_and_instruction_sets_do_not_matter(case: &Case, bounds: [&[usize]; 3]) {
    let mut sets = Isa::ALL.into_iter().filter(|isa| isa.available()).cycle();
    for (i, bounds) in bounds.into_iter().enumerate() {
        let isa = sets.next().expect("plain Rust is available");
        let threads = [3, 2, 1][i];
        let what = format!("{threads} threads, {isa}, chunks up to {bounds:?}");
        case.read(&what, &mut stage_of(&case.model, threads, Some(isa)), 0, |at| {
            let end = bounds.iter().copied().find(|&bound| bound > at).unwrap_or(usize::MAX);
            Part::of(0, (end - at).min(case.prompts[0].len()))
        });
    }
}

/// Chunks that end right before, at and right after the places where something is cut: blocks of the indexer, tiles of
/// rows, partitions of cells.
const CUTS: [&[usize]; 3] = [&[3, 63, 255], &[4, 64, 256], &[1, 15, 16, 17, 65, 257, 258, 259]];

/// Which rows want logits changes what is computed, not what comes out.
fn wanted_rows_do_not_matter(case: &Case) {
    let mut stage = case.stage(2);
    for outputs in [Wanted::Last, Wanted::None, Wanted::Bits(0x5249_8421_1248_9135)] {
        case.read("wanted rows", &mut stage, 0, |at| {
            // The last rows are always compared, or a window without outputs would show nothing.
            let rows = 30.min(case.prompts[0].len() - at);
            let last = at + rows == case.prompts[0].len();
            Part { outputs: if last { Wanted::All } else { outputs }, ..Part::of(0, rows) }
        });
    }
}

/// Every number of right rows in drafts of every length, with rows read to stay between them now and then.
fn drafts_do_not_matter(case: &Case, rows_max: usize) {
    let mut stage = case.stage(1);
    let mut readers = [case.reader(0)];
    let what = format!("{}: drafts", case.name);
    let mut windows = 0;
    for rows in 1..=rows_max {
        for right in 0..=rows {
            if readers[0].left() < rows + 3 {
                readers[0] = case.reader(0);
            }
            // Keeping fewer than were right is what a stop in the middle of a draft does.
            let keep = if windows % 5 == 4 { right / 2 } else { right };
            step(&what, &mut stage, &mut readers, &[Part::draft(0, rows, right, keep)]);
            if windows % 4 == 3 {
                step(&what, &mut stage, &mut readers, &[Part::of(0, 1 + windows % 3)]);
            }
            if windows % 3 == 2 {
                // A copy and a stored one while accepted rows still wait to be replayed.
                readers[0].state = stored_and_restored(case, &readers[0].state.clone());
            }
            windows += 1;
        }
    }
}

fn stored_and_restored(case: &Case, state: &State) -> State {
    let bytes = state.to_bytes(case.model.identity);
    State::from_bytes(&bytes, case.empty.layout().clone(), case.model.identity, &case.model.kv).unwrap()
}

/// Snapshots in the middle: the original, a copy and a stored one go on in turns; another copy reads something else.
fn copies_go_on_alone(case: &Case, prompt: usize, at: usize) {
    let mut stage = case.stage(1);
    let what = format!("{}: copied after {at} rows", case.name);
    let mut readers = vec![case.reader(prompt)];
    step(&what, &mut stage, &mut readers, &[Part::of(0, at)]);
    let copy = readers[0].clone();
    let stored = Reader { state: stored_and_restored(case, &copy.state), ..copy.clone() };
    scribble(case, &mut stage, &copy.state, &copy, 9);
    readers.extend([copy, stored]);
    let mut rows = [5, 2, 7];
    while readers[0].left() > 8 {
        for i in 0..3 {
            step(&what, &mut stage, &mut readers, &[Part::of(i, rows[i])]);
        }
        rows.rotate_left(1);
        rows[0] += 9;
    }
    step(&what, &mut stage, &mut readers, &[Part::of(0, 40), Part::of(1, 40), Part::of(2, 40)]);
}

/// Reads wrong rows in a copy of `state`, which is then thrown away.
fn scribble(case: &Case, stage: &mut Stage<Cpu>, state: &State, reader: &Reader<'_>, rows: usize) {
    let rows = rows.min(reader.left());
    if rows == 0 {
        return;
    }
    let mut window = engine::Window::default();
    let part = Part { right: 0, outputs: Wanted::None, ..Part::of(0, rows) };
    reader.prompt.push(&case.model.spec, &mut window, reader.at..reader.at + rows, &part);
    run(stage, &window, &mut [&mut state.clone()]).unwrap();
}

/// A copy made while the rows of a draft are neither kept nor taken back: each side decides for itself.
fn copies_of_open_drafts_decide_alone(case: &Case) {
    let mut stage = case.stage(1);
    for (first, rows, kept) in [(2, 5, [0, 5]), (6, 4, [3, 1]), (13, 3, [2, 2])] {
        let what = format!("{}: copied with {rows} rows open", case.name);
        let mut readers = [case.reader(0), case.reader(0)];
        step(&what, &mut stage, &mut readers[..1], &[Part::of(0, first)]);
        let mut window = engine::Window::default();
        let reader = &mut readers[0];
        let part = Part::draft(0, rows, rows, rows);
        reader.prompt.push(&case.model.spec, &mut window, first..first + rows, &part);
        run(&mut stage, &window, &mut [&mut reader.state]).unwrap();
        readers[1].state = readers[0].state.clone();
        for (reader, keep) in readers.iter_mut().zip(kept) {
            reader.state.keep(keep);
            reader.at = first + keep;
        }
        for rows in [1, 6, 2] {
            step(&what, &mut stage, &mut readers, &[Part::of(0, rows), Part::of(1, rows)]);
        }
    }
}

/// Up to eight sequences that come, go, fork, draft, are stored and restored, in windows of any make-up.
fn company_does_not_matter(case: &Case, threads: usize, rows: usize, seed: u64) {
    let what = format!("{}: in company, seed {seed}", case.name);
    let mut random = Random::new(seed);
    let mut stage = case.stage(threads);
    let mut readers: Vec<Reader<'_>> = Vec::new();
    let mut read = 0;
    while read < rows {
        while readers.is_empty() || (readers.len() < 8 && random.chance(30)) {
            readers.push(case.reader(random.below(case.prompts.len())));
        }
        let mut parts = Vec::new();
        for i in 0..readers.len() {
            if random.chance(65) {
                parts.push(random_part(i, &mut random));
            }
        }
        if parts.is_empty() {
            parts.push(Part::of(random.below(readers.len()), 1));
        }
        read += parts.iter().map(|part| part.rows).sum::<usize>();
        step(&what, &mut stage, &mut readers, &parts);
        let one = random.below(readers.len());
        match random.below(10) {
            0 if readers.len() < 8 => readers.push(readers[one].clone()),
            1 => readers[one].state = stored_and_restored(case, &readers[one].state),
            2 => scribble(case, &mut stage, &readers[one].state, &readers[one], 3),
            3 => drop(readers.swap_remove(one)),
            _ => {}
        }
        readers.retain(|reader| reader.left() > 0);
    }
}

fn random_part(reader: usize, random: &mut Random) -> Part {
    let rows = match random.below(10) {
        0..4 => 1,
        4..8 => random.within(2..=8),
        _ => random.within(9..=40),
    };
    let part = match rows <= 8 && random.chance(50) {
        false => Part::of(reader, rows),
        true => {
            let right = random.within(0..=rows);
            let keep = if random.chance(75) { right } else { random.within(0..=right) };
            Part::draft(reader, rows, right, keep)
        }
    };
    let outputs = match random.below(5) {
        0 => Wanted::Last,
        1 => Wanted::None,
        2 => Wanted::Bits(random.next()),
        _ => Wanted::All,
    };
    Part { outputs, ..part }
}

/// Everything, on prompts that are longer than the sparse attention's budget.
fn rows_are_pure(file: &str) {
    for kv in KvType::ALL {
        everything(&Case::new(file, kv, &[64, 30, 21]));
    }
}

fn everything(case: &Case) {
    chunks_equal_the_whole(case, 2);
    threads_and_instruction_sets_do_not_matter(case, [&[], &[37], &[8, 50]]);
    wanted_rows_do_not_matter(case);
    drafts_do_not_matter(case, 5);
    copies_go_on_alone(case, 0, 45);
    copies_go_on_alone(case, 1, 6);
    copies_of_open_drafts_decide_alone(case);
    company_does_not_matter(case, 2, 200, 1);
    company_does_not_matter(case, 3, 100, 2);
}

/// What depends on the types of the weights: the products. Their windows are what differs, and not how cells are stored.
fn other_types_are_pure(file: &str) {
    for kv in [KvType::F16, KvType::Q4] {
        let case = Case::new(file, kv, &[56, 12]);
        chunks_equal_the_whole(&case, 1);
        threads_and_instruction_sets_do_not_matter(&case, [&[], &[37], &[8, 50]]);
        drafts_do_not_matter(&case, 3);
        copies_go_on_alone(&case, 0, 47);
        company_does_not_matter(&case, 2, 90, 1);
    }
}

/// What needs more than one partition of cells.
fn long_rows_are_pure(file: &str) {
    for kv in KvType::ALL {
        let case = Case::new(file, kv, &[268]);
        threads_and_instruction_sets_do_not_matter(&case, CUTS);
        copies_go_on_alone(&case, 0, 252);
    }
}

/// What chosen cells need that are more than a partition: lists of several, in tiles where the first rows attend to all.
#[test]
fn rows_with_several_partitions_of_chosen_cells_are_pure() {
    const BUDGET: u32 = 4 * 75;
    let folder = tempfile::tempdir().unwrap();
    let mut parts = Parts::of(&oracle::model("q4e-tiny-F32"));
    let path = parts.set("attention.indexer.top_k", BUDGET).write(folder.path());
    for kv in [KvType::F16, KvType::K8V4] {
        let model = model(&path, kv);
        let prompt = Prompt::random(&model.spec, 400, &mut Random::new(1));
        let empty = model.new_state().unwrap();
        let case = Case::of(format!("many chosen, {} cells", kv.name()), model, vec![prompt], empty);
        threads_and_instruction_sets_do_not_matter(&case, [&[303, 399], &[300, 308, 380], &[17, 301, 302]]);
        copies_go_on_alone(&case, 0, 310);
    }
}

/// A test for each file, so that a runner shares them out.
macro_rules! files {
    ($check:ident: $($test:ident $file:literal,)*) => {
        mod $check {
            $(#[test]
            fn $test() {
                super::$check($file);
            })*

            pub const FILES: &[&str] = &[$($file),*];
        }
    };
}

files! { rows_are_pure:
    llama "llama-tiny-F32",
    qwen2 "q2-tiny-F32",
    qwen3 "q3-tiny-F32",
    qwen3moe "q3moe-tiny-F32",
    qwen3next "q3next-tiny-F32",
    qwen35 "q35-tiny-F32",
    qwen35moe "q35moe-tiny-F32",
    qwen4exp "q4e-tiny-F32",
}

files! { other_types_are_pure:
    f16 "q4e-tiny-F16",
    bf16 "q4e-tiny-BF16",
    q8_0 "q4e-tiny-Q8_0",
    split "q4e-tiny-split-F16-00001-of-00002",
    mix_iq1_m "q4e-quant-IQ1_M",
    mix_iq2_xs "q4e-quant-IQ2_XS",
    mix_iq3_s "q4e-quant-IQ3_S",
    mix_iq3_xxs "q4e-quant-IQ3_XXS",
    mix_mxfp4 "q4e-quant-MXFP4",
    mix_q2_0 "q4e-quant-Q2_0",
    mix_q4_k "q4e-quant-Q4_K",
    mix_q8_0 "q4e-quant-Q8_0",
}

files! { long_rows_are_pure:
    llama "llama-tiny-F32",
    qwen35 "q35-tiny-F32",
    qwen4exp "q4e-tiny-F32",
    q8_0 "q4e-tiny-Q8_0",
}

#[test]
fn no_model_of_the_oracle_is_left_out() {
    let files = std::fs::read_dir(oracle::folder().join("models")).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .filter(|name| !name.ends_with("-00002-of-00002"))
        .collect();
    names.sort();
    let mut tested = [rows_are_pure::FILES, other_types_are_pure::FILES].concat();
    tested.sort_unstable();
    assert_eq!(tested, names);
    assert!(long_rows_are_pure::FILES.iter().all(|file| tested.contains(file)));
}

#[test]
fn the_draft_layer_is_pure() {
    for kv in KvType::ALL {
        everything(&Case::draft("q4e-tiny-F32", kv, &[64, 30, 21]));
    }
}
