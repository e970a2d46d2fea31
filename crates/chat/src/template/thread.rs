//! A thread for what an untrusted template makes the engine do.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use crate::Error;

/// The engine recurses over long expressions and deep values, some 450 bytes of stack for each byte of source and each
/// level: 60 MB for the longest source, 170 MB for the deepest value that the fuel pays for. Only what is touched
/// becomes memory.
const STACK_BYTES: usize = 256 << 20;

/// Runs `work` on a thread with a deep stack and waits for it, for at most `time_max`.
///
/// A thread that takes longer cannot be stopped; it is left to itself.
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
