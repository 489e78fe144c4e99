//! Blocks against gguf-py, to the bit. `fixtures.py` made the files.

#![allow(clippy::unwrap_used)] // a test file, helpers included

use exo_backend_cpu::quant::{dequantise_row, quantise_row};
use exo_types::DType;

struct Frame<'a> {
    dtype: DType,
    blocks: &'a [u8],
    values: Vec<f32>,
}

fn frames(mut file: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while !file.is_empty() {
        let (head, rest) = file.split_at(16);
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
        let name = std::str::from_utf8(&head[..8]).unwrap().trim_end_matches('\0');
        let dtype = DType::ALL.into_iter().find(|d| d.to_string() == name).unwrap();
        let (blocks, rest) = rest.split_at(number(8));
        let (values, rest) = rest.split_at(4 * number(12));
        let values = values.as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        frames.push(Frame { dtype, blocks, values });
        file = rest;
    }
    frames
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_type_dequantises_like_gguf_py() {
    let frames = frames(include_bytes!("dequantise.bin"));
    // F32 needs no oracle; gguf-py has no Q8_K, whose only arithmetic is one product (below).
    assert_eq!(frames.len(), DType::ALL.len() - 2);
    for frame in frames {
        let mut got = vec![f32::NAN; frame.values.len()];
        dequantise_row(frame.dtype, frame.blocks, &mut got);
        assert_eq!(bits(&got), bits(&frame.values), "{}", frame.dtype);
    }
}

#[test]
fn q8_k_is_a_scale_times_its_bytes() {
    let mut block = vec![0u8; 292];
    block[..4].copy_from_slice(&0.3f32.to_le_bytes());
    block[4] = 127;
    block[259] = -128i8 as u8;
    block[260] = 55; // a sum: not an element
    let mut got = vec![f32::NAN; 256];
    dequantise_row(DType::Q8_K, &block, &mut got);
    assert_eq!((got[0], got[1], got[255]), (0.3 * 127.0, 0.0, 0.3 * -128.0));
}

#[test]
fn the_plain_types_quantise_like_gguf_py() {
    let frames = frames(include_bytes!("quantise.bin"));
    assert_eq!(frames.len(), 5);
    for frame in frames {
        assert_eq!(quantise_row(frame.dtype, &frame.values).unwrap(), frame.blocks, "{}", frame.dtype);
    }
}

#[test]
#[should_panic(expected = "bytes of Q4_0 are not 64 elements")]
fn a_row_that_is_too_short_is_refused() {
    dequantise_row(DType::Q4_0, &[0; 35], &mut [0.0; 64]);
}
