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
