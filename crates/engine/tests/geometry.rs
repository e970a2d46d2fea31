//! `qwen4exp` with every count of the real model except width, depth, vocabulary and table size: 512 experts of which
//! 10 are used, 24 query and 2 key heads of 256, 16 key and 48 value heads of 128, rotation of 64 values along three
//! axes, 512 kept blocks of 4 cells, 4 streams of rank 320, 16 n-gram heads with ids of the real vocabulary; a text that
//! is longer than the block budget, with images, and positions up to 200,000.

mod geometry_model;
mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use engine::backend::Cpu;
use engine::model::Model;
use engine::models::Mixer;
use engine::stage::Stage;
use engine::state::{CellArray, KvType, State, TailSlot};
use engine::window::{Input, Row, Span, Window};
use kernels::Cells;
use kernels::PARTITION_CELLS;
use oracle::{Array, Data};
use support::*;

/// The first row that sees more blocks than are kept.
const FIRST_SPARSE: usize = 2051;
/// What f32 may differ from the oracle's f64 in any number; the largest difference found is 5e-6. The text is drawn so
/// that no router and no block selection is nearer to a tie than ten times this (`margins` in `geometry.json`).
const BOUND: f32 = 2e-5;

type Golden = BTreeMap<String, Array>;

/// What is read, by the trunk and by the draft layer.
struct Text {
    rows: Vec<Row>,
    /// `[images][width]`.
    embeddings: Vec<f32>,
    /// The token that the draft layer reads beside each row's residual.
    next: Vec<u32>,
}

impl Text {
    fn new(golden: &Golden, model: &Model) -> Text {
        let (ids, images) = (golden["ids"].i64(), golden["image"].i64());
        let vocabulary = model.spec.vocabulary as i64;
        let row = |(i, position): (usize, &[i64])| Row {
            input: match images[i] {
                -1 => Input::Token((ids[i] % vocabulary) as u32),
                image => Input::Embedding(image as u32),
            },
            ngram_token: ids[i] as u32,
            position: [0, 1, 2].map(|axis| position[axis] as i32),
            output: true,
        };
        let rows = golden["positions"].i64().chunks_exact(3).enumerate().map(row).collect();
        let count = images.iter().max().expect("rows") + 1;
        let embeddings = geometry_model::draw("images", count as usize * model.spec.width, 0.5, 1.0 / 128.0);
        let next = ids[1..].iter().map(|id| (id % vocabulary) as u32).collect();
        Text { rows, embeddings, next }
    }

    fn window(&self, rows: Range<usize>) -> Window {
        let span = Span { state: 0, first: 0, count: rows.len(), tentative: false };
        Window {
            rows: self.rows[rows].to_vec(),
            spans: vec![span],
            embeddings: self.embeddings.clone(),
            ..Window::default()
        }
    }

    /// The residual of each row with the token behind it, at the row's position.
    fn draft_window(&self, rows: Range<usize>, residual: &[f32]) -> Window {
        let flat = residual.len() / self.rows.len();
        let mut window = self.window(rows.clone());
        for (row, &token) in window.rows.iter_mut().zip(&self.next[rows.clone()]) {
            (row.input, row.ngram_token) = (Input::Token(token), token);
        }
        window.embeddings.clear();
        window.hidden = residual[rows.start * flat..rows.end * flat].to_vec();
        window
    }
}

/// What a reading gave, all rows.
struct Reading {
    logits: Vec<f32>,
    residual: Vec<f32>,
    state: State,
}

/// Reads the rows up to `bounds`, one window each; `sink` sees the intermediates and each window's first row.
fn read_up_to(
    stage: &mut Stage<Cpu>,
    bounds: &[usize],
    draft: bool,
    window: impl Fn(Range<usize>) -> Window,
    mut sink: impl FnMut(usize, &str, usize, &[f32]),
) -> Reading {
    let state = if draft { stage.model().new_draft_state() } else { stage.model().new_state() };
    let mut reading = Reading { logits: Vec::new(), residual: Vec::new(), state: state.expect("memory") };
    let mut first = 0;
    for &end in bounds {
        let mut taps = |name: &str, width: usize, values: &[f32]| sink(first, name, width, values);
        let (window, states) = (window(first..end), &mut [&mut reading.state]);
        let output = match draft {
            false => stage.run(&window, states, Some(&mut taps)),
            true => stage.run_draft(&window, states, Some(&mut taps)),
        };
        let output = output.unwrap_or_else(|e| panic!("{e}"));
        reading.logits.extend_from_slice(output.logits);
        reading.residual.extend_from_slice(output.residual);
        first = end;
    }
    reading
}

/// Compares with the oracle and counts what was compared.
struct Comparison<'a> {
    golden: &'a Golden,
    /// Before the names of this graph's intermediates.
    prefix: &'a str,
    kept: Vec<usize>,
    largest: BTreeMap<String, f32>,
    rows: BTreeMap<String, usize>,
}

impl<'a> Comparison<'a> {
    fn new(golden: &'a Golden, prefix: &'a str) -> Comparison<'a> {
        let kept = golden["kept"].i64().iter().map(|&row| row as usize).collect();
        Comparison { golden, prefix, kept, largest: BTreeMap::new(), rows: BTreeMap::new() }
    }

    /// Rows of the text that the oracle has of this array.
    fn rows_of(&self, name: &str, wanted: &Array) -> Vec<usize> {
        let text = self.golden["ids"].shape[0];
        match name {
            _ if name.ends_with("idx.selected") => (FIRST_SPARSE..FIRST_SPARSE + wanted.shape[0]).collect(),
            _ if name.ends_with(".attn.o") || name.ends_with("gdn.normed") => {
                vec![342, 2050, FIRST_SPARSE, text - 2]
            }
            _ => self.kept[..wanted.shape[0]].to_vec(),
        }
    }

    /// Rows `first..` of an intermediate.
    fn intermediate(&mut self, first: usize, name: &str, width: usize, values: &[f32]) {
        let name = format!("{}{name}", self.prefix);
        let Some(wanted) = self.golden.get(&name) else { return };
        let count = values.len() / width;
        for (i, row) in self.rows_of(&name, wanted).into_iter().enumerate() {
            if !(first..first + count).contains(&row) {
                continue;
            }
            let found = &values[(row - first) * width..][..width];
            let wanted_width = wanted.shape[1..].iter().product::<usize>();
            match &wanted.data {
                Data::F32(_) if name.ends_with("moe.weights") => {
                    let ids = self.golden[&name.replace("weights", "ids")].i64();
                    self.weights(&name, found, wanted.row(i), &ids[i * width..][..width]);
                }
                Data::F32(_) => self.number(&name, found, wanted.row(i)),
                Data::I64(ids) => {
                    same_set(&format!("{name} of row {row}"), found, &ids[i * width..][..width])
                }
                Data::U8(packed) => {
                    let packed = &packed[i * wanted_width..][..wanted_width];
                    for (cell, &found) in found.iter().enumerate() {
                        let wanted = f32::from(packed[cell / 8] >> (7 - cell % 8) & 1);
                        assert_eq!(found, wanted, "{name} of row {row}, cell {cell}");
                    }
                    let count = packed.iter().map(|byte| byte.count_ones()).sum::<u32>();
                    assert_eq!(found.iter().sum::<f32>(), count as f32, "{name} of row {row}");
                }
            }
            *self.rows.entry(name.clone()).or_default() += 1;
        }
    }

    /// Weights of the same experts, which the oracle has by weight and the engine by number.
    fn weights(&mut self, name: &str, found: &[f32], wanted: &[f32], ids: &[i64]) {
        assert_eq!(ids.len(), found.len());
        let sorted = |values: &[f32]| {
            let mut values = values.to_vec();
            values.sort_by(f32::total_cmp);
            values
        };
        self.number(name, &sorted(found), &sorted(wanted));
    }

    fn number(&mut self, name: &str, found: &[f32], wanted: &[f32]) {
        let difference = max_difference(found, wanted);
        let largest = self.largest.entry(name.to_owned()).or_default();
        *largest = largest.max(difference);
    }

    /// Residuals of all rows; logits are an intermediate too.
    fn residual(&mut self, reading: &Reading, model: &Model) {
        self.intermediate(0, "residual", model.spec.width * model.spec.streams, &reading.residual);
    }

    fn finish(self) {
        println!("{:?}", self.largest);
        for (name, difference) in &self.largest {
            assert!(*difference < BOUND, "{name}: {difference}");
        }
        for (name, wanted) in self.golden.iter().filter(|(name, _)| is_intermediate(name, self.prefix)) {
            let compared = self.rows.get(name).copied().unwrap_or(0);
            assert_eq!(compared, wanted.shape[0], "rows of {name} that were compared");
        }
    }
}

fn is_intermediate(name: &str, prefix: &str) -> bool {
    let of_draft = name.starts_with("mtp.");
    let other = ["ids", "image", "positions", "kept"].contains(&name) || name.contains("state.");
    !other && of_draft != prefix.is_empty()
}

fn same_set(what: &str, found: &[f32], wanted: &[i64]) {
    let mut found: Vec<i64> = found.iter().map(|&v| v as i64).collect();
    let mut wanted = wanted.to_vec();
    if what.contains("moe.ids") {
        found.sort_unstable();
        wanted.sort_unstable();
    }
    assert_eq!(found, wanted, "{what}");
}

/// Samples of everything that a state keeps.
fn check_state(golden: &Golden, prefix: &str, state: &State, layers: &[(usize, &Mixer)]) {
    let (mut attention, mut delta, mut compared) = (0, 0, 0);
    let mut compare = |name: String, found: Vec<f32>| {
        let difference = max_difference(&found, golden[&name].f32());
        println!("{name}: {difference}");
        assert!(difference < BOUND, "{name}: {difference}");
        compared += 1;
    };
    let tail = |slot: TailSlot, step: usize| -> Vec<f32> {
        let tail = state.tail(slot);
        let rows = (1..=tail.rows()).rev();
        rows.flat_map(|back| tail.before(back).iter().copied().step_by(step).collect::<Vec<_>>()).collect()
    };
    for &(index, mixer) in layers {
        match mixer {
            Mixer::DeltaNet(spec) => {
                let matrices = &state.delta(delta).matrices;
                let at = |(head, i, j)| matrices[(head * spec.key_dim + i) * spec.value_dim + j];
                let every = |n: usize, step: usize| (0..n).step_by(step);
                let places = every(spec.value_heads, 15).flat_map(|head| {
                    every(spec.key_dim, 31)
                        .flat_map(move |i| every(spec.value_dim, 17).map(move |j| (head, i, j)))
                });
                compare(format!("{prefix}state.L{index}.delta"), places.map(at).collect());
                compare(format!("{prefix}state.L{index}.conv"), tail(TailSlot::Delta(delta), 37));
                delta += 1;
            }
            Mixer::Attention(spec) => {
                let cells = state.layout().attention[attention];
                let sampled = || (1..state.tokens()).rev().step_by(307);
                let values = |of: &dyn Fn(usize) -> CellArray| -> Vec<f32> {
                    let places = sampled().flat_map(|cell| (0..spec.kv_heads).map(move |head| (cell, head)));
                    places.flat_map(|(cell, head)| cell_values(state, &of(head), cell)).collect()
                };
                compare(format!("{prefix}state.L{index}.k"), values(&|head| cells.keys(head)));
                compare(format!("{prefix}state.L{index}.v"), values(&|head| cells.values(head)));
                attention += 1;
            }
        }
    }
    if state.layout().ngram.is_some() {
        compare(format!("{prefix}state.ple.conv"), tail(TailSlot::Ngram, 1));
        let history: Vec<i64> = state.ngram_history().iter().map(|&id| i64::from(id)).collect();
        assert_eq!(history, golden[&format!("{prefix}state.ple.ids")].i64());
        compared += 1;
    }
    assert_eq!(compared, golden.keys().filter(|name| name.starts_with(&format!("{prefix}state."))).count());
}

fn cell_values(state: &State, array: &CellArray, cell: usize) -> Vec<f32> {
    let i = cell % PARTITION_CELLS;
    match state.block(cell / PARTITION_CELLS).cells(array, i..i + 1) {
        Cells::F32(values) => values.to_vec(),
        _ => panic!("read in F32"),
    }
}

/// Every 512 rows, and the end.
fn even_bounds(rows: usize) -> Vec<usize> {
    (512..rows).step_by(512).chain([rows]).collect()
}

/// 257 rows, nearly all others, and the last 20 one by one.
fn uneven_bounds(rows: usize) -> Vec<usize> {
    [257].into_iter().chain(rows - 20..=rows).collect()
}

fn assert_same_bits(what: &str, found: &Reading, wanted: &Reading, rows: usize) {
    for (name, found, wanted) in
        [("logits", &found.logits, &wanted.logits), ("residual", &found.residual, &wanted.residual)]
    {
        assert_eq!(found.len(), wanted.len(), "{what}: {name}");
        let other = found.iter().zip(wanted).position(|(a, b)| a.to_bits() != b.to_bits());
        let row = other.map(|i| i / (wanted.len() / rows));
        assert_eq!(row, None, "{what}: first row with other bits in {name}");
    }
}

/// One test, since both readings take seconds and the second is compared with the first.
#[test]
fn the_real_counts_give_the_oracles_numbers_however_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&geometry_model::write(folder.path()), KvType::F32);
    let golden = oracle::npz("geometry");
    let text = Text::new(&golden, &model);
    let rows = text.rows.len();

    let mut stage = stage_of(&model, 2, None);
    let mut comparison = Comparison::new(&golden, "");
    let sink = |first: usize, name: &str, width: usize, values: &[f32]| {
        comparison.intermediate(first, name, width, values);
    };
    let trunk = read_up_to(&mut stage, &even_bounds(rows), false, |r| text.window(r), sink);
    comparison.residual(&trunk, &model);
    comparison.finish();
    let layers: Vec<(usize, &Mixer)> = model.spec.layers.iter().map(|l| (l.index, &l.mixer)).collect();
    check_state(&golden, "", &trunk.state, &layers);

    let draft_rows = rows - 1;
    let draft_window = |r| text.draft_window(r, &trunk.residual);
    let mut comparison = Comparison::new(&golden, "mtp.");
    let sink = |first: usize, name: &str, width: usize, values: &[f32]| {
        comparison.intermediate(first, name, width, values);
    };
    let draft = read_up_to(&mut stage, &even_bounds(draft_rows), true, draft_window, sink);
    comparison.residual(&draft, &model);
    comparison.finish();
    let layer = &model.spec.draft.as_ref().expect("a draft layer").layer;
    check_state(&golden, "draft_", &draft.state, &[(layer.index, &layer.mixer)]);

    read_otherwise(&model, &text, &trunk, &draft);
}

/// Other chunks on one thread: the same bits.
fn read_otherwise(model: &Arc<Model>, text: &Text, trunk: &Reading, draft: &Reading) {
    let rows = text.rows.len();
    let mut stage = stage_of(model, 1, None);
    let none = |_: usize, _: &str, _: usize, _: &[f32]| {};
    let found = read_up_to(&mut stage, &uneven_bounds(rows), false, |r| text.window(r), none);
    assert_same_bits("trunk", &found, trunk, rows);
    let window = |r| text.draft_window(r, &trunk.residual);
    let found = read_up_to(&mut stage, &uneven_bounds(rows - 1), true, window, none);
    assert_same_bits("draft layer", &found, draft, rows - 1);
}
