//! Reading keys of one architecture.

use gguf::ModelFile;

use crate::error::LoadError;

/// Metadata under one architecture's prefix, with the sanity limits every key shares.
pub(super) struct Keys<'a> {
    file: &'a ModelFile,
    prefix: &'a str,
}

/// No dimension, count or length of a model is larger. Products of two such sizes fit into 64 bits with room for a sum.
const SIZE_MAX: u64 = 1 << 31;
/// No model has more layers, trunk and draft together.
const LAYERS_MAX: usize = 4096;
/// No model has more residual streams.
const STREAMS_MAX: usize = 16;
/// No projection of a layer has more columns: indices into a row of products fit into 32 bits.
const COLUMNS_MAX: usize = 1 << 31;

impl<'a> Keys<'a> {
    pub fn new(file: &'a ModelFile, prefix: &'a str) -> Keys<'a> {
        Keys { file, prefix }
    }

    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A positive size.
    pub fn size(&self, key: &str) -> Result<usize, LoadError> {
        self.optional_size(key)?
            .filter(|&n| n > 0)
            .ok_or_else(|| LoadError::MissingKey { key: self.full(key), wanted: "a positive integer" })
    }

    /// `block_count`: layers in the file, the draft layer's included.
    pub fn layers(&self) -> Result<usize, LoadError> {
        let layers = self.size("block_count")?;
        self.require("block_count", layers <= LAYERS_MAX, &format!("at most {LAYERS_MAX}"), layers)?;
        Ok(layers)
    }

    /// `hyper_connection.count`: residual streams.
    pub fn streams(&self) -> Result<usize, LoadError> {
        let streams = self.size("hyper_connection.count")?;
        let wanted = format!("between 1 and {STREAMS_MAX}");
        self.require("hyper_connection.count", streams <= STREAMS_MAX, &wanted, streams)?;
        Ok(streams)
    }

    /// Fails with a sentence about `key` unless a row of products may have that many columns.
    pub fn require_columns(&self, key: &str, columns: usize) -> Result<(), LoadError> {
        let found = format!("too large ({columns} columns in a projection)");
        self.require(key, columns <= COLUMNS_MAX, &format!("at most {COLUMNS_MAX}"), found)
    }

    /// A size, zero included. An array of equal values counts as that value.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let Some(values) = self.optional_integers(key)? else { return Ok(None) };
        let Some(&first) = values.first() else { return Ok(None) };
        if values.iter().any(|&v| v != first) {
            return Err(LoadError::BadKey {
                key: self.full(key),
                wanted: "one value for all layers".into(),
                found: listed(&values),
            });
        }
        if first > SIZE_MAX {
            return Err(LoadError::BadKey {
                key: self.full(key),
                wanted: format!("at most {SIZE_MAX}"),
                found: first.to_string(),
            });
        }
        Ok(Some(first as usize))
    }

    /// Non-negative integers (booleans count as 0 and 1); a scalar counts as an array of one.
    pub fn optional_integers(&self, key: &str) -> Result<Option<Vec<u64>>, LoadError> {
        let full = self.full(key);
        let Some(values) = self.file.metadata.integers(&full)? else { return Ok(None) };
        values
            .into_iter()
            .map(|v| {
                u64::try_from(v).map_err(|_| LoadError::BadKey {
                    key: full.clone(),
                    wanted: "no negative number".into(),
                    found: v.to_string(),
                })
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Some)
    }

    pub fn integers(&self, key: &str, len: usize) -> Result<Vec<u64>, LoadError> {
        let values = self
            .optional_integers(key)?
            .ok_or_else(|| LoadError::MissingKey { key: self.full(key), wanted: "an array of integers" })?;
        if values.len() != len {
            return Err(LoadError::BadKey {
                key: self.full(key),
                wanted: format!("{len} values"),
                found: format!("{} values", values.len()),
            });
        }
        Ok(values)
    }

    pub fn float(&self, key: &str) -> Result<f32, LoadError> {
        self.optional_float(key)?
            .ok_or_else(|| LoadError::MissingKey { key: self.full(key), wanted: "a number" })
    }

    /// A finite number.
    pub fn optional_float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let full = self.full(key);
        match self.file.metadata.float(&full)? {
            Some(value) if !value.is_finite() => Err(LoadError::BadKey {
                key: full,
                wanted: "a finite number".into(),
                found: value.to_string(),
            }),
            value => Ok(value),
        }
    }

    pub fn optional_string(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        Ok(self.file.metadata.string(&self.full(key))?)
    }

    /// Fails with a sentence about `key` unless `holds`.
    pub fn require(
        &self,
        key: &str,
        holds: bool,
        wanted: &str,
        found: impl ToString,
    ) -> Result<(), LoadError> {
        match holds {
            true => Ok(()),
            false => Err(LoadError::BadKey {
                key: self.full(key),
                wanted: wanted.into(),
                found: found.to_string(),
            }),
        }
    }
}

/// The values for a sentence: the first few of a long list.
pub(super) fn listed(values: &[u64]) -> String {
    const SHOWN: usize = 16;
    match values.len() {
        0..=SHOWN => format!("{values:?}"),
        len => format!("{:?} and {} more", &values[..SHOWN], len - SHOWN),
    }
}
