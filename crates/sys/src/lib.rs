//! The operating system made safe: mapped files, aligned memory, worker threads, and what this process may use.
//!
//! Each operating-system facility lives in one module behind a safe interface, so that the rest of the program
//! needs no unsafe code for it. Linux is complete; elsewhere a value that cannot be had is `None`.

pub mod arena;
pub mod bandwidth;
pub mod cast;
mod cgroup;
pub mod direct;
pub mod lock;
pub mod memory;
pub mod mmap;
#[allow(unexpected_cfgs, reason = "`--cfg loom` builds the pool for the loom checker")]
pub mod pool;
pub mod priority;
pub mod read;
pub mod topology;
