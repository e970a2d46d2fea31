//! Memory: aligned buffers, what this process holds, and what it may still take.

mod aligned;
mod limits;

pub use aligned::{AlignedBuf, OutOfMemory, held_bytes};
pub use limits::{
    Available, Limit, Resident, available, available_on, huge_page_room, peak_resident_bytes, resident,
    total_bytes,
};
