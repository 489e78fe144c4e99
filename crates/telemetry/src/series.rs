//! The last hour of measurements, in rings of fixed size.
//!
//! One point stands for [`STEP_S`] seconds and is the last thing that was told in them. What was not told is
//! a gap.

use std::collections::{BTreeMap, VecDeque};

use exo_api::{NodeTelemetryView, SeriesPoints, SeriesView, TelemetryView};

/// Seconds between one point and the next.
pub const STEP_S: u32 = 5;
/// Points of an hour.
pub const POINTS: usize = 720;
/// Things that are followed. A cluster of 256 nodes with a few devices each stays below; more are not
/// followed.
const SUBJECTS_MAX: usize = 2048;

/// What is measured.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// A node, by its id in full.
    Node(String),
    /// A device of that node.
    Device(String, String),
    /// An instance.
    Instance(String),
}

/// What is measured of a subject: names with units, and what was told. A subject's names are always the same.
type Values = [(&'static str, Option<f32>)];

/// The points of one subject. Gaps are NaN: a point takes four bytes.
#[derive(Debug)]
struct Ring {
    /// By name as many points as there are steps since the ring began, [`POINTS`] at most.
    rows: Vec<(&'static str, VecDeque<f32>)>,
    /// Number of the step of the last point.
    step: u64,
}

impl Ring {
    fn new(values: &Values, step: u64) -> Self {
        let rows = values.iter().map(|(name, _)| (*name, VecDeque::new())).collect();
        let mut ring = Self { rows, step: step.saturating_sub(1) };
        ring.go_on(step);
        ring
    }

    /// Adds gaps up to `step`.
    fn go_on(&mut self, step: u64) {
        let missed = step.saturating_sub(self.step).min(POINTS as u64);
        for (_, row) in &mut self.rows {
            for _ in 0..missed {
                if row.len() == POINTS {
                    row.pop_front();
                }
                row.push_back(f32::NAN);
            }
        }
        self.step = self.step.max(step);
    }
}

/// An hour of everything.
#[derive(Debug, Default)]
pub struct Series {
    rings: BTreeMap<Subject, Ring>,
    /// The last step and its end in seconds since 1970.
    now: (u64, u64),
}

impl Series {
    /// Takes in what was measured at `time_s`, which never runs backwards; `unix_s` is the same by the
    /// system's clock.
    pub fn observe(&mut self, time_s: u64, unix_s: u64, told: &TelemetryView) {
        let step = time_s / u64::from(STEP_S) + 1;
        self.now = (step, unix_s);
        for node in &told.nodes {
            self.note(step, Subject::Node(node.node.clone()), &node_values(node));
            for device in &node.devices {
                let (sensors, memory) = (device.sensors, device.memory);
                let values = [
                    ("temperature_c", sensors.temperature_c),
                    ("power_w", sensors.power_w),
                    ("clock_mhz", sensors.clock_mhz),
                    ("utilisation", sensors.utilisation),
                    ("throttled", device.throttled.map(|is| if is { 1.0 } else { 0.0 })),
                    ("memory_free_bytes", Some(memory.free_bytes as f32)),
                    ("memory_weights_bytes", Some(memory.weights_bytes as f32)),
                    ("memory_kv_bytes", Some(memory.kv_bytes as f32)),
                    ("memory_workspace_bytes", Some(memory.workspace_bytes as f32)),
                ];
                self.note(step, Subject::Device(node.node.clone(), device.device.clone()), &values);
            }
            for instance in &node.instances {
                let load = instance.load;
                let values = [
                    ("running", Some(load.running as f32)),
                    ("waiting", Some(load.waiting as f32)),
                    ("pages_used", Some(load.pages_used as f32)),
                    ("pages_cached", Some(load.pages_cached as f32)),
                    ("tokens_per_s", load.tokens_per_s.map(|rate| rate as f32)),
                    ("prompt_tokens_per_s", load.prompt_tokens_per_s.map(|rate| rate as f32)),
                ];
                self.note(step, Subject::Instance(instance.instance.clone()), &values);
            }
        }
        // Nothing was told of it for an hour: it is gone.
        self.rings.retain(|_, ring| step.saturating_sub(ring.step) < POINTS as u64);
    }

    fn note(&mut self, step: u64, subject: Subject, values: &Values) {
        if self.rings.len() >= SUBJECTS_MAX && !self.rings.contains_key(&subject) {
            return;
        }
        let ring = self.rings.entry(subject).or_insert_with(|| Ring::new(values, step));
        ring.go_on(step);
        for ((_, row), (_, value)) in ring.rows.iter_mut().zip(values) {
            if let (Some(last), Some(value)) = (row.back_mut(), value.filter(|value| value.is_finite())) {
                *last = value;
            }
        }
    }

    /// The last hour of a subject, up to now; `None` if nothing was told of it. Series without a single point
    /// are left out.
    pub fn of(&self, subject: &Subject) -> Option<SeriesView> {
        let ring = self.rings.get(subject)?;
        let (step, end_unix_s) = self.now;
        let missed = usize::try_from(step.saturating_sub(ring.step)).unwrap_or(POINTS).min(POINTS);
        let points = |row: &VecDeque<f32>| -> Vec<Option<f32>> {
            let told = row.iter().map(|value| Some(*value).filter(|value| value.is_finite()));
            let all: Vec<_> = told.chain(std::iter::repeat_n(None, missed)).collect();
            all[all.len().saturating_sub(POINTS)..].to_vec()
        };
        let series = ring.rows.iter();
        let series = series.map(|(name, row)| SeriesPoints { name: (*name).to_owned(), points: points(row) });
        Some(SeriesView {
            subject: match subject {
                Subject::Node(name) | Subject::Instance(name) => name.clone(),
                Subject::Device(node, device) => format!("{node}/{device}"),
            },
            step_s: STEP_S,
            end_unix_s,
            series: series.filter(|series| series.points.iter().any(Option::is_some)).collect(),
        })
    }
}

fn node_values(node: &NodeTelemetryView) -> [(&'static str, Option<f32>); 8] {
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f32);
    let sum = |of: fn(&exo_api::LinkTelemetryView) -> Option<u64>| {
        node.links.iter().filter_map(of).reduce(u64::saturating_add)
    };
    [
        ("process_bytes", bytes(node.process_bytes)),
        ("memory_available_bytes", bytes(node.memory_available_bytes)),
        ("disk_free_bytes", bytes(node.disk_free_bytes)),
        ("descriptors_open", node.descriptors_open.map(|open| open as f32)),
        ("battery", node.battery.map(|share| share as f32)),
        ("transferred_bytes", bytes(node.age_s.map(|_| node.transferred_bytes))),
        ("sent_bytes", bytes(sum(|link| link.sent_bytes))),
        ("received_bytes", bytes(sum(|link| link.received_bytes))),
    ]
}

#[cfg(test)]
mod tests {
    use exo_api::{DeviceTelemetryView, MemoryView, SensorsView};

    use super::*;
    use crate::alerts::testing::node;

    fn told(temperature_c: Option<f32>) -> TelemetryView {
        let sensors = SensorsView { temperature_c, ..SensorsView::default() };
        let device = DeviceTelemetryView {
            device: "cpu".to_owned(),
            sensors,
            limit_c: None,
            throttled: None,
            memory: MemoryView { free_bytes: 7, ..MemoryView::default() },
            missing: Vec::new(),
        };
        let node = NodeTelemetryView { devices: vec![device], ..node("a") };
        TelemetryView { self_node: "a".to_owned(), nodes: vec![node] }
    }

    fn temperatures(series: &Series) -> Vec<Option<f32>> {
        let view = series.of(&Subject::Device("a".to_owned(), "cpu".to_owned())).unwrap();
        let found = view.series.into_iter().find(|series| series.name == "temperature_c");
        found.map(|series| series.points).unwrap_or_default()
    }

    #[test]
    fn an_hour_is_kept_and_no_more_whatever_comes() {
        let mut series = Series::default();
        for second in 0..3 * 3600 {
            series.observe(second, 1_000_000 + second, &told(Some(second as f32)));
        }
        let points = temperatures(&series);
        assert_eq!(points.len(), POINTS);
        // The last of its five seconds.
        assert_eq!((points[0], points[POINTS - 1]), (Some(7204.0), Some(10_799.0)));
    }

    #[test]
    fn what_was_not_told_is_a_gap_and_what_never_was_is_left_out() {
        let mut series = Series::default();
        series.observe(0, 0, &told(Some(50.0)));
        series.observe(5, 5, &told(None));
        series.observe(10, 10, &told(Some(f32::NAN)));
        series.observe(25, 25, &told(Some(60.0)));
        assert_eq!(temperatures(&series), [Some(50.0), None, None, None, None, Some(60.0)]);
        let view = series.of(&Subject::Device("a".to_owned(), "cpu".to_owned())).unwrap();
        assert!(view.series.iter().all(|s| s.name != "power_w" && s.points.len() == 6), "{view:?}");
        assert_eq!(series.of(&Subject::Instance("i1".to_owned())), None);
    }

    #[test]
    fn what_is_gone_shows_gaps_for_an_hour_and_is_forgotten_then() {
        let mut series = Series::default();
        series.observe(0, 0, &told(Some(50.0)));
        let empty = TelemetryView::default();
        series.observe(3590, 3590, &empty);
        let points = temperatures(&series);
        assert_eq!((points.len(), points[0], points[1]), (719, Some(50.0), None));
        series.observe(3600, 3600, &empty);
        assert_eq!(series.of(&Subject::Device("a".to_owned(), "cpu".to_owned())), None);
    }
}
