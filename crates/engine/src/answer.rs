//! The caller's side of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;

use crate::request::{EndReason, Ended, RequestError, RequestEvent};

/// A request's own events. Dropping it cancels the request.
///
/// The last event is [`RequestEvent::Ended`], once, whatever happens to the engine.
#[derive(Debug)]
pub struct Answer {
    events: UnboundedReceiver<RequestEvent>,
    cancelled: Arc<AtomicBool>,
    submitted: Instant,
    /// What the end record would say if the engine broke down now; none once the end was handed out.
    unended: Option<Progress>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    prompt_tokens: usize,
    reused_tokens: usize,
    read_tokens: usize,
    generated_tokens: usize,
    queue_time: Option<Duration>,
    read_time: Option<Duration>,
}

impl Answer {
    /// Of a request that was submitted just now.
    pub(crate) fn new(
        events: UnboundedReceiver<RequestEvent>,
        cancelled: Arc<AtomicBool>,
        submitted: Instant,
        prompt_tokens: usize,
    ) -> Answer {
        let unended = Progress {
            prompt_tokens,
            reused_tokens: 0,
            read_tokens: 0,
            generated_tokens: 0,
            queue_time: None,
            read_time: None,
        };
        Answer { events, cancelled, submitted, unended: Some(unended) }
    }

    /// Stops the answer as soon as the engine hears of it; its end comes as an event.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    /// The next event, waited for; nothing after [`RequestEvent::Ended`].
    ///
    /// # Panics
    /// On a thread that runs asynchronous tasks, which it would hold up.
    pub fn next_blocking(&mut self) -> Option<RequestEvent> {
        self.unended?;
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// As [`Answer::next_blocking`], for asynchronous tasks. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        self.unended?;
        let event = self.events.recv().await;
        Some(self.note(event))
    }

    /// Follows an event; a channel that was closed without an end becomes one.
    fn note(&mut self, event: Option<RequestEvent>) -> RequestEvent {
        let elapsed = self.submitted.elapsed();
        let progress = self.unended.as_mut().expect("no event after the end");
        match &event {
            Some(RequestEvent::Admitted { reused_tokens }) => {
                progress.queue_time = Some(elapsed);
                progress.reused_tokens = *reused_tokens;
            }
            Some(RequestEvent::Read { tokens }) => progress.read_tokens = tokens - progress.reused_tokens,
            Some(RequestEvent::Token(_)) => {
                progress.generated_tokens += 1;
                progress.read_time.get_or_insert(elapsed - progress.queue_time.unwrap_or_default());
            }
            Some(RequestEvent::Ended(_)) | None => {}
        }
        let progress = *progress;
        let event = event.unwrap_or_else(|| RequestEvent::Ended(progress.broken(elapsed)));
        if matches!(event, RequestEvent::Ended(_)) {
            self.unended = None;
        }
        event
    }
}

impl Progress {
    fn broken(self, elapsed: Duration) -> Ended {
        let queue_time = self.queue_time.unwrap_or(elapsed);
        let read_time = self.read_time.unwrap_or(elapsed - queue_time);
        Ended {
            reason: EndReason::Failed(RequestError::EngineGone),
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused_tokens,
            read_tokens: self.read_tokens,
            generated_tokens: self.generated_tokens,
            queue_time,
            read_time,
            write_time: elapsed - queue_time - read_time,
        }
    }
}
