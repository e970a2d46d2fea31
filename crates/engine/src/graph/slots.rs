//! Which buffers may lie in the same memory.

use super::{BufferId, BufferSpec, Domain, Segment, TapSource};

/// Gives every buffer a slot such that buffers of one slot never hold something at the same time. A buffer holds something
/// from the operation that writes all of it to the last one that reads it, both included; `kept` do to the end of the
/// pass, and have slots of their own. `experts_used` weighs rows of [`Domain::Assignments`] against those of the window.
pub(super) fn assign(
    segments: &[Segment],
    buffers: &mut [BufferSpec],
    kept: &[BufferId],
    experts_used: usize,
) {
    let held = held(segments, buffers.len());
    let size = |spec: &BufferSpec| {
        let rows = if spec.domain == Domain::Assignments { experts_used.max(1) } else { 1 };
        rows * spec.width
    };
    // The largest first: what comes later fits into memory that is there anyway.
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(size(&buffers[i])));
    let mut slots: Vec<Option<Slot>> = Vec::new();
    for i in order {
        let content = buffers[i].content;
        let fits = |slot: &Option<Slot>| {
            slot.as_ref().is_some_and(|slot| {
                slot.content == content
                    && slot.busy.iter().zip(&held[i]).all(|(&busy, &held)| !(busy && held))
            })
        };
        let found = (!kept.contains(&BufferId(i as u16))).then(|| slots.iter().position(fits)).flatten();
        let slot = found.unwrap_or_else(|| {
            let own = kept.contains(&BufferId(i as u16));
            slots.push((!own).then(|| Slot { content, busy: vec![false; held[i].len()] }));
            slots.len() - 1
        });
        if let Some(slot) = &mut slots[slot] {
            slot.busy.iter_mut().zip(&held[i]).for_each(|(busy, &held)| *busy |= held);
        }
        buffers[i].slot = slot as u16;
    }
}

/// Memory that several buffers share; none for one that is kept to itself.
struct Slot {
    content: super::Content,
    /// At which operations one of them holds something.
    busy: Vec<bool>,
}

/// For each buffer the operations, in order, at which it holds something.
fn held(segments: &[Segment], buffers: usize) -> Vec<Vec<bool>> {
    let nodes = || segments.iter().flat_map(|segment| &segment.nodes);
    let mut held = vec![vec![false; nodes().count()]; buffers];
    // Since when, and up to when so far.
    let mut since: Vec<Option<(usize, usize)>> = vec![None; buffers];
    for (at, node) in nodes().enumerate() {
        let access = node.op.access();
        for &BufferId(id) in &access.writes {
            if !access.reads.contains(&BufferId(id)) {
                since[id as usize] = Some((at, at));
            }
            held[id as usize][at] = true;
        }
        let tapped = node.taps.iter().filter_map(|tap| match tap.source {
            TapSource::Buffer(id) | TapSource::Columns(id, ..) => Some(id),
            _ => None,
        });
        for BufferId(id) in access.reads.iter().copied().chain(tapped) {
            let (first, last) = since[id as usize].expect("a buffer is written before it is read");
            held[id as usize][last..=at].fill(true);
            since[id as usize] = Some((first, at));
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Part;
    use crate::graph::{Content, Node, Op};

    fn spec(width: usize, content: Content) -> BufferSpec {
        BufferSpec { width, domain: Domain::Window, content, slot: 0 }
    }

    fn add(x: u16, y: u16) -> Op {
        Op::Add { x: BufferId(x), y: BufferId(y) }
    }

    fn copy(x: u16, out: u16) -> Op {
        Op::Gather { parts: vec![BufferId(x)], runs: Vec::new().into(), out: BufferId(out) }
    }

    fn slots(ops: Vec<Op>, buffers: &mut [BufferSpec], kept: &[BufferId]) -> Vec<u16> {
        let nodes = ops.into_iter().map(|op| Node { part: Part::Residual, op, taps: Vec::new() }).collect();
        assign(&[Segment { nodes, experts_of: None }], buffers, kept, 1);
        buffers.iter().map(|spec| spec.slot).collect()
    }

    #[test]
    fn what_is_never_in_use_together_shares() {
        let hidden = Op::Hidden { out: BufferId(0) };
        // 0 -> 1 -> 2 -> 3: a buffer and the next one are in use together, the one after that is not.
        let chain = vec![hidden.clone(), copy(0, 1), copy(1, 2), copy(2, 3)];
        let mut buffers = [8, 6, 4, 2].map(|width| spec(width, Content::Float));
        assert_eq!(slots(chain.clone(), &mut buffers, &[]), [0, 1, 0, 1]);
        // What is kept lies alone.
        assert_eq!(slots(chain.clone(), &mut buffers, &[BufferId(2)]), [0, 1, 2, 0]);
        // Codes and floats are not of one kind.
        buffers[2].content = Content::Int8;
        assert_eq!(slots(chain, &mut buffers, &[]), [0, 1, 2, 0]);
        // 0 is added to after 1 and 2 were made of it; it holds something all the while.
        let mut buffers = [8, 6, 4].map(|width| spec(width, Content::Float));
        assert_eq!(
            slots(vec![hidden.clone(), copy(0, 1), copy(1, 2), add(0, 2)], &mut buffers, &[]),
            [0, 1, 2]
        );
        // 1 is written anew: between its two lives 2 may lie there.
        let mut buffers = [8, 6, 4].map(|width| spec(width, Content::Float));
        let ops = vec![hidden, copy(0, 1), add(0, 1), copy(0, 2), add(0, 2), copy(0, 1), add(0, 1)];
        assert_eq!(slots(ops, &mut buffers, &[]), [0, 1, 1]);
    }
}
