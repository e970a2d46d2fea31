//! `strata list`: the models in the data folder.

use serde_json::json;

use crate::error::Error;
use crate::models::data::DataFolder;
use crate::models::stored::Stored;
use crate::output::{Output, plain, size};
use crate::pull::part::size_recorded;

/// The arguments of `strata list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata list
  strata list --json

A name that is printed can be given to -m, as can any part of it that fits no other model: the repository, the file's name,
its stem. What was pulled in part only is listed too.")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints what there is.
///
/// # Errors
/// [`Error::NoDataFolder`], and those of files and streams.
pub fn list(args: &ListArgs) -> Result<(), Error> {
    let data = DataFolder::of_user()?;
    let stored = data.stored()?;
    let total: u64 = stored.iter().map(Stored::bytes).sum();
    if args.json {
        return Output::new().json(&json!({
            "folder": data.root().to_string_lossy(),
            "bytes": total,
            "models": stored.iter().map(model_json).collect::<Vec<_>>(),
        }));
    }
    Output::new().document(|out| {
        for model in &stored {
            writeln!(out, "{:>10}  {}{}", size(model.bytes()), plain(&model.name()), lacking(model))?;
        }
        match stored.len() {
            0 => writeln!(out, "No models in {}; strata pull hf:OWNER/REPO gets one.", data.root().display()),
            _ => writeln!(out, "{:>10}  in {}", size(total), data.root().display()),
        }
    })
}

fn model_json(model: &Stored) -> serde_json::Value {
    json!({
        "name": model.name(),
        "repository": model.repository.as_ref().map(ToString::to_string),
        "path": model.first_path().to_string_lossy(),
        "bytes": model.bytes(),
        "files": model.count,
        "files_whole": model.whole.len(),
        "files_in_part": model.parts.len(),
        "complete": model.is_whole(),
    })
}

/// What a model that is not whole lacks.
fn lacking(model: &Stored) -> String {
    if model.is_whole() {
        return String::new();
    }
    let part = model.parts.first().map(|part| {
        let of = size_recorded(&part.path).map_or(String::new(), |bytes| format!(" of {}", size(bytes)));
        format!("{}{of} of a file", size(part.bytes))
    });
    let files = format!("{} of {} files", model.whole.len(), model.count);
    let told: Vec<String> = (model.count > 1).then_some(files).into_iter().chain(part).collect();
    format!("  (incomplete: {})", told.join(", "))
}
