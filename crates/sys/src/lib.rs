//! sys: to be filled.
