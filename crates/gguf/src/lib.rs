//! gguf: to be filled.
