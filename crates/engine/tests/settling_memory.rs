//! What packing behind costs in memory: the weights once, though steps read from the file what is not packed yet.

#![cfg(target_os = "linux")] // the only system that tells a process's peak
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, Rows, RunShape};
use exo_backend_cpu::{CpuDevice, CpuOptions, Packing};
use exo_formats::MappedFile;
use exo_types::{DType, TensorView};

const COLS: usize = 1024;
/// A table of 64 MB first, as in models, then the matrices of layers.
const ROWS: [usize; 9] = [32_768, 2048, 2048, 4096, 4096, 2048, 2048, 4096, 4096];

fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn steps_beside_the_packing_do_not_make_memory_hold_the_weights_twice() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let row = [0x2a_u8; 2 * COLS];
    (0..ROWS.iter().sum()).for_each(|_| file.write_all(&row).unwrap());
    file.flush().unwrap();
    let (rest, threads) = (Duration::from_millis(2), Some(2));
    let packing = Packing::Behind { rest };
    let device = CpuDevice::open(CpuOptions { threads, packing, ..CpuOptions::default() }).unwrap();
    let x = device.buffer(Element::F32, COLS).unwrap();
    let source = Arc::new(MappedFile::open(file.path()).unwrap());
    let before = status_bytes("VmRSS:");
    let (mut weights, mut ops, mut start) = (Vec::new(), Vec::new(), 0);
    for rows in ROWS {
        let range = start..start + rows * row.len();
        start = range.end;
        let (name, source) = (format!("w{start}"), source.clone());
        let tensor =
            TensorView { name, dtype: DType::F16, rows: rows as u64, cols: COLS as u64, range, source };
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
        let is_settled = weights.iter().all(|weight| weight.waiting_bytes() == 0);
        stream.run(&*program, RunShape { tokens: 1, selected: 0 }, &Alone, &CancelToken::default()).unwrap();
        runs += 1;
        settled_at = if is_settled { runs } else { 0 };
    }
    assert!(settled_at > 3, "packed within {settled_at} runs: nothing was beside it");
    let peak = status_bytes("VmHWM:") - before;
    let bytes: u64 = weights.iter().map(|weight| weight.footprint_bytes).sum();
    let besides = (2 << 20) + (8 << 20); // a part for each thread, and what threads work in
    assert!(
        bytes > 110_000_000 && peak < bytes + besides,
        "{bytes} bytes of weights took {peak} at the peak"
    );
    assert!(peak > bytes, "{peak} bytes at the peak are less than the weights");
}
