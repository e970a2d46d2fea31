//! The GGUF file format, read from bytes that nobody vouches for.
//!
//! [`ModelFile::open`] takes a file, any shard of a split model, or a folder that holds one model, reads the headers
//! only, and answers with the metadata and, for every tensor, its type, shape and byte range. A range that it hands
//! out lies inside its file, starts at a multiple of at least [`ALIGNMENT_MIN`] bytes and overlaps no other; whoever
//! maps or reads the files can rely on that. Mapping them is not done here.
//!
//! Versions 2 and 3 in little-endian order are read. Every count, length and offset is checked against the bytes that
//! the file really has before anything is allocated for it, and every value is asked for by type
//! ([`Metadata::integer`] and its siblings), so that a file that lies is refused with a sentence that names the key or
//! tensor.
//!
//! The format is described in the ggml project, `docs/gguf.md`; type numbers and sizes are those of `ggml.h` and
//! `ggml-common.h`.
#![forbid(unsafe_code)]

mod error;
mod header;
mod metadata;
mod split;
mod tensor;
pub mod write;

pub use error::{Error, Fault};
pub use header::{ALIGNMENT_DEFAULT, ALIGNMENT_MAX, ALIGNMENT_MIN, HEADER_BYTES_MAX, KEYS_MAX, TENSORS_MAX};
pub use metadata::{Array, Metadata, StringArray, Value};
pub use split::{ModelFile, SHARDS_MAX, Shard, ShardName};
pub use tensor::{TensorInfo, TensorType};
