//! The rows of one pass.

/// Rows of several sequences that go through the model together.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The rows, span by span.
    pub rows: Vec<Row>,
    /// Which rows belong to which sequence; at most one span per sequence.
    pub spans: Vec<Span>,
    /// Given embeddings, `[..][width]`, for rows that are not tokens.
    pub embeddings: Vec<f32>,
    /// Trunk residuals, `[rows][streams * width]`, when the window is for a draft layer; else empty.
    pub hidden: Vec<f32>,
}

/// One row of a window.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What is looked up as the embedding.
    pub input: Input,
    /// Token id that n-gram hashing sees here (an image row has its placeholder's id).
    pub ngram_token: u32,
    /// Rotary position: time, height, width. Text has three equal numbers.
    pub position: [i32; 3],
    /// True if logits (and the residual before the head) are wanted.
    pub output: bool,
}

/// Where a row's embedding comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The row of the embedding table.
    Token(u32),
    /// This row of [`Window::embeddings`].
    Embedding(u32),
}

/// The rows of one sequence in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which of the states handed to the pass.
    pub state: usize,
    /// First row.
    pub first: usize,
    /// Number of rows, at least 1.
    pub count: usize,
    /// True if some of the rows may be taken back: the caller says afterwards how many stay.
    pub tentative: bool,
}

impl Span {
    /// Its rows in the window.
    pub fn rows<'a>(&self, window: &'a Window) -> &'a [Row] {
        &window.rows[self.first..self.first + self.count]
    }
}

impl Window {
    /// Appends text tokens of the sequence behind `state`, at positions counting up from `position` to the largest there
    /// is, where they stay.
    pub fn push_tokens(&mut self, state: usize, tokens: &[u32], position: i32, outputs: Outputs) {
        let first = self.rows.len();
        for (i, &token) in tokens.iter().enumerate() {
            let output = match outputs {
                Outputs::None => false,
                Outputs::Last => i + 1 == tokens.len(),
                Outputs::All => true,
            };
            let position = [position.saturating_add_unsigned(i as u32); 3];
            self.rows.push(Row { input: Input::Token(token), ngram_token: token, position, output });
        }
        self.spans.push(Span { state, first, count: tokens.len(), tentative: false });
    }

    /// Marks the last span as one whose rows may be taken back.
    pub fn tentative(&mut self) {
        self.spans.last_mut().expect("a span").tentative = true;
    }

    /// Rows that want logits.
    pub fn output_rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().enumerate().filter(|(_, row)| row.output).map(|(i, _)| i)
    }
}

/// Which rows of a span want logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// No row.
    None,
    /// The last one.
    Last,
    /// Every row.
    All,
}
