//! From what a node knows to samples. A source that tells nothing makes no sample.

use std::collections::BTreeMap;

use exo_api::{
    AlertView, ClusterView, DURATION_BOUNDS_S, FIRST_TOKEN_BOUNDS_S, InstanceState, ModelRequestsView,
    NodeStatus, NodeTelemetryView, TOKEN_BOUNDS_S, TelemetryView,
};
use exo_types::{DeviceState, clean_name};

use super::exposition::{Labels, Samples};
use super::names;

/// Longest value of a label that others choose, in characters.
const LABEL_CHARS_MAX: usize = 64;
/// Digits of an id that tell members of the same name apart.
const ID_DIGITS: usize = 8;

/// Whose samples are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Of one node, by its id in full, without a label for it.
    Node(String),
    /// Of all members, each with a label `node`.
    Cluster,
}

/// All samples of a scope.
pub fn gather(view: &ClusterView, told: &TelemetryView, scope: &Scope) -> Samples {
    let mut gathered =
        Gathered { names: labels_of(told), view, samples: Samples::default(), is_labelled: false };
    match scope {
        Scope::Node(wanted) => {
            told.nodes.iter().filter(|node| node.node == *wanted).for_each(|node| gathered.node(node));
        }
        Scope::Cluster => {
            gathered.is_labelled = true;
            told.nodes.iter().for_each(|node| gathered.node(node));
        }
    }
    gathered.alerts(&view.alerts);
    gathered.samples
}

/// What members are called in labels: their names, and behind them the beginning of the id where two have the
/// same.
pub fn labels_of(told: &TelemetryView) -> BTreeMap<String, String> {
    let name = |node: &NodeTelemetryView| clean_name(&node.name, LABEL_CHARS_MAX);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    told.nodes.iter().for_each(|node| *counts.entry(name(node)).or_default() += 1);
    let label = |node: &NodeTelemetryView| {
        let name = name(node);
        let is_alone = !name.is_empty() && counts.get(&name) == Some(&1);
        let id: String = node.node.chars().take(ID_DIGITS).collect();
        (node.node.clone(), if is_alone { name } else { format!("{name}-{id}") })
    };
    told.nodes.iter().map(label).collect()
}

struct Gathered<'a> {
    names: BTreeMap<String, String>,
    view: &'a ClusterView,
    samples: Samples,
    is_labelled: bool,
}

impl Gathered<'_> {
    fn node(&mut self, told: &NodeTelemetryView) {
        let name = self.names.get(&told.node).cloned().unwrap_or_default();
        let own: Labels = if self.is_labelled { vec![("node", name)] } else { Vec::new() };
        let is_up = matches!(told.status, NodeStatus::Alive | NodeStatus::Suspected);
        self.samples.gauge(names::UP, own.clone(), f64::from(is_up));
        self.samples.gauge_if(names::AGE, own.clone(), told.age_s);
        // Of one that is gone nothing else is known now.
        if told.version.is_empty() {
            return;
        }
        self.machine(told, &own);
        self.devices(told, &own);
        self.links(told, &own);
        self.instances(told, &own);
        told.requests.iter().for_each(|requests| self.requests(requests, &own));
    }

    fn machine(&mut self, told: &NodeTelemetryView, own: &Labels) {
        let samples = &mut self.samples;
        let build = [("version", shown(&told.version)), ("platform", shown(&told.platform))];
        samples.gauge(names::BUILD, with(own, build), 1.0);
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        for (metric, value) in [
            (names::UPTIME, bytes(told.uptime_s)),
            (names::CLOCK, told.clock_ahead_s.map(|seconds| seconds as f64)),
            (names::PROCESS, bytes(told.process_bytes)),
            (names::OPEN_FDS, told.descriptors_open.map(f64::from)),
            (names::MAX_FDS, told.descriptors_max.map(f64::from)),
            (names::MEMORY_SIZE, bytes(told.memory_total_bytes)),
            (names::MEMORY_AVAILABLE, bytes(told.memory_available_bytes)),
            (names::DISK, bytes(told.disk_free_bytes)),
            (names::DISK_ROOM, bytes(told.disk_room_bytes)),
            (names::BATTERY, told.battery),
            (names::MAINS, told.mains_power.map(f64::from)),
            (names::TRANSFERS, Some(told.transfers.into())),
        ] {
            samples.gauge_if(metric, own.clone(), value);
        }
        samples.count(names::TRANSFERRED, own.clone(), told.transferred_bytes);
    }

    fn devices(&mut self, told: &NodeTelemetryView, own: &Labels) {
        let shown_node = self.view.nodes.iter().find(|node| node.id == told.node);
        for device in &told.devices {
            let labels = with(own, [("device", shown(&device.device))]);
            let shown_device =
                shown_node.and_then(|node| node.devices.iter().find(|d| d.id == device.device));
            let is_usable = shown_device.map(|device| f64::from(device.state == DeviceState::Usable));
            let (sensors, memory) = (device.sensors, device.memory);
            let samples = &mut self.samples;
            for (metric, value) in [
                (names::DEVICE_USABLE, is_usable),
                (names::DEVICE_MEMORY_SIZE, Some(memory.total_bytes as f64)),
                (names::DEVICE_UTILISATION, sensors.utilisation.map(f64::from)),
                (names::DEVICE_TEMPERATURE, sensors.temperature_c.map(f64::from)),
                (names::DEVICE_POWER, sensors.power_w.map(f64::from)),
                (names::DEVICE_CLOCK, sensors.clock_mhz.map(|mhz| f64::from(mhz) * 1e6)),
                (names::DEVICE_THROTTLED, device.throttled.map(f64::from)),
            ] {
                samples.gauge_if(metric, labels.clone(), value);
            }
            for (usage, bytes) in [
                ("free", memory.free_bytes),
                ("weights", memory.weights_bytes),
                ("kv", memory.kv_bytes),
                ("workspace", memory.workspace_bytes),
                ("others", memory.others_bytes),
            ] {
                samples.gauge(names::DEVICE_MEMORY, with(&labels, [("use", usage.to_owned())]), bytes as f64);
            }
        }
    }

    fn links(&mut self, told: &NodeTelemetryView, own: &Labels) {
        for link in &told.links {
            let Some(peer) = self.names.get(&link.peer) else { continue };
            let labels = with(own, [("peer", peer.clone())]);
            let samples = &mut self.samples;
            samples.gauge(names::LINK_RTT, labels.clone(), link.rtt_ms / 1e3);
            samples.gauge(names::LINK_JITTER, labels.clone(), link.jitter_ms / 1e3);
            samples.gauge_if(names::LINK_BANDWIDTH, labels.clone(), link.received_bytes_per_s);
            for (metric, count) in [
                (names::LINK_SENT, link.sent_bytes),
                (names::LINK_RECEIVED, link.received_bytes),
                (names::LINK_PACKETS, link.sent_packets),
                (names::LINK_LOST, link.lost_packets),
            ] {
                count.into_iter().for_each(|count| samples.count(metric, labels.clone(), count));
            }
        }
    }

    fn instances(&mut self, told: &NodeTelemetryView, own: &Labels) {
        for instance in &told.instances {
            let labels =
                with(own, [("instance_id", instance.instance.clone()), ("model", shown(&instance.model))]);
            let load = instance.load;
            let placed = self.view.instances.iter().find(|placed| placed.id == instance.instance);
            let is_ready = placed.is_some_and(|placed| placed.state == InstanceState::Ready);
            let predicted = placed.and_then(|placed| placed.predicted.as_ref());
            let free = load.pages.saturating_sub(load.pages_used).saturating_sub(load.pages_cached);
            let samples = &mut self.samples;
            for (metric, value) in [
                (names::INSTANCE_READY, Some(f64::from(is_ready))),
                (names::RUNNING, Some(load.running.into())),
                (names::WAITING, Some(load.waiting.into())),
                (names::WAITING_LIMIT, Some(load.waiting_max.into())),
                (
                    names::KV_USED,
                    (load.pages > 0).then(|| f64::from(load.pages_used) / f64::from(load.pages)),
                ),
                (names::GENERATION_RATE, load.tokens_per_s),
                (names::PROMPT_RATE, load.prompt_tokens_per_s),
                (names::PREDICTED_RATE, predicted.map(|predicted| predicted.total_tokens_per_s.expected)),
            ] {
                samples.gauge_if(metric, labels.clone(), value);
            }
            for (usage, pages) in [("used", load.pages_used), ("cached", load.pages_cached), ("free", free)] {
                samples.gauge(names::KV_PAGES, with(&labels, [("use", usage.to_owned())]), pages);
            }
            for (metric, count) in [
                (names::PREFIX_QUERIES, load.prompt_tokens),
                (names::PREFIX_HITS, load.cached_tokens),
                (names::DRAFTS, load.drafts),
                (names::DRAFTS_ACCEPTED, load.drafts_accepted),
                (names::STEPS, instance.steps),
            ] {
                samples.count(metric, labels.clone(), count);
            }
        }
        for stage in &told.stages {
            let labels = [
                ("instance_id", stage.instance.clone()),
                ("model", shown(&stage.model)),
                ("stage", stage.stage.to_string()),
                ("device", shown(&stage.device)),
            ];
            let labels = with(own, labels);
            let layers = stage.layers.end.saturating_sub(stage.layers.start);
            self.samples.seconds(names::STAGE_BUSY, labels.clone(), stage.busy_s);
            self.samples.gauge(names::STAGE_LAYERS, labels.clone(), layers);
            self.samples.gauge(names::STAGE_WEIGHTS, labels, stage.weight_bytes as f64);
        }
    }

    fn requests(&mut self, requests: &ModelRequestsView, own: &Labels) {
        let of_model = with(own, [("model", shown(&requests.model))]);
        let samples = &mut self.samples;
        for ended in &requests.ended {
            let labels = [("endpoint", ended.endpoint.clone()), ("reason", ended.reason.clone())];
            samples.count(names::REQUESTS, with(&of_model, labels), ended.count);
        }
        for (metric, count) in [
            (names::PROMPT_TOKENS, requests.prompt_tokens),
            (names::CACHED_TOKENS, requests.cached_tokens),
            (names::GENERATED_TOKENS, requests.completion_tokens),
        ] {
            samples.count(metric, of_model.clone(), count);
        }
        for (metric, histogram, bounds) in [
            (names::FIRST_TOKEN, &requests.first_token, &FIRST_TOKEN_BOUNDS_S[..]),
            (names::TOKEN_TIME, &requests.token, &TOKEN_BOUNDS_S),
            (names::DURATION, &requests.duration, &DURATION_BOUNDS_S),
            (names::QUEUE, &requests.queue, &DURATION_BOUNDS_S),
            (names::PREFILL, &requests.prefill, &DURATION_BOUNDS_S),
        ] {
            samples.histogram(metric, of_model.clone(), histogram, bounds);
        }
    }

    /// How many of each rule last and whom they affect, those that are silenced apart. Who is no member, such
    /// as who asks to join, is in no label: there are no more samples than members and rules allow.
    fn alerts(&mut self, alerts: &[AlertView]) {
        let mut counts: BTreeMap<(&str, &str, bool, Option<&String>), u32> = BTreeMap::new();
        for alert in alerts.iter().filter(|alert| alert.resolved_unix_s.is_none()) {
            let is_silenced = alert.silenced_until_unix_s.is_some();
            let node = alert.node.as_ref().and_then(|id| self.names.get(id));
            *counts.entry((alert.rule.as_str(), alert.severity.as_str(), is_silenced, node)).or_default() +=
                1;
        }
        for ((rule, severity, is_silenced, node), count) in counts {
            let node = node.map(|name| ("node", name.clone()));
            let labels = [
                ("rule", rule.to_owned()),
                ("severity", severity.to_owned()),
                ("silenced", is_silenced.to_string()),
            ];
            self.samples.gauge(names::ALERT, node.into_iter().chain(labels).collect(), count);
        }
    }
}

/// The same labels and more.
fn with<const N: usize>(labels: &Labels, more: [(&'static str, String); N]) -> Labels {
    labels.iter().cloned().chain(more).collect()
}

/// A text of others as the value of a label.
fn shown(text: &str) -> String {
    clean_name(text, LABEL_CHARS_MAX)
}
