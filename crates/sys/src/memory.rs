//! Memory: aligned buffers, what this process holds, and what it may still take.

mod aligned;

pub use aligned::{AlignedBuf, OutOfMemory};
