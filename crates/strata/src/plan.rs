//! `strata plan`: what goes where in memory, part by part, without loading anything.

use engine::memory::{self, Machine, Part, Place, Plan, PlanOptions, Shapes};
use serde_json::json;

use crate::args::PlanArgs;
use crate::error::Error;
use crate::output::Output;
use crate::prepare;

/// Prints the plan.
///
/// # Errors
/// Those of the model's headers, [`Error::DoesNotFit`], and those of the streams.
pub fn plan(args: &PlanArgs) -> Result<(), Error> {
    let path = || args.model.model.clone();
    let file = prepare::file(&args.model)?;
    let shapes = Shapes::of_file(&file, None)
        .map_err(|source| Error::Load { path: path(), source: Box::new(source) })?;
    let machine = match args.memory {
        Some(bytes) => Machine { source: "as --memory says".into(), ..Machine::invented(bytes) },
        None => Machine::here(),
    };
    let options = PlanOptions {
        context_tokens: args.ctx,
        kv: args.kv,
        sequences: args.parallel,
        chunk_tokens: args.chunk,
        loading: args.weights,
        ..PlanOptions::default()
    };
    let plan = memory::plan(&shapes, &machine, &options)
        .map_err(|refusal| Error::DoesNotFit { path: path(), refusal })?;
    match args.json {
        true => Output::new().json(&object(&plan)),
        false => Output::new().document(|out| write!(out, "{plan}")),
    }
}

fn object(plan: &Plan) -> serde_json::Value {
    let part = |part: &Part| {
        let place = match part.place {
            Place::Process => "process",
            Place::Mapped { .. } => "mapped",
        };
        json!({
            "name": part.kind.name(),
            "bytes": part.bytes,
            "place": place,
            "cached_bytes": part.cached_bytes(),
            "reason": part.reason,
        })
    };
    json!({
        "parts": plan.parts.iter().map(part).collect::<Vec<_>>(),
        "total_bytes": plan.bytes(),
        "process_bytes": plan.process_bytes(),
        "cached_bytes": plan.cached_bytes(),
        "reread_bytes_per_token": plan.reread_bytes_per_token,
        "available_bytes": plan.machine.available_bytes,
        "available_source": plan.machine.source,
        "memory_bytes": plan.machine.total_bytes,
        "context_tokens": plan.context_tokens,
        "context_reason": plan.context_reason,
        "kv": plan.options.kv.name(),
        "parallel": plan.options.sequences,
        "chunk_tokens": plan.options.chunk_tokens,
        "weights": plan.options.loading.name(),
    })
}
