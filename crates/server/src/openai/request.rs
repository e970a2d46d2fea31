//! What both kinds of completion are asked with: sampling, limits, stop strings, streaming.

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

use chat::{ChatRequest, Sampling};
use serde_json::value::RawValue;

use crate::fault::{Fault, Kind};
use crate::fields::{self, Fields};

/// Most tokens that may be asked for. More than the context holds is no fault: the answer then ends with it.
pub(super) const TOKENS_MAX: RangeInclusive<u64> = 0..=i32::MAX as u64;

/// What a client wants, in the form that every API is brought into, and how it wants to get it.
#[derive(Debug)]
pub(crate) struct Asked {
    /// To the model.
    pub request: ChatRequest,
    /// In pieces, as they are written.
    pub stream: bool,
    /// With a last piece that says what it took.
    pub stream_usage: bool,
}

/// How tokens are chosen. `defaults` holds where the request says nothing.
pub(super) fn sampling(fields: &Fields<'_>, defaults: &Sampling) -> Result<Sampling, Fault> {
    let mut sampling = defaults.clone();
    let numbers: [(&str, RangeInclusive<f32>, &mut f32); 7] = [
        ("temperature", 0.0..=100.0, &mut sampling.temperature),
        ("top_p", 0.0..=1.0, &mut sampling.top_p),
        ("min_p", 0.0..=1.0, &mut sampling.min_p),
        ("typical_p", 0.0..=1.0, &mut sampling.typical_p),
        ("presence_penalty", -100.0..=100.0, &mut sampling.presence_penalty),
        ("frequency_penalty", -100.0..=100.0, &mut sampling.frequency_penalty),
        ("repetition_penalty", 0.01..=100.0, &mut sampling.repetition_penalty),
    ];
    for (name, range, place) in numbers {
        *place = fields.number(name, range)?.unwrap_or(*place);
    }
    // The name in llama.cpp.
    if let Some(penalty) = fields.number("repeat_penalty", 0.01..=100.0)? {
        sampling.repetition_penalty = penalty;
    }
    let counts = 0..=u64::from(u32::MAX);
    if let Some(top_k) = fields.whole("top_k", counts)? {
        sampling.top_k = top_k as usize;
    }
    if let Some(seed) = seed(fields)? {
        sampling.seed = seed;
    }
    if let Some(biases) = fields.object("logit_bias")? {
        sampling.logit_bias = logit_bias(&biases)?;
    }
    Ok(sampling)
}

/// -1 stands for any, as in llama.cpp.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, Fault> {
    let Some(value) = fields.raw("seed") else { return Ok(None) };
    match (value.get(), fields::whole(value)) {
        ("-1", _) => Ok(None),
        (_, Some(seed)) => Ok(Some(seed)),
        (_, None) => {
            let wanted = format!("a whole number from 0 to {}, or -1 for any", u64::MAX);
            Err(fields.wrong("seed", &wanted, value))
        }
    }
}

/// A seed that nobody chose: nothing but a random number of the operating system's, short enough to be noted down.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().hash_one(0) >> 32
}

fn logit_bias(biases: &Fields<'_>) -> Result<Vec<(u32, f32)>, Fault> {
    let mut found = Vec::new();
    for name in biases.names() {
        // Of a number that has many forms the longest would fill the log, and two would be two biases of one token.
        let token = name.parse().ok().filter(|token: &u32| token.to_string() == name);
        let Some(token) = token else {
            // The name is the client's own text, which a field's name in the log must not be.
            let message =
                format!("`logit_bias` must have token ids as names, whole numbers from 0 to {}", u32::MAX);
            return Err(Fault::of_field(Kind::Invalid, "logit_bias", message));
        };
        found.extend(biases.number(name, -100.0..=100.0)?.map(|bias| (token, bias)));
    }
    // Their order is that of a hash.
    found.sort_unstable_by_key(|&(token, _)| token);
    Ok(found)
}

/// Texts that end the answer.
pub(super) fn stop_strings(fields: &Fields<'_>) -> Result<Vec<String>, Fault> {
    let Some(value) = fields.raw("stop") else { return Ok(Vec::new()) };
    if value.get().starts_with('"') {
        return Ok(vec![fields::text(value, "stop")?]);
    }
    let stops = fields::list(value).ok_or_else(|| fields.wrong("stop", "text or a list of texts", value))?;
    stops.iter().enumerate().map(|(i, stop)| fields::text(stop, &format!("stop[{i}]"))).collect()
}

/// Whether the answer streams, and whether with its usage.
pub(super) fn stream(fields: &Fields<'_>) -> Result<(bool, bool), Fault> {
    let stream = fields.flag("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let usage = options.map(|options| options.flag("include_usage")).transpose()?.flatten().unwrap_or(false);
    Ok((stream, usage))
}

/// A field that may be there as long as it asks for nothing.
pub(super) fn refuse_unless(
    fields: &Fields<'_>,
    name: &str,
    neutral: impl Fn(&RawValue) -> bool,
) -> Result<(), Fault> {
    match fields.raw(name) {
        Some(value) if !neutral(value) => {
            let message = format!("`{}` is not supported yet: leave it out", fields.place(name));
            Err(Fault::of_field(Kind::Unsupported, fields.place(name), message))
        }
        _ => Ok(()),
    }
}

/// What no completion can do yet. A request that wants it is refused: an answer without it would not be the one that was
/// asked for.
pub(super) fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), Fault> {
    for name in ["n", "best_of"] {
        if fields.whole(name, 1..=128)?.is_some_and(|n| n > 1) {
            let message =
                format!("`{name}` above 1 is not supported yet: send the request as often as needed");
            return Err(Fault::of_field(Kind::Unsupported, name, message));
        }
    }
    let constraints =
        ["grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar"];
    for name in constraints.into_iter().chain(["structured_outputs", "web_search_options", "audio"]) {
        refuse_unless(fields, name, |_| false)?;
    }
    refuse_unless(fields, "response_format", |value| {
        let kind =
            Fields::of(value, "response_format").ok().and_then(|format| format.text("type").ok().flatten());
        kind.as_deref() == Some("text")
    })
}
