//! Operations touch what they declare, and the checking backend would notice if they did not.

mod support;

use std::sync::Arc;

use engine::backend::{Backend, Buffers, Checking, Cpu, Pass};
use engine::graph::{BufferId, Node, Op};
use engine::stage::{Stage, cpu};
use engine::state::KvType;
use engine::{Model, StepError};
use support::sequences::*;
use support::*;

fn prompt_of(model: &Model) -> Prompt {
    Prompt::random(&model.spec, 11, &mut Random::new(2))
}

fn backend() -> Cpu {
    cpu(2, None).unwrap()
}

#[test]
fn declared_access_is_all_there_is() {
    let files = ["llama-tiny-F32", "q3moe-tiny-F32", "q3next-tiny-F32", "q35-tiny-F32", "q4e-tiny-F32"];
    for file in files.into_iter().chain(["q4e-quant-Q4_K", "q4e-tiny-Q8_0"]) {
        let model = model(&oracle::model(file), KvType::F16);
        let prompt = prompt_of(&model);
        let empty = model.new_state().unwrap();
        let plain = whole(&mut Stage::new(model.clone(), backend()), &prompt, &empty);
        let mut checked = Stage::new(model.clone(), Checking::new(backend()));
        assert!(whole(&mut checked, &prompt, &empty) == plain, "{file}");
        let mut readers = [Reader::new(&prompt, &plain, &empty)];
        step(file, &mut checked, &mut readers, &[Part::draft(0, 4, 2, 2)]);
        step(file, &mut checked, &mut readers, &[Part { outputs: Wanted::None, ..Part::of(0, 1) }]);
        step(file, &mut checked, &mut readers, &[Part { outputs: Wanted::Last, ..Part::of(0, 8) }]);
    }
}

#[test]
fn the_draft_layer_declares_its_access_too() {
    let model = model(&f32_model("q4e-tiny"), KvType::F16);
    let width = model.spec.streams * model.spec.width;
    let mut random = Random::new(1);
    let hidden: Vec<f32> = (0..9 * width).map(|_| random.float()).collect();
    let prompt = Prompt::draft(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &hidden);
    let empty = model.new_draft_state().unwrap();
    let plain = whole(&mut Stage::new(model.clone(), backend()), &prompt, &empty);
    let checked = whole(&mut Stage::new(model.clone(), Checking::new(backend())), &prompt, &empty);
    assert!(checked == plain);
}

/// Does something undeclared at the first sum of two buffers.
struct Undeclared {
    inner: Cpu,
    done: bool,
    what: fn(&Op, BufferId) -> Vec<Op>,
}

impl Backend for Undeclared {
    fn run(
        &mut self,
        node: &Node,
        later: &[Node],
        buffers: &mut Buffers,
        pass: &mut Pass<'_>,
    ) -> Result<(), StepError> {
        let Op::Add { x, y } = node.op else { return self.inner.run(node, later, buffers, pass) };
        if self.done {
            return self.inner.run(node, later, buffers, pass);
        }
        self.done = true;
        let width = buffers.width(x);
        let other = (0..buffers.len() as u16).map(BufferId).find(|&id| {
            let slot = |id: BufferId| buffers.spec(id).slot;
            slot(id) != slot(x)
                && slot(id) != slot(y)
                && buffers.width(id) == width
                && buffers.rows(id) == buffers.rows(x)
        });
        for op in (self.what)(&node.op, other.expect("another buffer of that shape")) {
            self.inner.run(&Node { part: node.part, op, taps: Vec::new() }, &[], buffers, pass)?;
        }
        Ok(())
    }
}

fn logits<B: Backend>(model: &Arc<Model>, backend: B) -> Result<Bits, StepError> {
    let mut window = engine::Window::default();
    let prompt = prompt_of(model);
    prompt.push(&model.spec, &mut window, 0..prompt.len(), &Part::of(0, prompt.len()));
    let mut state = model.new_state().unwrap();
    run(&mut Stage::new(model.clone(), backend), &window, &mut [&mut state])
}

#[test]
#[should_panic(expected = "without saying so")]
fn an_undeclared_write_is_caught() {
    let model = model(&f32_model("llama-tiny"), KvType::F16);
    // In place, so that nothing but the write shows.
    let writes = |op: &Op, other: BufferId| {
        let Op::Add { y, .. } = *op else { unreachable!() };
        vec![op.clone(), Op::Add { x: other, y }]
    };
    let backend = Undeclared { inner: backend(), done: false, what: writes };
    let _ = logits(&model, Checking::new(backend));
}

#[test]
fn an_undeclared_read_shows() {
    let model = model(&f32_model("llama-tiny"), KvType::F16);
    let reads = |op: &Op, other: BufferId| {
        let Op::Add { x, .. } = *op else { unreachable!() };
        vec![op.clone(), Op::Add { x, y: other }]
    };
    let backend = || Undeclared { inner: backend(), done: false, what: reads };
    let plain = logits(&model, backend());
    assert!(plain.is_ok(), "without the check nobody notices");
    let checked = logits(&model, Checking::new(backend()));
    assert!(matches!(checked, Err(StepError::NotFinite { .. })), "{checked:?}");
}
