//! Whether a device computes what the contract says: every op against its formula in f64, and every row
//! bitwise the same whatever is computed beside it. For the tests of backends; nothing that is shipped calls
//! it.
//!
//! A case is a few rows of one op. It runs once as a whole, which is held against the formula, and then again
//! row by row, in reverse and in pieces, which must agree with the whole bit by bit.
//!
//! Start reading at [`run`], then one file per op.

mod arg_max;
mod attention;
mod blocks;
mod elementwise;
mod kv_write;
mod lookup;
mod matmul;
mod rms_norm;
mod rope;

use exo_types::DType;

use crate::report::{CaseError, guarded};
use crate::report::{CaseOutcome, Report};
use crate::rig::Rig;
use crate::{Activations, Device, OpKind, Support};

const NOT_SUPPORTED: &str = "the device does not support it";

/// What a case takes and allows.
struct CaseFacts {
    /// What the device must support for it.
    op: OpKind,
    dtype: Option<DType>,
    rows: usize,
    /// The most normalised mean square error allowed against the formula of what the device says it computes.
    nmse_max: f64,
}

/// A few rows of one op.
trait Case {
    /// The op, its shape and what is special about it.
    fn name(&self) -> String;
    fn facts(&self) -> CaseFacts;
    /// Results of these rows, in this order, run as one step.
    fn run(&self, rig: &mut Rig<'_>, rows: &[usize]) -> Result<Vec<f32>, CaseError>;
    /// The formula, for every row.
    fn exact(&self) -> Vec<f64>;
    /// The formula on operands as `device` says it rounds them, and how; `None` where it takes them as they
    /// are.
    fn rounded(&self, _device: &dyn Device) -> Option<(Vec<f64>, Activations)> {
        None
    }
}

fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    cases.extend(lookup::cases());
    cases.extend(rms_norm::cases());
    cases.extend(matmul::cases());
    cases.extend(rope::cases());
    cases.extend(kv_write::cases());
    cases.extend(attention::cases());
    cases.extend(elementwise::cases());
    cases.extend(arg_max::cases());
    cases
}

/// Runs every case on `device`.
pub fn run(device: &dyn Device) -> Report {
    let mut report = Report::default();
    for case in cases() {
        report.push(case.name(), guarded(|| check(&*case, device)));
    }
    report
}

/// Whether two devices give the same bits: one backend and instruction set with different thread counts, or
/// opened twice.
pub fn same_bits(a: &dyn Device, b: &dyn Device) -> Report {
    let mut report = Report::default();
    for case in cases() {
        let CaseFacts { op, dtype, rows, .. } = case.facts();
        if a.supports_op(op, dtype) == Support::Unsupported {
            report.push(case.name(), CaseOutcome::Skipped { why: NOT_SUPPORTED.to_owned() });
            continue;
        }
        let compare = || -> Result<(), CaseError> {
            let all: Vec<usize> = (0..rows).collect();
            let (first, second) = (case.run(&mut Rig::new(a)?, &all)?, case.run(&mut Rig::new(b)?, &all)?);
            compare_bits("on the other device", &first, &second)
        };
        report.push(case.name(), guarded(|| compare().into()));
    }
    report
}

fn check(case: &dyn Case, device: &dyn Device) -> CaseOutcome {
    let CaseFacts { op, dtype, rows, nmse_max } = case.facts();
    if device.supports_op(op, dtype) == Support::Unsupported {
        return CaseOutcome::Skipped { why: NOT_SUPPORTED.to_owned() };
    }
    let all: Vec<usize> = (0..rows).collect();
    let whole = match Rig::new(device).and_then(|mut rig| case.run(&mut rig, &all)) {
        Ok(whole) => whole,
        Err(trouble) => return CaseOutcome::Failed { what: trouble.to_string() },
    };
    // A device that rounds is held to the rounded formula as tightly as others are to the exact one: no error
    // of a kernel hides behind the rounding.
    let formulas = match case.rounded(device) {
        None => vec![(case.exact(), nmse_max)],
        Some((rounded, how)) => vec![(rounded, nmse_max), (case.exact(), how.nmse_max())],
    };
    for (formula, nmse_max) in formulas {
        assert!(formula.len() == whole.len(), "the case {} disagrees with itself", case.name());
        let nmse = nmse(&whole, &formula);
        if nmse.is_nan() || nmse > nmse_max {
            return CaseOutcome::OverBudget { nmse, nmse_max, worst: worst(&whole, &formula) };
        }
    }
    Rig::new(device).and_then(|mut rig| check_splits(case, &mut rig, &whole)).into()
}

/// Each row alone, all in reverse, and the first third apart from the rest.
fn check_splits(case: &dyn Case, rig: &mut Rig<'_>, whole: &[f32]) -> Result<(), CaseError> {
    let CaseFacts { rows, .. } = case.facts();
    let width = whole.len() / rows;
    let mut splits: Vec<(String, Vec<usize>)> =
        (0..rows).map(|r| (format!("row {r} alone"), vec![r])).collect();
    splits.push(("in reverse".to_owned(), (0..rows).rev().collect()));
    splits.push(("the first third".to_owned(), (0..rows.div_ceil(3)).collect()));
    splits.push(("the last two thirds".to_owned(), (rows.div_ceil(3)..rows).collect()));
    for (name, rows) in splits.into_iter().filter(|(_, rows)| !rows.is_empty()) {
        let got = case.run(rig, &rows)?;
        let expected: Vec<f32> =
            rows.iter().flat_map(|r| &whole[r * width..(r + 1) * width]).copied().collect();
        compare_bits(&name, &expected, &got)?;
    }
    Ok(())
}

fn compare_bits(name: &str, expected: &[f32], got: &[f32]) -> Result<(), CaseError> {
    if expected.len() != got.len() {
        return Err(CaseError::Wrong(format!("{name}: {} elements, not {}", got.len(), expected.len())));
    }
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    match expected.iter().zip(got).position(differs) {
        Some(i) => Err(CaseError::Wrong(format!(
            "{name}: element {i} is {:e}, before it was {:e}",
            got[i], expected[i]
        ))),
        None => Ok(()),
    }
}

/// Normalised mean square error; NaN if anything is not a number.
fn nmse(got: &[f32], exact: &[f64]) -> f64 {
    let error: f64 = got.iter().zip(exact).map(|(got, exact)| (f64::from(*got) - exact).powi(2)).sum();
    let size: f64 = exact.iter().map(|exact| exact * exact).sum();
    if error == 0.0 { 0.0 } else { error / size }
}

fn worst(got: &[f32], exact: &[f64]) -> (usize, f64, f32) {
    let error = |i: usize| {
        let error = (f64::from(got[i]) - exact[i]).abs();
        if error.is_nan() { f64::INFINITY } else { error }
    };
    let i = (0..got.len()).max_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0);
    (i, exact[i], got[i])
}

/// The chosen rows of a matrix, in their order.
fn pick(matrix: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|r| &matrix[r * width..(r + 1) * width]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_not_a_number_is_not_within_budget() {
        assert!(nmse(&[f32::NAN, 1.0], &[1.0, 1.0]).is_nan());
        assert_eq!(worst(&[1.0, f32::NAN, 5.0], &[1.0, 1.0, 1.0]).0, 1);
        assert_eq!(nmse(&[0.0], &[0.0]), 0.0);
        assert_eq!(nmse(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(nmse(&[1.5, 0.0], &[1.0, 0.0]), 0.25);
    }

    #[test]
    fn zero_and_minus_zero_are_different_bits() {
        assert!(compare_bits("", &[0.0], &[-0.0]).is_err());
        assert!(compare_bits("", &[f32::NAN], &[f32::NAN]).is_ok());
    }
}
