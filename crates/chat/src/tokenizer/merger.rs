//! Joining the symbols of a text pair by pair, the best pair first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No symbol, no rank.
pub(super) const NONE: u32 = u32::MAX;

/// Which neighbours join.
pub(super) trait Rules {
    /// A part of the text.
    type Symbol: Copy;

    /// How soon two neighbours join, the lowest rank first, below [`NONE`]; `None` if they do not.
    fn rank(&self, left: Self::Symbol, right: Self::Symbol) -> Option<u32>;

    /// What two neighbours that have a rank become.
    fn join(&self, left: Self::Symbol, right: Self::Symbol) -> Self::Symbol;
}

/// A symbol in the list of those that are left.
#[derive(Debug, Clone, Copy)]
struct Node<S> {
    symbol: S,
    prev: u32,
    next: u32,
    /// Rank of the merge with the next symbol; `NONE` if there is none, or if this symbol is gone.
    rank: u32,
}

/// Room for merging, kept between words.
#[derive(Debug)]
pub(super) struct Merger<S> {
    nodes: Vec<Node<S>>,
    /// (rank << 32 | index) of possible merges; stale ones are known by their rank no longer being the node's. One whose
    /// node has got another partner of the same rank is as good as the new entry: both say the same.
    queue: BinaryHeap<Reverse<u64>>,
    /// Entries ever queued: the measure of work that the tests bound.
    pub(super) queued: u64,
}

impl<S: Copy> Merger<S> {
    pub(super) fn new() -> Merger<S> {
        Merger { nodes: Vec::new(), queue: BinaryHeap::new(), queued: 0 }
    }

    /// Joins neighbours, lowest rank first and leftmost among equals, until no rule applies; what is left goes to `out`.
    ///
    /// O(n log n) for n symbols: each merge removes one and queues at most two entries.
    pub(super) fn merge<R: Rules<Symbol = S>>(
        &mut self,
        rules: &R,
        symbols: impl Iterator<Item = S>,
        mut out: impl FnMut(S),
    ) {
        self.nodes.clear();
        for (at, symbol) in symbols.enumerate() {
            let at = u32::try_from(at).expect("a text has fewer than 2^32 symbols");
            self.nodes.push(Node { symbol, prev: at.wrapping_sub(1), next: at + 1, rank: NONE });
        }
        let Some(last) = self.nodes.last_mut() else { return };
        last.next = NONE;

        let mut queue = std::mem::take(&mut self.queue).into_vec();
        queue.clear();
        for at in 0..self.nodes.len() as u32 {
            queue.extend(self.rank_pair(rules, at));
        }
        self.queued += queue.len() as u64;
        self.queue = queue.into();
        while let Some(Reverse(entry)) = self.queue.pop() {
            let (rank, at) = ((entry >> 32) as u32, entry as u32);
            if self.nodes[at as usize].rank == rank {
                self.join(rules, at);
            }
        }

        let mut at = 0;
        while at != NONE {
            let node = self.nodes[at as usize];
            out(node.symbol);
            at = node.next;
        }
    }

    /// Joins the symbol `at` with the next one.
    fn join<R: Rules<Symbol = S>>(&mut self, rules: &R, at: u32) {
        let node = self.nodes[at as usize];
        let gone = self.nodes[node.next as usize];
        self.nodes[node.next as usize].rank = NONE;
        self.nodes[at as usize].symbol = rules.join(node.symbol, gone.symbol);
        self.nodes[at as usize].next = gone.next;
        if gone.next != NONE {
            self.nodes[gone.next as usize].prev = at;
        }
        for at in [at, node.prev] {
            if at != NONE
                && let Some(entry) = self.rank_pair(rules, at)
            {
                self.queue.push(entry);
                self.queued += 1;
            }
        }
    }

    /// Sets the rank of the symbol `at` and its neighbour; an entry for the queue if they can merge.
    fn rank_pair<R: Rules<Symbol = S>>(&mut self, rules: &R, at: u32) -> Option<Reverse<u64>> {
        let node = self.nodes[at as usize];
        let rank = self.nodes.get(node.next as usize).and_then(|next| rules.rank(node.symbol, next.symbol));
        self.nodes[at as usize].rank = rank.unwrap_or(NONE);
        rank.map(|rank| Reverse((u64::from(rank) << 32) | u64::from(at)))
    }
}
