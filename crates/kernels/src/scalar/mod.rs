//! The numeric definition of every operation, in plain Rust.
//!
//! Nothing here is fast and nothing here may change without a new [`crate::NUMERICS`]: these functions say what the
//! other instruction sets must compute, bit for bit.

mod attention;
pub(crate) mod cells;
mod elementwise;
mod matmul;
mod recurrent;
mod reduce;

pub use attention::{
    accumulate_values, attend_partition, merge_partition, score_blocks, score_keys, softmax_partition,
};
pub use cells::{hadamard, narrow_int4, narrow_int8, widen};
pub use elementwise::{
    add, add_scaled, apply_rope_adjacent, apply_rope_halves, mix_streams, multiply_sigmoid, multiply_silu,
    sigmoid, silu, silu_multiply,
};
pub use matmul::{matmul_float, matmul_int8};
pub use recurrent::{convolve, delta_step};
pub use reduce::{dot, l2_norm, rms_norm, sum_lanes};
