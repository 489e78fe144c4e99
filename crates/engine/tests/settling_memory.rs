//! What packing behind costs in memory: the weights once, though steps read from the file what is not packed
//! yet.

#![cfg(target_os = "linux")] // the only system that tells a process's peak
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, Rows, RunShape};
use exo_backend_cpu::{CpuDevice, CpuOptions, Packing};
use exo_formats::MappedFile;
use exo_types::{DType, TensorView};

const COLS: usize = 1024;
const ROW_BYTES: usize = 2 * COLS;
/// A table of 64 MiB first, as in models, then the matrices of layers.
const TABLE_ROWS: usize = 32 << 10;
const MATRICES: usize = 48;
const MATRIX_ROWS: usize = 544;

/// Where the rows of each weight are in the file, in the order of use: of the matrices that is not the
/// file's, as in models.
fn places() -> Vec<Range<usize>> {
    let matrix = |i: usize| {
        let first = TABLE_ROWS + i * 29 % MATRICES * MATRIX_ROWS;
        first..first + MATRIX_ROWS
    };
    std::iter::once(0..TABLE_ROWS).chain((0..MATRICES).map(matrix)).collect()
}

fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn steps_beside_the_packing_do_not_make_memory_hold_the_weights_twice() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    // In large pieces, of which systems make large pages of the cache and map them whole: parts of many
    // weights at a time.
    let piece = vec![0x2a_u8; 1024 * ROW_BYTES];
    let pieces = (TABLE_ROWS + MATRICES * MATRIX_ROWS).div_ceil(1024);
    (0..pieces).for_each(|_| file.write_all(&piece).unwrap());
    file.flush().unwrap();
    let (rest, threads) = (Duration::from_millis(2), Some(2));
    let packing = Packing::Behind { rest };
    let device = CpuDevice::open(CpuOptions { threads, packing, ..CpuOptions::default() }).unwrap();
    let x = device.buffer(Element::F32, COLS).unwrap();
    let source = Arc::new(MappedFile::open(file.path()).unwrap());
    let before = status_bytes("VmRSS:");
    let (mut weights, mut ops) = (Vec::new(), Vec::new());
    for place in places() {
        let (rows, range) = (place.len(), place.start * ROW_BYTES..place.end * ROW_BYTES);
        let (name, source) = (format!("w{}", place.start), source.clone());
        let tensor =
            TensorView { name, dtype: DType::F16, rows: rows as u64, cols: COLS as u64, range, source };
        // Before each matrix a vector, which is in memory at once.
        let vector = tensor.range.start..tensor.range.start + ROW_BYTES;
        weights.push(device.weight(&TensorView { rows: 1, range: vector, ..tensor.clone() }).unwrap());
        let weight = device.weight(&tensor).unwrap();
        let out = device.buffer(Element::F32, rows).unwrap();
        weights.push(weight.clone());
        ops.push(Op::MatMul { weight, bias: None, x: x.clone(), out, rows: Rows::Tokens });
    }
    let program = device.compile(Recording { ops }).unwrap();
    let mut stream = device.stream().unwrap();
    let (began, mut runs, mut settled_at) = (Instant::now(), 0, 0);
    while settled_at == 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "not packed after {runs} runs");
        let is_settled = weights.iter().all(|weight| weight.unpacked_bytes() == 0);
        stream.run(&*program, RunShape { tokens: 1, selected: 0 }, &Alone, &CancelToken::default()).unwrap();
        runs += 1;
        settled_at = if is_settled { runs } else { 0 };
    }
    assert!(settled_at > 3, "packed within {settled_at} runs: nothing was beside it");
    let peak = status_bytes("VmHWM:") - before;
    let bytes: u64 = weights.iter().map(|weight| weight.footprint_bytes).sum();
    // For each thread a part, what the system maps around it (as it likes: 20 MiB in all were seen) and a
    // large page that is begun, and what threads work in. Held twice it would be 115 MiB.
    let besides = 32 << 20;
    assert!(
        bytes > 110_000_000 && peak < bytes + besides,
        "{bytes} bytes of weights took {peak} at the peak"
    );
    assert!(peak > bytes, "{peak} bytes at the peak are less than the weights");
}
