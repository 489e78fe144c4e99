//! No bytes break the GGUF reader: damaged files give a model or an error, never a panic.

#![allow(clippy::unwrap_used)] // helpers are outside of what `allow-unwrap-in-tests` sees

mod common;

use common::sample;
use exo_formats::open_gguf_bytes;
use exo_types::{DType, Shard};
use proptest::prelude::*;

/// Opens the bytes and looks at every tensor, as a node would.
fn exercise(bytes: Vec<u8>) {
    if let Ok(model) = open_gguf_bytes("damaged.gguf", bytes) {
        let whole = Shard::whole(model.config.layers);
        for name in model.tensors_of(&whole) {
            let view = model.tensor(name).unwrap();
            assert_eq!(view.bytes().len() as u64, view.rows * view.row_bytes() as u64);
        }
        assert!(model.byte_ranges(&whole).iter().all(|r| r.end <= model.files[0].len));
        model.shape();
    }
}

fn header_len(file: &[u8]) -> usize {
    open_gguf_bytes("whole.gguf", file.to_vec()).unwrap().files[0].head_bytes as usize
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn truncated_anywhere(cut in 0.0..1.0f64, in_header in any::<bool>()) {
        let mut file = sample(DType::Q4_0, false, |_| {});
        let range = if in_header { header_len(&file) } else { file.len() };
        file.truncate((range as f64 * cut) as usize);
        exercise(file);
    }

    #[test]
    fn bits_flipped_in_the_header(flips in prop::collection::vec((0.0..1.0f64, 0..8u8), 1..6)) {
        let mut file = sample(DType::Q4_0, true, |_| {});
        let header = header_len(&file);
        for (place, bit) in flips {
            file[(header as f64 * place) as usize] ^= 1 << bit;
        }
        exercise(file);
    }

    #[test]
    fn numbers_overwritten_in_the_header(
        writes in prop::collection::vec((0.0..1.0f64, prop_oneof![
            Just(u64::MAX), Just(1 << 63), Just(1 << 32), Just(0), any::<u64>(),
        ]), 1..4),
    ) {
        let mut file = sample(DType::Q4_0, true, |_| {});
        let header = header_len(&file);
        for (place, number) in writes {
            let at = (header as f64 * place) as usize;
            file[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        exercise(file);
    }

    #[test]
    fn anything_after_the_magic(rest in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise([b"GGUF\x03\0\0\0".as_slice(), &rest].concat());
    }
}
