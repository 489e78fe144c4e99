//! What loading costs in memory: the weights once, not once in the file's pages and once in ours.

#![cfg(target_os = "linux")] // the only system that tells a process's peak
#![allow(clippy::unwrap_used)] // helpers of tests fail by panicking

use std::io::Write;
use std::sync::Arc;

use exo_backend::Device;
use exo_backend_cpu::{CpuDevice, CpuOptions};
use exo_formats::MappedFile;
use exo_types::{DType, TensorView};

const COLS: usize = 2048;
/// One matrix of 64 MB, as large tables are, and many small ones.
const ROWS: [usize; 9] = [16_384, 2048, 1024, 1024, 2048, 1024, 1024, 2048, 1024];

fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn a_load_peaks_at_the_weights_and_one_slab() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let row = [0x5a_u8; 2 * COLS];
    (0..ROWS.iter().sum()).for_each(|_| file.write_all(&row).unwrap());
    file.flush().unwrap();
    let device = CpuDevice::open(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    let source = Arc::new(MappedFile::open(file.path()).unwrap());
    let before = status_bytes("VmRSS:");
    let mut start = 0;
    let weights: Vec<_> = ROWS
        .iter()
        .map(|rows| {
            let range = start..start + rows * row.len();
            start = range.end;
            let (name, source) = (format!("w{start}"), source.clone());
            let (rows, cols) = (*rows as u64, COLS as u64);
            device.weight(&TensorView { name, dtype: DType::F16, rows, cols, range, source }).unwrap()
        })
        .collect();
    let peak = status_bytes("VmHWM:") - before;
    let bytes: u64 = weights.iter().map(|weight| weight.footprint_bytes).sum();
    assert!(bytes > 100_000_000 && device.residence().copied_bytes == bytes);
    let slab = 16 << 20; // what is copied between two releases of the file
    assert!(peak < bytes + slab + (4 << 20), "{bytes} bytes of weights took {peak} at the peak");
}
