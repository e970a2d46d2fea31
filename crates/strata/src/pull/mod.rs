//! `strata pull`: a model from the hub into the data folder.

mod choose;
mod download;
pub mod fault;
mod http;
mod hub;
pub mod part;
mod reference;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::error::Error;
use crate::inspect;
use crate::models::data::DataFolder;
use crate::output::{Output, size};
use crate::progress::Progress;
use choose::Offer;
use download::Download;
use fault::Fault;
use http::Client;
use hub::{Content, Listing, RemoteFile};
use part::io_error;
use reference::Reference;

/// The hub where no other is given.
const HUB: &str = "https://huggingface.co";

/// Most bytes of a token's file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The arguments of `strata pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata pull hf:OWNER/REPO
  strata pull hf:OWNER/REPO:Q4_K_M
  strata pull hf:OWNER/REPO@v1.0:model-Q8_0.gguf --json

Files go to models/hf/OWNER/REPO below $STRATA_HOME, else $XDG_DATA_HOME/strata, else ~/.local/share/strata. What has come
stays when a pull is cut off, and the next one goes on from there. Every file's checksum is compared with the hub's.
HF_ENDPOINT names another hub and HF_TOKEN holds an access token, which only the hub itself is shown.

Without :FILE, a repository's only model is pulled; of several, their names and sizes are printed.")]
pub struct PullArgs {
    /// What to pull: hf:OWNER/REPO, with :FILE or :QUANTIZATION and @REVISION where wanted
    #[arg(value_name = "MODEL", value_parser = Reference::parse)]
    model: Reference,
    /// The hub's address [default: HF_ENDPOINT, or the public hub]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// A file that holds an access token, in place of HF_TOKEN
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Pulls and prints what came.
///
/// # Errors
/// [`Error::Pull`], and those of files and streams.
pub fn pull(args: &PullArgs) -> Result<(), Error> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let endpoint = args.endpoint.clone().or_else(|| variable("HF_ENDPOINT")).unwrap_or_else(|| HUB.into());
    let token = match &args.token_file {
        Some(path) => Some(token(&path.display().to_string(), &token_text(path)?)?),
        None => variable("HF_TOKEN").map(|text| token("HF_TOKEN", &text)).transpose()?,
    };
    let data = DataFolder::of_user()?;
    let client = Client::new(&endpoint, token)?;
    let download = Download { client: &client, wait: &std::thread::sleep };
    let listing = with_patience(&download, || hub::list(&client, &args.model))?;
    let offers = choose::offers(listing.files.clone());
    let fitting = choose::fitting(&offers, args.model.file.as_deref());
    let offer = match fitting[..] {
        [one] => one,
        _ => {
            print_offers(&fitting, args.json)?;
            return Err(undecided(&args.model, &offers, &fitting).into());
        }
    };
    let pulled = fetch(&download, &data, &args.model, &listing, offer)?;
    print(args, offer, &pulled)
}

/// Brings all files of a model and gives the path of the first.
fn fetch(
    download: &Download<'_>,
    data: &DataFolder,
    reference: &Reference,
    listing: &Listing,
    offer: &Offer,
) -> Result<PathBuf, Error> {
    if !offer.is_whole() {
        let why = format!("the set of {} lacks files", offer.path());
        let (host, repository) = (download.client.host(), reference.repository.clone());
        return Err(Fault::Listing { host, repository, why }.into());
    }
    let folder = data.repository(&reference.repository);
    fs::create_dir_all(&folder).map_err(io_error("create the folder", &folder))?;
    let target = |file: &RemoteFile| folder.join(file.path.as_str());
    let missing: Vec<&RemoteFile> = offer.files.iter().filter(|file| !is_here(&target(file), file)).collect();
    check_space(&folder, &missing, target)?;
    for file in &offer.files {
        let target = target(file);
        let progress = Progress::bytes(file.path.file_name(), file.size);
        if is_here(&target, file) && is_right(&target, file, &progress)? {
            tracing::info!("{} is here already", target.display());
            continue;
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(io_error("create the folder", parent))?;
        }
        let address =
            hub::file_address(download.client, &reference.repository, &listing.revision, &file.path);
        download.file(&address, file, &target, &mut |bytes| progress.set(bytes))?;
    }
    Ok(target(&offer.files[0]))
}

fn is_here(target: &Path, file: &RemoteFile) -> bool {
    fs::metadata(target).is_ok_and(|meta| meta.is_file() && meta.len() == file.size)
}

/// Whether a file of the right size holds the right bytes, as far as the hub says which they are.
fn is_right(target: &Path, file: &RemoteFile, progress: &Progress) -> Result<bool, Error> {
    match &file.content {
        Content::Blob(_) => Ok(true),
        Content::Sha256(wanted) => {
            let found = part::file_sha256(target, &mut |bytes| progress.set(bytes))?;
            if found != *wanted {
                tracing::warn!("{} is not what the hub has: pulling it again", target.display());
            }
            Ok(found == *wanted)
        }
    }
}

/// What is still to come must find room, and all of it before any.
fn check_space(
    folder: &Path,
    missing: &[&RemoteFile],
    target: impl Fn(&RemoteFile) -> PathBuf,
) -> Result<(), Error> {
    let to_come = |file: &&RemoteFile| {
        let [part, ..] = part::companions(&target(file));
        file.size.saturating_sub(fs::metadata(part).map_or(0, |meta| meta.len()))
    };
    let needed: u64 = missing.iter().map(to_come).sum();
    // A file system that does not say how much it has is tried.
    let Some(free) = free_bytes(folder) else { return Ok(()) };
    if needed > free {
        return Err(Fault::Space { folder: folder.to_owned(), needed, free }.into());
    }
    Ok(())
}

/// Bytes that this user may still write.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Asks a few times where the server only needs a moment.
fn with_patience<T>(download: &Download<'_>, mut ask: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    for failures in 1..download::TRIES_MAX {
        match ask() {
            Err(fault) if fault.is_passing() => {
                let pause = download::pause(&fault, failures);
                tracing::warn!("{fault}: trying again in {} s", pause.as_secs());
                (download.wait)(pause);
            }
            outcome => return outcome,
        }
    }
    ask()
}

fn undecided(reference: &Reference, offers: &[Offer], fitting: &[&Offer]) -> Fault {
    const SHOWN: usize = 12;
    let repository = reference.repository.clone();
    match (fitting.first(), &reference.file) {
        (Some(first), _) => {
            Fault::Several { repository, count: fitting.len(), example: first.path().to_owned() }
        }
        (None, Some(wanted)) if !offers.is_empty() => Fault::NoSuchFile {
            repository,
            wanted: wanted.clone(),
            names: offers.iter().take(SHOWN).map(|offer| offer.path().to_owned()).collect(),
        },
        _ => Fault::NoModel(repository),
    }
}

fn print_offers(offers: &[&Offer], as_json: bool) -> Result<(), Error> {
    if offers.is_empty() {
        return Ok(());
    }
    if as_json {
        let offer = |offer: &&Offer| json!({"file": offer.path(), "bytes": offer.bytes()});
        return Output::new().json(&json!({"choices": offers.iter().map(offer).collect::<Vec<_>>()}));
    }
    Output::new().document(|out| {
        offers.iter().try_for_each(|offer| writeln!(out, "{:>10}  {}", size(offer.bytes()), offer.path()))
    })
}

fn print(args: &PullArgs, offer: &Offer, first: &Path) -> Result<(), Error> {
    let name = format!("{}:{}", args.model.repository, offer.path());
    if args.json {
        let file = |file: &RemoteFile| {
            let sha256 = match &file.content {
                Content::Sha256(sum) => Some(sum),
                Content::Blob(_) => None,
            };
            json!({"file": file.path.as_str(), "bytes": file.size, "sha256": sha256})
        };
        return Output::new().json(&json!({
            "name": name,
            "path": first,
            "bytes": offer.bytes(),
            "files": offer.files.iter().map(file).collect::<Vec<_>>(),
        }));
    }
    let summary = inspect::summary(first)?;
    Output::new().document(|out| {
        writeln!(out, "{name} is here: {summary}")?;
        writeln!(out, "Answer a prompt with it: strata run -m '{name}' -p TEXT")
    })
}

fn token_text(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    fs::File::open(path)
        .and_then(|file| file.take(TOKEN_BYTES_MAX).read_to_string(&mut text))
        .map_err(io_error("read", path))?;
    Ok(text)
}

/// A token may be sent as part of a header's line.
fn token(whence: &str, text: &str) -> Result<String, Fault> {
    let text = text.trim();
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then(|| text.to_owned()).ok_or_else(|| Fault::Token(whence.to_owned()))
}
