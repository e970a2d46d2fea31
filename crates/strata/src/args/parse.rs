//! What the values of options may be: each parser says what it wants.

use std::ops::RangeInclusive;

use chat::Thinking;
use engine::{Isa, KvType, Loading, RopeScaling, TEMPERATURE_MAX};
use tracing::Level;

/// Positions are 32-bit numbers.
pub const CONTEXT_MAX: usize = i32::MAX as usize;

/// More than any machine answers at once.
pub const SEQUENCES_MAX: usize = 1 << 16;

/// Rows whose buffers fit no machine.
pub const CHUNK_MAX: usize = 1 << 20;

/// Tokens that nobody waits for.
pub const BENCH_MAX: usize = 1 << 24;

/// A value, or what was wanted.
pub type Parsed<T> = Result<T, String>;

/// A whole number within limits that the user is told.
pub fn in_range(range: RangeInclusive<usize>) -> impl Fn(&str) -> Parsed<usize> + Clone + Send + Sync {
    move |text| {
        let wanted = || format!("a whole number from {} to {} is needed", range.start(), range.end());
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(wanted)
    }
}

/// A token id.
pub fn token(text: &str) -> Parsed<u32> {
    text.trim().parse().map_err(|_| format!("a token id is a whole number from 0 to {}", u32::MAX))
}

/// Any 64-bit number.
pub fn seed(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is needed", u64::MAX))
}

/// An element type of the cache.
pub fn kv_type(name: &str) -> Parsed<KvType> {
    KvType::from_name(name).ok_or_else(|| "f32, f16, int8, k8v4 or q4 is needed".into())
}

/// How positions are scaled.
pub fn rope_scaling(name: &str) -> Parsed<RopeScaling> {
    RopeScaling::from_name(name).ok_or_else(|| "none, linear or yarn is needed".into())
}

/// Whether a model thinks.
pub fn thinking(text: &str) -> Parsed<Thinking> {
    match text {
        "auto" => Ok(Thinking::AsTemplate),
        "off" => Ok(Thinking::Off),
        number => number
            .parse()
            .map(Thinking::Budget)
            .map_err(|_| format!("auto, off or a whole number from 0 to {} is needed", usize::MAX)),
    }
}

/// How weights come into memory, by name.
pub fn loading(name: &str) -> Parsed<Loading> {
    Loading::from_name(name).ok_or_else(|| "moved, mapped or read is needed".into())
}

/// A number of bytes, with or without a unit.
pub fn memory_bytes(text: &str) -> Parsed<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let bytes = digits.parse::<u64>().ok().zip(shift).and_then(|(n, shift)| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("a number of bytes from 0 to {} is needed, such as 32G or 34359738368", u64::MAX)
    })
}

/// An instruction set by name.
pub fn instruction_set(name: &str) -> Parsed<Isa> {
    Isa::from_name(name).ok_or_else(|| "scalar, avx2, avx512 or neon is needed".into())
}

/// A number within limits that the user is told.
pub fn number(range: RangeInclusive<f32>) -> impl Fn(&str) -> Parsed<f32> + Clone + Send + Sync {
    move |text| {
        let wanted = || format!("a number from {} to {} is needed", range.start(), range.end());
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(wanted)
    }
}

/// A temperature that the sampler takes.
pub fn temperature(text: &str) -> Parsed<f32> {
    number(0.0..=TEMPERATURE_MAX)(text)
}

/// A probability.
pub fn fraction(text: &str) -> Parsed<f32> {
    number(0.0..=1.0)(text)
}

/// What is added to the score of a token.
pub fn token_bias(text: &str) -> Parsed<(u32, f32)> {
    let parts = text.split_once('=');
    let bias = parts.and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    let finite = bias.filter(|(_, bias): &(u32, f32)| bias.is_finite());
    finite.ok_or_else(|| "a token id and a number are needed, such as 123=-5.5".into())
}

/// The weight of a message.
pub fn log_level(name: &str) -> Parsed<Level> {
    const LEVELS: [(&str, Level); 5] = [
        ("error", Level::ERROR),
        ("warn", Level::WARN),
        ("info", Level::INFO),
        ("debug", Level::DEBUG),
        ("trace", Level::TRACE),
    ];
    let found = LEVELS.iter().find(|(known, _)| *known == name);
    found.map(|(_, level)| *level).ok_or_else(|| "error, warn, info, debug or trace is needed".into())
}
