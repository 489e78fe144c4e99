//! The time of the join window, counted on disk while it is open: ten minutes of running time over all runs
//! of this node. Beside it, whether a model came since it opened.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use exo_machine::joining::JOIN_WINDOW_S;

use crate::files::{DataDir, FilesError, WindowTime};
use exo_accelerators::chain;
use exo_stdx::unix_s;

/// Between two writes. Each run is charged this much at its start, so that one that is ended again and again
/// gains nothing.
const STEP_S: u64 = 10;
/// How far the date may be behind one that was seen: clocks are set by the network.
const SLACK_S: u64 = 60;

/// What a run finds of the join window of the runs before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowFound {
    /// For how long it was open, by the time that nodes ran.
    pub ran: Duration,
    /// Whether the disk has a model that was not there when it opened.
    pub has_new_model: bool,
}

/// For how long the window was open before this run, by the time that nodes ran. A date before one that was
/// seen counts as all of it: how much time has gone by since then, no one knows.
pub fn ran(kept: &WindowTime, now_unix_s: u64) -> Duration {
    let went_back = now_unix_s.saturating_add(SLACK_S) < kept.seen_unix_s;
    Duration::from_secs(if went_back { JOIN_WINDOW_S } else { kept.ran_s })
}

/// Gives what runs before have left, and counts on in the background until the window's time is over or the
/// node ends. The first notes the models that are `held`.
pub fn count(data: &Arc<DataDir>, held: BTreeSet<String>) -> Result<WindowFound, FilesError> {
    let mut kept = data.window_time()?;
    let before = ran(&kept, unix_s());
    let has_new_model = !held.is_subset(kept.models.get_or_insert_with(|| held.clone()));
    if before.as_secs() < JOIN_WINDOW_S {
        let time = charged(kept, unix_s());
        data.set_window_time(&time)?;
        tokio::spawn(go_on(Arc::downgrade(data), time));
    }
    Ok(WindowFound { ran: before, has_new_model })
}

fn charged(time: WindowTime, now_unix_s: u64) -> WindowTime {
    WindowTime { ran_s: time.ran_s + STEP_S, seen_unix_s: time.seen_unix_s.max(now_unix_s), ..time }
}

async fn go_on(data: Weak<DataDir>, mut time: WindowTime) {
    while time.ran_s < JOIN_WINDOW_S {
        tokio::time::sleep(Duration::from_secs(STEP_S)).await;
        time = charged(time, unix_s());
        // Only while the node has its folder.
        let Some(data) = data.upgrade() else { return };
        let kept = time.clone();
        let written = tokio::task::spawn_blocking(move || data.set_window_time(&kept)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(error = chain(&error), "the join window's time is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_restarts_nor_an_earlier_date_give_the_window_time_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut now = 1_000_000;
        // Each run ends within a second; the date goes on by two, and back by half a minute once.
        for run in 0..=JOIN_WINDOW_S / STEP_S {
            let data = DataDir::open(dir.path()).unwrap();
            let kept = data.window_time().unwrap();
            assert_eq!(ran(&kept, now), Duration::from_secs(STEP_S * run));
            data.set_window_time(&charged(kept, now)).unwrap();
            now = if run == 7 { now - 30 } else { now + 2 };
        }
        let data = DataDir::open(dir.path()).unwrap();
        assert!(ran(&data.window_time().unwrap(), now).as_secs() >= JOIN_WINDOW_S, "over");
        // A date of yesterday, before anything is used up.
        let early = WindowTime { ran_s: 10, seen_unix_s: now, models: None };
        assert_eq!(ran(&early, now - 86_400).as_secs(), JOIN_WINDOW_S);
        assert_eq!(ran(&early, now + 86_400).as_secs(), 10, "the wall clock's end is in the log of trust");
        data.leave().unwrap();
        assert_eq!(
            data.window_time().unwrap(),
            WindowTime::default(),
            "a new cluster has a window of its own"
        );
    }

    #[tokio::test]
    async fn a_run_is_charged_at_its_start_and_what_is_damaged_is_no_fresh_start() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(dir.path()).unwrap());
        let ran = || count(&data, BTreeSet::new()).unwrap().ran;
        assert_eq!(ran(), Duration::ZERO);
        assert_eq!(ran().as_secs(), STEP_S);
        data.set_window_time(&WindowTime { ran_s: JOIN_WINDOW_S, ..WindowTime::default() }).unwrap();
        assert_eq!(ran().as_secs(), JOIN_WINDOW_S);
        assert_eq!(data.window_time().unwrap().ran_s, JOIN_WINDOW_S, "nothing is counted when it is over");
        std::fs::write(dir.path().join("window.json"), b"{").unwrap();
        assert!(matches!(count(&data, BTreeSet::new()), Err(FilesError::Damaged { .. })));
    }

    #[tokio::test]
    async fn a_model_that_came_since_the_window_opened_is_new_at_every_later_start() {
        let dir = tempfile::tempdir().unwrap();
        let data = Arc::new(DataDir::open(dir.path()).unwrap());
        let has_new = |models: &[&str]| {
            let held = models.iter().map(|model| (*model).to_owned()).collect();
            count(&data, held).unwrap().has_new_model
        };
        assert!(!has_new(&["demo", "early"]), "what a command fetched before the first start");
        assert!(!has_new(&["demo"]), "one that went is none that came");
        assert!(has_new(&["demo", "late"]));
        assert!(has_new(&["demo", "early", "late"]));
    }
}
