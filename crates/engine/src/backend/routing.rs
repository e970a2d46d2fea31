//! Choices made on the way: which experts, which cells.

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

/// The cells one row attends to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Runs `first..end` of cells, ascending and apart.
    pub runs: Vec<(u32, u32)>,
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
            room.clear();
            room.extend(scores.iter().map(|&score| total_order(score)));
            let (_, &mut least, better) = room.select_nth_unstable(scores.len() - kept);
            let mut equals = 1 + better.iter().filter(|&&key| key == least).count();
            for (block, &score) in scores.iter().enumerate() {
                let key = total_order(score);
                if key > least || key == least && equals > 0 {
                    equals -= usize::from(key == least);
                    let first = (block * block_cells) as u32;
                    selection.push(first, first + block_cells as u32);
                }
            }
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
            Some(last) if last.1 == first => last.1 = end,
            _ => self.runs.push((first, end)),
        }
    }

    /// Runs within cells `first..end`.
    pub fn within(&self, first: usize, end: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let start = self.runs.partition_point(|&(_, e)| (e as usize) <= first);
        self.runs[start..]
            .iter()
            .take_while(move |&&(f, _)| (f as usize) < end)
            .map(move |&(f, e)| ((f as usize).max(first), (e as usize).min(end)))
    }
}

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
        assert_eq!(selection.runs, [(0, 8), (16, 22)]);
        assert_eq!(selection.within(4, 18).collect::<Vec<_>>(), [(4, 8), (16, 18)]);
        assert_eq!(selection.within(8, 16).count(), 0);
    }
}
