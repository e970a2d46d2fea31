//! A backend for tests that holds operations to what they declare.

use super::{Backend, Buffers, Pass};
use crate::error::StepError;
use crate::graph::{BufferId, Content, Node};

/// Runs another backend with the memory of every buffer that an operation does not declare filled with NaN, and with the
/// former contents of what it only writes filled likewise. An operation that reads more than it declares gives NaN; one that
/// writes more than it declares is caught.
pub struct Checking<B> {
    inner: B,
}

/// A signalling NaN: arithmetic never makes one, and what it makes of one is a quiet one. So even a value that was
/// changed in place differs from it.
const POISON: f32 = f32::from_bits(0x7f85_a5a5);

impl<B: Backend> Checking<B> {
    /// Checks what `inner` does.
    pub fn new(inner: B) -> Checking<B> {
        Checking { inner }
    }
}

impl<B: Backend> Backend for Checking<B> {
    fn run(
        &mut self,
        node: &Node,
        later: &[Node],
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError> {
        let access = node.op.access();
        let slot = |buffers: &Buffers, id: &BufferId| buffers.spec(*id).slot;
        let slots = |ids: &[BufferId]| ids.iter().map(|id| slot(buffers, id)).collect::<Vec<u16>>();
        let (read, written) = (slots(&access.reads), slots(&access.writes));
        let mut all: Vec<BufferId> = (0..buffers.len() as u16).map(BufferId).collect();
        all.sort_by_key(|id| slot(buffers, id));
        all.dedup_by_key(|id| slot(buffers, id));
        let mut hidden = Vec::new();
        for id in all {
            if read.contains(&slot(buffers, &id)) {
                continue;
            }
            match buffers.spec(id).content {
                Content::Float => {
                    let mut values = buffers.take(id);
                    let saved = values.clone();
                    values.fill(POISON);
                    buffers.put(id, values);
                    hidden.push((id, Some(saved), None));
                }
                Content::Int8 => {
                    let saved = buffers.int8_mut(id).clone();
                    buffers.int8_mut(id).scales_mut().fill(POISON);
                    hidden.push((id, None, Some(saved)));
                }
            }
        }
        let result = self.inner.run(node, later, buffers, pass);
        let intact = |values: &[f32]| values.iter().all(|v| v.to_bits() == POISON.to_bits());
        for (id, float, int8) in hidden {
            if written.contains(&slot(buffers, &id)) {
                continue;
            }
            if let Some(saved) = float {
                let found = buffers.take(id);
                assert!(intact(&found), "{:?} wrote buffer {} without saying so", node.op, id.0);
                buffers.put(id, saved);
            }
            if let Some(saved) = int8 {
                assert!(
                    intact(buffers.int8_mut(id).scales()),
                    "{:?} wrote buffer {} without saying so",
                    node.op,
                    id.0
                );
                *buffers.int8_mut(id) = saved;
            }
        }
        result
    }
}
