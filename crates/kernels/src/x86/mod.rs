//! Kernels for x86-64.

use crate::table::{Functions, SCALAR};

/// AVX2 with FMA and F16C.
pub(crate) static AVX2: Functions = Functions { ..SCALAR };

/// AVX-512 F, BW, VL, DQ with VNNI.
pub(crate) static AVX512: Functions = Functions { ..SCALAR };
