//! What the oracle and the conformance suite found.

use std::fmt;

use crate::{AllocError, RunError, WeightError};

/// How one case ended.
#[derive(Clone, PartialEq, Debug)]
pub enum CaseOutcome {
    /// As it should be.
    Passed,
    /// Too far from the formula.
    OverBudget {
        /// Normalised mean square error: Σ(got - exact)² / Σ exact².
        nmse: f64,
        /// The most allowed.
        nmse_max: f64,
        /// Element that is furthest off, what it should be and what it is.
        worst: (usize, f64, f32),
    },
    /// Wrong in another way.
    Failed {
        /// What was seen and what was expected.
        what: String,
    },
    /// Not tried.
    Skipped {
        /// Why it was not tried.
        why: String,
    },
}

/// One case and its end.
#[derive(Clone, PartialEq, Debug)]
pub struct CaseResult {
    /// Op, operands and what is special about them.
    pub name: String,
    /// How it ended.
    pub outcome: CaseOutcome,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            CaseOutcome::Passed => write!(f, "pass  {}", self.name),
            CaseOutcome::OverBudget { nmse, nmse_max, worst: (i, exact, got) } => write!(
                f,
                "FAIL  {}: nmse {nmse:.2e} is over {nmse_max:.0e}; element {i} is {got:e} and should be {exact:e}",
                self.name
            ),
            CaseOutcome::Failed { what } => write!(f, "FAIL  {}: {what}", self.name),
            CaseOutcome::Skipped { why } => write!(f, "skip  {}: {why}", self.name),
        }
    }
}

/// Every case of a suite, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// The results.
    pub cases: Vec<CaseResult>,
}

impl Report {
    pub(crate) fn push(&mut self, name: impl Into<String>, outcome: CaseOutcome) {
        self.cases.push(CaseResult { name: name.into(), outcome });
    }

    /// Cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| {
            matches!(case.outcome, CaseOutcome::OverBudget { .. } | CaseOutcome::Failed { .. })
        })
    }

    /// Cases that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| matches!(case.outcome, CaseOutcome::Skipped { .. }))
    }

    /// Panics with every failure, if there is one, or if no case ran at all.
    pub fn assert_passed(&self) {
        let failures: Vec<String> = self.failures().map(ToString::to_string).collect();
        assert!(
            failures.is_empty(),
            "{} of {} cases:\n{}",
            failures.len(),
            self.cases.len(),
            failures.join("\n")
        );
        assert!(self.cases.len() > self.skipped().count(), "every case was skipped");
    }
}

/// What a device may answer in the middle of a case.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    #[error(transparent)]
    Alloc(#[from] AllocError),
    #[error(transparent)]
    Weight(#[from] WeightError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("element {at} past the rows of the step was overwritten with {value:e}")]
    WroteBeyond { at: usize, value: f32 },
    #[error("{0}")]
    Wrong(String),
}

impl From<Result<(), CaseError>> for CaseOutcome {
    fn from(result: Result<(), CaseError>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(trouble) => Self::Failed { what: trouble.to_string() },
        }
    }
}

/// Runs a case; a panic in it is a failure of the case and not the end of the suite.
pub(crate) fn guarded(case: impl FnOnce() -> CaseOutcome) -> CaseOutcome {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(case)) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            CaseOutcome::Failed { what: format!("panicked: {text}") }
        }
    }
}
