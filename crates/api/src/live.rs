//! The cluster as a stream of events: a snapshot, then what changed since.
//!
//! [`changes`] compares what readers have with what is there now; [`Change::apply`] is its other half, for readers. What only
//! wavers (free memory, sensors, the time of a ping) is left out until it has moved far enough to be worth telling.
//!
//! Start reading at [`changes`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::alerts::AlertView;
use crate::plan::PredictionView;
use crate::view::{
    ClusterView, DeviceView, EpochView, InstanceView, JoinRequestView, JoinWindowView, JournalView, LinkView,
    LoadView, NodeView, OtherClusterView, SensorsView, WarningView,
};

/// The first event of a stream, and again where the reader's last one is not known any more: all there is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotEvent {
    /// When, in milliseconds since 1970 by the clock of the node that answers.
    pub at_unix_ms: u64,
    /// The cluster.
    pub cluster: ClusterView,
}

/// What changed since the event before.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeltaEvent {
    /// When, in milliseconds since 1970 by the clock of the node that answers.
    pub at_unix_ms: u64,
    /// To be applied in their order.
    pub changes: Vec<Change>,
}

/// The last event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndEvent {
    /// Why it ends.
    pub reason: EndReason,
}

/// Why a stream of events ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The session that it was asked for with has ended.
    SignedOut,
    /// The node ends.
    Stopping,
    /// The reader is further behind than the node remembers.
    Slow,
}

/// The data of an event, told apart by the name of the event (`snapshot`, `delta`, `end`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LiveEvent {
    /// `snapshot`
    Snapshot(Box<SnapshotEvent>),
    /// `delta`
    Delta(DeltaEvent),
    /// `end`
    End(EndEvent),
}

/// One change. A reader passes over kinds that it does not know.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// What the cluster has once.
    Header {
        /// The cluster's id.
        cluster: Option<String>,
        /// The node that answers.
        self_node: String,
        /// Who leads.
        epoch: Option<EpochView>,
        /// Whether strangers may join by themselves.
        join_window: JoinWindowView,
        /// The end of the event log.
        journal: JournalView,
    },
    /// A node came or changed.
    Node {
        /// All of it.
        node: Box<NodeView>,
    },
    /// A node is no member any more.
    NodeGone {
        /// Its id.
        id: String,
    },
    /// Memory and sensors of a node's devices.
    Gauges {
        /// The node's id.
        node: String,
        /// Resident memory of its process.
        process_bytes: Option<u64>,
        /// Of each device.
        devices: Vec<DeviceGauges>,
    },
    /// A link came, or was measured anew.
    Link {
        /// All of it.
        link: Box<LinkView>,
    },
    /// A link is gone.
    LinkGone {
        /// The node that measured.
        from: String,
        /// The other end.
        to: String,
    },
    /// An instance came or changed.
    Instance {
        /// All of it.
        instance: Box<InstanceView>,
    },
    /// An instance is gone.
    InstanceGone {
        /// Its id.
        id: String,
    },
    /// What an instance has to do, and how fast it does it.
    Load(InstanceLoad),
    /// Who asks to join.
    JoinRequests {
        /// All of them.
        join_requests: Vec<JoinRequestView>,
    },
    /// Nodes nearby that have a cluster of their own.
    OtherClusters {
        /// The first few.
        other_clusters: Vec<OtherClusterView>,
    },
    /// What is wrong in the cluster, and what was.
    Alerts {
        /// All of them.
        alerts: Vec<AlertView>,
    },
    /// What went wrong on the node that answers.
    Warnings {
        /// The last few.
        warnings: Vec<WarningView>,
    },
}

/// What wavers at one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceGauges {
    /// Its name within the node.
    pub device: String,
    /// Memory that is free for models.
    pub memory_free_bytes: u64,
    /// Its sensors.
    pub sensors: SensorsView,
}

/// What wavers at one instance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct InstanceLoad {
    /// The instance's id.
    pub id: String,
    /// Requests at it.
    pub load: Option<LoadView>,
    /// What the last steps reached.
    pub measured_tokens_per_s: Option<f64>,
    /// What the model of cost expects of one stream.
    pub predicted_tokens_per_s: Option<f64>,
    /// The same with its range.
    pub predicted: Option<PredictionView>,
    /// Share of a token's time at each stage.
    pub time_shares: Vec<Option<f64>>,
}

impl Change {
    /// Whether somebody who may only look at the cluster is told: not who asks to join, nor what went wrong here.
    pub fn is_for_viewers(&self) -> bool {
        !matches!(self, Self::JoinRequests { .. } | Self::Warnings { .. })
    }

    /// Brings `view` to where it is after this change. What is of something that the view does not have changes nothing.
    pub fn apply(self, view: &mut ClusterView) {
        match self {
            Self::Header { cluster, self_node, epoch, join_window, journal } => {
                (view.cluster, view.self_node, view.epoch) = (cluster, self_node, epoch);
                (view.join_window, view.journal) = (join_window, journal);
            }
            Self::Node { node } => {
                put(&mut view.nodes, *node, |a, b| a.id == b.id);
                view.nodes.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
            }
            Self::NodeGone { id } => view.nodes.retain(|node| node.id != id),
            Self::Gauges { node, process_bytes, devices } => {
                if let Some(node) = view.nodes.iter_mut().find(|known| known.id == node) {
                    node.process_bytes = process_bytes;
                    devices.into_iter().for_each(|gauges| gauges.apply(node));
                }
            }
            Self::Link { link } => put(&mut view.links, *link, same_link),
            Self::LinkGone { from, to } => view.links.retain(|link| link.from != from || link.to != to),
            Self::Instance { instance } => put(&mut view.instances, *instance, |a, b| a.id == b.id),
            Self::InstanceGone { id } => view.instances.retain(|instance| instance.id != id),
            Self::Load(load) => {
                if let Some(instance) = view.instances.iter_mut().find(|known| known.id == load.id) {
                    load.apply(instance);
                }
            }
            Self::JoinRequests { join_requests } => view.join_requests = join_requests,
            Self::OtherClusters { other_clusters } => view.other_clusters = other_clusters,
            Self::Alerts { alerts } => view.alerts = alerts,
            Self::Warnings { warnings } => view.warnings = warnings,
        }
    }
}

impl DeviceGauges {
    fn of(device: &DeviceView) -> Self {
        let DeviceView { id, memory_free_bytes, sensors, .. } = device;
        Self { device: id.clone(), memory_free_bytes: *memory_free_bytes, sensors: *sensors }
    }

    fn apply(self, node: &mut NodeView) {
        if let Some(device) = node.devices.iter_mut().find(|device| device.id == self.device) {
            (device.memory_free_bytes, device.sensors) = (self.memory_free_bytes, self.sensors);
        }
    }
}

impl InstanceLoad {
    fn of(instance: &InstanceView) -> Self {
        Self {
            id: instance.id.clone(),
            load: instance.load,
            measured_tokens_per_s: instance.measured_tokens_per_s,
            predicted_tokens_per_s: instance.predicted_tokens_per_s,
            predicted: instance.predicted,
            time_shares: instance.stages.iter().map(|stage| stage.time_share).collect(),
        }
    }

    fn apply(self, instance: &mut InstanceView) {
        instance.load = self.load;
        instance.measured_tokens_per_s = self.measured_tokens_per_s;
        instance.predicted_tokens_per_s = self.predicted_tokens_per_s;
        instance.predicted = self.predicted;
        for (stage, share) in instance.stages.iter_mut().zip(self.time_shares) {
            stage.time_share = share;
        }
    }
}

fn put<T>(list: &mut Vec<T>, new: T, is_same: impl Fn(&T, &T) -> bool) {
    match list.iter_mut().find(|old| is_same(old, &new)) {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

fn same_link(a: &LinkView, b: &LinkView) -> bool {
    a.from == b.from && a.to == b.to
}

/// Links that are told again in one event only because their ages have grown: in a cluster of 100 nodes there are thousands.
const REFRESHED_LINKS_MAX: usize = 32;

/// What became different between what readers have and what is `now`, in the order to apply it.
pub fn changes(shown: &ClusterView, now: &ClusterView, wanted: Wanted) -> Vec<Change> {
    let mut out = Vec::new();
    header(shown, now, &mut out);
    nodes(shown, now, wanted, &mut out);
    links(shown, now, wanted, &mut out);
    instances(shown, now, wanted, &mut out);
    if shown.join_requests != now.join_requests {
        out.push(Change::JoinRequests { join_requests: now.join_requests.clone() });
    }
    if shown.other_clusters != now.other_clusters {
        out.push(Change::OtherClusters { other_clusters: now.other_clusters.clone() });
    }
    if shown.alerts != now.alerts {
        out.push(Change::Alerts { alerts: now.alerts.clone() });
    }
    if shown.warnings != now.warnings {
        out.push(Change::Warnings { warnings: now.warnings.clone() });
    }
    out
}

/// Which of the changes that nobody waits for are told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// What wavers, where it has moved far enough.
    pub gauges: bool,
    /// Links that were only measured again.
    pub refresh: bool,
}

fn header(shown: &ClusterView, now: &ClusterView, out: &mut Vec<Change>) {
    let of = |view: &ClusterView| Change::Header {
        cluster: view.cluster.clone(),
        self_node: view.self_node.clone(),
        epoch: view.epoch.clone(),
        join_window: view.join_window,
        journal: view.journal.clone(),
    };
    let now = of(now);
    if now != of(shown) {
        out.push(now);
    }
}

fn nodes(shown: &ClusterView, now: &ClusterView, wanted: Wanted, out: &mut Vec<Change>) {
    let by_id = |view| by(view, |node: &NodeView| node.id.as_str());
    let (old_nodes, new_nodes) = (by_id(&shown.nodes), by_id(&now.nodes));
    let gone = old_nodes.keys().filter(|id| !new_nodes.contains_key(*id));
    out.extend(gone.map(|id| Change::NodeGone { id: (*id).to_owned() }));
    for node in &now.nodes {
        let Some(old) = old_nodes.get(node.id.as_str()).copied() else {
            out.push(Change::Node { node: Box::new(node.clone()) });
            continue;
        };
        if old == node {
            continue;
        }
        let mut steady = node.clone();
        copy_gauges(old, &mut steady);
        if steady != *old {
            out.push(Change::Node { node: Box::new(node.clone()) });
        } else if wanted.gauges && has_moved(old, node) {
            out.push(Change::Gauges {
                node: node.id.clone(),
                process_bytes: node.process_bytes,
                devices: node.devices.iter().map(DeviceGauges::of).collect(),
            });
        }
    }
}

/// In a cluster of 100 nodes there are thousands of links, so nothing is looked for one by one.
fn by<'a, T, K: Ord>(list: &'a [T], key: impl Fn(&'a T) -> K) -> BTreeMap<K, &'a T> {
    list.iter().map(|item| (key(item), item)).collect()
}

fn copy_gauges(from: &NodeView, to: &mut NodeView) {
    to.process_bytes = from.process_bytes;
    from.devices.iter().map(DeviceGauges::of).for_each(|gauges| gauges.apply(to));
}

fn has_moved(old: &NodeView, new: &NodeView) -> bool {
    let far = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => memory_moved(a, b),
        (a, b) => a != b,
    };
    far(old.process_bytes, new.process_bytes)
        || old.devices.iter().zip(&new.devices).any(|(a, b)| {
            memory_moved(a.memory_free_bytes, b.memory_free_bytes) || sensors_moved(&a.sensors, &b.sensors)
        })
}

/// 64 MiB, or a hundredth of it if that is more.
fn memory_moved(a: u64, b: u64) -> bool {
    a.abs_diff(b) > (64 << 20).max(a.max(b) / 100)
}

fn sensors_moved(a: &SensorsView, b: &SensorsView) -> bool {
    moved(a.temperature_c, b.temperature_c, 2.0, 0.0)
        || moved(a.power_w, b.power_w, 2.0, 0.05)
        || moved(a.clock_mhz, b.clock_mhz, 50.0, 0.1)
        || moved(a.utilisation, b.utilisation, 0.1, 0.0)
}

/// Whether a value has gone further than a step, or than that share of it.
fn moved(a: Option<f32>, b: Option<f32>, step: f32, share: f32) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() > step.max(a.abs().max(b.abs()) * share),
        (a, b) => a.is_some() != b.is_some(),
    }
}

fn links(shown: &ClusterView, now: &ClusterView, wanted: Wanted, out: &mut Vec<Change>) {
    let by_ends = |view| by(view, |link: &LinkView| (link.from.as_str(), link.to.as_str()));
    let (old_links, new_links) = (by_ends(&shown.links), by_ends(&now.links));
    let gone = old_links.keys().filter(|ends| !new_links.contains_key(*ends));
    out.extend(gone.map(|(from, to)| Change::LinkGone { from: (*from).to_owned(), to: (*to).to_owned() }));
    let mut refreshed = Vec::new();
    for link in &now.links {
        match old_links.get(&(link.from.as_str(), link.to.as_str())).copied() {
            Some(old) if !link_changed(old, link) => {
                let (was, is) =
                    ((old.rtt_samples, old.bandwidth_samples), (link.rtt_samples, link.bandwidth_samples));
                if was != is {
                    refreshed.push((is.0.abs_diff(was.0), link));
                }
            }
            _ => out.push(Change::Link { link: Box::new(link.clone()) }),
        }
    }
    if wanted.refresh {
        // Those that were told longest ago first.
        refreshed.sort_by_key(|(missed, _)| std::cmp::Reverse(*missed));
        let few = refreshed.into_iter().take(REFRESHED_LINKS_MAX);
        out.extend(few.map(|(_, link)| Change::Link { link: Box::new(link.clone()) }));
    }
}

/// Whether somebody wants to know at once: another path, another bandwidth, a round trip a half longer or shorter.
fn link_changed(old: &LinkView, new: &LinkView) -> bool {
    let far = |a: Option<f64>, b: Option<f64>, least: f64| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() > least.max(a.max(b) / 2.0),
        (a, b) => a.is_some() != b.is_some(),
    };
    old.transport != new.transport
        || old.bandwidth_samples != new.bandwidth_samples
        || far(old.rtt_ms, new.rtt_ms, 1.0)
}

fn instances(shown: &ClusterView, now: &ClusterView, wanted: Wanted, out: &mut Vec<Change>) {
    let by_id = |view| by(view, |instance: &InstanceView| instance.id.as_str());
    let (old_instances, new_instances) = (by_id(&shown.instances), by_id(&now.instances));
    let gone = old_instances.keys().filter(|id| !new_instances.contains_key(*id));
    out.extend(gone.map(|id| Change::InstanceGone { id: (*id).to_owned() }));
    for instance in &now.instances {
        let Some(old) = old_instances.get(instance.id.as_str()).copied() else {
            out.push(Change::Instance { instance: Box::new(instance.clone()) });
            continue;
        };
        if old == instance {
            continue;
        }
        let mut steady = instance.clone();
        if old.stages.len() == steady.stages.len() {
            InstanceLoad::of(old).apply(&mut steady);
        }
        if steady != *old {
            out.push(Change::Instance { instance: Box::new(instance.clone()) });
        } else if wanted.gauges && load_moved(old, instance) {
            out.push(Change::Load(InstanceLoad::of(instance)));
        }
    }
}

/// Requests are counted exactly; rates and shares where they have moved by more than a twentieth.
fn load_moved(old: &InstanceView, new: &InstanceView) -> bool {
    let counts = |instance: &InstanceView| {
        instance.load.map(|load| LoadView { prompt_tokens_per_s: None, tokens_per_s: None, ..load })
    };
    let far = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() > a.abs().max(b.abs()) * 0.05,
        (a, b) => a.is_some() != b.is_some(),
    };
    counts(old) != counts(new)
        || far(old.measured_tokens_per_s, new.measured_tokens_per_s)
        || far(old.predicted_tokens_per_s, new.predicted_tokens_per_s)
        || old.stages.iter().zip(&new.stages).any(|(a, b)| far(a.time_share, b.time_share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> ClusterView {
        let node = |name: &str| {
            serde_json::json!({
                "id": format!("id-{name}"), "name": name, "is_self": name == "a", "role": "admin", "status": "alive",
                "version": "1", "platform": "linux", "addresses": [], "mains_power": null,
                "devices": [{
                    "id": "cpu", "kind": "cpu", "name": "P", "backend": "cpu/avx2", "memory_total_bytes": 8_u64 << 30,
                    "memory_free_bytes": 4_u64 << 30, "compute_units": 8, "read_bytes_per_s": 1e9, "flops_per_s": 1e9,
                    "support": "full", "support_reason": "", "sensors": {"temperature_c": 50.0}
                }]
            })
        };
        let instance = serde_json::json!({
            "id": "i1", "model_id": "m", "model": "demo", "state": {"kind": "ready"}, "placement": "p", "context_tokens": 64,
            "slots": 1, "kv": "f16", "stages": [], "load": serde_json::to_value(LoadView::default()).unwrap_or_default()
        });
        let link = |from: &str, to: &str| {
            serde_json::json!({
                "from": from, "to": to, "rtt_ms": 0.2, "rtt_samples": 5, "bytes_per_s": null, "transport": "tcp"
            })
        };
        serde_json::from_value(serde_json::json!({
            "cluster": "c", "self_node": "id-a", "epoch": null, "nodes": [node("a"), node("b")],
            "links": [link("id-a", "id-b"), link("id-b", "id-a")], "instances": [instance],
            "join_window": {"open": false, "open_until_unix_s": null}, "join_requests": [],
            "journal": {"entries": 1, "head": "00"}, "warnings": []
        }))
        .expect("a view")
    }

    const ALL: Wanted = Wanted { gauges: true, refresh: true };

    /// Which kinds of changes `change` makes, after a look that a reader who applies them ends where the node is.
    fn kinds(wanted: Wanted, change: impl FnOnce(&mut ClusterView)) -> Vec<String> {
        let (mut shown, mut now) = (view(), view());
        change(&mut now);
        let told = changes(&shown, &now, wanted);
        let kind = |change: &Change| serde_json::to_value(change).map(|json| json["kind"].to_string());
        let kinds = told.iter().map(|change| kind(change).unwrap_or_default()).collect();
        let text = serde_json::to_string(&told).expect("changes serialise");
        let read: Vec<Change> = serde_json::from_str(&text).expect("changes are read back");
        assert_eq!(read, told);
        read.into_iter().for_each(|change| change.apply(&mut shown));
        if wanted == ALL {
            assert_eq!(shown, now);
        }
        kinds
    }

    #[test]
    fn whoever_applies_the_changes_has_what_the_node_has() {
        assert_eq!(kinds(ALL, |_| {}), [""; 0]);
        assert_eq!(kinds(ALL, |now| now.nodes[1].status = crate::NodeStatus::Lost), ["\"node\""]);
        let renamed = |now: &mut ClusterView| {
            now.nodes[0].name = "z".into();
            now.nodes.swap(0, 1);
        };
        assert_eq!(kinds(ALL, renamed), ["\"node\""]);
        let without_b = |now: &mut ClusterView| {
            now.nodes.pop();
            now.links.clear();
        };
        assert_eq!(kinds(ALL, without_b), ["\"node_gone\"", "\"link_gone\"", "\"link_gone\""]);
        let new = |now: &mut ClusterView| {
            let mut node = now.nodes[1].clone();
            (node.id, node.name) = ("id-c".into(), "c".into());
            now.nodes.push(node);
        };
        assert_eq!(kinds(ALL, new), ["\"node\""]);
        let failed = crate::InstanceState::Failed { reason: "x".into() };
        assert_eq!(kinds(ALL, |now| now.instances[0].state = failed), ["\"instance\""]);
        assert_eq!(kinds(ALL, |now| now.instances.clear()), ["\"instance_gone\""]);
        assert_eq!(kinds(ALL, |now| now.journal.entries = 2), ["\"header\""]);
        let warning = WarningView { at_unix_s: 1, text: "disk".into() };
        assert_eq!(kinds(ALL, |now| now.warnings.push(warning)), ["\"warnings\""]);
        let alert = serde_json::json!({
            "id": "node_lost:b", "rule": "node_lost", "severity": "warning", "since_unix_s": 1, "resolved_unix_s": null,
            "silenced_until_unix_s": null, "node": "id-b", "device": null, "instance": null, "subject": "b", "text": "gone",
            "what_to_do": "look", "runbook": "node_lost"
        });
        let alert: AlertView = serde_json::from_value(alert).expect("an alert");
        assert_eq!(kinds(ALL, |now| now.alerts.push(alert)), ["\"alerts\""]);
        let running = LoadView { running: 1, ..LoadView::default() };
        assert_eq!(kinds(ALL, |now| now.instances[0].load = Some(running)), ["\"load\""]);
        assert_eq!(kinds(ALL, |now| now.nodes[0].devices[0].memory_free_bytes = 1 << 30), ["\"gauges\""]);
        assert_eq!(kinds(ALL, |now| now.links[1].rtt_samples = 9), ["\"link\""]);
    }

    #[test]
    fn what_wavers_is_told_when_it_has_moved_far_and_not_with_every_look() {
        let little = |now: &mut ClusterView| {
            now.nodes[0].devices[0].memory_free_bytes += 1 << 20;
            now.nodes[0].devices[0].sensors.temperature_c = Some(51.0);
            now.links[0].rtt_ms = Some(0.9);
        };
        let (shown, mut now) = (view(), view());
        little(&mut now);
        assert!(changes(&shown, &now, ALL).is_empty());
        let far = |now: &mut ClusterView| now.nodes[0].devices[0].sensors.temperature_c = None;
        assert_eq!(kinds(Wanted::default(), far), [""; 0]);
        assert_eq!(kinds(ALL, far), ["\"gauges\""]);
        let measured = |now: &mut ClusterView| now.links[0].rtt_samples = 6;
        assert_eq!(kinds(Wanted::default(), measured), [""; 0]);
        assert_eq!(kinds(Wanted::default(), |now| now.links[0].rtt_ms = Some(5.0)), ["\"link\""]);
    }

    #[test]
    fn a_change_of_something_unknown_changes_nothing() {
        let mut shown = view();
        Change::NodeGone { id: "x".into() }.apply(&mut shown);
        let gauges = Change::Gauges { node: "x".into(), process_bytes: None, devices: Vec::new() };
        gauges.apply(&mut shown);
        assert_eq!(shown, view());
    }
}
