//! The subcommands of `cargo xtask`, one per file, as a library so that tests reach them.
//!
//! Every function that can fail returns the sentence a person should read. Nothing here is linked into Strata.

#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod answer;
pub mod commands;
pub mod emulate;
pub mod mutate;
pub mod process;
pub mod qualify;
pub mod test;
pub mod tidy;
pub mod workspace;

/// The root of the checkout that this program was built from.
pub fn root() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("xtask lies one folder below the root").to_path_buf()
}
