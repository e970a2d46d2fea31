//! `strata inspect`: what a model file says about itself.

use std::path::Path;

use engine::LoadError;

use crate::error::Error;
use crate::output::size;

/// A model in one line: its architecture, its size, its files.
///
/// # Errors
/// [`Error::Load`].
pub fn summary(path: &Path) -> Result<String, Error> {
    let file = gguf::ModelFile::open(path)
        .map_err(|source| Error::Load { path: path.to_owned(), source: Box::new(LoadError::File(source)) })?;
    let architecture = file.metadata.string("general.architecture").ok().flatten().unwrap_or("unknown");
    let parameters: u64 = file.tensors.iter().map(|tensor| tensor.row_values() * tensor.rows()).sum();
    let bytes: u64 = file.shards.iter().map(|shard| shard.len).sum();
    let files = match file.shards.len() {
        1 => String::new(),
        count => format!(" in {count} files"),
    };
    Ok(format!("{architecture}, {:.2} billion parameters, {}{files}", parameters as f64 / 1e9, size(bytes)))
}
