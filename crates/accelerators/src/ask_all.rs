//! Every backend of this system asked at once, but for those whose driver did not answer not long ago.

use std::path::Path;

use exo_device::Registry;

use crate::backend_survey::{BackendSurvey, ProbeFailure, ProbeFailureKind, Surveyor};
use crate::survey::SurveyAsk;
use crate::{Backend, System};

/// Asks every backend of this system what `ask` says of it, the preferred ones first in the answer.
pub fn ask_all(surveyor: &dyn Surveyor, ask: &(dyn Fn(Backend) -> SurveyAsk + Sync)) -> Vec<BackendSurvey> {
    ask_backends(surveyor, System::own().order(), ask)
}

/// The same, of these backends.
pub fn ask_backends(
    surveyor: &dyn Surveyor,
    backends: &[Backend],
    ask: &(dyn Fn(Backend) -> SurveyAsk + Sync),
) -> Vec<BackendSurvey> {
    std::thread::scope(|scope| {
        let asking: Vec<_> = backends
            .iter()
            .map(|&backend| (backend, scope.spawn(move || ask_one(surveyor, &ask(backend)))))
            .collect();
        let outcomes = asking.into_iter().map(|(backend, thread)| {
            let panicked = |_| {
                let reason = format!("the thread that asked {backend} panicked");
                BackendSurvey::new(backend, Err(ProbeFailure::new(ProbeFailureKind::Broken, reason)))
            };
            thread.join().unwrap_or_else(panicked)
        });
        outcomes.collect()
    })
}

fn ask_one(surveyor: &dyn Surveyor, ask: &SurveyAsk) -> BackendSurvey {
    if let Some(failure) = quarantined(ask) {
        return BackendSurvey::new(ask.backend, Err(failure));
    }
    let mut outcome = BackendSurvey::new(ask.backend, surveyor.survey(ask));
    if outcome.found.is_ok() && outcome.shows_no_card() {
        let setting = |name: &str| std::env::var_os(name);
        outcome.descriptions = exo_device::driver_troubles(Path::new("/"), ask.backend.name(), &setting);
    }
    outcome
}

/// What there is to say of a backend that is not asked, for its driver did not answer not long ago.
fn quarantined(ask: &SurveyAsk) -> Option<ProbeFailure> {
    let registry = Registry::look(Path::new(ask.data_dir.as_ref()?));
    let now = exo_stdx::unix_s();
    let quarantine = registry.driver_quarantine(ask.backend.name(), now)?.clone();
    let reason = format!("the {} driver is {}", ask.backend, quarantine.text(now));
    Some(ProbeFailure::new(ProbeFailureKind::Quarantined(quarantine), reason))
}
