//! Any bytes as a safetensors file: a list of tensors that lie within it, or an error. Never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exo_formats::fuzzing::safetensors(data));
