//! What can go wrong between here and the hub.

use std::path::PathBuf;

use crate::models::repository::Repository;
use crate::output::size;

/// Why a model was not pulled. What had come stays where it is, and the next pull goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No address of a hub.
    #[error("`{0}` is no address of a hub: https://HOST is needed")]
    Address(String),
    /// No token.
    #[error("{0} holds no token: one line of letters, digits and signs is needed")]
    Token(String),
    /// The server cannot be reached, or the connection broke.
    #[error("cannot reach {host}: {cause}; see whether the network works, then pull again")]
    Connection {
        /// Which server.
        host: String,
        /// The network's or the protocol's answer.
        cause: String,
    },
    /// The server does not know who asks.
    #[error(
        "{host} does not show {what} to strangers, or it does not exist: see whether the name is right, and put an \
         access token into HF_TOKEN or give --token-file"
    )]
    Unauthorized {
        /// Which server.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// The server knows who asks and says no.
    #[error(
        "{host} does not let this token have {what}: accept its terms on the hub's page, or use another token"
    )]
    Forbidden {
        /// Which server.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// Not there.
    #[error("{host} has no {what}: see whether the name is right")]
    NotFound {
        /// Which server.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// Any other answer than what was asked for.
    #[error("{host} answered {what} with status {status}; pull again later")]
    Status {
        /// Which server.
        host: String,
        /// What was asked for.
        what: String,
        /// The status.
        status: u16,
        /// Seconds that the server asks to wait.
        retry_after_s: Option<u64>,
    },
    /// The server leads from place to place, or to one that must not be followed.
    #[error("{host} leads to `{to}`, which is not followed")]
    Redirect {
        /// Which server.
        host: String,
        /// Where to.
        to: String,
    },
    /// The list of files cannot be understood.
    #[error(
        "what {host} says about {repository} cannot be used: {why}; see whether it is a hub, or pull another repository"
    )]
    Listing {
        /// Which server.
        host: String,
        /// Of which repository.
        repository: Repository,
        /// What is wrong.
        why: String,
    },
    /// Nothing to pull.
    #[error("{0} holds no GGUF file: look for a repository of the same model whose name ends in GGUF")]
    NoModel(Repository),
    /// Nothing of that name.
    #[error("{repository} has no file `{wanted}`; it has {}", names.join(", "))]
    NoSuchFile {
        /// In which repository.
        repository: Repository,
        /// What was asked for.
        wanted: String,
        /// What there is.
        names: Vec<String>,
    },
    /// More than one.
    #[error(
        "{repository} has {count} models that this fits; say which, as in: strata pull hf:{repository}:{example}"
    )]
    Several {
        /// In which repository.
        repository: Repository,
        /// How many.
        count: usize,
        /// One of them.
        example: String,
    },
    /// The connection broke too often.
    #[error("{file} came only up to {} of {}: {cause}; pull again to go on from there", size(*have), size(*of))]
    Broken {
        /// Which file.
        file: String,
        /// Bytes that are here.
        have: u64,
        /// Bytes that it has.
        of: u64,
        /// What ended the last try.
        cause: String,
    },
    /// Not the bytes that the hub lists.
    #[error("{file} came with the checksum {found} and not {wanted}; it was thrown away: pull again")]
    Checksum {
        /// Which file.
        file: String,
        /// SHA-256 of what came.
        found: String,
        /// What the hub lists.
        wanted: String,
    },
    /// Not as many bytes as the hub lists.
    #[error("{file} has {found} bytes on its server and not {wanted}: the hub has changed it, pull again")]
    Length {
        /// Which file.
        file: String,
        /// What the server has.
        found: u64,
        /// What the hub lists.
        wanted: u64,
    },
    /// The disk is too small.
    #[error("{} needs {} more and has {} free: make room, for which `strata list` and `strata rm` may help", folder.display(), size(*needed), size(*free))]
    Space {
        /// Where it would go.
        folder: PathBuf,
        /// Bytes still to come.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
    /// Somebody else is at it.
    #[error("{} is being pulled by another process: wait for it to end", .0.display())]
    Busy(PathBuf),
}

impl Fault {
    /// 2 what was asked for, 6 the disk, 7 the network and what came over it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Fault::Address(_)
            | Fault::Token(_)
            | Fault::NoModel(_)
            | Fault::NoSuchFile { .. }
            | Fault::Several { .. } => 2,
            Fault::Space { .. } | Fault::Busy(_) => 6,
            _ => 7,
        }
    }

    /// What happened, without what to do about it, for when that is being done.
    pub fn cause(&self) -> String {
        match self {
            Fault::Connection { host, cause } => format!("{host}: {cause}"),
            Fault::Status { host, what, status, .. } => {
                format!("{host} answered {what} with status {status}")
            }
            Fault::Checksum { file, .. } => format!("the parts of {file} that came do not belong together"),
            other => other.to_string(),
        }
    }

    /// Whether the server may answer otherwise in a moment.
    pub fn is_passing(&self) -> bool {
        matches!(self, Fault::Status { status: 408 | 425 | 429 | 500..=599, .. })
    }
}
