//! One line of the log for each request, when it ends, with its own figures and nothing of what it said.

use std::time::Instant;

use chat::ChatEnd;

use crate::fault::Fault;
use crate::openai;

/// A request on its way to its line. Dropped before it ended, it says that its client has gone.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    path: &'static str,
    stream: bool,
    prompt_tokens: Option<usize>,
    start: Instant,
    ended: bool,
}

impl Record {
    /// A request to `path` begins.
    pub fn new(id: String, path: &'static str) -> Record {
        Record { id, path, stream: false, prompt_tokens: None, start: Instant::now(), ended: false }
    }

    /// The model has taken it.
    pub fn taken(&mut self, stream: bool, prompt_tokens: usize) {
        self.stream = stream;
        self.prompt_tokens = Some(prompt_tokens);
    }

    /// It was answered.
    pub fn answered(&mut self, end: &ChatEnd) {
        self.ended = true;
        let ChatEnd { reason, usage, engine } = end;
        tracing::info!(
            id = self.id,
            path = self.path,
            status = 200,
            stream = self.stream,
            reason = ?reason,
            prompt_tokens = usage.prompt_tokens,
            reused_tokens = usage.reused_tokens,
            completion_tokens = usage.completion_tokens,
            thinking_tokens = usage.thinking_tokens,
            queue_ms = engine.queue_time.as_millis() as u64,
            read_ms = engine.read_time.as_millis() as u64,
            write_ms = engine.write_time.as_millis() as u64,
            ms = self.ms(),
            "answered"
        );
    }

    /// It could not be, or not to the end.
    pub fn failed(&mut self, fault: &Fault) {
        self.ended = true;
        let (id, path, field, ms) = (&self.id, self.path, fault.field.as_deref(), self.ms());
        let status = openai::error::status(fault.kind).as_u16();
        match status {
            // What failed here is for whoever runs the server, and it is not made of what the client sent.
            500 => tracing::error!(id, path, status, reason = fault.message, ms, "failed"),
            _ => tracing::info!(id, path, status, kind = ?fault.kind, field, ms, "refused"),
        }
    }

    fn ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.ended {
            let (id, path, stream, prompt_tokens, ms) =
                (&self.id, self.path, self.stream, self.prompt_tokens, self.ms());
            tracing::info!(id, path, stream, prompt_tokens, ms, "the client has gone");
        }
    }
}
