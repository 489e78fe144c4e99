//! The op oracle on every instruction set of this machine.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

use std::sync::Arc;

use exo_backend::oracle;
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa};

fn open(isa: Isa, threads: usize) -> Arc<CpuDevice> {
    CpuDevice::open(CpuOptions {
        threads: Some(threads),
        isa: Some(isa),
        memory_limit_bytes: None,
        mmap: false,
    })
    .unwrap()
}

/// Every instruction set, with a line in the test's output for each that this machine lacks.
fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| {
        if !isa.is_available() {
            println!("skipped: this machine has no {}", isa.name());
        }
        isa.is_available()
    })
}

#[test]
fn every_op_agrees_with_its_formula_and_with_itself() {
    for isa in available() {
        let report = oracle::run(&*open(isa, 2));
        report.assert_passed();
        assert_eq!(report.skipped().count(), 0, "{isa:?}: the processor computes everything");
    }
}

#[test]
fn the_number_of_threads_does_not_show_in_any_bit() {
    for isa in available() {
        oracle::same_bits(&*open(isa, 1), &*open(isa, 5)).assert_passed();
    }
}
