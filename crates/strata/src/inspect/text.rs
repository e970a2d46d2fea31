//! Facts about a model, for people.

use std::io::{self, Write};

use engine::models::{FeedForward, Mixer, ModelSpec};
use gguf::{Array, Value};

use super::facts::{Facts, Layers, Sum, string};
use crate::output::{plain, size};

/// Letters of a value that are shown.
const VALUE_CHARS: usize = 120;

/// Items of a list that are shown.
const ITEMS: usize = 8;

type Out<'a> = &'a mut dyn Write;

fn line(out: Out<'_>, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{name:<13}{}", plain(text))
}

/// What the model is.
pub fn overview(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    line(out, "architecture", facts.architecture())?;
    if let Some(name) = string(&facts.file.metadata, "general.name") {
        line(out, "name", name)?;
    }
    match &facts.spec {
        Ok(spec) => shape(out, spec)?,
        Err(error) => {
            line(out, "supported", &format!("no: {error}"))?;
            bare_shape(out, facts)?;
        }
    }
    line(out, "parameters", &parameters(facts))?;
    line(out, "weights", &weights(facts))?;
    tokenizer(out, facts)?;
    for (path, bytes) in facts.files() {
        line(out, "file", &format!("{} ({})", path.display(), size(bytes)))?;
    }
    let warnings = facts.spec.iter().flat_map(|spec| &spec.warnings);
    warnings.into_iter().try_for_each(|warning| line(out, "warning", &warning.to_string()))
}

/// How many parameters, and how many of them a token uses.
pub fn parameters(facts: &Facts) -> String {
    let total = count(facts.total().values);
    match facts.active_values() {
        Some(active) => format!("{total} parameters, {} active per token", count(active)),
        None => format!("{total} parameters"),
    }
}

fn weights(facts: &Facts) -> String {
    let active = facts.active_bytes().map_or(String::new(), |b| format!(", {} read per token", size(b)));
    format!("{}{active}, {:.2} bits per weight", size(facts.total().bytes), facts.bits_per_weight())
}

/// A count in the unit in which people speak of parameters.
fn count(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => format!("{number}"),
        1_000..1_000_000 => format!("{:.1} thousand", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} million", value / 1e6),
        _ => format!("{:.2} billion", value / 1e9),
    }
}

fn shape(out: Out<'_>, spec: &ModelSpec) -> io::Result<()> {
    let layers = Layers::of(spec);
    let kinds = [
        (layers.attention, "attention"),
        (layers.delta_net, "delta net"),
        (layers.sparse, "sparse attention"),
        (layers.experts, "experts"),
    ];
    let kinds: Vec<String> = (kinds.iter())
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{count} with {kind}"))
        .collect();
    let draft = if spec.draft.is_some() { ", and a draft layer" } else { "" };
    line(out, "layers", &format!("{}: {}{draft}", layers.all, kinds.join(", ")))?;
    let streams =
        if spec.streams > 1 { format!(", {} residual streams", spec.streams) } else { String::new() };
    line(out, "width", &format!("{}{streams}", spec.width))?;
    let mixers = || spec.layers.iter().map(|layer| &layer.mixer);
    let attention = mixers().find_map(|mixer| match mixer {
        Mixer::Attention(attention) => Some(attention),
        Mixer::DeltaNet(_) => None,
    });
    if let Some(spec) = attention {
        let gated = if spec.gated { ", gated" } else { "" };
        let heads =
            format!("{} heads of {}, {} for keys and values", spec.heads, spec.head_dim, spec.kv_heads);
        line(out, "attention", &format!("{heads}{gated}"))?;
    }
    let delta = mixers().find_map(|mixer| match mixer {
        Mixer::DeltaNet(delta) => Some(delta),
        Mixer::Attention(_) => None,
    });
    if let Some(spec) = delta {
        let (keys, values) = (spec.key_heads, spec.value_heads);
        let heads =
            format!("{keys} heads of {} for keys, {values} of {} for values", spec.key_dim, spec.value_dim);
        line(out, "delta net", &heads)?;
    }
    feed_forward(out, spec)?;
    line(out, "vocabulary", &format!("{} tokens", spec.vocabulary))?;
    line(out, "context", &format!("{} tokens", spec.context_tokens))
}

fn feed_forward(out: Out<'_>, spec: &ModelSpec) -> io::Result<()> {
    let experts = spec.layers.iter().find_map(|layer| match &layer.feed_forward {
        FeedForward::Experts(experts) => Some(experts),
        FeedForward::Dense(_) => None,
    });
    let Some(experts) = experts else { return Ok(()) };
    let shared = if experts.shared.is_some() { ", and one that all tokens use" } else { "" };
    let text = format!(
        "{} a layer, {} used per token, of width {}{shared}",
        experts.experts, experts.used, experts.expert_width
    );
    line(out, "experts", &text)
}

/// What the header says of a model that the engine does not know.
fn bare_shape(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    let keys = [
        ("layers", "block_count"),
        ("width", "embedding_length"),
        ("heads", "attention.head_count"),
        ("experts", "expert_count"),
        ("experts used", "expert_used_count"),
        ("context", "context_length"),
    ];
    for (name, key) in keys {
        if let Some(number) = facts.number(key) {
            line(out, name, &number.to_string())?;
        }
    }
    facts.vocabulary().map_or(Ok(()), |rows| line(out, "vocabulary", &format!("{rows} tokens")))
}

fn tokenizer(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    match facts.tokenizer() {
        None => line(out, "tokenizer", "none")?,
        Some(tokenizer) => {
            let pre = tokenizer.pre.map_or(String::new(), |pre| format!(", pre-tokenizer {pre}"));
            let token = |what: &str, token: &Option<(u64, String)>| {
                token.as_ref().map_or(String::new(), |(id, text)| format!(", {what} {id} `{text}`"))
            };
            let (bos, eos) = (token("BOS", &tokenizer.bos), token("EOS", &tokenizer.eos));
            let text = format!("{}{pre}, {} tokens{bos}{eos}", tokenizer.model, tokenizer.tokens);
            line(out, "tokenizer", &text)?;
        }
    }
    let template = match facts.template() {
        None => "none".to_owned(),
        Some(template) => {
            let says = |what: &str, yes: bool| if yes { format!(", {what}") } else { String::new() };
            let chars = template.chars;
            format!("{chars} letters{}{}", says("tools", template.tools), says("thinking", template.thinking))
        }
    };
    line(out, "template", &template)
}

/// Parameters and bytes by what tensors are for, and by type.
pub fn sums(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    let total = facts.total();
    let by_role = facts.by_role().into_iter().map(|(role, sum)| (role.name(), sum)).collect::<Vec<_>>();
    let by_type = facts.by_type().into_iter().map(|(dtype, sum)| (dtype.name(), sum)).collect::<Vec<_>>();
    for (title, rows) in [("role", by_role), ("type", by_type)] {
        if rows.is_empty() {
            continue;
        }
        writeln!(out, "\n{title:<20} {:>8} {:>16} {:>10} {:>7}", "tensors", "parameters", "bytes", "share")?;
        for (name, sum) in rows.into_iter().chain([("all", total)]) {
            let Sum { tensors, values, bytes } = sum;
            let share = bytes as f64 * 100.0 / total.bytes.max(1) as f64;
            writeln!(out, "{name:<20} {tensors:>8} {values:>16} {:>10} {share:>5.1} %", size(bytes))?;
        }
    }
    Ok(())
}

/// Every tensor.
pub fn tensors(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    writeln!(out, "\n{:<40} {:<8} {:<22} {:>10}  {:<18} file", "tensor", "type", "shape", "bytes", "role")?;
    for (tensor, part) in facts.file.tensors.iter().zip(&facts.parts) {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let (name, bytes) = (plain(&tensor.name), size(tensor.len));
        let file = tensor.shard + 1;
        writeln!(
            out,
            "{name:<40} {:<8} {shape:<22} {bytes:>10}  {:<18} {file}",
            tensor.dtype,
            part.role.name()
        )?;
    }
    Ok(())
}

/// Every key.
pub fn metadata(out: Out<'_>, facts: &Facts) -> io::Result<()> {
    writeln!(out, "\n{:<48} value", "key")?;
    for (key, value) in facts.file.metadata.iter() {
        writeln!(out, "{:<48} {}", plain(key), shown(value))?;
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(array) => list(array),
        Value::U8(n) => n.to_string(),
        Value::I8(n) => n.to_string(),
        Value::U16(n) => n.to_string(),
        Value::I16(n) => n.to_string(),
        Value::U32(n) => n.to_string(),
        Value::I32(n) => n.to_string(),
        Value::U64(n) => n.to_string(),
        Value::I64(n) => n.to_string(),
        Value::F32(n) => n.to_string(),
        Value::F64(n) => n.to_string(),
        Value::Bool(yes) => yes.to_string(),
    };
    let mut cut: String = text.chars().take(VALUE_CHARS).collect();
    if cut.len() < text.len() {
        cut.push_str("...");
    }
    plain(&cut)
}

fn list(array: &Array) -> String {
    let items = first_items(array, ITEMS).join(", ");
    match array.len() {
        len if len > ITEMS => format!("[{items}, and {} more]", len - ITEMS),
        _ => format!("[{items}]"),
    }
}

/// The first items of a list, as texts.
fn first_items(array: &Array, most: usize) -> Vec<String> {
    fn texts<T: ToString>(items: &[T], most: usize) -> Vec<String> {
        items.iter().take(most).map(T::to_string).collect()
    }
    match array {
        Array::U8(items) => texts(items, most),
        Array::I8(items) => texts(items, most),
        Array::U16(items) => texts(items, most),
        Array::I16(items) => texts(items, most),
        Array::U32(items) => texts(items, most),
        Array::I32(items) => texts(items, most),
        Array::U64(items) => texts(items, most),
        Array::I64(items) => texts(items, most),
        Array::F32(items) => texts(items, most),
        Array::F64(items) => texts(items, most),
        Array::Bool(items) => texts(items, most),
        Array::Strings(items) => {
            items.iter().take(most).map(|item| format!("{:?}", String::from_utf8_lossy(item))).collect()
        }
    }
}
