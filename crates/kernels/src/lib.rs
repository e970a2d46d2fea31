//! kernels: to be filled.
