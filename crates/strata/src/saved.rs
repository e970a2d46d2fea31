//! `strata saved`: the conversations in a folder that `strata serve --state-dir` keeps.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::{SavedConversation, SavedName, delete_saved, list_saved};
use serde_json::json;

use crate::args::parse;
use crate::error::Error;
use crate::output::{Output, plain, size};
use crate::remove::confirmed;

/// The arguments of `strata saved`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  strata saved list --state-dir states
  strata saved list --state-dir states --json
  strata saved delete --state-dir states 0123456789abcdef --yes

A conversation has a file for each model and type of cache that it was had with. Its name changes when it goes on."
)]
pub struct SavedArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List them, the one used last first
    List(ListArgs),
    /// Remove some; a server that is running has them in its memory still
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// The folder, as it was given to `strata serve`
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct DeleteArgs {
    /// The folder, as it was given to `strata serve`
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Names as `strata saved list` prints them
    #[arg(value_name = "NAME", required = true, value_parser = name)]
    names: Vec<SavedName>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

/// Lists or removes.
///
/// # Errors
/// [`Error::NotSaved`], [`Error::NotConfirmed`], and those of files and streams.
pub fn saved(args: &SavedArgs) -> Result<(), Error> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Delete(args) => delete(args),
    }
}

fn name(text: &str) -> parse::Parsed<SavedName> {
    SavedName::parse(text)
        .ok_or_else(|| "sixteen hexadecimal digits are needed, as strata saved list prints them".into())
}

fn stored(folder: &Path) -> Result<Vec<SavedConversation>, Error> {
    list_saved(folder).map_err(|source| Error::Io {
        action: "read",
        what: folder.display().to_string(),
        source,
    })
}

fn list(args: &ListArgs) -> Result<(), Error> {
    let stored = stored(&args.state_dir)?;
    let total: u64 = stored.iter().map(|one| one.bytes).sum();
    if args.json {
        return Output::new().json(&json!({
            "folder": args.state_dir.to_string_lossy(),
            "bytes": total,
            "conversations": stored.iter().map(conversation_json).collect::<Vec<_>>(),
        }));
    }
    let now = SystemTime::now();
    let folder = plain(&args.state_dir.to_string_lossy());
    Output::new().document(|out| {
        for one in &stored {
            let content = one.content.as_ref().map_or_else(
                || "damaged, or of another version".to_owned(),
                |content| {
                    let (tokens, points) = (content.tokens, content.points);
                    format!("{tokens} tokens, {points} states, {}", plain(&content.kv))
                },
            );
            let age = ago(now.duration_since(one.used).unwrap_or_default());
            writeln!(out, "{:>10}  {}  {content}, used {age}", size(one.bytes), one.name)?;
        }
        match stored.len() {
            0 => writeln!(out, "No conversations in {folder}; strata serve --state-dir saves them."),
            _ => writeln!(out, "{:>10}  in {folder}", size(total)),
        }
    })
}

fn conversation_json(one: &SavedConversation) -> serde_json::Value {
    let content = one.content.as_ref();
    json!({
        "name": one.name.to_string(),
        "bytes": one.bytes,
        "used_s": one.used.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        "tokens": content.map(|content| content.tokens),
        "states": content.map(|content| content.points),
        "kv": content.map(|content| &content.kv),
    })
}

/// How long something is past, in the largest unit of which there are two.
fn ago(past: Duration) -> String {
    let seconds = past.as_secs();
    match seconds {
        0..120 => "just now".into(),
        120..7200 => format!("{} minutes ago", seconds / 60),
        7200..172_800 => format!("{} hours ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn delete(args: &DeleteArgs) -> Result<(), Error> {
    let DeleteArgs { state_dir, names, yes } = args;
    let stored = stored(state_dir)?;
    let mut bytes = 0;
    for &name in names {
        let one = stored.iter().find(|one| one.name == name);
        bytes += one.ok_or_else(|| Error::NotSaved { name, folder: state_dir.clone() })?.bytes;
    }
    let listed = names.iter().map(SavedName::to_string).collect::<Vec<_>>().join(", ");
    if !yes && !confirmed(&format!("Remove {listed} ({})?", size(bytes)))? {
        return Err(Error::NotConfirmed { names: listed });
    }
    for &name in names {
        // Gone meanwhile is gone.
        delete_saved(state_dir, name).map_err(|source| Error::Io {
            action: "remove",
            what: format!("{name} in {}", state_dir.display()),
            source,
        })?;
    }
    Output::new().document(|out| writeln!(out, "{} are free again: {listed} removed", size(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_largest_unit() {
        let told = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|s| ago(Duration::from_secs(s)));
        let wanted = [
            "just now",
            "just now",
            "2 minutes ago",
            "119 minutes ago",
            "2 hours ago",
            "47 hours ago",
            "2 days ago",
        ];
        assert_eq!(told, wanted);
    }
}
