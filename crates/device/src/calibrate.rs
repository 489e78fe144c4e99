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
/// Of weights that are read once: more than most caches hold.
const WEIGHT_BYTES: u64 = 68 << 20;
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
    /// Bytes of weights, as stored, read per second in a decode step: what decode speed follows from.
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

/// Measures `device` with a Q8_0 matrix, as [`calibrate_type`] does.
pub fn calibrate(device: &dyn Device) -> Result<Calibration, CalibrationError> {
    calibrate_type(device, DType::Q8_0)
}

/// Measures `device` with a matrix of this type: one row against 68 MiB, then a chunk of rows against a
/// smaller one. Takes about 400 ms on a device that is not much slower than a laptop, and never more than
/// four runs past that.
pub fn calibrate_type(device: &dyn Device, dtype: DType) -> Result<Calibration, CalibrationError> {
    let rows = (WEIGHT_BYTES / row_bytes(dtype)) as usize;
    let decode = Bench::new(device, dtype, rows, 1)?;
    let seconds = decode.run(device, DECODE_WINDOW)?;
    let read_bytes_per_s = decode.weight_bytes as f64 / seconds;
    drop(decode);
    let prefill = Bench::new(device, dtype, ROWS_SMALL, TOKENS)?;
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
    fn new(device: &dyn Device, dtype: DType, rows: usize, tokens: usize) -> Result<Self, CalibrationError> {
        let bytes = matrix(row_bytes(dtype) as usize * rows);
        let weight_bytes = bytes.len() as u64;
        let weight = device.weight(&TensorView {
            name: "calibration".to_owned(),
            dtype,
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

/// Bytes of a row of [`COLS`] inputs.
fn row_bytes(dtype: DType) -> u64 {
    COLS as u64 / dtype.block_elements() * dtype.block_bytes()
}

/// Bytes of which any four, any two and any one are an ordinary number, whatever type reads them: none of
/// them subnormal.
fn matrix(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| 0x28 | (i.wrapping_mul(37) >> 2) as u8 & 7).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_matrix_are_ordinary_numbers_of_every_width() {
        let bytes = matrix(4096);
        let halves = bytes.windows(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]));
        assert!(halves.into_iter().all(|h| h.is_normal() && h.to_f32() < 1.0));
        let floats = bytes.windows(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        assert!(floats.into_iter().all(f32::is_normal));
        assert!((0..8).all(|low| bytes.contains(&(0x28 | low))), "values of several sizes");
    }

    #[test]
    fn every_type_fills_whole_rows() {
        for dtype in DType::ALL {
            assert_eq!(dtype.bytes_of(COLS as u64), Some(row_bytes(dtype)), "{dtype:?}");
        }
    }
}
