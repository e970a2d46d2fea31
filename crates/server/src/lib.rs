//! HTTP: a model behind the APIs that clients know.
//!
//! Each API is a folder that knows its own form of requests, answers and errors and nothing of the others; between them and
//! the model stands `chat`'s canonical request. The server never looks into a token id, and never sees a tensor.
#![forbid(unsafe_code)]

mod app;
mod body;
mod fault;
mod fields;
mod guard;
mod listen;
mod model;
mod openai;
mod phase;
mod record;
mod server;
mod settings;
mod socket;
mod stream;

pub use listen::{ListenError, Listener};
pub use model::{Answer, Counts, Model};
pub use server::Server;
pub use settings::{Limits, Settings};
