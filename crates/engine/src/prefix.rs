//! What was read before, so that nothing is read twice.
//!
//! A conversation that was read lies here as a *branch*: its tokens, and states at some points of them. A prompt goes on
//! from the state that shares the most tokens with it. Layers that only attend can go on from any token before a point, by
//! leaving out cells; recurrent ones only from a point itself, so points are made where prompts are likely to part: at the
//! ends of messages, and in between at distances that grow towards the beginning.
//!
//! Points share blocks of cells with each other and with the sequences that run. What they hold, each block once, is
//! never more than the budget: the point that was not used for longest goes first, and a point that does not fit at all is
//! not kept. Whoever goes on from a point has a copy of its own, so making room never takes away what was just found, and
//! what those that wait will go on from is pinned: it goes only when a pass would fail otherwise.
//!
//! Where conversations are saved, one that is about to go is handed out to be written first. It stays and counts until it
//! is written, so what is on its way is bounded, by a part of the budget; beyond that conversations are lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kernels::PARTITION_CELLS;
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
    /// Whether conversations are saved.
    saving: bool,
    /// Conversations to be written before they go.
    leaving: Vec<Conversation>,
    /// States that were removed while somebody writes them: they count until that is done.
    written_last: Vec<Arc<State>>,
}

/// A conversation.
struct Branch {
    tokens: Arc<[u32]>,
    /// Whether all of it was handed out by [`PrefixCache::unsaved`].
    saved: bool,
    /// Whether an answer came to its end in what was not.
    due: bool,
    /// By length, ascending.
    points: Vec<Point>,
}

struct Point {
    /// Shared with the thread that writes it to disk, never changed.
    state: Arc<State>,
    used: u64,
    /// Somebody who waits will go on from it.
    pinned: bool,
}

impl Point {
    fn tokens(&self) -> usize {
        self.state.tokens()
    }

    /// True where any beginning of it can be cut off, so that nothing is lost for long if a request that has `tokens` tokens
    /// of it takes it over: a recurrent state is where a conversation can be gone back to, and is worth a copied block.
    fn may_be_taken_over(&self, tokens: usize) -> bool {
        self.state.can_be_cut() && self.tokens() == tokens && self.is_free()
    }

    /// Whether nobody writes it.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.state) == 1
    }
}

impl Branch {
    /// When it was used last.
    fn used(&self) -> u64 {
        self.points.iter().map(|point| point.used).max().unwrap_or(0)
    }

    /// What its points hold; they share all blocks but some of the last ones.
    fn bytes(&self, block_bytes: usize) -> usize {
        let own = self.points.iter().map(|point| POINT_BYTES + point.state.own_bytes());
        let blocks: HashSet<usize> =
            self.points.iter().flat_map(|point| point.state.block_addresses()).collect();
        own.sum::<usize>() + blocks.len() * block_bytes
    }

    fn hand_out(&mut self) -> Conversation {
        (self.saved, self.due) = (true, false);
        let states = self.points.iter().map(|point| point.state.clone()).collect();
        Conversation { tokens: self.tokens.clone(), states }
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
    /// An empty cache; with 0 bytes it stays empty. If it is `saving`, conversations come out of [`PrefixCache::leaving`]
    /// before they go.
    pub fn new(bytes_max: usize, saving: bool) -> PrefixCache {
        PrefixCache {
            branches: Vec::new(),
            bytes_max,
            own_bytes: 0,
            blocks: HashMap::new(),
            block_bytes: 0,
            clock: 0,
            saving,
            leaving: Vec::new(),
            written_last: Vec::new(),
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
    /// first logits. It is the caller's own. Where nobody else is there (`alone`), it takes over the last block of cells of a
    /// point that it will be in the place of anyway, in place of a copy.
    pub fn find(&mut self, prompt: &[u32], alone: bool) -> Option<State> {
        let Reach { tokens, point, branch } = self.reach(prompt)?;
        self.clock += 1;
        let points = &mut self.branches[branch].points;
        // What a conversation began with is in use as long as the conversation is.
        points[..=point].iter_mut().for_each(|point| point.used = self.clock);
        if alone && point + 1 == points.len() && points[point].may_be_taken_over(tokens) {
            return Some(self.take_over(branch));
        }
        let mut state = State::clone(&points[point].state);
        if state.tokens() > tokens {
            state.cut(tokens);
        }
        Some(state)
    }

    /// The last point of a branch, which leaves its whole blocks there until a longer one comes.
    fn take_over(&mut self, branch: usize) -> State {
        let Point { state, used, pinned } = self.branches[branch].points.pop().expect("a point");
        self.release(&state);
        let state = Arc::into_inner(state).expect("nobody else holds it");
        let mut rest = state.clone();
        rest.cut(state.tokens() / PARTITION_CELLS * PARTITION_CELLS);
        let points = &self.branches[branch].points;
        if rest.tokens() > points.last().map_or(0, Point::tokens) {
            self.hold(&rest);
            self.branches[branch].points.push(Point { state: Arc::new(rest), used, pinned });
        }
        self.shorten(branch);
        state
    }

    /// Pins what these prompts will go on from, and nothing else.
    pub fn pin<'a>(&mut self, prompts: impl Iterator<Item = &'a [u32]>) {
        let all = self.branches.iter_mut().flat_map(|branch| &mut branch.points);
        all.for_each(|point| point.pinned = false);
        for prompt in prompts {
            if let Some(Reach { branch, point, .. }) = self.reach(prompt) {
                self.branches[branch].points[point].pinned = true;
            }
        }
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
        self.branches[at].saved = false;
        self.branches[at].points.insert(place, Point { state: Arc::new(state), used, pinned: false });
        self.thin(at, place, cuts);
        self.sweep();
        // The new one itself is free to go, so this ends within the budget.
        while self.bytes() > self.bytes_max && self.evict_of(false) {}
        if self.bytes() > self.bytes_max / SAVED_FROM.1 * SAVED_FROM.0 {
            self.save_oldest();
        }
    }

    /// Lets go of what was not used for longest, of what is pinned last; false if nothing is left. What is being written to
    /// disk stays: letting go of it would free nothing.
    pub fn evict(&mut self) -> bool {
        self.sweep() || self.evict_of(false) || self.evict_of(true)
    }

    fn evict_of(&mut self, pinned: bool) -> bool {
        loop {
            let all = self.branches.iter().enumerate().flat_map(|(branch, Branch { points, .. })| {
                let free = move |(_, point): &(usize, &Point)| point.is_free() && point.pinned == pinned;
                points.iter().enumerate().filter(free).map(move |(at, point)| (point.used, branch, at))
            });
            // Of points used together those in the middle go first; then the first one, which other conversations may
            // share; the last one is where the conversation goes on.
            let rank = |branch: usize, at: usize| match at {
                at if at + 1 == self.branches[branch].points.len() => 2,
                0 => 1,
                _ => 0,
            };
            let oldest = all.min_by_key(|&(used, branch, at)| (used, rank(branch, at), at));
            let Some((_, branch, at)) = oldest else { return false };
            // It goes once it is written, and something else now.
            if !self.hand_out(branch) {
                self.remove(branch, at);
                return true;
            }
        }
    }

    /// Has a branch written that was not; false if there is no need or no room.
    fn hand_out(&mut self, branch: usize) -> bool {
        if !self.saving || self.branches[branch].saved {
            return false;
        }
        let (on_their_way, more) = (self.bytes_on_their_way(), self.branches[branch].bytes(self.block_bytes));
        if on_their_way + more > self.bytes_max / ON_THEIR_WAY {
            tracing::debug!(
                "a part of a conversation of {} tokens goes unsaved: {more} bytes of it and {on_their_way} that are being \
                 written are more than a {ON_THEIR_WAY}th of the budget",
                self.branches[branch].tokens.len()
            );
            return false;
        }
        let conversation = self.branches[branch].hand_out();
        self.leaving.push(conversation);
        true
    }

    /// Has the conversation written that was not used for longest, so that it can go without being lost; never the one that is
    /// used now.
    fn save_oldest(&mut self) {
        let unsaved = self.branches.iter().enumerate().filter(|(_, branch)| !branch.saved);
        let oldest = unsaved.map(|(at, branch)| (branch.used(), at)).min();
        if let Some((used, at)) = oldest
            && used < self.clock
        {
            self.hand_out(at);
        }
    }

    /// Conversations to be written since the last call.
    pub fn leaving(&mut self) -> Vec<Conversation> {
        std::mem::take(&mut self.leaving)
    }

    /// Bytes of what is held by those that write it.
    fn bytes_on_their_way(&self) -> usize {
        let points = self.branches.iter().flat_map(|branch| &branch.points);
        let held = points.filter(|point| !point.is_free()).map(|point| &point.state);
        let (mut own_bytes, mut blocks) = (0, HashSet::new());
        for state in held.chain(&self.written_last) {
            own_bytes += POINT_BYTES + state.own_bytes();
            blocks.extend(state.block_addresses());
        }
        own_bytes + blocks.len() * self.block_bytes
    }

    /// Stops counting what was removed and is written by now; true if that was anything.
    fn sweep(&mut self) -> bool {
        let removed = std::mem::take(&mut self.written_last);
        let (written, writing): (Vec<_>, Vec<_>) =
            removed.into_iter().partition(|state| Arc::strong_count(state) == 1);
        self.written_last = writing;
        written.iter().for_each(|state| self.release(state));
        !written.is_empty()
    }

    fn remove(&mut self, branch: usize, at: usize) {
        let point = self.branches[branch].points.remove(at);
        match point.is_free() {
            true => self.release(&point.state),
            false => self.written_last.push(point.state),
        }
        self.shorten(branch);
    }

    /// Forgets tokens of a branch that no point has read.
    fn shorten(&mut self, branch: usize) {
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

    /// Says that an answer with these tokens came to its end.
    pub fn ended(&mut self, tokens: &[u32]) {
        // Whether its state was kept or not: what was is on the way there.
        let of_it = self.branches.iter_mut().filter(|branch| {
            !branch.saved && {
                let common = common_prefix(&branch.tokens, tokens);
                common == branch.tokens.len().min(tokens.len())
            }
        });
        of_it.for_each(|branch| branch.due = true);
    }

    /// A conversation in which an answer came to its end and that was not handed out since. The one used last comes last: it is the
    /// last to go.
    pub fn due(&mut self) -> Option<Conversation> {
        let due = self.branches.iter_mut().filter(|branch| branch.due);
        Some(due.min_by_key(|branch| branch.used())?.hand_out())
    }

    /// A conversation as it is now, but for those that were handed out before; the one used last first.
    pub fn unsaved(&mut self) -> Option<Conversation> {
        let unsaved = self.branches.iter_mut().filter(|branch| !branch.saved);
        Some(unsaved.max_by_key(|branch| branch.used())?.hand_out())
    }

    /// Says that a conversation lies on disk as it was found here or there.
    pub fn is_saved(&mut self, tokens: &[u32]) {
        let same = self.branches.iter_mut().filter(|branch| *branch.tokens == *tokens);
        same.for_each(|branch| (branch.saved, branch.due) = (true, false));
    }

    /// Lets go of a conversation, of its beginnings and of what went on from it.
    pub fn forget(&mut self, tokens: &[u32]) {
        for at in (0..self.branches.len()).rev() {
            let of = &self.branches[at].tokens;
            if common_prefix(of, tokens) == of.len().min(tokens.len()) {
                (0..self.branches[at].points.len()).rev().for_each(|point| self.remove(at, point));
            }
        }
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
        let saved = matches!(&on[..], [branch] if branch.saved && branch.tokens.len() == whole.len());
        let due = on.iter().any(|branch| branch.due);
        for mut branch in on {
            self.own_bytes -= size_of_val(&*branch.tokens);
            points.append(&mut branch.points);
        }
        self.own_bytes += size_of_val(&*whole);
        points.sort_by_key(Point::tokens);
        self.branches.push(Branch { tokens: whole, points, saved, due });
        self.branches.len() - 1
    }

    /// Removes points that are not worth their bytes, now that one came to `place`: where states can be cut all those before
    /// it; else those of [`next_thin`].
    fn thin(&mut self, branch: usize, place: usize, cuts: bool) {
        if cuts {
            (0..place).rev().for_each(|at| self.remove(branch, at));
            return;
        }
        let lengths = |of: &PrefixCache| of.branches[branch].points.iter().map(Point::tokens).collect();
        let mut points: Vec<usize> = lengths(self);
        let mut at = 1;
        while let Some(thin) = next_thin(&points, at) {
            self.remove(branch, thin);
            (points, at) = (lengths(self), thin);
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

/// What is being written may take this part of the budget.
const ON_THEIR_WAY: usize = 4;

/// From this part of the budget on conversations are written before they must go.
const SAVED_FROM: (usize, usize) = (3, 4);

/// The first of points of these lengths, ascending, from index `from` on (at least 1), whose neighbours lie closer together
/// than a quarter of the way from there to the end.
pub(crate) fn next_thin(points: &[usize], from: usize) -> Option<usize> {
    let end = *points.last()?;
    (from..points.len().saturating_sub(1))
        .find(|&at| (points[at + 1] - points[at - 1]) * THINNING <= end - points[at + 1])
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoadOptions, Model};

    const TOKENS: usize = 3 * PARTITION_CELLS;

    fn state(model: &Model) -> State {
        let mut state = model.new_state().expect("memory");
        let rows: Vec<[i32; 3]> = (0..TOKENS as i32).map(|at| [at; 3]).collect();
        state.open(&rows).expect("memory");
        state.keep(TOKENS);
        state
    }

    /// What went before anybody had written it was lost. Of a conversation an answer of which has ended another path takes care.
    #[test]
    fn nothing_goes_before_it_was_handed_out() {
        let model = Model::load(&oracle::model("q2-tiny-F32"), &LoadOptions::default()).expect("a model");
        let one = TOKENS / PARTITION_CELLS * lease_bytes(model.layout.block_bytes);
        let mut cache = PrefixCache::new(9 * one, true);
        let text = |seed: u32| (0..TOKENS as u32).map(|at| seed + at).collect::<Vec<u32>>();
        let mut written = Vec::new();
        for seed in 0..40 {
            cache.keep(&text(seed), state(&model));
            assert!(cache.bytes() <= 9 * one);
            // Written at once.
            written.extend(cache.leaving().into_iter().map(|conversation| conversation.tokens[0]));
            for seed in 0..=seed {
                let kept = cache.known(&text(seed)) == TOKENS - 1;
                assert!(kept || written.contains(&seed), "{seed} is lost: {written:?}");
            }
        }
        assert!(written.len() >= 30 && written.is_sorted(), "{written:?}");
    }
}
