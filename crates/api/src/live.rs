//! The cluster as a stream of events: a snapshot, then what changed since.
//!
//! [`changes`] compares what readers have with what is there now; [`Change::apply`] is its other half, for
//! readers. What only wavers (free memory, sensors, the time of a ping) is left out until it has moved far
//! enough to be worth telling.
//!
//! Start reading at [`changes`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::alerts::{AlertView, NOT_FOR_VIEWERS};
use crate::plan::PredictionView;
use crate::view::{
    ClusterView, DeviceView, EpochView, InstanceView, JoinRequestView, JoinWindowView, JournalView, LinkView,
    LoadView, MeasuredAnswerView, NodeView, OtherClusterView, SensorsView, StageMeasuredView,
    UnheardCoordinatorView, WarningView,
};

/// The first event of a stream, and again where the reader's last one is not known any more: all there is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotEvent {
    /// When, in milliseconds since 1970 by the clock of the node that answers.
    pub at_unix_ms: u64,
    /// The whole cluster, as of now.
    pub cluster: ClusterView,
}

/// What changed since the event before.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeltaEvent {
    /// When, in milliseconds since 1970 by the clock of the node that answers.
    pub at_unix_ms: u64,
    /// The changes, to be applied in their order.
    pub changes: Vec<Change>,
}

/// The last event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndEvent {
    /// Why the stream ends.
    pub reason: EndReason,
}

/// Why a stream of events ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The session that it was asked for with has ended.
    SignedOut,
    /// The node that answers ends.
    Stopping,
    /// The reader is further behind than the node remembers.
    Slow,
}

/// The data of an event, told apart by the name of the event (`snapshot`, `delta`, `end`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LiveEvent {
    /// Event `snapshot`: the whole cluster.
    Snapshot(Box<SnapshotEvent>),
    /// Event `delta`: what changed.
    Delta(DeltaEvent),
    /// Event `end`: the stream ends.
    End(EndEvent),
}

/// One change. A reader passes over kinds that it does not know.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// What the cluster has once.
    Header {
        /// Id of the cluster.
        cluster: Option<String>,
        /// The node that answers.
        self_node: String,
        /// The coordinator and its epoch.
        epoch: Option<EpochView>,
        /// A coordinator that the node that answers does not hear, while a member follows one.
        #[serde(default)]
        unheard_coordinator: Option<UnheardCoordinatorView>,
        /// Whether strangers may join by themselves.
        join_window: JoinWindowView,
        /// The end of the event log.
        journal: JournalView,
        /// Nodes nearby that have a cluster of their own.
        #[serde(default)]
        other_clusters: Vec<OtherClusterView>,
    },
    /// A node came or changed.
    Node {
        /// All facts of the node.
        node: Box<NodeView>,
    },
    /// A node is no member any more.
    NodeGone {
        /// Id of the node.
        id: String,
    },
    /// Memory and sensors of a node's devices.
    Gauges {
        /// Id of the node.
        node: String,
        /// Resident memory of its process.
        process_bytes: Option<u64>,
        /// Gauges of each of its devices.
        devices: Vec<DeviceGauges>,
    },
    /// A link came, or was measured anew.
    Link {
        /// All facts of the link.
        link: Box<LinkView>,
    },
    /// A link is gone.
    LinkGone {
        /// The node that measured.
        from: String,
        /// Id of the node at the other end.
        to: String,
    },
    /// An instance came or changed.
    Instance {
        /// All facts of the instance.
        instance: Box<InstanceView>,
    },
    /// An instance is gone.
    InstanceGone {
        /// Id of the instance.
        id: String,
    },
    /// What an instance has to do, and how fast it does it.
    Load(Box<InstanceLoad>),
    /// Who asks to join.
    JoinRequests {
        /// All requests to join.
        join_requests: Vec<JoinRequestView>,
    },
    /// An alert began, changed or is over.
    Alert {
        /// All facts of the alert.
        alert: Box<AlertView>,
    },
    /// An alert that was over is not shown any more.
    AlertGone {
        /// Id of the alert.
        id: String,
        /// When the alert began, in seconds since 1970: another of the same id may last.
        since_unix_s: u64,
    },
    /// What went wrong on the node that answers.
    Warnings {
        /// The last few warnings.
        warnings: Vec<WarningView>,
    },
}

/// What wavers at one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceGauges {
    /// The device's name within its node.
    pub device: String,
    /// Memory that is free for models.
    pub memory_free_bytes: u64,
    /// What is free of the memory that the device shares with others.
    #[serde(default)]
    pub memory_domain_free_bytes: Option<u64>,
    /// What the device's sensors show.
    pub sensors: SensorsView,
}

/// What wavers at one instance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct InstanceLoad {
    /// Id of the instance.
    pub id: String,
    /// Requests that the instance runs and queues.
    pub load: Option<LoadView>,
    /// Tokens per second that the last steps reached.
    pub measured_tokens_per_s: Option<f64>,
    /// Measured times of the last answer that ran alone.
    pub measured_alone: Option<MeasuredAnswerView>,
    /// Tokens per second that the model of cost expects of one stream.
    pub predicted_tokens_per_s: Option<f64>,
    /// The prediction with its range.
    pub predicted: Option<PredictionView>,
    /// Share of a token's time at each stage.
    pub time_shares: Vec<Option<f64>>,
    /// What each stage took of the tokens of the last answer that ran alone.
    #[serde(default)]
    pub stages_measured: Vec<Option<StageMeasuredView>>,
}

impl Change {
    /// What of it somebody is told who may only look at the cluster: nothing of who asks to join, of
    /// strangers nearby, nor of what went wrong here.
    pub fn for_viewers(self) -> Option<Self> {
        match self {
            Self::JoinRequests { .. } | Self::Warnings { .. } => None,
            Self::Alert { ref alert } if !alert.is_for_viewers() => None,
            Self::AlertGone { ref id, .. } if NOT_FOR_VIEWERS.iter().any(|rule| id.starts_with(rule)) => None,
            mut header @ Self::Header { .. } => {
                if let Self::Header { other_clusters, .. } = &mut header {
                    other_clusters.clear();
                }
                Some(header)
            }
            other => Some(other),
        }
    }

    /// Brings `view` to where it is after this change. What is of something that the view does not have
    /// changes nothing.
    pub fn apply(self, view: &mut ClusterView) {
        match self {
            Self::Header {
                cluster,
                self_node,
                epoch,
                unheard_coordinator,
                join_window,
                journal,
                other_clusters,
            } => {
                (view.cluster, view.self_node, view.epoch) = (cluster, self_node, epoch);
                view.unheard_coordinator = unheard_coordinator;
                (view.join_window, view.journal) = (join_window, journal);
                view.other_clusters = other_clusters;
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
            Self::Alert { alert } => {
                put(&mut view.alerts, *alert, AlertView::is_same);
                view.alerts.sort_by(AlertView::order);
            }
            Self::AlertGone { id, since_unix_s } => {
                view.alerts.retain(|alert| alert.id != id || alert.since_unix_s != since_unix_s);
            }
            Self::Warnings { warnings } => view.warnings = warnings,
        }
    }
}

impl DeviceGauges {
    fn of(device: &DeviceView) -> Self {
        Self {
            device: device.id.clone(),
            memory_free_bytes: device.memory_free_bytes,
            memory_domain_free_bytes: device.memory_domain.as_ref().map(|domain| domain.free_bytes),
            sensors: device.sensors,
        }
    }

    fn apply(self, node: &mut NodeView) {
        if let Some(device) = node.devices.iter_mut().find(|device| device.id == self.device) {
            (device.memory_free_bytes, device.sensors) = (self.memory_free_bytes, self.sensors);
            if let Some((domain, free)) = device.memory_domain.as_mut().zip(self.memory_domain_free_bytes) {
                domain.free_bytes = free;
            }
        }
    }
}

impl InstanceLoad {
    fn of(instance: &InstanceView) -> Self {
        Self {
            id: instance.id.clone(),
            load: instance.load,
            measured_tokens_per_s: instance.measured_tokens_per_s,
            measured_alone: instance.measured_alone,
            predicted_tokens_per_s: instance.predicted_tokens_per_s,
            predicted: instance.predicted,
            time_shares: instance.stages.iter().map(|stage| stage.time_share).collect(),
            stages_measured: instance.stages.iter().map(|stage| stage.measured).collect(),
        }
    }

    fn apply(self, instance: &mut InstanceView) {
        instance.load = self.load;
        instance.measured_tokens_per_s = self.measured_tokens_per_s;
        instance.measured_alone = self.measured_alone;
        instance.predicted_tokens_per_s = self.predicted_tokens_per_s;
        instance.predicted = self.predicted;
        for (stage, share) in instance.stages.iter_mut().zip(self.time_shares) {
            stage.time_share = share;
        }
        for (stage, measured) in instance.stages.iter_mut().zip(self.stages_measured) {
            stage.measured = measured;
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

/// Links that are told again in one event only because their ages have grown: in a cluster of 100 nodes there
/// are thousands.
const REFRESHED_LINKS_MAX: usize = 32;

/// What became different between what readers have and what is `now`, in the order to apply it.
pub fn changes(shown: &ClusterView, now: &ClusterView, wanted: ChangeFilter) -> Vec<Change> {
    let mut out = Vec::new();
    header(shown, now, &mut out);
    nodes(shown, now, wanted, &mut out);
    links(shown, now, wanted, &mut out);
    instances(shown, now, wanted, &mut out);
    if shown.join_requests != now.join_requests {
        out.push(Change::JoinRequests { join_requests: now.join_requests.clone() });
    }
    alerts(shown, now, wanted, &mut out);
    if shown.warnings != now.warnings {
        out.push(Change::Warnings { warnings: now.warnings.clone() });
    }
    out
}

/// Which of the changes that nobody waits for are told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChangeFilter {
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
        unheard_coordinator: view.unheard_coordinator.clone(),
        join_window: view.join_window,
        journal: view.journal.clone(),
        other_clusters: view.other_clusters.clone(),
    };
    let now = of(now);
    if now != of(shown) {
        out.push(now);
    }
}

fn nodes(shown: &ClusterView, now: &ClusterView, wanted: ChangeFilter, out: &mut Vec<Change>) {
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
    let domain = |device: &DeviceView| device.memory_domain.as_ref().map(|domain| domain.free_bytes);
    far(old.process_bytes, new.process_bytes)
        || old.devices.iter().zip(&new.devices).any(|(a, b)| {
            memory_moved(a.memory_free_bytes, b.memory_free_bytes)
                || far(domain(a), domain(b))
                || sensors_moved(&a.sensors, &b.sensors)
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

fn links(shown: &ClusterView, now: &ClusterView, wanted: ChangeFilter, out: &mut Vec<Change>) {
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

/// Whether somebody wants to know at once: another path, another bandwidth, a round trip a half longer or
/// shorter, a loss that comes, goes or grows by a half.
fn link_changed(old: &LinkView, new: &LinkView) -> bool {
    let far = |a: Option<f64>, b: Option<f64>, least: f64| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() > least.max(a.max(b) / 2.0),
        (a, b) => a.is_some() != b.is_some(),
    };
    // Where nothing was sent nothing was lost: a quiet link is no news.
    let share = |link: &LinkView| Some(link.loss.map_or(0.0, |loss| loss.share));
    old.transport != new.transport
        || far(share(old), share(new), 0.01)
        || old.bandwidth_samples != new.bandwidth_samples
        || far(old.rtt_ms, new.rtt_ms, 1.0)
}

fn instances(shown: &ClusterView, now: &ClusterView, wanted: ChangeFilter, out: &mut Vec<Change>) {
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
            out.push(Change::Load(Box::new(InstanceLoad::of(instance))));
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
    let first_token = |instance: &InstanceView| Some(instance.measured_alone?.first_token.measured_ms);
    let token = |instance: &InstanceView| Some(instance.measured_alone?.token?.measured_ms);
    counts(old) != counts(new)
        || far(old.measured_tokens_per_s, new.measured_tokens_per_s)
        || far(old.predicted_tokens_per_s, new.predicted_tokens_per_s)
        || far(first_token(old), first_token(new))
        || far(token(old), token(new))
        || old.stages.iter().zip(&new.stages).any(|(a, b)| {
            far(a.time_share, b.time_share)
                || far(a.measured.map(|of| of.token_ms), b.measured.map(|of| of.token_ms))
        })
}

fn alerts(shown: &ClusterView, now: &ClusterView, wanted: ChangeFilter, out: &mut Vec<Change>) {
    if shown.alerts == now.alerts {
        return;
    }
    let by_name = |view| by(view, |alert: &AlertView| (alert.id.as_str(), alert.since_unix_s));
    let (old_alerts, new_alerts) = (by_name(&shown.alerts), by_name(&now.alerts));
    let gone = old_alerts.keys().filter(|name| !new_alerts.contains_key(*name));
    out.extend(gone.map(|(id, since)| Change::AlertGone { id: (*id).to_owned(), since_unix_s: *since }));
    for alert in &now.alerts {
        let old = old_alerts.get(&(alert.id.as_str(), alert.since_unix_s)).copied();
        // The numbers in its text are gauges.
        let only_text = |old: &AlertView| {
            let (text, subject) = (alert.text.clone(), alert.subject.clone());
            AlertView { text, subject, ..old.clone() } == *alert
        };
        if old.is_none_or(|old| old != alert && (wanted.gauges || !only_text(old))) {
            out.push(Change::Alert { alert: Box::new(alert.clone()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured_alone() -> MeasuredAnswerView {
        let off = Some(crate::TermOffView { stage: Some(0), measured_ms: 30.0, predicted_ms: 20.0 });
        let first_token = crate::MeasuredTimeView { measured_ms: 40.0, predicted_ms: 30.0, off };
        let token = crate::MeasuredTimeView { measured_ms: 5.0, predicted_ms: 5.0, off: None };
        MeasuredAnswerView { prompt_tokens: 12, first_token, answer_tokens: 9, token: Some(token) }
    }

    fn view() -> ClusterView {
        let node = |name: &str| {
            serde_json::json!({
                "id": format!("id-{name}"), "name": name, "is_self": name == "a", "role": "admin", "status": "alive",
                "version": "1", "platform": "linux", "addresses": [], "mains_power": null,
                "devices": [{
                    "id": "cpu", "kind": "cpu", "name": "P", "backend": "cpu/avx2", "memory_total_bytes": 8_u64 << 30,
                    "memory_free_bytes": 4_u64 << 30, "memory_domain": {"id": "ram", "free_bytes": 5_u64 << 30},
                    "compute_units": 8, "read_bytes_per_s": 1e9, "flops_per_s": 1e9, "support": "full", "support_reason": "", "sensors": {"temperature_c": 50.0}
                }]
            })
        };
        let instance = serde_json::json!({
            "id": "i1", "model_id": "m", "model": "demo", "state": {"kind": "ready"}, "placement": "p", "context_tokens": 64,
            "slots": 1, "kv": "f16", "stages": [{
                "node": "id-a", "node_name": "a", "device": "cpu", "layers": {"start": 0, "end": 4}, "embedding": true, "head": true,
                "weight_bytes": 1, "weight_bytes_held": 1, "kv_bytes": 1, "time_share": 0.25
            }], "load": serde_json::to_value(LoadView::default()).unwrap_or_default()
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

    const ALL: ChangeFilter = ChangeFilter { gauges: true, refresh: true };

    /// Which kinds of changes `change` makes, after a look that a reader who applies them ends where the node
    /// is.
    fn kinds(wanted: ChangeFilter, change: impl FnOnce(&mut ClusterView)) -> Vec<String> {
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
        assert_eq!(kinds(ALL, |now| now.alerts.push(alert)), ["\"alert\""]);
        let running = LoadView { running: 1, ..LoadView::default() };
        assert_eq!(kinds(ALL, |now| now.instances[0].load = Some(running)), ["\"load\""]);
        assert_eq!(kinds(ALL, |now| now.nodes[0].devices[0].memory_free_bytes = 1 << 30), ["\"gauges\""]);
        assert_eq!(kinds(ALL, |now| now.links[1].rtt_samples = 9), ["\"link\""]);
    }

    fn alert(id: &str, since_unix_s: u64, resolved_unix_s: Option<u64>) -> AlertView {
        AlertView {
            id: id.to_owned(),
            rule: "disk_low".to_owned(),
            severity: crate::Severity::Warning,
            since_unix_s,
            resolved_unix_s,
            subject: "a".to_owned(),
            text: "9 GiB".to_owned(),
            what_to_do: "make room".to_owned(),
            ..AlertView::default()
        }
    }

    /// One change after the other, of every kind, and what a number is that is not known any more.
    fn steps() -> Vec<fn(&mut ClusterView)> {
        vec![
            |now| {
                now.journal.entries = 2;
                let (coordinator, followed_by) = ("id-b".into(), "id-c".into());
                now.unheard_coordinator = Some(crate::UnheardCoordinatorView { coordinator, followed_by });
            },
            |now| now.nodes[1].status = crate::NodeStatus::Lost,
            |now| {
                let mut node = now.nodes[1].clone();
                (node.id, node.name) = ("id-0".into(), "0".into());
                now.nodes.insert(0, node);
            },
            |now| {
                now.nodes[1].process_bytes = Some(1 << 30);
                now.nodes[1].devices[0].memory_free_bytes = 1 << 30;
            },
            |now| {
                let domain = now.nodes[1].devices[0].memory_domain.as_mut();
                domain.expect("the device shares its memory").free_bytes = 1 << 30;
                now.nodes[1].process_bytes = None;
                now.nodes[1].devices[0].sensors.temperature_c = None;
            },
            |now| now.nodes.truncate(2),
            |now| now.links[1].rtt_ms = Some(9.0),
            |now| now.links.truncate(1),
            |now| now.instances[0].state = crate::InstanceState::Loading { progress: 0.5 },
            |now| {
                let mut other = now.instances[0].clone();
                other.id = "i2".into();
                now.instances.push(other);
            },
            |now| {
                let instance = &mut now.instances[0];
                instance.load = Some(LoadView { running: 2, ..LoadView::default() });
                (instance.measured_tokens_per_s, instance.predicted_tokens_per_s) = (Some(20.0), Some(30.0));
                instance.measured_alone = Some(measured_alone());
                instance.stages[0].time_share = Some(0.5);
                let measured = crate::StageMeasuredView { token_ms: 4.0, predicted_token_ms: 3.0, tokens: 9 };
                instance.stages[0].measured = Some(measured);
            },
            |now| {
                let instance = &mut now.instances[0];
                instance.load = None;
                (instance.measured_tokens_per_s, instance.predicted_tokens_per_s) = (None, None);
                instance.measured_alone = None;
                instance.stages[0].time_share = None;
                instance.stages[0].measured = None;
            },
            |now| now.instances.truncate(1),
            |now| {
                now.alerts = vec![alert("disk", 9, None), alert("heat", 8, None), alert("disk", 5, Some(7))]
            },
            |now| {
                now.alerts[0].resolved_unix_s = Some(10);
                now.alerts.sort_by(AlertView::order);
            },
            |now| now.alerts.truncate(2),
            |now| now.warnings.push(WarningView { at_unix_s: 1, text: "disk".into() }),
            |now| {
                let (node, name, address) = ("id-s".into(), "s".into(), "192.0.2.9:1".into());
                now.join_requests.push(JoinRequestView {
                    node,
                    name,
                    address,
                    check_words: "one two".into(),
                });
            },
        ]
    }

    /// The page has a reader of its own: it is held against these steps (`deltas.test.ts`).
    #[test]
    fn the_page_is_tested_with_the_changes_that_are_told() {
        let before = view();
        let (mut shown, mut now) = (before.clone(), before.clone());
        let mut told = Vec::new();
        for step in steps() {
            step(&mut now);
            let changes = changes(&shown, &now, ALL);
            assert!(!changes.is_empty());
            changes.iter().cloned().for_each(|change| change.apply(&mut shown));
            assert_eq!(shown, now);
            told.push(changes);
        }
        let json = serde_json::json!({ "before": before, "steps": told, "after": now });
        let text = serde_json::to_string_pretty(&json).expect("views serialise") + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/src/api/deltas.json");
        if std::env::var_os("EXO_WRITE_DELTAS").is_some() {
            std::fs::write(path, &text).expect("the file is written");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == text, "dashboard/src/api/deltas.json differs: run this test with EXO_WRITE_DELTAS=1");
    }

    #[test]
    fn what_wavers_is_told_when_it_has_moved_far_and_not_with_every_look() {
        let little = |now: &mut ClusterView| {
            let device = &mut now.nodes[0].devices[0];
            device.memory_free_bytes += 1 << 20;
            if let Some(domain) = &mut device.memory_domain {
                domain.free_bytes += 1 << 20;
            }
            device.sensors.temperature_c = Some(51.0);
            now.links[0].rtt_ms = Some(0.9);
        };
        let (shown, mut now) = (view(), view());
        assert!(shown.nodes[0].devices[0].memory_domain.is_some());
        little(&mut now);
        assert!(changes(&shown, &now, ALL).is_empty());
        let taken = |now: &mut ClusterView| {
            let domain =
                now.nodes[0].devices[0].memory_domain.as_mut().expect("the device shares its memory");
            domain.free_bytes += 8 << 30;
        };
        assert_eq!(kinds(ChangeFilter::default(), taken), [""; 0]);
        assert_eq!(kinds(ALL, taken), ["\"gauges\""]);
        let far = |now: &mut ClusterView| now.nodes[0].devices[0].sensors.temperature_c = None;
        assert_eq!(kinds(ChangeFilter::default(), far), [""; 0]);
        assert_eq!(kinds(ALL, far), ["\"gauges\""]);
        let measured = |now: &mut ClusterView| now.links[0].rtt_samples = 6;
        assert_eq!(kinds(ChangeFilter::default(), measured), [""; 0]);
        assert_eq!(kinds(ChangeFilter::default(), |now| now.links[0].rtt_ms = Some(5.0)), ["\"link\""]);
        let loss = |share| {
            move |now: &mut ClusterView| {
                now.links[0].loss = Some(crate::LossView { share, packets: 100, window_s: 60 });
            }
        };
        assert_eq!(kinds(ChangeFilter::default(), loss(0.005)), [""; 0]);
        assert_eq!(kinds(ChangeFilter::default(), loss(0.05)), ["\"link\""]);
    }

    #[test]
    fn of_many_alerts_the_one_that_changed_is_told_and_its_numbers_with_the_gauges() {
        let mut shown = view();
        shown.alerts = std::iter::once(alert("disk", 900, None))
            .chain((0..100).rev().map(|n| alert("disk", n, Some(n + 1))))
            .collect();
        let check = |shown: &ClusterView, now: &ClusterView, wanted| {
            let told = changes(shown, now, wanted);
            let mut applied = shown.clone();
            told.iter().cloned().for_each(|change| change.apply(&mut applied));
            (told.len(), applied == *now)
        };
        let mut now = shown.clone();
        now.alerts[0].text = "8 GiB".to_owned();
        assert_eq!(check(&shown, &now, ChangeFilter::default()), (0, false));
        assert_eq!(check(&shown, &now, ALL), (1, true));
        now = shown.clone();
        now.alerts[0].resolved_unix_s = Some(901);
        now.alerts.sort_by(AlertView::order);
        now.alerts.pop();
        assert_eq!(check(&shown, &now, ChangeFilter::default()), (2, true), "one is over, one is forgotten");
    }

    #[test]
    fn rates_that_only_grow_older_are_told_more_and_more_seldom_and_their_age_is_nearly_the_true_one() {
        let aged = |age_s| crate::ProvenanceView::from(exo_types::Provenance { count: 9, age_s });
        let told = |before, now| {
            let mut shown = view();
            shown.nodes[0].devices[0].rates_measured = Some(aged(before));
            let mut later = shown.clone();
            later.nodes[0].devices[0].rates_measured = Some(aged(now));
            changes(&shown, &later, ALL).len()
        };
        assert_eq!([told(1, 59), told(59, 60)], [0, 1]);
        assert_eq!([told(3601, 4199), told(4199, 4200)], [0, 1]);
        assert_eq!([told(24 * 3600 + 1, 25 * 3600 - 1), told(25 * 3600 - 1, 25 * 3600)], [0, 1]);
        // A plan that is made from a view counts the same rates as old as one that is made from a report.
        assert_eq!([aged(24 * 3600).age_s, aged(24 * 3600 + 1).age_s], [24 * 3600, 24 * 3600 + 1]);
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
