//! Choices made on the way: which experts, which cells.

use std::ops::Range;

use kernels::math;

/// The experts chosen for the rows of a window, grouped by expert.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// `(expert, first assignment)`, experts ascending; assignments of an expert are its rows, ascending.
    pub groups: Vec<(u32, usize)>,
    /// Row of each assignment.
    pub rows: Vec<u32>,
    /// Weight of each assignment.
    pub weights: Vec<f32>,
    /// `[rows][used]`: assignments of each row, experts ascending.
    pub by_row: Vec<u32>,
    /// `[rows][used]`: experts of each row, ascending.
    pub experts: Vec<u32>,
    /// Experts per row.
    pub used: usize,
}

impl Routing {
    /// The expert of an assignment.
    pub fn expert_of(&self, assignment: usize) -> u32 {
        self.groups[self.groups.partition_point(|&(_, first)| first <= assignment) - 1].0
    }

    /// Chooses for every row the `used` largest logits, the lower expert first among equals.
    ///
    /// Weights: with m the largest chosen logit, `exp(l - m)` divided by their sum (added in ascending expert), times
    /// `scale`: the softmax over all experts, renormalised over the chosen ones.
    ///
    /// Returns the rows with a NaN; they get the first experts, with weights that are NaN.
    pub fn choose(&mut self, logits: &[f32], experts: usize, used: usize, scale: f32) -> Vec<usize> {
        let rows = logits.len() / experts;
        let mut undecided = Vec::new();
        self.used = used;
        self.experts.clear();
        let mut weights = Vec::with_capacity(rows * used);
        let mut order: Vec<u32> = Vec::with_capacity(experts);
        for row in 0..rows {
            let logits = &logits[row * experts..][..experts];
            if logits.iter().any(|l| l.is_nan()) {
                undecided.push(row);
                self.experts.extend(0..used as u32);
                weights.resize(weights.len() + used, f32::NAN);
                continue;
            }
            order.clear();
            order.extend(0..experts as u32);
            let better = |a: &u32, b: &u32| {
                let (la, lb) = (logits[*a as usize], logits[*b as usize]);
                lb.partial_cmp(&la).expect("no NaN").then(a.cmp(b))
            };
            if used < experts {
                order.select_nth_unstable_by(used, better);
                order.truncate(used);
            }
            order.sort_unstable();
            let max = order.iter().map(|&e| logits[e as usize]).fold(f32::NEG_INFINITY, f32::max);
            let first = weights.len();
            weights.extend(order.iter().map(|&e| math::exp(logits[e as usize] - max)));
            let sum = weights[first..].iter().fold(0.0, |sum, w| sum + w);
            for weight in &mut weights[first..] {
                *weight = *weight / sum * scale;
            }
            self.experts.extend_from_slice(&order);
        }
        self.group(rows, experts, &weights);
        undecided
    }

    /// Sorts assignments by expert, then row.
    fn group(&mut self, rows: usize, experts: usize, weights: &[f32]) {
        let mut first = vec![0usize; experts + 1];
        for &expert in &self.experts {
            first[expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            first[expert + 1] += first[expert];
        }
        self.groups.clear();
        self.groups.extend((0..experts).filter(|&e| first[e] < first[e + 1]).map(|e| (e as u32, first[e])));
        let count = rows * self.used;
        self.rows.clear();
        self.rows.resize(count, 0);
        self.weights.clear();
        self.weights.resize(count, 0.0);
        self.by_row.clear();
        self.by_row.resize(count, 0);
        for (i, &expert) in self.experts.iter().enumerate() {
            let assignment = first[expert as usize];
            first[expert as usize] += 1;
            self.rows[assignment] = (i / self.used) as u32;
            self.weights[assignment] = weights[i];
            self.by_row[i] = assignment as u32;
        }
    }

    /// Number of assignments.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without assignments.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The cells one row attends to, in the order of positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    runs: Vec<Run>,
}

/// Cells one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    end: u32,
    /// Cells of the runs before.
    place: u32,
}

impl Selection {
    /// The blocks of `block_cells` cells with the `kept` best scores (the lower block first among equals), and the
    /// cells behind the last complete block up to `visible`. `room` is overwritten.
    pub fn best_blocks(
        scores: &[f32],
        kept: usize,
        block_cells: usize,
        visible: usize,
        room: &mut Vec<i32>,
    ) -> Selection {
        let mut selection = Selection::default();
        let tail = (scores.len() * block_cells) as u32;
        if kept < scores.len() {
            for_each_best(scores, kept, room, |block| {
                let first = (block * block_cells) as u32;
                selection.push(first, first + block_cells as u32);
            });
        } else if tail > 0 {
            selection.push(0, tail);
        }
        if (tail as usize) < visible {
            selection.push(tail, visible as u32);
        }
        selection
    }

    fn push(&mut self, first: u32, end: u32) {
        match self.runs.last_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => self.runs.push(Run { first, end, place: self.cells() as u32 }),
        }
    }

    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.runs.last().map_or(0, |last| (last.place + last.end - last.first) as usize)
    }

    /// Runs of cells, ascending and apart.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.runs.iter().map(|run| run.first as usize..run.end as usize)
    }

    /// Runs of the cells at some places of the list of all.
    pub fn at_places(&self, places: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let from = self.runs.partition_point(|run| run.place as usize <= places.start).saturating_sub(1);
        let runs = self.runs[from..].iter().take_while(move |run| (run.place as usize) < places.end);
        let within = runs.map(move |run| {
            let cell = |place: usize| run.first as usize + place.saturating_sub(run.place as usize);
            cell(places.start)..cell(places.end).min(run.end as usize)
        });
        within.filter(|cells| !cells.is_empty())
    }
}

/// Scores that stand for one of their groups, for each block that is kept: the more, the fewer blocks are looked at twice.
const GROUPS_PER_KEPT: usize = 4;

/// Calls `take` with the blocks of the `kept` best scores of more, ascending; among equals the lower ones. `room` is overwritten.
///
/// The `kept`-th best of the largest scores of groups is no better than the `kept`-th best of all, so whatever is worse than
/// that is passed over: of 65,536 scores some 600 are left, which are compared with one another.
fn for_each_best(scores: &[f32], kept: usize, room: &mut Vec<i32>, mut take: impl FnMut(usize)) {
    let bound = if scores.len() > GROUPS_PER_KEPT * kept { bound(scores, kept, room) } else { i32::MIN };
    let mut best = Vec::with_capacity(GROUPS_PER_KEPT * kept);
    for (i, scores) in scores.chunks(NEIGHBOURS).enumerate() {
        if scores.iter().fold(false, |any, &score| any | (total_order(score) >= bound)) {
            let keys = scores.iter().map(|&score| total_order(score)).zip(i * NEIGHBOURS..);
            best.extend(keys.filter(|&(key, _)| key >= bound));
        }
    }
    room.clear();
    room.extend(best.iter().map(|&(key, _)| key));
    let (_, &mut least, better) = room.select_nth_unstable(best.len() - kept);
    let mut equals = 1 + better.iter().filter(|&&key| key == least).count();
    for (key, block) in best {
        if key > least || key == least && equals > 0 {
            equals -= usize::from(key == least);
            take(block);
        }
    }
}

/// The `kept`-th best of the largest scores of groups.
fn bound(scores: &[f32], kept: usize, room: &mut Vec<i32>) -> i32 {
    // Groups of scores far from each other: good blocks tend to be neighbours.
    let groups = GROUPS_PER_KEPT * kept;
    room.clear();
    room.resize(groups, i32::MIN);
    for scores in scores.chunks(groups) {
        for (largest, &score) in room.iter_mut().zip(scores) {
            *largest = (*largest).max(total_order(score));
        }
    }
    *room.select_nth_unstable(groups - kept).1
}

/// Scores that are compared with a bound at once.
const NEIGHBOURS: usize = 32;

/// An integer for each f32, in the order of [`f32::total_cmp`].
fn total_order(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_go_to_the_lower_expert() {
        let mut routing = Routing::default();
        routing.choose(&[1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0], 4, 2, 1.0);
        assert_eq!(routing.experts, [1, 2, 0, 1]);
        assert_eq!(routing.groups, [(0, 0), (1, 1), (2, 3)]);
        assert_eq!(routing.rows, [1, 0, 1, 0]);
        assert_eq!(routing.by_row, [1, 3, 0, 2]);
        assert_eq!(routing.weights, [0.5; 4]);
    }

    #[test]
    fn a_nan_names_its_row_and_leaves_the_others_their_choice() {
        let mut routing = Routing::default();
        assert_eq!(routing.choose(&[0.0, 1.0, f32::NAN, 1.0, 0.0, 1.0], 2, 1, 1.0), [1]);
        assert_eq!(routing.experts, [1, 0, 1]);
        assert_eq!(routing.rows, [1, 0, 2]);
        assert!(routing.weights[0].is_nan() && routing.weights[1..] == [1.0; 2]);
    }

    #[test]
    fn equal_scores_go_to_the_lower_block() {
        let selection = Selection::best_blocks(&[0.0, 3.0, 0.0, 0.0, 5.0], 3, 4, 22, &mut Vec::new());
        assert_eq!(selection.runs().collect::<Vec<_>>(), [0..8, 16..22]);
        assert_eq!(selection.cells(), 14);
        assert_eq!(selection.at_places(4..10).collect::<Vec<_>>(), [4..8, 16..18]);
        assert_eq!(selection.at_places(8..9).flatten().collect::<Vec<_>>(), [16]);
        assert_eq!(selection.at_places(10..100).flatten().collect::<Vec<_>>(), [18, 19, 20, 21]);
        assert_eq!(selection.at_places(14..100).count(), 0);
    }

    /// Of many scores most are never compared with one another; equal ones, and best ones side by side, are where that could show.
    #[test]
    fn the_best_of_many_blocks_are_those_of_a_sorted_list() {
        let of = |count: usize, score: &dyn Fn(usize) -> f32| (0..count).map(score).collect::<Vec<f32>>();
        for (count, kept) in [(9, 8), (40, 1), (97, 24), (500, 7), (1000, 100), (1000, 999), (5000, 64)] {
            for scores in [
                of(count, &|i| (i * i * 7919 % 10007) as f32 - 5000.0),
                of(count, &|i| (i * 7919 % 5) as f32),
                of(count, &|i| if i * 31 % 7 == 0 { -0.0 } else { 0.0 }),
                of(count, &|i| (i / 50 * 7919 % 31) as f32),
                of(count, &|i| i as f32),
                of(count, &|i| -(i as f32)),
            ] {
                let mut wanted: Vec<usize> = (0..count).collect();
                wanted.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
                wanted.truncate(kept);
                wanted.sort_unstable();
                let found = Selection::best_blocks(&scores, kept, 1, count, &mut Vec::new());
                assert_eq!(found.runs().flatten().collect::<Vec<_>>(), wanted, "{kept} of {scores:?}");
                for places in wanted.chunks(37).enumerate().map(|(i, chunk)| 37 * i..37 * i + chunk.len()) {
                    let cells: Vec<usize> = found.at_places(places.clone()).flatten().collect();
                    assert_eq!(cells, wanted[places]);
                }
            }
        }
    }
}
