//! What came of asking a backend, and by whom it is asked.

use exo_device::Quarantine;

use crate::Backend;
use crate::survey::{Found, Survey, SurveyAsk, survey};

/// Asks backends for their accelerators, in a place where a driver may crash or hang: a child process, or,
/// where an app may start none, this one.
pub trait Surveyor: Sync {
    /// Asks one backend, within a bound. Blocks.
    fn survey(&self, ask: &SurveyAsk) -> Result<Survey, Silence>;

    /// Whether nobody waits for the answers any more: then nothing is said of those that did not come.
    fn is_cancelled(&self) -> bool;
}

/// In this process, without a bound.
#[derive(Clone, Copy, Debug)]
pub struct InProcess;

impl Surveyor for InProcess {
    fn survey(&self, ask: &SurveyAsk) -> Result<Survey, Silence> {
        survey(ask, || {}).map_err(|error| {
            let kind = if error.is_absent() { SilenceKind::Absent } else { SilenceKind::Broken };
            Silence::new(kind, error.to_string())
        })
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// What became of asking one backend.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Who was asked.
    pub backend: Backend,
    /// Milliseconds of loading drivers and listing devices.
    pub list_ms: Option<f64>,
    /// What it showed.
    pub found: Result<Vec<Found>, Silence>,
    /// What is wrong with the descriptions of its drivers, where it shows no card.
    pub descriptions: Vec<String>,
}

/// A backend showed nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Silence {
    /// Why, as far as it matters.
    pub kind: SilenceKind,
    /// Why, in a sentence.
    pub reason: String,
    /// What of the reason is kept where it is remembered.
    pub cause: Option<String>,
}

/// Why a backend showed nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SilenceKind {
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

impl Silence {
    /// For a reason.
    pub fn new(kind: SilenceKind, reason: String) -> Self {
        Self { kind, reason, cause: None }
    }

    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self.kind {
            SilenceKind::Absent => "driver_missing",
            SilenceKind::Broken => "driver_broken",
            SilenceKind::Hung => "driver_hangs",
            SilenceKind::Stopped => "survey_stopped",
            SilenceKind::Quarantined(_) => "driver_quarantined",
        }
    }
}

impl Outcome {
    /// One of a survey.
    pub fn new(backend: Backend, survey: Result<Survey, Silence>) -> Self {
        let (list_ms, found) = match survey {
            Ok(Survey { list_ms, found }) => (Some(list_ms), Ok(found)),
            Err(silence) => (None, Err(silence)),
        };
        Self { backend, list_ms, found, descriptions: Vec::new() }
    }

    /// What it showed, if anything.
    pub fn shown(&self) -> &[Found] {
        self.found.as_deref().unwrap_or_default()
    }

    /// Whether it showed none but programs that play a card.
    pub fn shows_no_card(&self) -> bool {
        self.shown().iter().all(|found| found.is_software)
    }

    /// Whether its driver did not even list its devices within the bound.
    pub fn has_hung(&self) -> bool {
        self.found.as_ref().is_err_and(|silence| silence.kind == SilenceKind::Hung)
    }

    /// Why it showed nothing, if something is wrong with it.
    pub fn trouble(&self) -> Option<&Silence> {
        self.found.as_ref().err().filter(|silence| silence.kind != SilenceKind::Absent)
    }
}
