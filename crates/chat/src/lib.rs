//! chat: to be filled.
