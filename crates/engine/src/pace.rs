//! How much of a prompt goes into a window beside sequences that write.
//!
//! Large chunks read prompts fast and keep who writes waiting; small ones do the opposite, and how much depends on the model and
//! the machine: of a dense model a row costs nearly the same whatever its chunk, of a mixture of experts few rows need nearly
//! as many experts as many. So the rule goes by what windows took. It is a function of these times and of nothing else; what
//! it decides changes when tokens come, and none of their bits.
//!
//! While somebody writes, a chunk is the smallest that reads at two thirds of the speed of a whole one at least, or a larger one as long as
//! the window takes no more than [`SLOWER_MAX`] windows of those that write alone. Where a window took longer, windows
//! without prompts follow until those that write have had their share: they are never slower than one [`SLOWER_MAX`]th of
//! what they are alone. Alone, prompts are read in whole chunks.

/// How many times as long sequences that write take for a token while prompts are read, at most.
const SLOWER_MAX: f64 = 4.0;

/// How many times as fast whole chunks may read as those beside sequences that write.
const FASTER_MAX: f64 = 1.5;

/// Rows of the smallest chunk: fewer take hardly less time.
const CHUNK_MIN: usize = 16;

/// After so many windows a time of sequences that write is too old to go by: they have grown, and the machine has other work.
const WRITING_WINDOWS_MAX: u64 = 64;

/// And one of a chunk, which is then tried again, whatever it takes.
const READING_WINDOWS_MAX: u64 = 1024;

/// Times of windows, and what follows from them.
pub(crate) struct Pace {
    chunk_tokens: usize,
    /// Of windows of sequences that write and nothing else, by [`class`].
    writing: Vec<Option<Time>>,
    /// Of windows with rows of prompts, by [`class`].
    reading: Vec<Option<Time>>,
    windows: u64,
    /// Seconds of windows without prompts that those that write have to their credit, times `SLOWER_MAX - 1`.
    owed_s: f64,
}

#[derive(Clone, Copy)]
struct Time {
    seconds: f64,
    rows: usize,
    /// The window that it is of.
    window: u64,
}

impl Pace {
    /// Of an engine whose windows have at most so many rows of prompts.
    pub fn new(chunk_tokens: usize) -> Pace {
        Pace { chunk_tokens, writing: Vec::new(), reading: Vec::new(), windows: 0, owed_s: 0.0 }
    }

    /// Most rows of prompts in the next window, of `pending` that there are, beside `writing` sequences that write; 0 if it is
    /// theirs alone.
    pub fn prompt_rows(&self, writing: usize, pending: usize) -> usize {
        let most = self.chunk_tokens.saturating_sub(writing).max(1).min(pending);
        if writing == 0 || pending == 0 {
            return most;
        }
        let Some(alone_s) = self.writing_s(writing) else { return 0 };
        if self.owed_s > 0.0 {
            return 0;
        }
        let whole =
            [self.chunk_tokens, most].into_iter().find_map(|rows| Some(rows as f64 / self.reading_s(rows)?));
        let Some(whole) = whole else { return most };
        let mut rows = CHUNK_MIN.min(most);
        while rows < most {
            let Some(seconds) = self.reading_s(rows) else { break };
            let next = (rows * 2).min(most);
            let fast = rows as f64 / seconds * FASTER_MAX >= whole;
            if fast && self.reading_s(next).is_some_and(|next_s| next_s > SLOWER_MAX * alone_s) {
                break;
            }
            rows = next;
        }
        rows
    }

    /// A window of so many sequences that write, and rows of prompts, took so long.
    pub fn took(&mut self, writing: usize, prompt_rows: usize, seconds: f64) {
        self.windows += 1;
        let (times, rows) = match prompt_rows {
            0 => (&mut self.writing, writing),
            rows => (&mut self.reading, rows),
        };
        let Some(class) = class(rows) else { return };
        if times.len() <= class {
            times.resize(class + 1, None);
        }
        // Half and half: a time that was out of the common is soon forgotten.
        let smooth = match times[class] {
            Some(time) => (time.seconds / time.rows as f64 * rows as f64 + seconds) / 2.0,
            None => seconds,
        };
        times[class] = Some(Time { seconds: smooth, rows, window: self.windows });
        self.owed_s = match (writing, prompt_rows) {
            (0, _) => 0.0,
            (_, 0) => (self.owed_s - (SLOWER_MAX - 1.0) * seconds).max(0.0),
            _ => {
                let alone_s = self.writing_s(writing).unwrap_or(seconds);
                (self.owed_s + seconds - SLOWER_MAX * alone_s).max(0.0)
            }
        };
    }

    fn writing_s(&self, sequences: usize) -> Option<f64> {
        self.known(&self.writing, sequences, WRITING_WINDOWS_MAX)
    }

    fn reading_s(&self, rows: usize) -> Option<f64> {
        self.known(&self.reading, rows, READING_WINDOWS_MAX)
    }

    /// How long a window with so many rows takes, if one with about as many was measured of late.
    fn known(&self, times: &[Option<Time>], rows: usize, windows_max: u64) -> Option<f64> {
        let time = (*times.get(class(rows)?)?)?;
        // Less than twice as many rows take less than twice as long.
        (self.windows - time.window < windows_max)
            .then(|| time.seconds * (rows as f64 / time.rows as f64).max(1.0))
    }
}

/// The power of two next to a number of rows; nothing for none.
fn class(rows: usize) -> Option<usize> {
    Some((rows + rows / 2).checked_ilog2()? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What came of a prompt that was read beside sequences that write.
    struct Reading {
        /// In all.
        seconds: f64,
        /// Of the prompt alone, in whole chunks.
        alone_s: f64,
        /// Windows, of each of which every sequence that writes has a token.
        windows: usize,
        /// Of those that write, without a prompt.
        write_s: f64,
        /// Windows that took longer than [`SLOWER_MAX`] windows of those that write.
        long: usize,
        /// Of the longest of these.
        longest_s: f64,
    }

    fn read(
        tokens: usize,
        writing: usize,
        chunk_tokens: usize,
        seconds: impl Fn(usize, usize) -> f64,
    ) -> Reading {
        let mut pace = Pace::new(chunk_tokens);
        let mut left = tokens;
        let alone_s =
            (0..tokens).step_by(chunk_tokens).map(|at| seconds(0, chunk_tokens.min(tokens - at))).sum();
        let write_s = seconds(writing, 0);
        let mut reading = Reading { seconds: 0.0, alone_s, windows: 0, write_s, long: 0, longest_s: 0.0 };
        while left > 0 {
            let rows = pace.prompt_rows(writing, left);
            assert!(rows + writing <= chunk_tokens.max(writing + 1), "{rows} rows");
            let took = seconds(writing, rows);
            pace.took(writing, rows, took);
            left -= rows;
            reading.seconds += took;
            reading.windows += 1;
            reading.long += usize::from(took > SLOWER_MAX * write_s);
            reading.longest_s = reading.longest_s.max(took);
        }
        reading
    }

    /// A dense model: one pass over the weights, and time for each row.
    fn dense(writing: usize, rows: usize) -> f64 {
        0.050 + 0.001 * writing as f64 + 0.008 * rows as f64
    }

    /// 256 experts, 8 for a row, most of them on a slow disk: hardly more for 512 rows than for 64.
    fn sparse(writing: usize, rows: usize) -> f64 {
        let touched = 1.0 - (1.0 - 8.0 / 256.0f64).powi((writing + rows) as i32);
        0.050 + 16.0 * touched + 0.002 * rows as f64
    }

    fn check(reading: &Reading) {
        // Of the last window it is not yet given back what it took too long.
        let (tokens, seconds) = (reading.windows as f64, reading.seconds - reading.longest_s);
        assert!(tokens * SLOWER_MAX * reading.write_s >= seconds, "{tokens} tokens in {seconds} s");
        assert!(reading.seconds <= 2.0 * reading.alone_s, "{} of {} s", reading.seconds, reading.alone_s);
    }

    /// A prompt of 20,000 tokens gave the others a token with every 512 of its own: 4 s for each.
    #[test]
    fn who_writes_has_a_token_after_four_windows_at_most() {
        for writing in [1, 3, 8] {
            let reading = read(20_000, writing, 512, dense);
            check(&reading);
            // A whole chunk and one that turns out too large are tried once in a while, and no other.
            assert!(reading.long <= 4, "{} long windows", reading.long);
        }
    }

    /// Where a small chunk takes nearly as long as a large one, small ones would read a prompt at a tenth of its speed.
    #[test]
    fn prompts_stay_fast_where_rows_share_what_they_read() {
        for writing in [1, 8] {
            check(&read(20_000, writing, 512, sparse));
        }
    }

    #[test]
    fn prompts_alone_are_read_in_whole_chunks() {
        let reading = read(5000, 0, 512, dense);
        assert_eq!(reading.windows, 10);
        assert_eq!(Pace::new(512).prompt_rows(0, 30), 30);
        // More write than a window is planned for: prompts still go on.
        let mut pace = Pace::new(4);
        assert_eq!(pace.prompt_rows(6, 100), 0, "how long they take alone is not known");
        pace.took(6, 0, 1.0);
        assert_eq!(pace.prompt_rows(6, 100), 1);
    }

    /// A first window that took long, as when pages are touched for the first time, was the measure for all others.
    #[test]
    fn times_are_forgotten() {
        let mut pace = Pace::new(512);
        pace.took(1, 0, 10.0);
        for window in 0..1000 {
            let rows = pace.prompt_rows(1, 1000);
            pace.took(1, rows, dense(1, rows));
            assert!(window < 8 * WRITING_WINDOWS_MAX || rows <= 32, "{rows} rows in window {window}");
        }
    }

    /// Sequences that write have the time that a long window took from them, and no more.
    #[test]
    fn what_a_long_window_took_is_given_back() {
        let mut pace = Pace::new(512);
        pace.took(2, 0, 1.0);
        assert_eq!(pace.prompt_rows(2, 1000), 510, "how long a whole chunk takes is not known");
        pace.took(2, 510, 10.0);
        // Three tokens in 12 s, in place of four seconds for each.
        for _ in 0..2 {
            assert_eq!(pace.prompt_rows(2, 1000), 0);
            pace.took(2, 0, 1.0);
        }
        assert_ne!(pace.prompt_rows(2, 1000), 0);
        // Once they have ended there is nobody to give anything back to.
        pace.took(2, 16, 100.0);
        pace.took(0, 512, 100.0);
        assert_ne!(pace.prompt_rows(2, 1000), 0);
    }
}
