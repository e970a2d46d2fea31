//! The forward pass of the model's own draft layer.

use gguf::TensorType;

use super::build::Builder;
use super::{Domain, Graph, Op};
use crate::models::{DraftSpec, ModelSpec, TensorId};

/// Cell p joins the trunk's residual at p with the token at p + 1 and predicts the token at p + 2.
pub fn draft(spec: &ModelSpec, draft: &DraftSpec, dtype: &dyn Fn(TensorId) -> TensorType) -> Graph {
    let mut b = Builder::new(spec, dtype);
    let (n, flat) = (spec.width, spec.streams * spec.width);
    let embedding = b.buffer("embedding", Domain::Window, n);
    b.push(Op::Embed { table: spec.embedding, out: embedding });
    let e = b.buffer("draft embedding", Domain::Window, n);
    let eps = spec.norm_eps;
    b.push(Op::Norm { x: embedding, out: e, gamma: draft.embedding_norm, groups: 1, shared: false, eps });
    let hidden = b.buffer("hidden", Domain::Window, flat);
    b.push(Op::Hidden { out: hidden });
    let h = b.buffer("draft hidden", Domain::Window, flat);
    // One norm over all streams: the streams keep their relative sizes, which the draft layer was trained with.
    b.push(Op::Norm { x: hidden, out: h, gamma: draft.hidden_norm, groups: 1, shared: false, eps });
    let pairs = b.buffer("draft pairs", Domain::Window, 2 * flat);
    b.push(Op::Pair { e, h, out: pairs });
    let input = b.input(pairs, &[&draft.combine]);
    let residual = b.linear(&draft.combine, input, "residual");
    b.tap_buffer("fused", residual);
    b.layer(residual, &draft.layer, &mut super::layers::Slots::default());
    let outputs = b.buffer("output residual", Domain::Outputs, flat);
    b.push(Op::TakeOutputs { x: residual, out: outputs });
    b.head(outputs, &draft.output_read, "final")
}
