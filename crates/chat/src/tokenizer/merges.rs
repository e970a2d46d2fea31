//! The merges of byte-level BPE: which two tokens join into which.

use super::merger::{NONE, Rules};

/// One rule: its left token is implied by where it is stored.
#[derive(Debug, Clone, Copy)]
struct Rule {
    right: u32,
    rank: u32,
    merged: u32,
}

/// The merge rules, grouped by their left token, sorted by the right one.
///
/// Sorted groups and not a hash table: the file, which is not trusted, cannot choose keys that make it slow.
#[derive(Debug)]
pub(super) struct Merges {
    /// Where the group of each left token starts; one more entry for the end.
    starts: Vec<u32>,
    rules: Vec<Rule>,
}

impl Merges {
    /// Rules `(left, right, merged)` in the order of their rank; of equal pairs the first counts.
    /// Ids are below `vocabulary_len`, which is below `u32::MAX`.
    pub(super) fn new(rules: &[(u32, u32, u32)], vocabulary_len: usize) -> Merges {
        let mut starts = vec![0u32; vocabulary_len + 1];
        for &(left, _, _) in rules {
            starts[left as usize + 1] += 1;
        }
        for at in 0..vocabulary_len {
            starts[at + 1] += starts[at];
        }
        let mut place = starts.clone();
        let mut grouped = vec![Rule { right: NONE, rank: NONE, merged: NONE }; rules.len()];
        for (rank, &(left, right, merged)) in rules.iter().enumerate() {
            let at = &mut place[left as usize];
            grouped[*at as usize] = Rule { right, rank: rank as u32, merged };
            *at += 1;
        }
        for group in starts.windows(2) {
            grouped[group[0] as usize..group[1] as usize]
                .sort_unstable_by_key(|rule| (rule.right, rule.rank));
        }
        Merges { starts, rules: grouped }
    }

    /// Rank and result of joining two tokens.
    fn get(&self, left: u32, right: u32) -> Option<Rule> {
        let group = &self.rules[self.starts[left as usize] as usize..self.starts[left as usize + 1] as usize];
        let at = group.partition_point(|rule| rule.right < right);
        group.get(at).copied().filter(|rule| rule.right == right)
    }
}

impl Rules for Merges {
    type Symbol = u32;

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        self.get(left, right).map(|rule| rule.rank)
    }

    fn join(&self, left: u32, right: u32) -> u32 {
        self.get(left, right).expect("a ranked pair has a rule").merged
    }
}

#[cfg(test)]
mod tests {
    use super::super::merger::Merger;
    use super::*;
    use proptest::prelude::*;

    /// The definition: look through the whole word for the lowest rank, again and again.
    fn merge_slowly(rules: &[(u32, u32, u32)], mut ids: Vec<u32>) -> Vec<u32> {
        loop {
            let pairs = ids.windows(2).enumerate();
            let ranked = pairs.filter_map(|(at, pair)| {
                rules.iter().position(|rule| (rule.0, rule.1) == (pair[0], pair[1])).map(|rank| (rank, at))
            });
            let Some((rank, at)) = ranked.min() else { return ids };
            ids.splice(at..at + 2, [rules[rank].2]);
        }
    }

    proptest! {
        #[test]
        fn the_queue_gives_what_the_definition_gives(
            rules in prop::collection::vec((0u32..6, 0u32..6, 0u32..6), 0..12),
            ids in prop::collection::vec(0u32..6, 0..24),
        ) {
            // Pairs that merge into a token that merges again, and duplicates, are among the random rules.
            let mut merger = Merger::new();
            let mut out = Vec::new();
            merger.merge(&Merges::new(&rules, 6), ids.iter().copied(), |id| out.push(id));
            prop_assert_eq!(out, merge_slowly(&rules, ids.clone()));
            prop_assert!(merger.queued <= 3 * ids.len() as u64);
        }
    }
}
