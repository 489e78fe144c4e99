//! How fast the kernels are here:
//! `cargo run --release -p exo-backend-cpu --example speed [threads [type [mmap]]]`, the last for weights
//! that stay in their file.
//!
//! For each stored type, the rate at which decode reads weights (one row) and prefill computes (512 rows);
//! beside them the machine's read bandwidth, which bounds the first, and the peaks of the instructions that
//! bound the second.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::sync::Arc;
use std::time::Instant;

use exo_backend::{Alone, CancelToken, Device, Element, Op, Recording, Rows, RunShape};
use exo_backend_cpu::probe::{BandwidthProbe, Instruction, PageSize, peak};
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa};
use exo_types::{DType, TensorView};

const COLS: usize = 2048;
/// Of the weight that decode reads: more than last-level caches keep.
const WEIGHT_BYTES: usize = 512 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map(|word| word.parse()).transpose()?;
    let only = std::env::args().nth(2);
    let mmap = std::env::args().nth(3).is_some_and(|word| word == "mmap");
    let cores = threads.unwrap_or_else(exo_device::cores);
    let reading = BandwidthProbe::new(PageSize::Huge)?.read(cores);
    let bandwidth = reading.bytes_per_s;
    println!("{cores} threads read {:.1} GB/s by {}", bandwidth / 1e9, reading.kernel);
    for instruction in Instruction::ALL {
        if let Some(rate) = peak(instruction, cores) {
            println!("{cores} threads multiply {:.0} GFLOP/s by {}", 2e-9 * rate, instruction.name());
        }
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let device = CpuDevice::open(CpuOptions { threads, isa: Some(isa), mmap, ..CpuOptions::default() })?;
        for dtype in DType::ALL.into_iter().filter(|d| only.as_ref().is_none_or(|o| d.to_string() == *o)) {
            let rows = WEIGHT_BYTES / (dtype.bytes_of(COLS as u64).unwrap_or(1) as usize);
            let (seconds, bytes) = best_of(&device, dtype, rows, 1)?;
            let (small, _) = best_of(&device, dtype, 1024, 512)?;
            let decode = bytes as f64 / seconds;
            let prefill = 2.0 * (COLS * 1024 * 512) as f64 / small;
            let used = Instruction::for_weights(isa, dtype);
            let bound = used.and_then(|instruction| peak(instruction, cores)).unwrap_or(f64::NAN);
            println!(
                "{:7} {dtype:5} decode {:6.2} GB/s ({:3.0} %)  prefill {:6.1} GFLOP/s ({:3.0} %)",
                isa.name(),
                decode / 1e9,
                100.0 * decode / bandwidth,
                prefill / 1e9,
                50.0 * prefill / bound
            );
        }
    }
    Ok(())
}

/// Seconds of the fastest of a few products, and the bytes of the weight.
fn best_of(
    device: &CpuDevice,
    dtype: DType,
    rows: usize,
    tokens: usize,
) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let len = dtype.bytes_of((rows * COLS) as u64).unwrap_or(0) as usize;
    // Bytes of 0x1c are small ordinary numbers in every type.
    let source = Arc::new(vec![0x1c_u8; len]);
    let (name, rows64, cols) = ("w".to_owned(), rows as u64, COLS as u64);
    let weight = device.weight(&TensorView { name, dtype, rows: rows64, cols, range: 0..len, source })?;
    let (x, out) = (device.buffer(Element::F32, tokens * COLS)?, device.buffer(Element::F32, tokens * rows)?);
    let ops = vec![Op::MatMul { weight, bias: None, x, out, rows: Rows::Tokens }];
    let program = device.compile(Recording { ops })?;
    let mut stream = device.stream()?;
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let start = Instant::now();
        stream.run(&*program, RunShape { tokens, selected: 0 }, &Alone, &CancelToken::default())?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((best, len as u64))
}
