//! Where the time of a test goes.

use std::io::{self, Write};

use engine::graph::Part;
use serde_json::{Value, json};

const GIGA: f64 = 1e9;

/// A part of the model in a test.
pub struct PartLine {
    /// Which.
    pub part: Part,
    /// Whether a prompt is read, whose work is multiplications; else it is bytes.
    pub reading: bool,
    /// For one token.
    pub seconds: f64,
    /// Of the time of all parts.
    pub share: f64,
    /// Multiplications by weights, or bytes of weights and state, for one token; 0 where there are none.
    pub work: f64,
    /// Of the bound.
    pub fraction: f64,
}

impl PartLine {
    /// As JSON.
    pub fn json(&self) -> Value {
        let (work, fraction) = match self.reading {
            true => ("products_per_token", "products_fraction"),
            false => ("bytes_per_token", "bandwidth_fraction"),
        };
        let mut value =
            json!({ "part": self.part.name(), "seconds_per_token": self.seconds, "share": self.share });
        if self.work > 0.0 {
            value[work] = self.work.into();
            value[fraction] = self.fraction.into();
        }
        value
    }
}

/// The parts of a test as a table; nothing where none were taken.
pub fn write(out: &mut dyn Write, test: &str, parts: &[PartLine]) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{test:24} {:>9} {:>7} {:>15} {:>9}", "us/token", "share", "work", "of bound")?;
    for line in parts {
        let name = line.part.name();
        write!(out, "  {name:22} {:>9.1} {:>5.1} %", line.seconds * 1e6, line.share * 100.0)?;
        if line.work > 0.0 {
            let unit = if line.reading { "GMAC/s" } else { "GB/s" };
            let rate = line.work / line.seconds.max(1e-12) / GIGA;
            write!(out, " {:>15} {:>7.1} %", format!("{rate:.2} {unit}"), line.fraction * 100.0)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
