//! `strata inspect`: what a model file says about itself.

mod facts;
mod json;
mod text;

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::models;
use crate::output::{Output, size};
use facts::Facts;

/// The arguments of `strata inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata inspect model.gguf
  strata inspect model.gguf --json
  strata inspect model.gguf --tensors
  strata inspect model.gguf --metadata

Only headers are read, so that it takes no longer for a large model. Active parameters are those that the forward pass of one
token uses: all but the experts that were not chosen, the rows of tables that were not looked up, and the draft layer. A
model of an architecture that cannot be run here is told as far as its header goes.")]
pub struct InspectArgs {
    /// A GGUF file, any part of a split one, the folder that holds them, or a name as `strata list` prints it
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Every tensor too: type, shape, bytes, what it is for
    #[arg(long)]
    tensors: bool,
    /// Every key of the header too; of long lists the beginning
    #[arg(long)]
    metadata: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints what the headers say.
///
/// # Errors
/// [`Error::Load`], and those of names and streams.
pub fn inspect(args: &InspectArgs) -> Result<(), Error> {
    let facts = Facts::read(&models::locate(&args.model)?)?;
    if args.json {
        return Output::new().json(&json::document(&facts, args.tensors, args.metadata));
    }
    Output::new().document(|out| {
        text::overview(out, &facts)?;
        text::sums(out, &facts)?;
        if args.tensors {
            text::tensors(out, &facts)?;
        }
        if args.metadata {
            text::metadata(out, &facts)?;
        }
        Ok(())
    })
}

/// A model in one line: its architecture, its size, its files.
///
/// # Errors
/// [`Error::Load`].
pub fn summary(path: &Path) -> Result<String, Error> {
    let facts = Facts::read(path)?;
    let files = match facts.file.shards.len() {
        1 => String::new(),
        count => format!(" in {count} files"),
    };
    Ok(format!("{}, {}, {}{files}", facts.architecture(), text::parameters(&facts), size(facts.file_bytes())))
}
