//! Tokens in, tokens out.
//!
//! [`models`] turns a file into a description, [`graph`] turns the description into operations, a [`backend`] runs them
//! over the rows of a [`window`], and a [`state`] keeps what a sequence needs for its next row. The logits of a row
//! depend on the model file, the KV format and the tokens up to the row, and on nothing else: bit for bit.
//!
//! No text, no files but the model's, no environment here.

#![forbid(unsafe_code)]

mod accounting;
mod answer;
pub mod backend;
pub mod engine;
pub mod error;
pub mod experts;
pub mod graph;
pub mod inventory;
pub mod memory;
pub mod model;
pub mod models;
mod pace;
pub mod policy;
mod prefix;
mod request;
pub mod sampler;
mod saved;
mod scheduler;
mod sequence;
mod service;
pub mod stage;
pub mod state;
mod weights;
pub mod window;

pub use accounting::Work;
pub use answer::Answer;
pub use engine::{Engine, EngineConfig};
pub use error::{LoadError, StateError, StepError};
pub use kernels::{Isa, PARTITION_CELLS};
pub use model::{LoadOptions, Model};
pub use models::{RopeOverride, RopeScaling};
pub use policy::{RowPolicy, StopReason, TokenMask, Verdict};
pub use prefix::PrefixCounts;
pub use request::{EndReason, Ended, Request, RequestError, RequestEvent};
pub use sampler::{Dry, LogProbabilities, Sampled, Sampler, Sampling, SamplingError, TEMPERATURE_MAX};
pub use saved::command::SavedError;
pub use saved::{
    MeasuredConversation, SavedContent, SavedConversation, SavedName, SavedOptions, SavedSpeed, delete_saved,
    list_saved,
};
pub use service::{Service, ServiceCounts, ServiceLimits, SubmitError};
pub use stage::Stage;
pub use state::{KvGrowth, KvType, State};
pub use weights::{Loading, Weights};
pub use window::Window;
