//! One file from the hub to the disk, however often the connection breaks.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use ureq::http::header;

use super::fault::Fault;
use super::http::{Answer, Client};
use super::hub::{Content, RemoteFile};
use super::part::{BLOCK_BYTES, Part};
use crate::error::Error;
use crate::output::size;

/// Tries in a row that bring nothing.
pub const TRIES_MAX: u32 = 5;

/// A try that brought so much counts as none that failed.
const PROGRESS_BYTES: u64 = 1 << 16;

/// Longest pause between two tries, seconds.
const PAUSE_MAX_S: u64 = 60;

/// How files are fetched.
pub struct Download<'a> {
    /// Whom to ask.
    pub client: &'a Client,
    /// Lets time pass.
    pub wait: &'a dyn Fn(Duration),
}

/// Why a try ended without the whole file.
enum Ended {
    /// Another try may bring the rest.
    Early(Fault),
    /// No other try can help.
    ForGood(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::ForGood(error)
    }
}

impl Download<'_> {
    /// Brings the rest of a file, checks it and gives it its name. `came` is told how many bytes are here.
    ///
    /// # Errors
    /// [`Error::Pull`] and [`Error::Io`]; what has come stays for the next pull, unless it is worth nothing.
    pub fn file(
        &self,
        address: &str,
        file: &RemoteFile,
        target: &Path,
        came: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let mut part = Part::open(target, file, came)?;
        if part.len() > 0 {
            tracing::info!("going on with {} from {}", file.path.as_str(), size(part.len()));
        }
        let mut failures = 0;
        loop {
            let before = part.len();
            let fault = match self.attempt(address, file, &mut part, came) {
                Ok(()) => match checked(&mut part, file)? {
                    None => return part.finish(),
                    Some(fault) if part.len() > 0 => {
                        part.discard()?;
                        return Err(fault.into());
                    }
                    Some(fault) => fault,
                },
                Err(Ended::Early(fault)) => fault,
                Err(Ended::ForGood(error)) => return Err(error),
            };
            failures = if part.len() >= before + PROGRESS_BYTES { 1 } else { failures + 1 };
            if failures == TRIES_MAX {
                return Err(given_up(fault, file, part.len()).into());
            }
            let pause = pause(&fault, failures);
            tracing::warn!("{fault}: trying again in {} s", pause.as_secs());
            (self.wait)(pause);
        }
    }

    /// One request, and all that it brings.
    fn attempt(
        &self,
        address: &str,
        file: &RemoteFile,
        part: &mut Part,
        came: &mut dyn FnMut(u64),
    ) -> Result<(), Ended> {
        if part.len() == file.size && file.size > 0 {
            return Ok(());
        }
        let mut headers = Vec::new();
        if part.len() > 0 {
            headers.push((header::RANGE, format!("bytes={}-", part.len())));
            headers.extend(part.etag().map(|tag| (header::IF_RANGE, tag.to_owned())));
        }
        let answer = self.client.get(address, &headers).map_err(|fault| match fault {
            Fault::Connection { .. } => Ended::Early(fault),
            fault => Ended::ForGood(fault.into()),
        })?;
        let answer = self.going_on(answer, file, part)?;
        part.begin(answer.header(&header::ETAG))?;
        let mut body = answer.into_reader();
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            let read = match body.read(&mut block) {
                Ok(read) => read,
                Err(error) => return Err(self.broken(&error.to_string())),
            };
            // A server that sends more than it said is caught by the checksum, or here.
            if part.len() + read as u64 > file.size {
                let fault = length(file, part.len() + read as u64);
                part.restart()?;
                return Err(Ended::ForGood(fault.into()));
            }
            if read == 0 && part.len() == file.size {
                return Ok(());
            }
            if read == 0 {
                return Err(self.broken("the connection ended early"));
            }
            part.append(&block[..read])?;
            came(part.len());
        }
    }

    /// The answer, if its bytes go on from where the part ends. Where they begin at the front, so does the part.
    fn going_on(&self, answer: Answer, file: &RemoteFile, part: &mut Part) -> Result<Answer, Ended> {
        if answer.status == 416 {
            part.restart()?;
            return Err(self.broken("the server has no such range of it"));
        }
        let answer = answer.succeeded(&self.client.host(), file.path.as_str()).map_err(|fault| {
            if fault.is_passing() { Ended::Early(fault) } else { Ended::ForGood(fault.into()) }
        })?;
        let total = if answer.status == 206 {
            let range = answer.header(&header::CONTENT_RANGE).and_then(content_range);
            let same = answer.header(&header::ETAG).zip(part.etag()).is_none_or(|(new, old)| new == old);
            match range {
                Some((start, total)) if start == part.len() && same => total,
                _ => {
                    part.restart()?;
                    return Err(self.broken("the server sent another part of it than was asked for"));
                }
            }
        } else {
            if part.len() > 0 {
                tracing::info!("{} begins anew: its server sends all of it only", file.path.as_str());
                part.restart()?;
            }
            answer.header(&header::CONTENT_LENGTH).and_then(|text| text.parse().ok())
        };
        match total {
            Some(total) if total != file.size => Err(Ended::ForGood(length(file, total).into())),
            _ => Ok(answer),
        }
    }

    fn broken(&self, cause: &str) -> Ended {
        Ended::Early(Fault::Connection { host: self.client.host(), cause: cause.to_owned() })
    }
}

/// What is wrong with a file that is here whole. Bytes that were joined from several answers may be of several files: they
/// are thrown away, and one more try is worth it.
fn checked(part: &mut Part, file: &RemoteFile) -> Result<Option<Fault>, Error> {
    let Content::Sha256(wanted) = &file.content else { return Ok(None) };
    let found = part.sha256();
    if found == *wanted {
        return Ok(None);
    }
    if part.is_joined() {
        part.restart()?;
    }
    let file = file.path.as_str().to_owned();
    Ok(Some(Fault::Checksum { file, found, wanted: wanted.clone() }))
}

fn length(file: &RemoteFile, found: u64) -> Fault {
    Fault::Length { file: file.path.as_str().to_owned(), found, wanted: file.size }
}

/// The start and, if known, the total of `bytes START-END/TOTAL`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-')?.0.trim().parse().ok()?;
    Some((start, total.trim().parse().ok()))
}

/// 1, 2, 4, 8 seconds, or what the server asks for.
pub fn pause(fault: &Fault, failures: u32) -> Duration {
    let asked = match fault {
        Fault::Status { retry_after_s, .. } => *retry_after_s,
        _ => None,
    };
    Duration::from_secs(asked.unwrap_or(1 << (failures - 1)).min(PAUSE_MAX_S))
}

fn given_up(fault: Fault, file: &RemoteFile, have: u64) -> Fault {
    match fault {
        Fault::Connection { cause, .. } if have > 0 => {
            Fault::Broken { file: file.path.as_str().to_owned(), have, of: file.size, cause }
        }
        fault => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_say_where_they_start() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for wrong in ["", "bytes */10", "bytes 5", "items 5-9/10", "bytes x-9/10"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
