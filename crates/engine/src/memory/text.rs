//! A plan as text, part by part.

use std::fmt;

use super::{Place, Plan};

/// Bytes for people: `1.50 GiB`, `12.0 MiB`, `3 KiB`, `7 bytes`.
pub fn bytes_text(bytes: u64) -> String {
    const KIB: f64 = 1024.0;
    let b = bytes as f64;
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..0x10_0000 => format!("{:.1} KiB", b / KIB),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", b / KIB / KIB),
        u64::MAX => "unlimited".to_owned(),
        _ => format!("{:.2} GiB", b / KIB / KIB / KIB),
    }
}

/// Two different numbers of bytes, to the byte where they would read the same.
pub(super) fn bytes_text_apart(a: u64, b: u64) -> (String, String) {
    let short = (bytes_text(a), bytes_text(b));
    if a != b && short.0 == short.1 { (format!("{a} bytes"), format!("{b} bytes")) } else { short }
}

fn sequences_text(sequences: usize) -> String {
    match sequences {
        1 => "1 sequence".to_owned(),
        n => format!("{n} sequences"),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            let place = match part.place {
                Place::Process => "process",
                Place::Mapped { .. } => "mapped",
            };
            let (name, bytes) = (part.kind.name(), bytes_text(part.bytes));
            write!(f, "{name:<16} {bytes:>12}  {place:<8} {}", part.reason)?;
            if part.dropped_bytes() > 0 {
                write!(f, "; memory is left for {} of them", bytes_text(part.cached_bytes()))?;
            }
            writeln!(f)?;
        }
        let available = bytes_text(self.machine.available_bytes);
        writeln!(
            f,
            "{:<16} {:>12}  of {available} available: {}",
            "total",
            bytes_text(self.bytes()),
            self.machine.source
        )?;
        writeln!(
            f,
            "{:<16} {:>12}  {}",
            "context",
            format!("{} tokens", self.context_tokens),
            self.context_reason
        )?;
        writeln!(
            f,
            "{:<16} {:>12}  {}",
            "at once",
            sequences_text(self.options.sequences),
            self.sequences_reason
        )?;
        if self.reread_bytes_per_token > 0 {
            writeln!(
                f,
                "warning: the mapped weights are larger than the memory left for them: at worst a token reads {} from the \
                 disk again",
                bytes_text(self.reread_bytes_per_token)
            )?;
        }
        Ok(())
    }
}
