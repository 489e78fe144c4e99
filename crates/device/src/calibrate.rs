//! How fast a device computes, measured through the contract: any backend, no special case.

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    AllocError, Alone, CancelToken, Device, Element, Op, Program, Recording, Rows, RunError, RunShape,
    Stream, WeightError,
};
use exo_types::{DType, TensorView};

use crate::sustained::seconds_per_pass;

/// Inputs of the measured matrix.
const COLS: usize = 2048;
/// Outputs: 68 MiB of Q8_0, more than most caches hold.
const ROWS: usize = 32768;
/// Rows of a prefill chunk.
const TOKENS: usize = 64;
/// Outputs of the matrix that measures arithmetic: small enough to run several times.
const ROWS_SMALL: usize = 2048;
/// In front of each of the two measurements.
const WARM_UP: Duration = Duration::from_millis(20);
/// Of decode: two periods of a quota.
const DECODE_WINDOW: Duration = Duration::from_millis(200);
/// Of prefill, whose passes are short: one period.
const PREFILL_WINDOW: Duration = Duration::from_millis(100);
/// After which a device is taken to hang.
const DEADLINE: Duration = Duration::from_secs(10);

/// Measured rates of one device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Calibration {
    /// Bytes of Q8_0 weights read per second in a decode step: what decode speed follows from.
    pub read_bytes_per_s: f64,
    /// Multiply-adds times two per second in a prefill chunk.
    pub flops_per_s: f64,
}

/// A device could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// No memory for the matrices (about 73 MiB).
    #[error("no memory to measure with")]
    Alloc(#[from] AllocError),
    /// The device did not take the matrix.
    #[error("the device did not take the matrix to measure with")]
    Weight(#[from] WeightError),
    /// A run failed.
    #[error("the measuring run failed")]
    Run(#[from] RunError),
}

/// Measures `device` with a Q8_0 matrix: one row against 68 MiB, then a chunk of rows against a smaller one. Takes about
/// 400 ms on a device that is not much slower than a laptop, and never more than four runs past that.
pub fn calibrate(device: &dyn Device) -> Result<Calibration, CalibrationError> {
    let decode = Bench::new(device, ROWS, 1)?;
    let seconds = decode.run(device, DECODE_WINDOW)?;
    let read_bytes_per_s = decode.weight_bytes as f64 / seconds;
    drop(decode);
    let prefill = Bench::new(device, ROWS_SMALL, TOKENS)?;
    let seconds = prefill.run(device, PREFILL_WINDOW)?;
    let flops_per_s = (2 * COLS * ROWS_SMALL * TOKENS) as f64 / seconds;
    Ok(Calibration { read_bytes_per_s, flops_per_s })
}

/// One matrix product, ready to run.
struct Bench {
    program: Box<dyn Program>,
    tokens: usize,
    weight_bytes: u64,
}

impl Bench {
    fn new(device: &dyn Device, rows: usize, tokens: usize) -> Result<Self, CalibrationError> {
        let bytes = q8_0_matrix(rows * COLS / 32);
        let weight_bytes = bytes.len() as u64;
        let weight = device.weight(&TensorView {
            name: "calibration".to_owned(),
            dtype: DType::Q8_0,
            rows: rows as u64,
            cols: COLS as u64,
            range: 0..bytes.len(),
            source: Arc::new(bytes),
        })?;
        let x = device.buffer(Element::F32, tokens * COLS)?;
        let out = device.buffer(Element::F32, tokens * rows)?;
        let mut stream = device.stream()?;
        let ramp: Vec<f32> = (0..tokens * COLS).map(|i| (i % 17) as f32 - 8.0).collect();
        stream.upload_f32(&x, 0, &ramp)?;
        stream.synchronize(DEADLINE)?;
        let ops = vec![Op::MatMul { weight, bias: None, x, out, rows: Rows::Tokens }];
        Ok(Self { program: device.compile(Recording { ops })?, tokens, weight_bytes })
    }

    /// Mean seconds of a run over a window.
    fn run(&self, device: &dyn Device, window: Duration) -> Result<f64, CalibrationError> {
        let mut stream = device.stream()?;
        // The first runs meet cold pages, sleeping threads and low clocks.
        seconds_per_pass(WARM_UP, || self.once(&mut *stream))?;
        Ok(seconds_per_pass(window, || self.once(&mut *stream))?)
    }

    fn once(&self, stream: &mut dyn Stream) -> Result<(), RunError> {
        let shape = RunShape { tokens: self.tokens, selected: 0 };
        stream.run(&*self.program, shape, &Alone, &CancelToken::default())?;
        stream.synchronize(DEADLINE)
    }
}

/// Blocks of scale 1/64 and quants that go round: a value of every size, none of them subnormal.
fn q8_0_matrix(blocks: usize) -> Vec<u8> {
    let scale = half::f16::from_f32(1.0 / 64.0).to_le_bytes();
    let mut block = [0u8; 34];
    block[..2].copy_from_slice(&scale);
    for (i, quant) in block[2..].iter_mut().enumerate() {
        *quant = (i as u8).wrapping_mul(37);
    }
    block.repeat(blocks)
}
