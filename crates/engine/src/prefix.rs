//! What was read before, so that nothing is read twice.
//!
//! A conversation that was read lies here as a *branch*: its tokens, and states at some points of them. A prompt goes on
//! from the state that shares the most tokens with it. Layers that only attend can go on from any token before a point, by
//! leaving out cells; recurrent ones only from a point itself, so points are made where prompts are likely to part: at the
//! ends of messages, and in between at distances that grow towards the beginning.
//!
//! Points share blocks of cells with each other and with the sequences that run. What they hold, each block once, is
//! never more than the budget: the point that was not used for longest goes first, and a point that does not fit at all is
//! not kept. Whoever goes on from a point has a copy of its own, so making room never takes away what was just found.

use std::collections::HashMap;
use std::sync::Arc;

use sys::arena::lease_bytes;

use crate::saved::Conversation;
use crate::state::State;

/// States of conversations, within a budget of bytes.
pub(crate) struct PrefixCache {
    branches: Vec<Branch>,
    bytes_max: usize,
    /// What points hold for themselves, and branches.
    own_bytes: usize,
    /// Blocks of cells by address: how many points hold each.
    blocks: HashMap<usize, usize>,
    block_bytes: usize,
    /// Counts uses.
    clock: u64,
}

/// A conversation.
struct Branch {
    tokens: Arc<[u32]>,
    /// Whether all of it was handed out by [`PrefixCache::unsaved`].
    saved: bool,
    /// By length, ascending.
    points: Vec<Point>,
}

struct Point {
    /// Shared with the thread that writes it to disk, never changed.
    state: Arc<State>,
    used: u64,
}

impl Point {
    fn tokens(&self) -> usize {
        self.state.tokens()
    }
}

/// How far a point of a branch goes into a prompt.
struct Reach {
    tokens: usize,
    point: usize,
    branch: usize,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// States.
    pub points: usize,
    /// Their bytes, shared ones once.
    pub bytes: usize,
}

impl PrefixCache {
    /// An empty cache; with 0 bytes it stays empty.
    pub fn new(bytes_max: usize) -> PrefixCache {
        PrefixCache {
            branches: Vec::new(),
            bytes_max,
            own_bytes: 0,
            blocks: HashMap::new(),
            block_bytes: 0,
            clock: 0,
        }
    }

    /// What it holds.
    pub fn counts(&self) -> PrefixCounts {
        let points = self.branches.iter().map(|branch| branch.points.len()).sum();
        PrefixCounts { points, bytes: self.bytes() }
    }

    fn bytes(&self) -> usize {
        self.own_bytes + self.blocks.len() * self.block_bytes
    }

    /// True where nothing is ever kept.
    pub fn is_off(&self) -> bool {
        self.bytes_max == 0
    }

    /// A state that has read the longest beginning of `prompt` there is, short of its last token, whose row gives the
    /// first logits. It is the caller's own.
    pub fn find(&mut self, prompt: &[u32]) -> Option<State> {
        let Reach { tokens, point, branch } = self.reach(prompt)?;
        self.clock += 1;
        let points = &mut self.branches[branch].points;
        // What a conversation began with is in use as long as the conversation is.
        points[..=point].iter_mut().for_each(|point| point.used = self.clock);
        let mut state = State::clone(&points[point].state);
        if state.tokens() > tokens {
            state.cut(tokens);
        }
        Some(state)
    }

    /// How many tokens [`PrefixCache::find`] would answer with.
    pub fn known(&self, prompt: &[u32]) -> usize {
        self.reach(prompt).map_or(0, |reach| reach.tokens)
    }

    /// The conversation that has most in common with `prompt`, whether it has a state there or not: how many tokens, and how
    /// many it has itself.
    pub fn nearest(&self, prompt: &[u32]) -> Option<(usize, usize)> {
        let nearest =
            self.branches.iter().map(|branch| (common_prefix(&branch.tokens, prompt), branch.tokens.len()));
        nearest.max_by_key(|&(common, _)| common)
    }

    fn reach(&self, prompt: &[u32]) -> Option<Reach> {
        let most = prompt.len().checked_sub(1)?;
        let reach = |branch: &Branch| {
            let common = common_prefix(&branch.tokens, prompt).min(most);
            let before = branch.points.partition_point(|point| point.tokens() <= common);
            let cut = branch.points.get(before).filter(|point| common > 0 && point.state.can_be_cut());
            match (cut, before.checked_sub(1)) {
                (Some(_), _) => Some((common, before)),
                (None, Some(last)) => Some((branch.points[last].tokens(), last)),
                (None, None) => None,
            }
        };
        let reached = self.branches.iter().enumerate().filter_map(|(branch, of)| {
            let (tokens, point) = reach(of)?;
            Some(Reach { tokens, point, branch })
        });
        // The longest; among equals one that needs no cut, then the latest.
        reached.max_by_key(|&Reach { tokens, point, branch }| {
            (tokens, self.branches[branch].points[point].tokens() == tokens, branch)
        })
    }

    /// Keeps a state that has read `tokens`.
    pub fn keep(&mut self, tokens: &[u32], state: State) {
        assert_eq!(tokens.len(), state.tokens(), "a state is of the tokens that it has read");
        if tokens.is_empty() || self.is_off() {
            return;
        }
        self.block_bytes = lease_bytes(state.layout().block_bytes);
        let blocks = state.block_addresses().count() * self.block_bytes;
        if POINT_BYTES + state.own_bytes() + blocks + size_of_val(tokens) > self.bytes_max {
            return;
        }
        self.clock += 1;
        let used = self.clock;
        // Whatever it began with is as much in use as it is.
        for branch in &mut self.branches {
            let common = common_prefix(&branch.tokens, tokens);
            let begins = branch.points.iter_mut().take_while(|point| point.tokens() <= common);
            begins.for_each(|point| point.used = used);
        }
        let at = self.branch_of(tokens);
        let points = &mut self.branches[at].points;
        let place = points.partition_point(|point| point.tokens() < tokens.len());
        // It is there already, or can be cut off a longer one: asking again would take the place of others.
        let as_good = |point: &&mut Point| point.tokens() == tokens.len() || point.state.can_be_cut();
        if let Some(point) = points.get_mut(place).filter(as_good) {
            point.used = used;
            return;
        }
        let cuts = state.can_be_cut();
        self.hold(&state);
        self.branches[at].points.insert(place, Point { state: Arc::new(state), used });
        self.thin(at, place, cuts);
        // The new one itself is free to go, so this ends within the budget.
        while self.bytes() > self.bytes_max && self.evict() {}
    }

    /// Lets go of what was not used for longest; false if nothing is left. What is being written to disk stays: letting go of it
    /// would free nothing.
    pub fn evict(&mut self) -> bool {
        let all = self.branches.iter().enumerate().flat_map(|(branch, Branch { points, .. })| {
            let free = |(_, point): &(usize, &Point)| Arc::strong_count(&point.state) == 1;
            points.iter().enumerate().filter(free).map(move |(at, point)| (point.used, branch, at))
        });
        // Of points used together those in the middle go first; then the first one, which other conversations may share;
        // the last one is where the conversation goes on.
        let rank = |branch: usize, at: usize| match at {
            at if at + 1 == self.branches[branch].points.len() => 2,
            0 => 1,
            _ => 0,
        };
        let oldest = all.min_by_key(|&(used, branch, at)| (used, rank(branch, at), at));
        let Some((_, branch, at)) = oldest else { return false };
        self.remove(branch, at);
        true
    }

    fn remove(&mut self, branch: usize, at: usize) {
        let Point { state, .. } = self.branches[branch].points.remove(at);
        self.release(&state);
        let Branch { tokens, points, .. } = &mut self.branches[branch];
        // Nobody goes on from tokens behind the last point.
        let known = points.last().map_or(0, Point::tokens);
        if known < tokens.len() {
            self.own_bytes -= (tokens.len() - known) * size_of::<u32>();
            *tokens = tokens[..known].into();
        }
        if points.is_empty() {
            self.branches.swap_remove(branch);
        }
    }

    /// Whether there is something that was not handed out to be saved.
    pub fn has_unsaved(&self) -> bool {
        self.branches.iter().any(|branch| !branch.saved)
    }

    /// A conversation as it is now, but for those that were handed out before.
    pub fn unsaved(&mut self) -> Option<Conversation> {
        let branch = self.branches.iter_mut().find(|branch| !branch.saved)?;
        branch.saved = true;
        let states = branch.points.iter().map(|point| point.state.clone()).collect();
        Some(Conversation { tokens: branch.tokens.clone(), states })
    }

    /// The branch that these tokens lie on, which grows where they go on from it. One that was cut off where these go on
    /// becomes a part of it.
    fn branch_of(&mut self, tokens: &[u32]) -> usize {
        let mut points = Vec::new();
        let mut whole: Arc<[u32]> = tokens.into();
        let (on, apart): (Vec<Branch>, Vec<Branch>) = self.branches.drain(..).partition(|branch| {
            common_prefix(&branch.tokens, &whole) == branch.tokens.len().min(whole.len()) && {
                if branch.tokens.len() > whole.len() {
                    whole = branch.tokens.clone();
                }
                true
            }
        });
        self.branches = apart;
        for mut branch in on {
            self.own_bytes -= size_of_val(&*branch.tokens);
            points.append(&mut branch.points);
        }
        self.own_bytes += size_of_val(&*whole);
        points.sort_by_key(Point::tokens);
        self.branches.push(Branch { tokens: whole, points, saved: false });
        self.branches.len() - 1
    }

    /// Removes points that are not worth their bytes, now that one came to `place`: where states can be cut all those before
    /// it; else every one whose neighbours lie closer together than a quarter of the way from there to the end.
    fn thin(&mut self, branch: usize, place: usize, cuts: bool) {
        if cuts {
            (0..place).rev().for_each(|at| self.remove(branch, at));
            return;
        }
        let mut at = 1;
        while at + 1 < self.branches[branch].points.len() {
            let points = &self.branches[branch].points;
            let end = points[points.len() - 1].tokens();
            let (before, after) = (points[at - 1].tokens(), points[at + 1].tokens());
            if (after - before) * THINNING <= end - after {
                self.remove(branch, at);
            } else {
                at += 1;
            }
        }
    }

    fn hold(&mut self, state: &State) {
        self.own_bytes += POINT_BYTES + state.own_bytes();
        state.block_addresses().for_each(|block| *self.blocks.entry(block).or_default() += 1);
    }

    fn release(&mut self, state: &State) {
        self.own_bytes -= POINT_BYTES + state.own_bytes();
        for block in state.block_addresses() {
            let held = self.blocks.get_mut(&block).expect("a block of a point is held");
            *held -= 1;
            if *held == 0 {
                self.blocks.remove(&block);
            }
        }
    }
}

/// Points of a recurrent conversation lie so many times closer together than they are far from its end.
const THINNING: usize = 4;

/// What lists of a point take beside its state, an estimate.
const POINT_BYTES: usize = 1024;

/// Tokens between points that are made while a prompt is read.
const DISTANCE_TOKENS: usize = 2048;

/// Fewer tokens than these are read again as quickly as a pass is made for them alone.
pub(crate) const STOP_TOKENS_MIN: usize = 16;

/// Rows at the end of a prompt without messages that come after its last point: the same prompt may be asked again.
const LAST_ROWS: usize = 4;

/// Where reading a prompt of a model with recurrent layers pauses for a point to be made, ascending. Its first `from`
/// tokens are read already; messages end at `boundaries`, ascending.
///
/// The first message is what conversations share; behind the last one comes what invites the answer, and a prompt that
/// says the answer in other words, or leaves the thinking out, parts from this one there. In between a point lies every
/// [`DISTANCE_TOKENS`], at the same places for all prompts.
pub(crate) fn stops(from: usize, prompt_tokens: usize, boundaries: &[usize]) -> Vec<usize> {
    let inside: Vec<usize> =
        boundaries.iter().copied().filter(|&end| end > from && end < prompt_tokens).collect();
    let last = inside.last().copied().or(prompt_tokens.checked_sub(LAST_ROWS));
    let regular = (from / DISTANCE_TOKENS + 1..).map(|n| n * DISTANCE_TOKENS);
    let regular = regular.take_while(|&stop| stop < prompt_tokens);
    let mut stops: Vec<usize> = inside.first().copied().into_iter().chain(last).chain(regular).collect();
    stops.sort_unstable();
    let mut before = from;
    stops.retain(|&stop| {
        let alone = stop > before && Some(stop) == last && before > from;
        let kept = alone || stop >= before + STOP_TOKENS_MIN;
        before = if kept { stop } else { before };
        kept
    });
    stops
}

/// How many tokens two begin with alike.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    // Long runs are compared at once.
    const RUN: usize = 256;
    let runs = a.chunks_exact(RUN).zip(b.chunks_exact(RUN)).take_while(|(a, b)| a == b).count() * RUN;
    runs + a[runs..].iter().zip(&b[runs..]).take_while(|(a, b)| a == b).count()
}
