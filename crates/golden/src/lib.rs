//! Reference tensors and tiny models for tests.
