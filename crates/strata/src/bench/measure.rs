//! What is measured, on our own engine.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use engine::memory::CHUNK_TOKENS;
use engine::stage::{PartTimes, Touched};
use engine::window::Outputs;
use engine::{Engine, KvType, State, StepError, Window};
use sys::bandwidth::read_bandwidth;
use sys::pool::Pool;

use crate::error::Error;

/// Bytes read to measure the bandwidth: many times the last cache of any desktop.
const BANDWIDTH_BYTES: u64 = 1 << 29;

/// Passes over them in each round.
const BANDWIDTH_PASSES: usize = 3;

/// How long int8 values are multiplied in each round.
const PRODUCTS_TIME: Duration = Duration::from_millis(30);

/// Fewest tokens that are read before the first round, so that no round pays for pages that were never touched.
const WARM_UP_MIN: usize = 32;

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Reading a prompt into an empty state.
    Prompt {
        /// Its length.
        tokens: usize,
    },
    /// Writing one token after the other.
    Write {
        /// Of each sequence.
        tokens: usize,
        /// Tokens that lie before.
        depth: usize,
        /// Sequences, each with its own state, a token of each in every step.
        sequences: usize,
    },
}

impl Test {
    /// Tokens that pass through the model while the time is taken.
    pub fn tokens(self) -> usize {
        match self {
            Test::Prompt { tokens } => tokens,
            Test::Write { tokens, sequences, .. } => tokens * sequences,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Test::Prompt { tokens } => write!(f, "read {tokens}"),
            Test::Write { tokens, depth, sequences } => {
                write!(f, "write {tokens}")?;
                if sequences > 1 {
                    write!(f, " x {sequences}")?;
                }
                if depth > 0 { write!(f, " after {depth}") } else { Ok(()) }
            }
        }
    }
}

/// What the machine can do at best, measured beside the tests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes read per second.
    pub bandwidth: f64,
    /// Products of int8 values per second.
    pub products: f64,
}

/// The engine that is measured, and the states that it writes on from.
pub struct Bench {
    /// The engine.
    pub engine: Engine,
    /// Threads for what is measured beside the engine.
    pool: Pool,
    tokens: Vec<u32>,
    filled: BTreeMap<usize, State>,
    /// Whether the time of each part is taken too, which costs some itself.
    parts: bool,
}

/// What a test took.
pub struct Taken {
    /// In all.
    pub seconds: f64,
    /// Of the parts of all passes; empty where they were not wanted.
    pub parts: PartTimes,
    /// Routed experts that were read.
    pub touched: Touched,
}

impl Bench {
    /// An engine that was warmed up for prompts of that length, for tests of at most so many tokens.
    /// `parts` says whether the time of each part of a pass is wanted.
    pub fn new(
        mut engine: Engine,
        prompt_max: usize,
        tokens_max: usize,
        parts: bool,
    ) -> Result<Bench, Error> {
        let threads = engine.stage().backend().pool().threads();
        let pool = Pool::new(threads).map_err(|error| Error::Measure(error.to_string()))?;
        let tokens = tokens(tokens_max, engine.model().spec.vocabulary);
        let mut state = engine.model().new_state()?;
        // A window is as large as any.
        let warm_up = prompt_max.clamp(WARM_UP_MIN, CHUNK_TOKENS).min(tokens_max);
        engine.read(&mut state, &tokens[..warm_up])?;
        // Figures are of what lasts: of weights where they stay, with nobody copying them meanwhile.
        match engine.settle_weights() {
            Ok(bytes) => tracing::debug!("{bytes} bytes of weights were moved to huge pages"),
            Err(error) => tracing::debug!("weights are not all in huge pages: {error}"),
        }
        Ok(Bench { engine, pool, tokens, filled: BTreeMap::new(), parts })
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Element type of the cache.
    pub fn kv(&self) -> KvType {
        self.engine.model().layout.kv
    }

    /// Reads what lies before the written tokens, once for all rounds.
    pub fn fill(&mut self, depths: &[usize]) -> Result<(), StepError> {
        let mut depths = depths.to_vec();
        depths.sort_unstable();
        let mut state = self.engine.model().new_state()?;
        for depth in depths {
            if depth > state.tokens() {
                let more = state.tokens()..depth;
                self.engine.read(&mut state, &self.tokens[more])?;
            }
            self.filled.insert(depth, state.clone());
        }
        Ok(())
    }

    /// What the machine can do now.
    pub fn limits(&self) -> Result<Limits, Error> {
        // A quarter of what is left, so that the measurement pushes nobody's pages out, the model's least of all.
        let bytes = BANDWIDTH_BYTES.min(sys::memory::available().bytes / 4) as usize;
        let bandwidth = read_bandwidth(&self.pool, bytes, BANDWIDTH_PASSES)
            .map_err(|error| Error::Measure(error.to_string()))?
            .best;
        let kernels = self.engine.stage().backend().kernels();
        let mut products = vec![0u64; self.threads()];
        let start = Instant::now();
        self.pool.for_each(&mut products, |products| *products = kernels.int8_products(PRODUCTS_TIME));
        let products = products.iter().sum::<u64>() as f64 / start.elapsed().as_secs_f64();
        Ok(Limits { bandwidth, products })
    }

    /// How long a test takes.
    pub fn measure(&mut self, test: &Test) -> Result<Taken, Error> {
        match *test {
            Test::Prompt { tokens } => {
                let mut state = self.engine.model().new_state()?;
                self.time(|bench| bench.engine.read(&mut state, &bench.tokens[..tokens]).map(|_| ()))
            }
            Test::Write { tokens, depth, sequences } => {
                let mut states = self.states(depth, sequences)?;
                // The first token takes over the block of cells that all rounds share.
                self.write(&mut states, 1)?;
                self.time(|bench| bench.write(&mut states, tokens))
            }
        }
    }

    fn time(&mut self, run: impl FnOnce(&mut Bench) -> Result<(), StepError>) -> Result<Taken, Error> {
        if self.parts {
            self.engine.stage_mut().time_parts();
        }
        self.engine.stage_mut().take_touched();
        let start = Instant::now();
        run(self)?;
        let seconds = start.elapsed().as_secs_f64();
        let touched = self.engine.stage_mut().take_touched();
        let parts = if self.parts { self.engine.stage_mut().time_parts() } else { PartTimes::new() };
        Ok(Taken { seconds, parts, touched })
    }

    /// Filled states that share at most a block: several sequences read as much as they would in earnest.
    fn states(&self, depth: usize, sequences: usize) -> Result<Vec<State>, Error> {
        let filled = self.filled.get(&depth).expect("every depth was filled");
        let model = self.engine.model();
        let copy = |bytes: &Vec<u8>| {
            State::from_bytes(bytes, model.layout.clone(), model.identity, &model.kv)
                .map_err(|error| Error::Measure(error.to_string()))
        };
        let bytes = (sequences > 1).then(|| filled.to_bytes(model.identity));
        let copies = (1..sequences).map(|_| copy(bytes.as_ref().expect("more than one sequence")));
        std::iter::once(Ok(filled.clone())).chain(copies).collect()
    }

    /// Writes so many tokens; which ones is not up to the model, so that every engine does the same work.
    fn write(&mut self, states: &mut [State], tokens: usize) -> Result<(), StepError> {
        let mut states: Vec<&mut State> = states.iter_mut().collect();
        for step in 0..tokens {
            let mut window = Window::default();
            for (index, state) in states.iter().enumerate() {
                let token = self.tokens[(step + index * tokens) % self.tokens.len()];
                window.push_tokens(index, &[token], state.next_position(), Outputs::Last);
            }
            let output = self.engine.stage_mut().run(&window, &mut states, None)?;
            if let Some(failure) = output.failed.first() {
                return Err(failure.error.clone());
            }
        }
        Ok(())
    }
}

/// Token ids all over the vocabulary, the same every time (steps of a linear congruential generator; Numerical Recipes'
/// constants).
pub fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let mut number = 1u32;
    let mut next = || {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(number) * vocabulary as u64) >> 32) as u32
    };
    (0..count).map(|_| next()).collect()
}
