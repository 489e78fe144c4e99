//! The contract's promises, and those only this device makes.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test file, helpers included

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exo_backend::{
    Alone, CancelToken, CaseOutcome, Device, Element, Exchange, ExchangeError, Op, Recording, Rows, RunError,
    RunShape, conformance,
};
use exo_backend_cpu::{CpuDevice, CpuOptions, Isa, OpenError};
use exo_types::{ByteSource, DType, SourceLost, TensorView};

fn open(isa: Isa) -> Arc<CpuDevice> {
    limited(isa, 8 << 20)
}

fn limited(isa: Isa, memory_limit_bytes: u64) -> Arc<CpuDevice> {
    let options = CpuOptions {
        threads: Some(2),
        isa: Some(isa),
        memory_limit_bytes: Some(memory_limit_bytes),
        ..CpuOptions::default()
    };
    CpuDevice::open(options).unwrap()
}

#[test]
fn the_contract_is_kept_on_every_instruction_set() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        // A limit that fills to the byte, and one that no number of elements fills.
        for limit in [8 << 20, (8 << 20) + 3] {
            let report = conformance::run(&*limited(isa, limit), &*open(isa));
            report.assert_passed();
            assert_eq!(report.skipped().count(), 0, "{isa:?}: a small limit leaves nothing to skip");
        }
    }
}

#[test]
fn without_a_limit_only_the_filling_is_skipped() {
    let device = CpuDevice::open(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let report = conformance::run(&*device, &*open(Isa::Scalar));
    report.assert_passed();
    let skipped: Vec<_> = report.skipped().map(|case| case.name.as_str()).collect();
    if device.memory().total_bytes > 1 << 30 {
        assert_eq!(skipped, ["memory in pieces is memory", "the last byte can be had and one more cannot"]);
    }
    assert!(report.cases.iter().any(|case| case.outcome == CaseOutcome::Passed));
}

/// A mapped file that is cut short while in use.
struct Truncated {
    bytes: Vec<u8>,
    lost: AtomicBool,
}

impl ByteSource for Truncated {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn check(&self) -> Result<(), SourceLost> {
        match self.lost.load(Ordering::Relaxed) {
            true => Err(SourceLost { name: "model.gguf".to_owned() }),
            false => Ok(()),
        }
    }
}

#[test]
fn a_file_lost_between_two_runs_ends_the_second() {
    let device = CpuDevice::open(CpuOptions { mmap: true, ..CpuOptions::default() }).unwrap();
    let source = Arc::new(Truncated { bytes: vec![0; 64], lost: AtomicBool::new(false) });
    let (name, range) = ("w".to_owned(), 0..64);
    let tensor = TensorView { name, dtype: DType::F16, rows: 4, cols: 8, range, source: source.clone() };
    let weight = device.weight(&tensor).unwrap();
    let (x, out) = (device.buffer(Element::F32, 8).unwrap(), device.buffer(Element::F32, 4).unwrap());
    let ops = vec![Op::MatMul { weight, bias: None, x, out, rows: Rows::Tokens }];
    let program = device.compile(Recording { ops }).unwrap();
    let mut stream = device.stream().unwrap();
    let mut run =
        || stream.run(&*program, RunShape { tokens: 1, selected: 0 }, &Alone, &CancelToken::default());
    assert_eq!(run(), Ok(()));
    source.lost.store(true, Ordering::Relaxed);
    assert_eq!(run(), Err(RunError::SourceLost(SourceLost { name: "model.gguf".to_owned() })));
}

/// An exchange with a bug.
struct Panics;

impl Exchange for Panics {
    fn is_alone(&self) -> bool {
        false
    }

    fn sum(&self, _partial: &mut [f32]) -> Result<(), ExchangeError> {
        panic!("on purpose")
    }
}

#[test]
fn a_panic_in_a_run_leaves_the_device_and_its_buffers_usable() {
    let device = open(Isa::best());
    let x = device.buffer(Element::F32, 1).unwrap();
    let y = device.buffer(Element::F32, 1).unwrap();
    let mut stream = device.stream().unwrap();
    stream.upload_f32(&y, 0, &[2.0]).unwrap();
    let ops = vec![Op::Add { x: x.clone(), y, width: 1 }, Op::Exchange { x: x.clone(), width: 1 }];
    let program = device.compile(Recording { ops }).unwrap();
    let shape = RunShape { tokens: 1, selected: 0 };
    let panicking = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.run(&*program, shape, &Panics, &CancelToken::default())
    }));
    assert!(panicking.is_err());
    stream.run(&*program, shape, &Alone, &CancelToken::default()).unwrap();
    let mut got = [0.0];
    stream.download_f32(&x, 0, &mut got, std::time::Duration::ZERO).unwrap();
    assert_eq!(got, [4.0]);
}

#[test]
fn an_instruction_set_that_is_not_there_is_an_error() {
    for isa in Isa::ALL {
        match CpuDevice::open(CpuOptions { threads: Some(1), isa: Some(isa), ..CpuOptions::default() }) {
            Ok(device) => {
                assert_eq!((device.isa(), device.threads()), (isa, 1));
                assert_eq!(device.facts().backend, format!("cpu/{}", isa.name()));
            }
            Err(OpenError::MissingIsa { isa: missing }) => assert!(missing == isa && !isa.is_available()),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_number_of_threads_that_makes_no_sense_is_an_error() {
    for threads in [0, 1025, usize::MAX] {
        let error =
            CpuDevice::open(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap_err();
        assert!(error.to_string().ends_with(&format!("1 to 1024 threads, not {threads}")), "{error}");
    }
}

#[test]
fn more_threads_than_cores_give_the_same_answers() {
    let threads = Some(8 * exo_device::cores());
    let device = CpuDevice::open(CpuOptions { threads, ..CpuOptions::default() }).unwrap();
    conformance::run(&*device, &*open(Isa::best())).assert_passed();
}

#[test]
fn a_calibration_measures_something() {
    let device = CpuDevice::open(CpuOptions::default()).unwrap();
    for dtype in [DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::BF16] {
        let measured = exo_device::calibrate_type(&*device, dtype).unwrap();
        println!("{dtype:?} {measured:?}");
        assert!(measured.read_bytes_per_s > 1e7 && measured.flops_per_s > 1e7, "{measured:?}");
        assert!(measured.read_16_rows_bytes_per_s > Some(1e6), "{measured:?}");
    }
    let layer = exo_device::calibrate(&*device).unwrap().layer;
    println!("{layer:?}");
    assert!(layer.is_some_and(|rates| rates.is_plausible()), "{layer:?}");
    assert!(layer.is_some_and(|rates| rates.read_16_rows_bytes_per_s > Some(1e6)), "{layer:?}");
    assert_eq!(device.memory().live_allocations, 0);
}
