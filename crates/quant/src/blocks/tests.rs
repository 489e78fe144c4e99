//! Blocks go back to f32 through `backend-cpu`, whose reading is checked against gguf-py.

use exo_backend_cpu::quant::{dequantise_row, quantise_row as reference};

use super::*;

const SEARCHED: [DType; 5] = [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

fn round_trip(dtype: DType, x: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    quantise_row(dtype, x, &mut bytes);
    assert_eq!(Some(bytes.len() as u64), dtype.bytes_of(x.len() as u64));
    decoded(dtype, &bytes, x.len())
}

fn decoded(dtype: DType, bytes: &[u8], len: usize) -> Vec<f32> {
    let mut back = vec![0.0; len];
    dequantise_row(dtype, bytes, &mut back);
    back
}

/// Root mean square of the differences, as a part of that of the elements.
fn relative_rmse(x: &[f32], back: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    (squares(&mut x.iter().zip(back).map(|(a, b)| a - b)) / squares(&mut x.iter().copied())).sqrt()
}

/// Numbers as weights are distributed: the sum of twelve uniform ones is close to normal. The same on every
/// machine.
fn normal(len: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..len).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * 0.02).collect()
}

/// Heavier tails, as trained weights have them.
fn cubed(len: usize) -> Vec<f32> {
    normal(len).into_iter().map(|x| x + 400.0 * x * x * x).collect()
}

/// What ggml's quantisers (`ggml_quantize_chunk` without an importance matrix) leave on the same numbers.
const GGML: [(DType, f64, f64); 5] = [
    (DType::Q8_0, 0.005231, 0.007050),
    (DType::Q4_0, 0.084085, 0.112755),
    (DType::Q4_K, 0.070107, 0.086677),
    (DType::Q5_K, 0.035525, 0.043828),
    (DType::Q6_K, 0.017424, 0.022391),
];

#[test]
fn the_error_is_at_most_that_of_ggml() {
    let (normal, cubed) = (normal(65536), cubed(65536));
    for (dtype, of_normal, of_cubed) in GGML {
        for (x, ggml) in [(&normal, of_normal), (&cubed, of_cubed)] {
            let ours = relative_rmse(x, &round_trip(dtype, x));
            assert!(ours <= ggml, "{dtype}: {ours} and {ggml}");
            println!("{dtype}: {ours:.6}, ggml {ggml:.6}");
        }
    }
    for dtype in [DType::Q8_0, DType::Q4_0] {
        let plain = reference(dtype, &cubed).unwrap();
        let plain = relative_rmse(&cubed, &decoded(dtype, &plain, cubed.len()));
        let ours = relative_rmse(&cubed, &round_trip(dtype, &cubed));
        assert!(ours < plain, "{dtype}: {ours} and {plain}");
    }
}

#[test]
fn what_blocks_hold_is_kept() {
    for dtype in SEARCHED {
        let once = round_trip(dtype, &normal(4096));
        let again = round_trip(dtype, &once);
        let loss = relative_rmse(&once, &again);
        assert!(loss < 0.4 * relative_rmse(&normal(4096), &once), "{dtype}: {loss}");
    }
    // Simple blocks find their own scale again to the bit.
    for dtype in [DType::Q8_0, DType::Q4_0] {
        let once = round_trip(dtype, &normal(4096));
        let loss = relative_rmse(&once, &round_trip(dtype, &once));
        assert!(loss < 3e-4, "{dtype}: {loss}");
    }
}

#[test]
fn unusual_groups_come_back() {
    let one_large: Vec<f32> = (0..256).map(|i| if i == 77 { 3.0 } else { 0.0 }).collect();
    let negative: Vec<f32> = (0..256).map(|i| -1.0 - 0.001 * i as f32).collect();
    let cases: [(&str, Vec<f32>, f64); 5] = [
        ("zeros", vec![0.0; 256], 0.0),
        ("one large", one_large, 0.02),
        ("all alike", vec![0.7; 256], 0.04),
        ("negative", negative, 0.05),
        ("small", normal(256).iter().map(|x| x * 1e-2).collect(), 0.15),
    ];
    for dtype in TYPES {
        for (name, x, loss_max) in &cases {
            let back = round_trip(dtype, x);
            assert!(back.iter().all(|b| b.is_finite()), "{dtype} {name}");
            if *loss_max == 0.0 {
                assert!(back.iter().all(|b| *b == 0.0), "{dtype} {name}");
            } else {
                let loss = relative_rmse(x, &back);
                assert!(loss <= *loss_max, "{dtype} {name}: {loss}");
            }
        }
    }
}

#[test]
fn a_block_does_not_depend_on_its_neighbours() {
    let x = normal(1024);
    for dtype in SEARCHED {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        quantise_row(dtype, &x, &mut whole);
        x.chunks(256).for_each(|part| quantise_row(dtype, part, &mut parts));
        assert_eq!(whole, parts, "{dtype}");
    }
}

#[test]
#[should_panic(expected = "32 elements do not fill blocks of Q4_K")]
fn a_row_that_fills_no_block_is_a_bug_of_the_caller() {
    quantise_row(DType::Q4_K, &[0.0; 32], &mut Vec::new());
}
