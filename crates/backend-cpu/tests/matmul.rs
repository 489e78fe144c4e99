//! The product against a sum in f64, on every instruction set of this machine.

#![allow(clippy::unwrap_used)] // a test file, helpers included

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, Rows, RunShape};
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa, quant};
use exo_types::{DType, TensorView};

fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn product(isa: Isa, dtype: DType, (t, n, k): (usize, usize, usize)) -> (Vec<f32>, Vec<f64>) {
    let device = CpuDevice::open(CpuOptions {
        threads: Some(2),
        isa: Some(isa),
        memory_limit_bytes: None,
        mmap: false,
    })
    .unwrap();
    let (x, w) = (values(t * k, 1), values(n * k, 2));
    let bytes = quant::quantise_row(dtype, &w).unwrap();
    let mut stored = vec![0.0; n * k];
    quant::dequantise_row(dtype, &bytes, &mut stored);
    // One byte of lead, so that nothing is aligned.
    let source: Vec<u8> = std::iter::once(0).chain(bytes).collect();
    let (rows, cols, range) = (n as u64, k as u64, 1..source.len());
    let tensor = TensorView { name: "w".to_owned(), dtype, rows, cols, range, source: Arc::new(source) };
    let weight = device.weight(&tensor).unwrap();
    let (input, out) =
        (device.buffer(Element::F32, t * k).unwrap(), device.buffer(Element::F32, t * n).unwrap());
    let op = Op::MatMul { weight, bias: None, x: input.clone(), out: out.clone(), rows: Rows::Tokens };
    let program = device.compile(Recording { ops: vec![op] }).unwrap();
    let mut stream = device.stream().unwrap();
    stream.upload_f32(&input, 0, &x).unwrap();
    stream.run(&*program, RunShape { tokens: t, selected: 0 }, &Alone, &CancelToken::default()).unwrap();
    let mut got = vec![0.0; t * n];
    stream.download_f32(&out, 0, &mut got, Duration::from_secs(1)).unwrap();
    let exact = |i: usize| -> f64 {
        let (x, w) = (&x[i / n * k..][..k], &stored[i % n * k..][..k]);
        x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
    };
    (got, (0..t * n).map(exact).collect())
}

#[test]
fn products_of_every_tile_shape_are_right() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        // Of rounded activations the oracle knows the formula.
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (t, n, k) in [(1, 7, 64), (2, 5, 96), (3, 67, 32), (5, 33, 128), (9, 130, 256), (4, 4, 32)] {
                let (got, exact) = product(isa, dtype, (t, n, k));
                for (got, exact) in got.iter().zip(&exact) {
                    assert!(
                        (f64::from(*got) - exact).abs() < 1e-5,
                        "{isa:?} {dtype} {t} {n} {k}: {got} {exact}"
                    );
                }
            }
        }
    }
}

#[test]
fn widths_that_fill_no_vector_are_right() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for (t, n, k) in [(1, 3, 1), (6, 2, 5), (1, 9, 17), (2, 9, 31)] {
            let (got, exact) = product(isa, DType::F16, (t, n, k));
            let close = got.iter().zip(&exact).all(|(got, exact)| (f64::from(*got) - exact).abs() < 1e-5);
            assert!(close, "{isa:?} {t} {n} {k}: {got:?} {exact:?}");
        }
    }
}

/// Products of the same `t` rows of width `k` by several matrices of so many rows, in one program.
fn together(options: CpuOptions, weights: &[(DType, usize)], k: usize, x: &[f32]) -> Vec<Vec<f32>> {
    let device = CpuDevice::open(options).unwrap();
    let t = x.len() / k;
    let input = device.buffer(Element::F32, x.len()).unwrap();
    let mut ops = Vec::new();
    let mut outs = Vec::new();
    for (i, (dtype, n)) in weights.iter().enumerate() {
        let bytes = quant::quantise_row(*dtype, &values(n * k, 7 + i as u32)).unwrap();
        let (rows, cols, range) = (*n as u64, k as u64, 0..bytes.len());
        let (name, source) = ("w".to_owned(), Arc::new(bytes));
        let weight = device.weight(&TensorView { name, dtype: *dtype, rows, cols, range, source }).unwrap();
        let out = device.buffer(Element::F32, t * n).unwrap();
        outs.push(out.clone());
        ops.push(Op::MatMul { weight, bias: None, x: input.clone(), out, rows: Rows::Tokens });
    }
    let program = device.compile(Recording { ops }).unwrap();
    let mut stream = device.stream().unwrap();
    stream.upload_f32(&input, 0, x).unwrap();
    stream.run(&*program, RunShape { tokens: t, selected: 0 }, &Alone, &CancelToken::default()).unwrap();
    let read = |out: &exo_backend::Buffer| {
        let mut got = vec![0.0; out.len];
        stream.download_f32(out, 0, &mut got, Duration::from_secs(1)).unwrap();
        got
    };
    outs.iter().map(read).collect()
}

fn options(isa: Isa, mmap: bool) -> CpuOptions {
    CpuOptions { threads: Some(2), isa: Some(isa), memory_limit_bytes: None, mmap }
}

#[test]
fn products_of_the_same_rows_are_what_each_is_alone() {
    let weights = [(DType::Q8_0, 33), (DType::F16, 17), (DType::Q4_0, 1), (DType::F32, 40)];
    let (k, x) = (96, values(6 * 96, 3));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let all = together(options(isa, false), &weights, k, &x);
        for (weight, (got, i)) in weights.iter().zip(all.iter().zip(0u32..)) {
            // The seed of a matrix is its place: put as many in front of it.
            let mut alone = vec![(DType::F32, 1); i as usize];
            alone.push(*weight);
            let alone = together(options(isa, false), &alone, k, &x);
            assert!(alone[i as usize] == *got, "{isa:?} {weight:?}");
        }
    }
}

#[test]
fn weights_used_from_their_file_give_the_same_bits() {
    let weights = [(DType::Q8_0, 33), (DType::Q5_1, 1), (DType::Q4_0, 16)];
    let x = values(3 * 64, 4);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let [copied, mapped] = [false, true].map(|mmap| together(options(isa, mmap), &weights, 64, &x));
        assert!(copied == mapped, "{isa:?}");
    }
}

/// So wide that the rows of `x` are multiplied in several chunks.
#[test]
fn a_row_of_a_later_chunk_is_what_it_is_alone() {
    let (k, t) = (16_384, 30);
    let x = values(t * k, 5);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let all = together(options(isa, false), &[(DType::Q4_0, 17)], k, &x);
        let last = together(options(isa, false), &[(DType::Q4_0, 17)], k, &x[(t - 1) * k..]);
        assert!(all[0][(t - 1) * 17..] == last[0][..], "{isa:?}");
    }
}
