//! What a service is told to do with saved conversations.

use std::sync::mpsc;
use std::time::Duration;

use thiserror::Error;

use super::{SavedConversation, SavedName};

/// Saved conversations cannot be told of or changed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum SavedError {
    /// The service has no folder for them.
    #[error("no conversations are saved here: the server was started without a folder for them")]
    Off,
    /// No conversation of this model has this name.
    #[error("no conversation {name} of this model is saved")]
    Unknown {
        /// The name.
        name: SavedName,
    },
    /// The file could not be loaded; the log says why.
    #[error("the conversation {name} cannot be loaded")]
    NotLoaded {
        /// The name.
        name: SavedName,
    },
    /// It takes longer, and goes on.
    #[error("saved conversations are still being read or written after {} s", .after.as_secs())]
    StillBusy {
        /// How long it was waited for.
        after: Duration,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped")]
    Stopped,
}

/// About saved conversations. Each has a channel for its answer.
pub(crate) enum Command {
    List(Reply<Vec<SavedConversation>>),
    SaveAll(Reply<()>),
    Restore(SavedName, Reply<usize>),
    Delete(SavedName, Reply<()>),
}

pub(crate) type Reply<T> = mpsc::Sender<Result<T, SavedError>>;

/// Who asked may have left.
pub(crate) fn answer<T>(reply: &Reply<T>, result: Result<T, SavedError>) {
    let _ = reply.send(result);
}
