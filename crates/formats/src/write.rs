//! GGUF files, written.
