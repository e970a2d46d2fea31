//! The OpenAI API: chat completions, completions, models, and its form of errors.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod error;
mod messages;
pub(crate) mod models;
pub(crate) mod reply;
pub(crate) mod request;
#[cfg(test)]
mod tests;

use crate::fault::{Fault, Kind};
use crate::model::ChatError;

/// A request that the model does not take.
pub(crate) fn refusal(error: &ChatError) -> Fault {
    let message = error.to_string();
    match error {
        ChatError::TooLong { .. } => Fault::new(Kind::ContextExceeded, message),
        ChatError::Sampling(_) => Fault::new(Kind::Invalid, message),
        ChatError::QueueFull => Fault::new(Kind::Busy, message),
        ChatError::Stopped => Fault::new(Kind::Stopping, message),
        ChatError::Failed => Fault::new(Kind::Failed, message),
    }
}

/// An answer that the model cannot finish.
pub(crate) fn failure(message: &str) -> Fault {
    Fault::new(Kind::Failed, message)
}

/// An answer that stopped without an end.
pub(crate) fn no_end() -> Fault {
    Fault::new(Kind::Failed, "the model stopped in the middle of the answer")
}
