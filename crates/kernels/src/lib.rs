//! CPU arithmetic: the numeric definition of every operation and its faster forms.
//!
//! [`scalar`] *is* the definition: it fixes the order of every rounding step, in IEEE 754 f32 multiplies, adds and the
//! fused multiply-adds it names. Each instruction set below it gives the same bits, so a result never depends on the
//! machine's features, the number of threads or the shape of the batch (a NaN equals any other NaN).
//!
//! * [`isa`] says what this CPU can run; holding a [`Kernels`] for an instruction set proves that it can.
//! * [`table`] is the one place where a kernel is chosen, once, by (operation, tensor type, instruction set).
//! * [`quant`] knows the block formats of GGUF files: exact decoding and the integer view that products use.
//! * [`attention`] says what the kernels of attention take and give.
//! * [`tile`] hands disjoint parts of one output matrix to several threads.
//!
//! No threads here, no allocation on the hot path, no knowledge of models.

pub mod attention;
pub mod interleave;
pub mod isa;
pub mod math;
mod peak;
pub mod quant;
pub mod scalar;
pub mod table;
pub mod tile;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

pub use attention::{Attended, Cells, Partition, Queries};
pub use interleave::{INTERLEAVED_ROWS, Layout, can_interleave, interleave};
pub use isa::Isa;
pub use quant::{CHAIN_VALUES, GROUP_VALUES};
pub use table::{Int8Rows, Int8RowsMut, Kernels, WeightRows};
pub use tile::{Tile, split_grid};

/// Names this set of numeric definitions. State files and stage links carry it; a state written under another number
/// is read again from its tokens instead of being reused.
pub const NUMERICS: u32 = 2;

/// Cells of one softmax partition: of the cells that a row attends to, in the order of positions, those at places
/// `[256 p, 256 (p + 1))` form partition `p`. Where it attends to all, these are absolute cells of its sequence.
pub const PARTITION_CELLS: usize = 256;
