//! The op oracle on every instruction set of this machine.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

use std::io::Write as _;
use std::sync::Arc;

use exo_backend::oracle;
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa};

fn open(isa: Isa, threads: usize) -> Arc<CpuDevice> {
    CpuDevice::open(CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() }).unwrap()
}

/// Every instruction set of this machine.
fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// Says which instruction sets nothing of this crate is run with here; `cargo xtask test` gathers these
/// lines.
#[test]
fn what_this_machine_lacks_is_reported() {
    let missing = Isa::ALL.into_iter().filter(|isa| !isa.is_available());
    let lines: Vec<_> = missing
        .map(|isa| {
            format!("the kernels for {}: this processor does not have it (docs/platforms.md)", isa.name())
        })
        .collect();
    assert!(lines.len() < Isa::ALL.len(), "plain code runs everywhere");
    lines.iter().for_each(|line| println!("skipped: {line}"));
    if let Some(path) = std::env::var_os("EXO_TEST_SKIPS") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // In one piece: other tests write their lines at the same time.
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        file.and_then(|mut file| file.write_all(text.as_bytes())).unwrap();
    }
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
