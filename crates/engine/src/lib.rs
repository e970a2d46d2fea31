//! engine: to be filled.
