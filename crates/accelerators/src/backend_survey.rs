//! What came of asking a backend, and by whom it is asked.

use exo_device::Quarantine;

use crate::Backend;
use crate::survey::{Survey, SurveyAsk, SurveyedAccelerator, survey};

/// Asks backends for their accelerators, in a place where a driver may crash or hang: a child process, or,
/// where an app may start none, this one.
pub trait Surveyor: Sync {
    /// Asks one backend, within a bound. Blocks.
    fn survey(&self, ask: &SurveyAsk) -> Result<Survey, ProbeFailure>;

    /// Whether no one waits for the answers any more: then nothing is said of those that did not come.
    fn is_cancelled(&self) -> bool;
}

/// In this process, without a bound.
#[derive(Clone, Copy, Debug)]
pub struct InProcess;

impl Surveyor for InProcess {
    fn survey(&self, ask: &SurveyAsk) -> Result<Survey, ProbeFailure> {
        survey(ask, || {}).map_err(|error| {
            let kind = if error.is_absent() { ProbeFailureKind::Absent } else { ProbeFailureKind::Broken };
            ProbeFailure::new(kind, error.to_string())
        })
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// What became of asking one backend.
#[derive(Clone, Debug)]
pub struct BackendSurvey {
    /// Who was asked.
    pub backend: Backend,
    /// Milliseconds of loading drivers and listing devices.
    pub list_ms: Option<f64>,
    /// What it showed.
    pub found: Result<Vec<SurveyedAccelerator>, ProbeFailure>,
    /// What is wrong with the descriptions of its drivers, where it shows no card.
    pub descriptions: Vec<String>,
}

/// A backend showed nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ProbeFailure {
    /// Why, as far as it matters.
    pub kind: ProbeFailureKind,
    /// Why, in a sentence.
    pub reason: String,
    /// What of the reason is kept where it is remembered.
    pub cause: Option<String>,
}

/// Why a backend showed nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProbeFailureKind {
    /// There is no driver, or no card for it: nothing is broken.
    Absent,
    /// Its driver crashed, answered with nonsense, or hung with a device.
    Broken,
    /// Its driver did not even list its devices within the bound.
    Hung,
    /// Somebody ended the process that asked it: that says nothing of its driver.
    Stopped,
    /// It was not asked, for its driver hung not long ago.
    Quarantined(Quarantine),
}

impl ProbeFailure {
    /// For a reason.
    pub fn new(kind: ProbeFailureKind, reason: String) -> Self {
        Self { kind, reason, cause: None }
    }

    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self.kind {
            ProbeFailureKind::Absent => "driver_missing",
            ProbeFailureKind::Broken => "driver_broken",
            ProbeFailureKind::Hung => "driver_hangs",
            ProbeFailureKind::Stopped => "survey_stopped",
            ProbeFailureKind::Quarantined(_) => "driver_quarantined",
        }
    }
}

impl BackendSurvey {
    /// One of a survey.
    pub fn new(backend: Backend, survey: Result<Survey, ProbeFailure>) -> Self {
        let (list_ms, found) = match survey {
            Ok(Survey { list_ms, found }) => (Some(list_ms), Ok(found)),
            Err(failure) => (None, Err(failure)),
        };
        Self { backend, list_ms, found, descriptions: Vec::new() }
    }

    /// What it showed, if anything.
    pub fn shown(&self) -> &[SurveyedAccelerator] {
        self.found.as_deref().unwrap_or_default()
    }

    /// Whether it showed none but software adapters.
    pub fn shows_no_card(&self) -> bool {
        self.shown().iter().all(|found| found.is_software)
    }

    /// Whether its driver did not even list its devices within the bound.
    pub fn has_hung(&self) -> bool {
        self.found.as_ref().is_err_and(|failure| failure.kind == ProbeFailureKind::Hung)
    }

    /// Why it showed nothing, if something is wrong with it.
    pub fn trouble(&self) -> Option<&ProbeFailure> {
        self.found.as_ref().err().filter(|failure| failure.kind != ProbeFailureKind::Absent)
    }
}
