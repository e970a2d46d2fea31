//! CPU arithmetic.

pub mod quant;
