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

use ::chat::{ChatEnd, ChatError, ConstraintError, Error, Finish, RequestError, SamplingError, SubmitError};

use crate::fault::{Fault, Kind};

/// A request that the model does not take.
pub(crate) fn refusal(error: &ChatError) -> Fault {
    let message = error.to_string();
    let of_field = |field: &str| Fault::of_field(Kind::Invalid, field, message.clone());
    match error {
        ChatError::Prompt(error) => match **error {
            // The file's fault, and another request helps: a completion.
            Error::NoTemplate => Fault::new(
                Kind::Invalid,
                "the model has no chat template; /v1/completions takes the prompt as it is",
            ),
            Error::TemplateThread { .. } => Fault::new(Kind::Failed, message),
            _ => of_field("messages"),
        },
        ChatError::Constraint(error) => match error {
            ConstraintError::EmptyStop { .. }
            | ConstraintError::TooManyStops { .. }
            | ConstraintError::StopsTooLong { .. } => of_field("stop"),
            ConstraintError::TokenAbsent { .. } | ConstraintError::Marker { .. } => {
                Fault::new(Kind::Failed, message)
            }
        },
        ChatError::Submit(SubmitError::QueueFull { .. }) => Fault::new(Kind::Busy, message),
        ChatError::Submit(SubmitError::Stopped) => Fault::new(Kind::Stopping, message),
        ChatError::Submit(SubmitError::Request(error)) => match error {
            RequestError::PromptTooLong { .. } | RequestError::AnswerTooLong { .. } => {
                Fault::new(Kind::ContextExceeded, message)
            }
            RequestError::EmptyPrompt | RequestError::TokenOutOfRange { .. } => of_field("prompt"),
            RequestError::Sampling(error) => of_field(sampling_field(error)),
            RequestError::Sample(_) | RequestError::Step(_) | RequestError::EngineGone => {
                Fault::new(Kind::Failed, message)
            }
        },
    }
}

fn sampling_field(error: &SamplingError) -> &'static str {
    match error {
        SamplingError::OutOfRange { field, .. }
        | SamplingError::TooMany { field, .. }
        | SamplingError::TokenAbsent { field, .. } => field,
        SamplingError::BiasNotFinite { .. } => "logit_bias",
    }
}

/// Why an answer ended.
///
/// # Errors
/// The model could not finish it.
pub(crate) fn finish(end: &ChatEnd) -> Result<Finish, Fault> {
    match &end.reason {
        // Only its reader gives an answer up, and this one is still reading: the engine was stopped.
        Ok(Finish::Cancelled) => Err(Fault::stopping()),
        Ok(finish) => Ok(*finish),
        Err(failure) => Err(Fault::new(Kind::Failed, failure.to_string())),
    }
}

/// An answer that stopped without an end.
pub(crate) fn no_end() -> Fault {
    Fault::new(Kind::Failed, "the model stopped in the middle of the answer")
}
