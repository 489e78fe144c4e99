//! Any bytes as a GGUF file: a model whose every tensor can be looked at, or an error. Never a panic.
//!
//! Seed the corpus with a small valid file, or it takes long to get past the magic:
//! `cargo run -p exo-formats --example sample -- fuzz/corpus/gguf/sample.gguf`.

#![no_main]

use exo_types::Shard;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = exo_formats::open_gguf_bytes("fuzz.gguf", bytes.to_vec()) else { return };
    let whole = Shard::whole(model.config.layers);
    for name in model.tensors_of(&whole) {
        let view = model.tensor(name).expect("the model named this tensor itself");
        assert_eq!(view.bytes().len() as u64, view.rows * view.row_bytes() as u64);
    }
    assert!(model.byte_ranges(&whole).iter().all(|range| range.end <= bytes.len() as u64));
    model.shape();
});
