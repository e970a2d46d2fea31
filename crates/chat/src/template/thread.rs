//! A thread for what an untrusted template makes the engine do.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::Error;

/// The engine recurses over the parts of a template and of values. What the limits of both leave fits into 16 MB, as the
/// tests of the longest chains show; this is four times that. Only what is touched
/// becomes memory.
const STACK_BYTES: usize = 64 << 20;

/// Runs `work` on a thread with a deep stack and waits for it, for at most `time_max`.
///
/// A thread that takes longer is left to itself, until it has used up its steps.
///
/// # Errors
/// If the thread cannot be started, or it takes too long.
///
/// # Panics
/// If `work` does.
pub(super) fn run<T: Send + 'static>(
    time_max: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (sender, receiver) = sync_channel(1);
    let thread = Builder::new()
        .name("template".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            // Nobody waits any more if this fails.
            let _ = sender.send(work());
        })
        .map_err(|error| Error::TemplateThread { reason: error.to_string() })?;
    match receiver.recv_timeout(time_max) {
        Ok(result) => Ok(result),
        Err(RecvTimeoutError::Timeout) => Err(Error::TemplateTime { seconds: time_max.as_secs_f64() }),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(()) => unreachable!("a thread that does not panic sends"),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}
