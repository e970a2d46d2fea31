//! Which bytes of a segment are leased, and which steps are committed. Numbers only, no memory.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Counters;

/// The state of a segment.
#[derive(Debug)]
pub(super) struct Book {
    /// Free ranges, apart and not touching: first byte to length.
    free: BTreeMap<usize, usize>,
    steps: Vec<Step>,
    step_bytes: usize,
    /// The first so many steps keep their memory once they have it.
    kept_steps: usize,
    leased: usize,
}

/// What is known of the bytes of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// No memory.
    Absent,
    /// Memory of which no lease has come back: free bytes are zero.
    Fresh,
    /// Memory that was leased before: free bytes are anything.
    Used,
}

impl Book {
    /// All of `bytes` bytes, a multiple of the step, free and absent.
    pub fn new(bytes: usize, step_bytes: usize) -> Book {
        let free = (bytes > 0).then_some((0, bytes)).into_iter().collect();
        Book { free, steps: vec![Step::Absent; bytes / step_bytes], step_bytes, kept_steps: 0, leased: 0 }
    }

    /// Steps that begin within the first `bytes` bytes keep their memory from now on. The bytes of these steps.
    pub fn keep(&mut self, bytes: usize) -> Range<usize> {
        self.kept_steps = bytes.div_ceil(self.step_bytes).min(self.steps.len());
        0..self.kept_steps * self.step_bytes
    }

    pub fn counters(&self) -> Counters {
        let committed = self.steps.iter().filter(|step| **step != Step::Absent).count() * self.step_bytes;
        Counters { budget: self.steps.len() * self.step_bytes, committed, leased: self.leased }
    }

    /// The lowest free range of `bytes` bytes, which is free no longer. Looks at free ranges until one is long enough:
    /// the first, where all leases are of one size.
    pub fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        if bytes == 0 {
            return Some(0..0);
        }
        let (&start, &len) = self.free.iter().find(|&(_, &len)| len >= bytes)?;
        self.free.remove(&start);
        if len > bytes {
            self.free.insert(start + bytes, len - bytes);
        }
        self.leased += bytes;
        Some(start..start + bytes)
    }

    /// Runs of steps that a range touches and that have no memory, as bytes.
    pub fn missing(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.runs(self.touched(range), |step| step == Step::Absent)
    }

    /// Notes that these bytes, whole steps, have memory of zeros now.
    pub fn committed(&mut self, bytes: Range<usize>) {
        let steps = self.touched(&bytes);
        self.steps[steps].fill(Step::Fresh);
    }

    /// Notes that these bytes, whole steps, have no memory any more.
    pub fn given_back(&mut self, bytes: Range<usize>) {
        let steps = self.touched(&bytes);
        self.steps[steps].fill(Step::Absent);
    }

    /// The parts of a range that may hold what an earlier lease left.
    pub fn used_before(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let runs = self.runs(self.touched(range), |step| step == Step::Used);
        runs.into_iter().map(|run| run.start.max(range.start)..run.end.min(range.end)).collect()
    }

    /// Frees a range and answers with the runs of steps, as bytes, that are wholly free and have memory.
    pub fn put_back(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        if range.is_empty() {
            return Vec::new();
        }
        for step in self.touched(&range) {
            if self.steps[step] == Step::Fresh {
                self.steps[step] = Step::Used;
            }
        }
        self.leased -= range.len();
        let mut merged = range;
        if let Some((&start, &len)) = self.free.range(..merged.start).next_back() {
            assert!(start + len <= merged.start, "{merged:?} was free already");
            if start + len == merged.start {
                merged.start = start;
            }
        }
        if let Some((&start, &len)) = self.free.range(merged.end..).next()
            && start == merged.end
        {
            self.free.remove(&start);
            merged.end = start + len;
        }
        self.free.insert(merged.start, merged.len());
        let first = merged.start.div_ceil(self.step_bytes).max(self.kept_steps);
        let whole = first..merged.end / self.step_bytes;
        self.runs(whole, |step| step != Step::Absent)
    }

    /// The steps that a range of bytes touches.
    fn touched(&self, bytes: &Range<usize>) -> Range<usize> {
        bytes.start / self.step_bytes..bytes.end.div_ceil(self.step_bytes)
    }

    /// The runs of `steps` for which `is` holds, as bytes.
    fn runs(&self, steps: Range<usize>, is: impl Fn(Step) -> bool) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for step in steps.filter(|&step| is(self.steps[step])) {
            let bytes = step * self.step_bytes..(step + 1) * self.step_bytes;
            match runs.last_mut() {
                Some(run) if run.end == bytes.start => run.end = bytes.end,
                _ => runs.push(bytes),
            }
        }
        runs
    }
}
