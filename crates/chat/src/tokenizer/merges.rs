//! Byte-pair merges: which two tokens join into which, and the joining of a word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NONE: u32 = u32::MAX;

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

/// A token of a word being merged; `prev` and `next` are indices of its neighbours.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
    /// Rank of the merge with the next symbol; `NONE` if there is none, or if this symbol is gone.
    rank: u32,
}

/// Room for merging, kept between words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    /// (rank << 32 | index) of possible merges; stale ones are known by their rank no longer being the symbol's.
    queue: BinaryHeap<Reverse<u64>>,
    /// Entries ever queued: the measure of work that the tests bound.
    pub(super) queued: u64,
}

impl Merger {
    /// Joins neighbours, lowest rank first and leftmost among equals, until no rule applies; appends the result to `out`.
    ///
    /// O(n log n) for n `ids`: each merge removes a symbol and queues at most two entries.
    pub(super) fn merge(&mut self, merges: &Merges, ids: impl Iterator<Item = u32>, out: &mut Vec<u32>) {
        self.symbols.clear();
        for (at, id) in ids.enumerate() {
            let at = u32::try_from(at).expect("a word has fewer than 2^32 bytes");
            self.symbols.push(Symbol { id, prev: at.wrapping_sub(1), next: at + 1, rank: NONE });
        }
        let Some(last) = self.symbols.last_mut() else { return };
        last.next = NONE;

        let mut queue = std::mem::take(&mut self.queue).into_vec();
        queue.clear();
        for at in 0..self.symbols.len() as u32 {
            queue.extend(self.rank_pair(merges, at));
        }
        self.queued += queue.len() as u64;
        self.queue = queue.into();
        while let Some(Reverse(entry)) = self.queue.pop() {
            let (rank, at) = ((entry >> 32) as u32, entry as u32);
            if self.symbols[at as usize].rank == rank {
                self.join(merges, at);
            }
        }

        let mut at = 0;
        while at != NONE {
            let symbol = self.symbols[at as usize];
            out.push(symbol.id);
            at = symbol.next;
        }
    }

    /// Joins the symbol `at` with the next one.
    fn join(&mut self, merges: &Merges, at: u32) {
        let symbol = self.symbols[at as usize];
        let gone = self.symbols[symbol.next as usize];
        let rule = merges.get(symbol.id, gone.id).expect("a ranked pair has a rule");
        self.symbols[symbol.next as usize].rank = NONE;
        self.symbols[at as usize].id = rule.merged;
        self.symbols[at as usize].next = gone.next;
        if gone.next != NONE {
            self.symbols[gone.next as usize].prev = at;
        }
        for at in [at, symbol.prev] {
            if at != NONE
                && let Some(entry) = self.rank_pair(merges, at)
            {
                self.queue.push(entry);
                self.queued += 1;
            }
        }
    }

    /// Sets the rank of the symbol `at` and its neighbour; an entry for the queue if they can merge.
    fn rank_pair(&mut self, merges: &Merges, at: u32) -> Option<Reverse<u64>> {
        let symbol = self.symbols[at as usize];
        let rule = self.symbols.get(symbol.next as usize).and_then(|next| merges.get(symbol.id, next.id));
        let rank = rule.map_or(NONE, |rule| rule.rank);
        self.symbols[at as usize].rank = rank;
        rule.map(|_| Reverse((u64::from(rank) << 32) | u64::from(at)))
    }
}

#[cfg(test)]
mod tests {
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
            let mut merger = Merger::default();
            let mut out = Vec::new();
            merger.merge(&Merges::new(&rules, 6), ids.iter().copied(), &mut out);
            prop_assert_eq!(out, merge_slowly(&rules, ids.clone()));
            prop_assert!(merger.queued <= 3 * ids.len() as u64);
        }
    }
}
