//! `strata rm`: takes a model out of the data folder.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::error::Error;
use crate::models::data::DataFolder;
use crate::models::stored::Stored;
use crate::models::{self, parts};
use crate::output::{self, Output, size};
use crate::pull::part::{companions, io_error, lock};

/// The arguments of `strata rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata rm OWNER/REPO:Q4_K_M --yes
  strata rm OWNER/REPO --yes

A repository's name stands for all that was pulled from it. Nothing outside of the data folder is ever removed, and of a link
only the link.")]
pub struct RemoveArgs {
    /// A name as `strata list` prints it, or a part that fits one model only
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Removes the model, after asking.
///
/// # Errors
/// Those of names, [`Error::NotConfirmed`], and those of files and streams.
pub fn remove(args: &RemoveArgs) -> Result<(), Error> {
    let data = DataFolder::of_user()?;
    let stored = data.stored()?;
    let chosen = chosen(&args.name, &stored, data.root())?;
    let bytes: u64 = chosen.iter().map(|model| model.bytes()).sum();
    let names: Vec<String> = chosen.iter().map(|model| model.name()).collect();
    if !args.yes && !confirmed(&format!("Remove {} ({})?", names.join(", "), size(bytes)))? {
        return Err(Error::NotConfirmed { names: names.join(", ") });
    }
    for model in &chosen {
        remove_files(model, data.root())?;
    }
    let freed = format!("{} are free again: {} removed", size(bytes), names.join(", "));
    Output::new().document(|out| writeln!(out, "{}", output::plain(&freed)))
}

/// All of a repository, or the one model of a name.
fn chosen<'a>(name: &str, stored: &'a [Stored], folder: &Path) -> Result<Vec<&'a Stored>, Error> {
    let (repository, file) = parts(name);
    let all: Vec<&Stored> = stored.iter().filter(|model| model.is_of(repository)).collect();
    let owners_agree = all.windows(2).all(|pair| pair[0].repository == pair[1].repository);
    match file {
        None if !all.is_empty() && owners_agree => Ok(all),
        _ => match models::one(name, stored, folder) {
            // No path is taken here.
            Err(Error::UnknownModel { name, folder, nearest }) => {
                Err(Error::NotStored { name, folder, nearest })
            }
            one => one.map(|model| vec![model]),
        },
    }
}

/// Asks on the terminal; nobody there says no.
pub fn confirmed(question: &str) -> Result<bool, Error> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let _ = write!(io::stderr(), "{} [y/N] ", output::plain(question));
    let mut answer = String::new();
    let fault = |source| Error::Io { action: "read", what: "the standard input".into(), source };
    io::stdin().read_line(&mut answer).map_err(fault)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

fn remove_files(model: &Stored, root: &Path) -> Result<(), Error> {
    for file in model.whole.iter().chain(&model.parts) {
        let target = match file.path.extension() {
            Some(extension) if extension == "part" => file.path.with_extension(""),
            _ => file.path.clone(),
        };
        // What was found lies below the root, since no link was followed on the way.
        assert!(target.starts_with(root), "{} is outside", target.display());
        let _lock = lock(&target)?;
        remove_file(&file.path)?;
        for beside in companions(&target) {
            remove_file(&beside)?;
        }
    }
    let folders = model.whole.iter().chain(&model.parts).filter_map(|file| file.path.parent());
    folders.for_each(|folder| remove_empty(folder, root));
    Ok(())
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a folder that has become empty, and those above it, but not the root.
fn remove_empty(folder: &Path, root: &Path) {
    let below = folder.ancestors().take_while(|above| *above != root);
    // The first that holds something ends it.
    let _ = below.map(fs::remove_dir).find(Result::is_err);
}
