//! What was measured and what follows from it, between the loop, which takes it in once a second, and those
//! who ask.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exo_api::{AdminError, AlertView, ClusterView, SeriesQuery, SeriesView, SilenceRequest, TelemetryView};
use exo_machine::Now;
use exo_stdx::Mutex;
use exo_telemetry::{AlertInputs, Alerts, OwnFacts, Series, SilenceError, Subject};
use exo_types::Time;

use crate::files::DataDir;
use crate::prediction_events::{PredictionEvent, PredictionEvents};
use crate::questions::{ANSWER_MAX, blocking_within};

/// See the module.
#[derive(Debug, Default)]
pub struct Telemetry {
    inner: Mutex<Inner>,
    /// Held while silences are written: the loop, which takes the other lock, never waits for the disk.
    saving: Mutex<()>,
    /// Where silences are kept.
    data_dir: PathBuf,
}

#[derive(Debug, Default)]
struct Inner {
    /// The second in which it was last taken in.
    taken_s: Option<u64>,
    told: TelemetryView,
    series: Series,
    alerts: Alerts,
    predictions: PredictionEvents,
    /// As they were then.
    views: Vec<AlertView>,
}

impl Telemetry {
    /// Of a node that starts, with what was silenced before, by the clock on the wall.
    pub fn new(data_dir: PathBuf, now: Now, silences: BTreeMap<String, u64>) -> Self {
        let telemetry = Self { data_dir, ..Self::default() };
        telemetry.inner.lock().alerts.take_up(seconds(now), now.unix_s, silences);
        telemetry
    }

    /// Takes in a view, and what was measured with it if a second has passed, and answers with the alerts.
    pub fn observe(
        &self,
        now: Now,
        view: &ClusterView,
        told: impl FnOnce() -> TelemetryView,
        own: impl FnOnce() -> OwnFacts,
    ) -> Vec<AlertView> {
        let time_s = seconds(now);
        let mut inner = self.inner.lock();
        if inner.taken_s.is_none_or(|taken| time_s > taken) {
            inner.taken_s = Some(time_s);
            let told = told();
            inner.series.observe(time_s, now.unix_s, &told);
            let own = own();
            inner.alerts.observe(AlertInputs { time_s, unix_s: now.unix_s, view, told: &told, own: &own });
            inner.predictions.observe(view).iter().for_each(PredictionEvent::report);
            inner.told = told;
            inner.views = inner.alerts.views();
        }
        inner.views.clone()
    }

    /// What was last measured.
    pub fn told(&self) -> TelemetryView {
        self.inner.lock().told.clone()
    }

    pub fn alerts(&self) -> Vec<AlertView> {
        self.inner.lock().alerts.views()
    }

    /// The last hour of what is asked for.
    pub fn series(&self, query: SeriesQuery) -> Result<SeriesView, AdminError> {
        let subject = subject(query)?;
        let view = self.inner.lock().series.of(&subject);
        let (what, name) = match subject {
            Subject::Node(name) => ("node", name),
            Subject::Device(node, device) => ("device", format!("{node}/{device}")),
            Subject::Instance(name) => ("instance", name),
        };
        view.ok_or(AdminError::NotFound { what, name })
    }

    /// Silences an alert for a while, also over a restart.
    pub async fn silence(self: Arc<Self>, request: SilenceRequest) -> Result<(), AdminError> {
        self.silence_within(ANSWER_MAX, &request).await
    }

    async fn silence_within(
        self: Arc<Self>,
        within: Duration,
        request: &SilenceRequest,
    ) -> Result<(), AdminError> {
        self.silence_now(request)?;
        let late = |within: &str| {
            format!(
                "it holds, but the disk has not taken it within {within}: a restart of this node may end it"
            )
        };
        blocking_within(within, late, move || self.save_silences()).await?
    }

    fn silence_now(&self, request: &SilenceRequest) -> Result<(), AdminError> {
        let mut inner = self.inner.lock();
        let silenced = inner.alerts.silence(&request.alert, request.for_s);
        inner.views = inner.alerts.views();
        silenced.map_err(|error| match error {
            SilenceError::Unknown => AdminError::NotFound { what: "alert", name: request.alert.clone() },
            SilenceError::TooMuch(message) => AdminError::invalid("for_s", message),
            SilenceError::OfItsRule(rule) => AdminError::Invalid {
                param: "alert".to_owned(),
                message: format!(
                    "all alerts of `{rule}` are silenced: end that silence, by the name of the rule"
                ),
            },
        })
    }

    /// Blocks for the disk.
    fn save_silences(&self) -> Result<(), AdminError> {
        // From before the look at them, so that the last one silenced is the last one written.
        let _turn = self.saving.lock();
        let silences = self.inner.lock().alerts.silences();
        DataDir::set_silences(&self.data_dir, &silences)
            .map_err(|error| AdminError::Disk { message: format!("it holds until this node ends: {error}") })
    }
}

fn seconds(now: Now) -> u64 {
    now.time.since(Time(0)).as_secs()
}

fn subject(query: SeriesQuery) -> Result<Subject, AdminError> {
    let wrong = |message: &str| Err(AdminError::invalid("device", message));
    match (query.device, query.instance, query.node) {
        (Some(device), None, None) => match device.split_once('/') {
            Some((node, device)) => Ok(Subject::Device(node.to_owned(), device.to_owned())),
            None => wrong("`device` must be NODE/DEVICE, the node by its id in full"),
        },
        (None, Some(instance), None) => Ok(Subject::Instance(instance)),
        (None, None, Some(node)) => Ok(Subject::Node(node)),
        _ => wrong("give one of `device`, `instance` and `node`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_asked_for_and_a_device_by_its_node() {
        let query = |device: Option<&str>, node: Option<&str>| {
            let (device, node) = (device.map(str::to_owned), node.map(str::to_owned));
            subject(SeriesQuery { device, node, instance: None })
        };
        assert_eq!(query(Some("ab/cuda:0"), None), Ok(Subject::Device("ab".to_owned(), "cuda:0".to_owned())));
        assert_eq!(query(None, Some("ab")), Ok(Subject::Node("ab".to_owned())));
        for wrong in [query(None, None), query(Some("ab/c"), Some("ab")), query(Some("ab"), None)] {
            assert!(matches!(wrong, Err(AdminError::Invalid { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn measurements_are_taken_in_once_a_second_however_often_the_view_changes() {
        let telemetry = Telemetry::default();
        let view = exo_machine::empty_view(exo_types::NodeId([1; 32]));
        let mut taken = 0;
        for ms in (0..5000).step_by(10) {
            let now = Now { time: Time::from_millis(ms), unix_s: 9 };
            telemetry.observe(
                now,
                &view,
                || {
                    taken += 1;
                    TelemetryView::default()
                },
                OwnFacts::default,
            );
        }
        assert_eq!(taken, 5);
    }

    /// As while the disk has not taken an earlier one.
    #[test]
    fn a_silence_that_waits_for_the_disk_holds_up_no_one_and_is_answered_in_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let now = Now { time: Time::from_millis(1000), unix_s: 9 };
        let telemetry = Arc::new(Telemetry::new(folder.path().to_owned(), now, BTreeMap::new()));
        let request = SilenceRequest { alert: "disk_hung".to_owned(), for_s: 60 };
        let disk = telemetry.saving.lock();
        let within = Duration::from_millis(50);
        let late = runtime.block_on(telemetry.clone().silence_within(within, &request));
        assert!(matches!(late, Err(AdminError::Late { .. })), "{late:?}");
        // The loop looks each second.
        let (looks, (told, heard)) = (telemetry.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let view = exo_machine::empty_view(exo_types::NodeId([1; 32]));
            told.send(looks.observe(now, &view, TelemetryView::default, OwnFacts::default).len())
        });
        assert!(heard.recv_timeout(Duration::from_secs(20)).is_ok(), "the loop waits for the disk");
        drop(disk);
        drop(runtime); // waits for what blocks in it
        let kept = std::fs::read_to_string(folder.path().join("silences.json")).unwrap();
        assert!(kept.contains("disk_hung"), "{kept}");
    }
}
