//! The product against a sum in f64, on every instruction set of this machine.

#![allow(clippy::unwrap_used)] // a test file, helpers included

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, Rows, RunShape, Weight};
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

/// What the device says, and for each the sum in f64 beside the sum of magnitudes, which bounds the error of
/// any order.
fn product(isa: Isa, dtype: DType, (t, n, k): (usize, usize, usize)) -> (Vec<f32>, Vec<(f64, f64)>) {
    let device =
        CpuDevice::open(CpuOptions { threads: Some(2), isa: Some(isa), ..CpuOptions::default() }).unwrap();
    let (x, w) = (values(t * k, 1), values(n * k, 2));
    let bytes = quant::quantise_row(dtype, &w).unwrap();
    let mut stored = vec![0.0; n * k];
    quant::dequantise_row(dtype, &bytes, &mut stored);
    // One byte of lead, so that nothing is aligned.
    let source: Vec<u8> = std::iter::once(0).chain(bytes).collect();
    let (rows, cols, range) = (n as u64, k as u64, 1..source.len());
    let tensor = TensorView { name: "w".to_owned(), dtype, rows, cols, range, source: Arc::new(source) };
    let got = multiplied(&device, device.weight(&tensor).unwrap(), &x);
    let exact = |i: usize| {
        let (x, w) = (&x[i / n * k..][..k], &stored[i % n * k..][..k]);
        let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        products.fold((0.0, 0.0), |(sum, all), product| (sum + product, all + product.abs()))
    };
    (got, (0..t * n).map(exact).collect())
}

/// The rows of `x` by `weight`.
fn multiplied(device: &CpuDevice, weight: Weight, x: &[f32]) -> Vec<f32> {
    let (t, n) = (x.len() / weight.cols, weight.rows);
    let (input, out) =
        (device.buffer(Element::F32, x.len()).unwrap(), device.buffer(Element::F32, t * n).unwrap());
    let op = Op::MatMul { weight, bias: None, x: input.clone(), out: out.clone(), rows: Rows::Tokens };
    let program = device.compile(Recording { ops: vec![op] }).unwrap();
    let mut stream = device.stream().unwrap();
    stream.upload_f32(&input, 0, x).unwrap();
    stream.run(&*program, RunShape { tokens: t, selected: 0 }, &Alone, &CancelToken::default()).unwrap();
    let mut got = vec![0.0; t * n];
    stream.download_f32(&out, 0, &mut got, Duration::from_secs(1)).unwrap();
    got
}

fn assert_close(isa: Isa, dtype: DType, shape: (usize, usize, usize)) {
    let (got, exact) = product(isa, dtype, shape);
    for (got, (exact, all)) in got.iter().zip(&exact) {
        let bound = 1e-7 + 3e-7 * all;
        assert!((f64::from(*got) - exact).abs() < bound, "{isa:?} {dtype} {shape:?}: {got} {exact}");
    }
}

#[test]
fn products_of_every_tile_shape_are_right() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        // Of rounded activations the oracle knows the formula.
        for dtype in [DType::F32, DType::F16] {
            for shape in [(1, 7, 64), (2, 5, 96), (3, 67, 32), (5, 33, 128), (9, 130, 256), (4, 4, 32)] {
                assert_close(isa, dtype, shape);
            }
            // More columns than are summed together, the last of them few; every number of rows in the last
            // tile.
            for t in [1, 4, 7, 15] {
                assert_close(isa, dtype, (t, 49, 800));
            }
        }
    }
}

#[test]
fn widths_that_fill_no_vector_are_right() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for shape in [(1, 3, 1), (6, 2, 5), (1, 9, 17), (2, 9, 31), (5, 33, 257)] {
            assert_close(isa, DType::F16, shape);
        }
    }
}

/// Multiplied in whole numbers: what sums there are is the same whatever multiplies.
#[test]
fn products_with_bf16_weights_have_the_same_bits_on_every_instruction_set() {
    for shape in [(1, 7, 64), (2, 33, 31), (3, 67, 33), (4, 17, 1), (9, 130, 257), (45, 49, 800)] {
        let want = product(Isa::Scalar, DType::BF16, shape).0;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert!(product(isa, DType::BF16, shape).0 == want, "{isa:?} {shape:?}");
        }
    }
}

#[test]
fn what_is_not_finite_gives_no_number_and_spoils_no_other_row() {
    let (k, n, t) = (40, 20, 6);
    for (isa, bad) in Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_available())
        .flat_map(|isa| [f32::NAN, f32::INFINITY].map(|bad| (isa, bad)))
    {
        let (mut w, mut x) = (values(n * k, 2), values(t * k, 1));
        (w[3 * k + 39], x[5 * k]) = (bad, bad);
        let device = CpuDevice::open(options(isa, false)).unwrap();
        let source = quant::quantise_row(DType::BF16, &w).unwrap();
        let (name, range) = ("w".to_owned(), 0..source.len());
        let (rows, cols, dtype, source) = (n as u64, k as u64, DType::BF16, Arc::new(source));
        let weight = device.weight(&TensorView { name, dtype, rows, cols, range, source }).unwrap();
        let got = multiplied(&device, weight, &x);
        for (i, got) in got.iter().enumerate() {
            assert_eq!(got.is_nan(), i % n == 3 || i / n == 5, "{isa:?} {bad}: number {i} is {got}");
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
    CpuOptions { threads: Some(2), isa: Some(isa), mmap, ..CpuOptions::default() }
}

#[test]
fn products_of_the_same_rows_are_what_each_is_alone() {
    let weights =
        [(DType::Q8_0, 33), (DType::F16, 17), (DType::BF16, 20), (DType::Q4_0, 1), (DType::F32, 40)];
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
    let floats = [(DType::F16, 49), (DType::F32, 3), (DType::BF16, 20), (DType::F32, 40)];
    let all = [[(DType::Q8_0, 33), (DType::Q5_1, 1)].as_slice(), &floats].concat();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        // Widths that fill no square and no vector are for floats alone.
        for (t, k, weights) in
            [(3, 64, &all[..]), (9, 544, &all), (1, 1, &floats), (5, 36, &floats), (9, 257, &floats)]
        {
            let x = values(t * k, 4);
            let [copied, mapped] = [false, true].map(|mmap| together(options(isa, mmap), weights, k, &x));
            assert!(copied == mapped, "{isa:?} {t} {k}");
        }
    }
}

/// Other tiles are for one row than for many, and two groups of sixteen rows of weights go together from some
/// on: of 70 the last group goes alone.
#[test]
fn a_row_among_others_is_what_it_is_alone() {
    let k = 288;
    let x = values(33 * k, 6);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0] {
            let several = |rows: &[f32]| together(options(isa, false), &[(dtype, 70)], k, rows).remove(0);
            let alone: Vec<f32> = x.chunks_exact(k).flat_map(several).collect();
            for t in [2, 5, 8, 9, 16, 29, 33] {
                assert!(several(&x[..t * k]) == alone[..t * 70], "{isa:?} {dtype} {t}");
            }
        }
    }
}

/// So wide that the rows of `x` are multiplied in two chunks, of 40 rows and 35: by two groups at a time, and
/// the last group, which is not full, alone.
#[test]
fn a_row_of_a_later_chunk_is_what_it_is_alone() {
    let (k, t, n) = (16_384, 75, 41);
    let x = values(t * k, 5);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available() && *isa != Isa::Scalar) {
        for mmap in [false, true] {
            let all = together(options(isa, mmap), &[(DType::Q4_0, n)], k, &x);
            for row in [0, 39, t - 1] {
                let alone = together(options(isa, false), &[(DType::Q4_0, n)], k, &x[row * k..(row + 1) * k]);
                assert!(all[0][row * n..(row + 1) * n] == alone[0][..], "{isa:?} {mmap} row {row}");
            }
        }
    }
}
