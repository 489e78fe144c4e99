//! How fast packed weights are multiplied:
//! `cargo run --release -p exo-backend-cpu --example products [ISA [TYPE…]]`.
//!
//! For each type, one thread, at the shapes of Qwen3-0.6B: how many bytes of weights decode reads per second
//! beside what the fastest read loop reaches at the same moment (the median of five pairs), and how many
//! thousand million operations are done with several rows of activations (the best of three).

#![allow(clippy::print_stdout)] // its output is its purpose

use std::time::Duration;

use exo_backend_cpu::Isa;
use exo_backend_cpu::probe::{BandwidthProbe, PageSize, ProductsProbe};
use exo_types::DType;

const ROWS: [usize; 8] = [2, 3, 4, 8, 16, 32, 64, 512];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let isa = words.next().map_or(Ok(Isa::best()), |word| word.parse())?;
    let wanted: Vec<String> = words.collect();
    let memory = BandwidthProbe::new(PageSize::Huge)?;
    println!("{}; GB/s of one row, part of the read bandwidth, GOP/s of {ROWS:?} rows", isa.name());
    for dtype in [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::BF16,
    ] {
        if !wanted.is_empty() && !wanted.contains(&dtype.to_string()) {
            continue;
        }
        let products = ProductsProbe::new(isa, dtype)?;
        let mut pairs: Vec<(f64, f64)> = (0..5).map(|_| beside(&memory, &products)).collect();
        pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (rate, part) = pairs[pairs.len() / 2];
        let huge = products.huge_share().unwrap_or(f64::NAN);
        print!("{dtype:5} {:6.2} GB/s {part:5.2} (2 MiB pages {:3.0} %) ", rate / 1e9, 100.0 * huge);
        for rows in ROWS {
            let rates = (0..3).map(|_| products.operations(rows, Duration::from_millis(100)));
            print!(" {:6.1}", rates.fold(0.0, f64::max) / 1e9);
        }
        println!();
    }
    Ok(())
}

/// Bytes per second of decode, and that over the better of two readings before and after.
fn beside(memory: &BandwidthProbe, products: &ProductsProbe) -> (f64, f64) {
    let before = memory.read(1).bytes_per_s;
    let rate = products.decode();
    let after = memory.read(1).bytes_per_s;
    (rate, rate / before.max(after))
}
