//! What a server is told when it starts.

use std::time::Duration;

use chat::Sampling;

/// What a server is told when it starts.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// What the model is called.
    pub model_name: String,
    /// Who knows it may ask. Without one anybody may who can reach the server, but no web page.
    pub api_key: Option<String>,
    /// How tokens are chosen where a request says nothing; of the seed, see below.
    pub sampling: Sampling,
    /// The seed of requests that have none; if absent, each has another one.
    pub seed: Option<u64>,
    /// Whether a request for more tokens than the context holds gets as many as it does; else it is refused.
    pub fit_tokens_max: bool,
    /// Whether the line that a coding agent begins its instructions with, other in every request, stays in the prompt; see
    /// [`chat::ChatRequest::leave_out_attribution`].
    pub keep_attribution: bool,
    /// What one client, or all of them, can take.
    pub limits: Limits,
}

/// What one client, or all of them, can take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most bytes of a body. Conversations with pictures in them need tens of megabytes.
    pub body_bytes_max: usize,
    /// Most bytes of all bodies that are held at once.
    pub bodies_bytes_max: usize,
    /// Most connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// Within this a request's headers must have come, and an idle connection brings another request.
    pub headers_time: Duration,
    /// What every body has for coming; larger ones have a second more for each 64 KiB.
    pub body_time: Duration,
    /// In a stream in which nothing happens, as while its request waits, there is a sign of life after this; as often it is
    /// seen whether the client is still there.
    pub silence_time: Duration,
    /// Running answers may go on for this long once the server is told to stop.
    pub stop_time: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
            connections_max: 1024,
            headers_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            silence_time: Duration::from_secs(5),
            stop_time: Duration::from_secs(5),
        }
    }
}
