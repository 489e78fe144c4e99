//! One tensor from its stored rows to rows of another type, on all threads.

use std::io::{self, Write};
use std::ops::Range;

use exo_backend_cpu::quant::dequantise_row;
use exo_types::DType;

use crate::QuantError;
use crate::blocks::quantise_row;
use crate::report::TypeReport;
use crate::source::Tensor;

/// Finished blocks that wait to be written; a batch has a row for each thread even where rows are longer.
pub const BATCH_BYTES: usize = 8 << 20;

/// Why a tensor was not finished.
pub(crate) enum Stop {
    Failed(QuantError),
    Write(io::Error),
}

impl From<QuantError> for Stop {
    fn from(error: QuantError) -> Self {
        Self::Failed(error)
    }
}

/// Writes `tensor` as `dtype`, batch by batch; `after` is told the rows of each and may end the work.
pub(crate) fn write_tensor(
    tensor: &Tensor,
    dtype: DType,
    threads: usize,
    out: &mut dyn Write,
    after: &mut dyn FnMut(u64) -> Result<(), QuantError>,
) -> Result<TypeReport, Stop> {
    let row_bytes = dtype.bytes_of(tensor.cols).expect("the mix chose a type that fits the rows");
    let threads = threads.max(1) as u64;
    let batch_rows = (BATCH_BYTES as u64 / row_bytes).max(threads);
    let mut report = TypeReport {
        tensors: 1,
        elements: tensor.elements(),
        bytes: tensor.rows * row_bytes,
        ..TypeReport::default()
    };
    let mut start = 0;
    while start < tensor.rows {
        let end = tensor.rows.min(start + batch_rows);
        for part in batch(tensor, dtype, start..end, threads) {
            let part = part?;
            report.squared_error += part.squared_error;
            report.squares += part.squares;
            out.write_all(&part.bytes).map_err(Stop::Write)?;
        }
        tensor.release(start..end);
        after(end - start)?;
        start = end;
    }
    Ok(report)
}

/// Rows of one thread, finished.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    squared_error: f64,
    squares: f64,
}

/// The parts of a batch, in the order of rows.
fn batch(tensor: &Tensor, dtype: DType, rows: Range<u64>, threads: u64) -> Vec<Result<Part, QuantError>> {
    let share = (rows.end - rows.start).div_ceil(threads).max(1);
    let starts = rows.clone().step_by(share as usize);
    let ranges: Vec<_> = starts.map(|start| start..rows.end.min(start + share)).collect();
    let (last, others) = ranges.split_last().expect("a batch has rows");
    std::thread::scope(|scope| {
        let spawn = |range: &Range<u64>| {
            let range = range.clone();
            scope.spawn(move || part(tensor, dtype, range))
        };
        let others: Vec<_> = others.iter().map(spawn).collect();
        let last = part(tensor, dtype, last.clone());
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
            handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        others.into_iter().map(join).chain([last]).collect()
    })
}

fn part(tensor: &Tensor, dtype: DType, rows: Range<u64>) -> Result<Part, QuantError> {
    let mut part = Part::default();
    let (mut given, mut kept) = (vec![0.0; tensor.cols as usize], vec![0.0; tensor.cols as usize]);
    for row in rows {
        let stored = tensor.row(row);
        dequantise_row(tensor.dtype, stored, &mut given);
        if let Some(&value) = given.iter().find(|v| !v.is_finite()) {
            return Err(QuantError::NotFinite { tensor: tensor.name.clone(), row, value });
        }
        part.squares += given.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        if dtype == tensor.dtype {
            part.bytes.extend(stored);
            continue;
        }
        let from = part.bytes.len();
        quantise_row(dtype, &given, &mut part.bytes);
        dequantise_row(dtype, &part.bytes[from..], &mut kept);
        let error = given.iter().zip(&kept).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        if !error.is_finite() {
            let value = given.iter().fold(0.0f32, |max, v| if v.abs() > max.abs() { *v } else { max });
            return Err(QuantError::TooLarge { tensor: tensor.name.clone(), row, value, dtype });
        }
        part.squared_error += error;
    }
    Ok(part)
}
