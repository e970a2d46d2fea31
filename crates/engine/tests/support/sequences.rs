//! Sequences that are read in any order, alone or together, and compared with a reading in one window.

use std::ops::Range;

use engine::backend::Backend;
use engine::error::StepError;
use engine::models::ModelSpec;
use engine::stage::Stage;
use engine::state::{CellArray, State, TailSlot};
use engine::window::{Input, Row, Span, Window};
use kernels::Cells;
use kernels::PARTITION_CELLS;

/// SplitMix64 (Steele, Lea and Flood 2014): the same numbers from the same seed on every machine.
pub struct Random(u64);

impl Random {
    /// Numbers of this seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number of `range`, its end included.
    pub fn within(&mut self, range: std::ops::RangeInclusive<usize>) -> usize {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A number in -1..1.
    pub fn float(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// What a sequence reads, row by row.
#[derive(Clone)]
pub struct Prompt {
    rows: Vec<Row>,
    /// `[..][width]`: what [`Input::Embedding`] counts.
    embeddings: Vec<f32>,
    /// Trunk residuals, `[rows][streams * width]`, where the rows are for the draft layer; else empty.
    hidden: Vec<f32>,
}

impl Prompt {
    /// Tokens at positions from 0 on.
    pub fn text(tokens: &[u32]) -> Prompt {
        let mut prompt = Prompt { rows: Vec::new(), embeddings: Vec::new(), hidden: Vec::new() };
        tokens.iter().for_each(|&token| prompt.push_token(token));
        prompt
    }

    /// `len` random rows. Some tokens are the one that hides n-grams; after a third of the rows stands an image.
    pub fn random(spec: &ModelSpec, len: usize, random: &mut Random) -> Prompt {
        let mut prompt = Prompt::text(&[]);
        let reset = spec.layers.iter().find_map(|layer| layer.ngram.as_ref()).map(|ngram| ngram.reset_token);
        while prompt.len() < len {
            if prompt.len() == len / 3 {
                let (height, width) = (2, (len / 12).max(1));
                prompt.push_image(spec.width, height, width, random);
                continue;
            }
            match reset {
                Some(token) if random.chance(6) => prompt.push_token(token),
                _ => prompt.push_token(random.below(spec.vocabulary) as u32),
            }
        }
        prompt.rows.truncate(len);
        prompt
    }

    /// Rows for the draft layer: each residual with the token that follows it.
    pub fn draft(tokens: &[u32], hidden: &[f32]) -> Prompt {
        Prompt { hidden: hidden.to_vec(), ..Prompt::text(tokens) }
    }

    fn next_position(&self) -> i32 {
        self.rows.iter().flat_map(|row| row.position).max().map_or(0, |last| last + 1)
    }

    fn push_token(&mut self, token: u32) {
        let position = [self.next_position(); 3];
        self.rows.push(Row { input: Input::Token(token), ngram_token: token, position, output: false });
    }

    fn push_image(&mut self, n: usize, height: usize, width: usize, random: &mut Random) {
        let first = self.next_position();
        for i in 0..height * width {
            let position = [first, first + (i / width) as i32, first + (i % width) as i32];
            let input = Input::Embedding((self.embeddings.len() / n) as u32);
            self.embeddings.extend((0..n).map(|_| random.float()));
            self.rows.push(Row { input, ngram_token: 7, position, output: false });
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Appends a span to `window`: rows `range`, from `wrong_from` on (counted in the span) with other tokens.
    pub fn push(&self, spec: &ModelSpec, window: &mut Window, range: Range<usize>, part: &Part) {
        let first = window.rows.len();
        for (i, index) in range.clone().enumerate() {
            let mut row = self.rows[index];
            row.output = part.outputs.wants(i, range.len());
            match row.input {
                _ if i >= part.right => {
                    let token = (row.ngram_token + 1 + i as u32) % spec.vocabulary as u32;
                    (row.input, row.ngram_token) = (Input::Token(token), token);
                }
                Input::Embedding(e) => {
                    row.input = Input::Embedding((window.embeddings.len() / spec.width) as u32);
                    window
                        .embeddings
                        .extend_from_slice(&self.embeddings[e as usize * spec.width..][..spec.width]);
                }
                Input::Token(_) => {}
            }
            window.rows.push(row);
            if !self.hidden.is_empty() {
                let flat = spec.streams * spec.width;
                window.hidden.extend_from_slice(&self.hidden[index * flat..][..flat]);
            }
        }
        let (count, tentative) = (range.len(), part.tentative);
        window.spans.push(Span { state: window.spans.len(), first, count, tentative });
    }
}

/// Which rows of a span want logits.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    /// Every row.
    All,
    /// The last one.
    Last,
    /// None.
    None,
    /// Rows whose bit is set.
    Bits(u64),
}

impl Wanted {
    fn wants(self, row: usize, rows: usize) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Last => row + 1 == rows,
            Wanted::None => false,
            Wanted::Bits(bits) => bits >> (row % 64) & 1 == 1,
        }
    }
}

/// One sequence's rows in a window.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Which reader.
    pub reader: usize,
    /// Rows; fewer at the end of the prompt.
    pub rows: usize,
    /// The first so many are those of the prompt, the others are wrong guesses.
    pub right: usize,
    /// Of a tentative span: rows kept, at most `right`.
    pub keep: usize,
    /// Whether rows can be taken back.
    pub tentative: bool,
    /// Rows whose logits are wanted, and compared.
    pub outputs: Wanted,
}

impl Part {
    /// The next `rows` rows, to stay.
    pub fn of(reader: usize, rows: usize) -> Part {
        Part { reader, rows, right: rows, keep: rows, tentative: false, outputs: Wanted::All }
    }

    /// The next `rows` rows as a draft of which the first `right` are right and the first `keep` stay.
    pub fn draft(reader: usize, rows: usize, right: usize, keep: usize) -> Part {
        Part { reader, rows, right, keep, tentative: true, outputs: Wanted::All }
    }
}

/// Logits of every row as bits.
pub type Bits = Vec<Vec<u32>>;

/// What reading a whole prompt alone gives.
#[derive(PartialEq)]
pub struct Whole {
    /// Logits of every row.
    pub rows: Bits,
    /// What the state holds then.
    pub contents: Vec<(String, Vec<u32>)>,
}

/// Bits of everything that a state holds of its tokens, by name. Matrices that some accepted rows have yet to enter are
/// left out.
pub fn contents(state: &State) -> Vec<(String, Vec<u32>)> {
    let layout = state.layout();
    let tokens = state.tokens();
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let mut contents = Vec::new();
    for (layer, cells) in layout.attention.iter().enumerate() {
        let mut found = Vec::new();
        for first in (0..tokens).step_by(PARTITION_CELLS) {
            let (block, rows) = (state.block(first / PARTITION_CELLS), (tokens - first).min(PARTITION_CELLS));
            let heads = (0..cells.kv_heads).flat_map(|head| [cells.keys(head), cells.values(head)]);
            let mut arrays: Vec<(CellArray, usize)> = heads.map(|array| (array, rows)).collect();
            let pooled = cells.indexer.map_or(0, |indexer| rows / indexer.block_cells);
            arrays.extend(cells.pooled().map(|array| (array, pooled)));
            for (array, count) in arrays {
                match block.cells(&array, 0..count) {
                    Cells::F32(values) => found.extend(values.iter().map(|v| v.to_bits())),
                    Cells::F16(values) => found.extend(values.iter().map(|&v| u32::from(v))),
                    Cells::Int8 { codes, scales } => {
                        found.extend(codes.iter().map(|&code| u32::from(code as u8)));
                        found.extend(scales.iter().map(|&scale| u32::from(scale)));
                    }
                    Cells::Int4 { codes, scales } => {
                        found.extend(codes.iter().map(|&code| u32::from(code)));
                        found.extend(scales.iter().map(|&scale| u32::from(scale)));
                    }
                }
            }
        }
        contents.push((format!("cells of attention layer {layer}"), found));
        contents.push((format!("raw keys of attention layer {layer}"), bits(state.raw_keys(layer))));
    }
    let tail = |slot| {
        let tail = state.tail(slot);
        (1..=tail.rows()).flat_map(|back| bits(tail.before(back))).collect()
    };
    for layer in 0..layout.delta.len() {
        contents.push((format!("tail of delta-net layer {layer}"), tail(TailSlot::Delta(layer))));
    }
    if layout.ngram.is_some() {
        contents.push(("tail of the n-gram block".into(), tail(TailSlot::Ngram)));
        contents.push(("n-gram history".into(), state.ngram_history().to_vec()));
    }
    for layer in (0..layout.delta.len()).filter(|&layer| state.delta(layer).pending.rows == 0) {
        contents.push((format!("matrices of delta-net layer {layer}"), bits(&state.delta(layer).matrices)));
    }
    contents
}

/// A prompt being read.
#[derive(Clone)]
pub struct Reader<'a> {
    /// What is read.
    pub prompt: &'a Prompt,
    /// What reading it alone in one window gives.
    pub wanted: &'a Whole,
    /// Rows read.
    pub at: usize,
    /// The state after them.
    pub state: State,
}

impl<'a> Reader<'a> {
    /// At the start of the prompt.
    pub fn new(prompt: &'a Prompt, wanted: &'a Whole, empty: &State) -> Reader<'a> {
        Reader { prompt, wanted, at: 0, state: empty.clone() }
    }

    /// Rows not yet read.
    pub fn left(&self) -> usize {
        self.prompt.len() - self.at
    }
}

/// Runs a window; draft layer where the window carries residuals. The logits of the rows that want them.
pub fn run<B: Backend>(
    stage: &mut Stage<B>,
    window: &Window,
    states: &mut [&mut State],
) -> Result<Bits, StepError> {
    let vocabulary = stage.model().spec.vocabulary;
    let output = match window.hidden.is_empty() {
        true => stage.run(window, states, None)?,
        false => stage.run_draft(window, states, None)?,
    };
    let rows = output.logits.chunks_exact(vocabulary);
    Ok(rows.map(|row| row.iter().map(|v| v.to_bits()).collect()).collect())
}

/// Reads the prompt alone in one window.
pub fn whole<B: Backend>(stage: &mut Stage<B>, prompt: &Prompt, empty: &State) -> Whole {
    let mut window = Window::default();
    prompt.push(&stage.model().spec, &mut window, 0..prompt.len(), &Part::of(0, prompt.len()));
    let mut state = empty.clone();
    let rows = run(stage, &window, &mut [&mut state]).unwrap_or_else(|e| panic!("{e}"));
    Whole { rows, contents: contents(&state) }
}

/// Runs one window of these parts (one per reader at most, in ascending order) and compares the logits of all right
/// rows that were wanted, and at the end of a prompt what the state holds.
pub fn step<B: Backend>(what: &str, stage: &mut Stage<B>, readers: &mut [Reader<'_>], parts: &[Part]) {
    let model = stage.model().clone();
    let mut window = Window::default();
    let mut taking_part = Vec::new();
    for (i, reader) in readers.iter_mut().enumerate() {
        let Some(part) = parts.iter().find(|part| part.reader == i) else { continue };
        let rows = part.rows.min(reader.left());
        if rows == 0 {
            continue;
        }
        let part = Part { rows, right: part.right.min(rows), keep: part.keep.min(rows), ..*part };
        reader.prompt.push(&model.spec, &mut window, reader.at..reader.at + rows, &part);
        taking_part.push((reader, part));
    }
    let mut states: Vec<&mut State> = taking_part.iter_mut().map(|(reader, _)| &mut reader.state).collect();
    let logits = run(stage, &window, &mut states).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut logits = logits.iter();
    for (reader, part) in taking_part {
        for i in (0..part.rows).filter(|&i| part.outputs.wants(i, part.rows)) {
            let found = logits.next().expect("a row of logits for each row that wants them");
            let index = reader.at + i;
            let wanted = &reader.wanted.rows[index];
            if i < part.right && found != wanted {
                let first = found.iter().zip(wanted).position(|(a, b)| a != b);
                panic!(
                    "{what}: row {index} of {}, row {i} of {part:?} in a window of {} rows and {} sequences: \
                     other bits than alone, first in logit {first:?}",
                    reader.prompt.len(),
                    window.rows.len(),
                    window.spans.len(),
                );
            }
        }
        if part.tentative {
            reader.state.keep(part.keep);
        }
        reader.at += part.keep;
        assert_eq!(reader.state.tokens(), reader.at, "{what}");
        if reader.left() == 0 {
            for ((name, found), (_, wanted)) in contents(&reader.state).iter().zip(&reader.wanted.contents) {
                assert!(found == wanted, "{what}: the {name} are not those of the prompt read alone");
            }
        }
    }
    assert!(logits.next().is_none(), "{what}: more rows of logits than wanted");
}
