//! Measurements of all members, as their last reports have them. Reads what the other parts hold; of its own
//! it has only when a report came.

use std::collections::{BTreeMap, BTreeSet};

use exo_api as api;
use exo_cluster::wire::{
    FetchSource, Histogram, LoadReport, ModelTotals, NodeMeasurements, NodeReport, PullReport, StageReport,
    limits,
};
use exo_types::{DeviceFacts, DeviceKind, Monitor, NodeId, Time};

use crate::NodeMachine;
use crate::names::Names;

/// When a member's last report came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reported {
    at: Time,
    /// By how much its clock was ahead of this node's then, in seconds.
    clock_ahead_s: Option<i64>,
}

impl NodeMachine {
    /// A report has come.
    pub(crate) fn note_reported(&mut self, from: NodeId, report: &NodeReport) {
        let at_unix_s = (report.measured.vitals.at_unix_ms / 1000) as i64; // below 2^63 by the division
        let clock_ahead_s = (at_unix_s > 0).then(|| at_unix_s.saturating_sub_unsigned(self.now.unix_s));
        self.reported.insert(from, Reported { at: self.now.time, clock_ahead_s });
    }

    /// What this node measures, for its report.
    pub(crate) fn measured(&self) -> NodeMeasurements {
        NodeMeasurements {
            vitals: self.samples.measured.vitals.clone(),
            loads: self.schedulers.values().map(|entry| entry.scheduler.load_report()).collect(),
            requests: self.samples.measured.requests.clone(),
            pulls: self.samples.measured.pulls.clone(),
        }
    }

    /// Measurements of all members, as this node knows them.
    pub fn telemetry(&self) -> api::TelemetryView {
        let members = self.trust.view().members().keys();
        let mut nodes: Vec<_> = members.map(|node| self.node_telemetry(*node)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name).then(a.node.cmp(&b.node)));
        api::TelemetryView { self_node: self.me.to_full(), nodes }
    }

    fn node_telemetry(&self, node: NodeId) -> api::NodeTelemetryView {
        let reported = self.reported.get(&node);
        let report = self.reports.get(&node);
        let vitals = report.map(|report| report.measured.vitals.clone()).unwrap_or_default();
        let facts = report.map(|report| &report.facts);
        let is_told = vitals.at_unix_ms > 0;
        api::NodeTelemetryView {
            node: node.to_full(),
            name: self.name_of(node),
            status: self.statuses.get(&node).copied().unwrap_or(api::NodeStatus::Lost),
            age_s: reported.map(|reported| self.now.time.since(reported.at).as_secs_f64()),
            version: facts.map(|f| f.version.clone()).unwrap_or_default(),
            platform: facts.map(|f| f.platform.clone()).unwrap_or_default(),
            uptime_s: is_told.then_some(vitals.uptime_s.into()),
            clock_ahead_s: reported.and_then(|reported| reported.clock_ahead_s),
            process_bytes: report.and_then(|report| report.process_bytes),
            memory_total_bytes: vitals.memory_total_bytes,
            memory_available_bytes: vitals.memory_available_bytes,
            disk_free_bytes: vitals.disk_free_bytes,
            disk_room_bytes: report.and_then(|report| report.disk_room.bytes()),
            descriptors_open: vitals.descriptors_open,
            descriptors_max: vitals.descriptors_max,
            battery: vitals.battery_percent.map(|percent| f64::from(percent) / 100.0),
            mains_power: facts.and_then(|f| f.mains_power),
            multicast_heard: vitals.multicast_heard,
            transfers: vitals.transfers,
            transferred_bytes: vitals.transferred_bytes,
            unreached: report
                .map(|r| r.unreached.iter().map(|node| node.to_full()).collect())
                .unwrap_or_default(),
            devices: report.map(|report| self.device_telemetry(report)).unwrap_or_default(),
            links: report.map(|report| self.link_telemetry(report)).unwrap_or_default(),
            stages: report.map(|report| self.stage_telemetry(report)).unwrap_or_default(),
            instances: report.map(|report| self.instance_telemetry(report)).unwrap_or_default(),
            requests: report.map(request_telemetry).unwrap_or_default(),
            pulls: report
                .map(|report| pull_telemetry(&report.measured.pulls, &self.names))
                .unwrap_or_default(),
        }
    }

    fn device_telemetry(&self, report: &NodeReport) -> Vec<api::DeviceTelemetryView> {
        let view = |facts: &DeviceFacts| {
            let told = report.devices.iter().find(|device| device.device == facts.id);
            let monitor = told.map(|device| device.monitor).unwrap_or_default();
            api::DeviceTelemetryView {
                device: facts.id.to_string(),
                sensors: monitor.into(),
                limit_c: monitor.limit_c,
                throttled: monitor.throttled,
                memory: self.memory(report, facts),
                missing: missing(facts.kind, &monitor),
            }
        };
        report.facts.devices.iter().map(view).collect()
    }

    /// What the shards on a device hold of its memory. What they hold beside weights and cache is rows and
    /// buffers.
    fn memory(&self, report: &NodeReport, facts: &DeviceFacts) -> api::MemoryView {
        let (mut weights, mut kv, mut held) = (0u64, 0u64, 0u64);
        for stage in report.stages.iter().filter(|stage| stage.spec.device == facts.id) {
            weights = weights.saturating_add(stage.weight_bytes);
            kv = kv.saturating_add(self.kv_bytes(stage));
            held = held.saturating_add(stage.held_bytes);
        }
        let (total, free) = (facts.memory_total_bytes, facts.memory_free_bytes);
        let workspace = held.saturating_sub(weights).saturating_sub(kv);
        let others =
            total.saturating_sub(free).saturating_sub(weights.saturating_add(kv).saturating_add(workspace));
        api::MemoryView {
            total_bytes: total,
            free_bytes: free,
            weights_bytes: weights,
            kv_bytes: kv,
            workspace_bytes: workspace,
            others_bytes: others,
        }
    }

    fn kv_bytes(&self, stage: &StageReport) -> u64 {
        let Some(at) = stage.serves.filter(|_| stage.held_bytes > 0) else { return 0 };
        let instance = self.instances.iter().find(|instance| instance.placement.id == at.placement);
        let Some(placement) = instance.map(|instance| &instance.placement) else { return 0 };
        let Some(wanted) = self.state().instances().get(&placement.instance) else { return 0 };
        let per_token = wanted.request.shape.shard_kv_bytes_per_token(&stage.spec.shard());
        per_token.saturating_mul(placement.cache_tokens.into())
    }

    fn link_telemetry(&self, report: &NodeReport) -> Vec<api::LinkTelemetryView> {
        let view = |link: &exo_cluster::wire::LinkReport| api::LinkTelemetryView {
            peer: link.peer.to_full(),
            peer_name: self.name_of(link.peer),
            rtt_ms: f64::from(link.rtt_us) / 1e3,
            jitter_ms: f64::from(link.jitter_us) / 1e3,
            received_bytes_per_s: link.inbound.map(|inbound| inbound.bytes_per_s as f64),
            sent_bytes: link.traffic.map(|traffic| traffic.sent_bytes),
            received_bytes: link.traffic.map(|traffic| traffic.received_bytes),
            sent_packets: link.traffic.and_then(|traffic| Some(traffic.packets?.sent)),
            lost_packets: link.traffic.and_then(|traffic| Some(traffic.packets?.lost)),
            is_wireless: link.is_wireless,
        };
        report.links.iter().map(view).collect()
    }

    fn stage_telemetry(&self, report: &NodeReport) -> Vec<api::StageTelemetryView> {
        let view = |stage: &StageReport| {
            let at = stage.serves?;
            let instance = self.instances.iter().find(|instance| instance.placement.id == at.placement)?;
            Some(api::StageTelemetryView {
                instance: instance.placement.instance.to_string(),
                model: instance.model_name.clone(),
                stage: at.stage,
                device: stage.spec.device.to_string(),
                layers: stage.spec.layers,
                busy_s: stage.busy_us as f64 / 1e6,
                weight_bytes: stage.weight_bytes,
            })
        };
        report.stages.iter().filter_map(view).collect()
    }

    fn instance_telemetry(&self, report: &NodeReport) -> Vec<api::InstanceTelemetryView> {
        let view = |load: &LoadReport| {
            let instance = self.instances.iter().find(|instance| instance.placement.id == load.placement)?;
            Some(api::InstanceTelemetryView {
                instance: instance.placement.instance.to_string(),
                model: instance.model_name.clone(),
                load: load_view(load),
                steps: load.steps,
            })
        };
        // A member may say of an instance whatever it likes, but only once.
        let mut seen = BTreeSet::new();
        let loads = report.measured.loads.iter().filter(|load| seen.insert(load.placement));
        loads.filter_map(view).collect()
    }
}

pub(crate) fn load_view(load: &LoadReport) -> api::LoadView {
    api::LoadView {
        running: load.running,
        waiting: load.waiting,
        waiting_max: load.waiting_max,
        pages: load.pages,
        pages_used: load.pages_used,
        pages_cached: load.pages_cached,
        prompt_tokens: load.prompt_tokens,
        cached_tokens: load.cached_tokens,
        drafts: load.drafts,
        drafts_accepted: load.drafts_accepted,
        prompt_tokens_per_s: load.prompt_tokens_per_s,
        tokens_per_s: load.tokens_per_s,
    }
}

/// What a device does not tell, and why.
fn missing(kind: DeviceKind, monitor: &Monitor) -> Vec<api::MissingView> {
    let reason = match kind {
        DeviceKind::Cpu => "not reported by this system",
        _ => "not reported by this driver",
    };
    let told = [
        ("temperature_c", monitor.temperature_c.is_some()),
        ("power_w", monitor.power_w.is_some()),
        ("clock_mhz", monitor.clock_mhz.is_some()),
        ("utilisation", monitor.utilisation.is_some()),
        ("throttled", monitor.throttled.is_some()),
    ];
    let untold = told.into_iter().filter(|(_, is_told)| !is_told);
    untold.map(|(what, _)| api::MissingView { what: what.to_owned(), reason: reason.to_owned() }).collect()
}

fn request_telemetry(report: &NodeReport) -> Vec<api::ModelRequestsView> {
    let mut models: BTreeMap<&str, api::ModelRequestsView> = BTreeMap::new();
    for totals in &report.measured.requests {
        // The last one of a name counts: two would be two series of the same name.
        models.insert(&totals.model, requests_view(totals));
    }
    models.into_values().collect()
}

/// A state that this node does not know is another build's: that download is not shown.
fn pull_telemetry(pulls: &[PullReport], names: &Names) -> Vec<api::NodePullView> {
    let view = |pull: &PullReport| {
        Some(api::NodePullView {
            // Members are not believed to have made it one line.
            reference: exo_types::clean_name(&pull.reference, limits::PULL_REFERENCE_CHARS_MAX),
            state: api::PullState::from_number(pull.state)?,
            verified_bytes: pull.verified_bytes,
            total_bytes: pull.total_bytes,
            bytes_per_s: pull.bytes_per_s.map(|rate| rate as f64),
            sources: source_views(&pull.sources, names),
        })
    };
    pulls.iter().filter_map(view).collect()
}

/// What came from where, in the cluster's names.
pub(crate) fn source_views(sources: &[FetchSource], names: &Names) -> Vec<api::FetchSourceView> {
    let view = |source: &FetchSource| {
        let FetchSource { member, bytes, bytes_per_s } = *source;
        api::FetchSourceView { member: member.map(|node| names.of(node)), bytes, bytes_per_s }
    };
    sources.iter().map(view).collect()
}

fn requests_view(totals: &ModelTotals) -> api::ModelRequestsView {
    let mut ended: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for (endpoint, reason, count) in &totals.ended {
        let endpoint = api::Endpoint::from_number(*endpoint).map_or("other", api::Endpoint::as_str);
        let reason = api::RequestEnd::from_number(*reason).map_or("other", api::RequestEnd::as_str);
        let sum = ended.entry((endpoint, reason)).or_default();
        *sum = sum.saturating_add(*count);
    }
    let view = |((endpoint, reason), count): ((&str, &str), u64)| api::EndedView {
        endpoint: endpoint.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    api::ModelRequestsView {
        model: totals.model.clone(),
        ended: ended.into_iter().map(view).collect(),
        prompt_tokens: totals.prompt_tokens,
        cached_tokens: totals.cached_tokens,
        completion_tokens: totals.completion_tokens,
        first_token: histogram(&totals.first_token, &api::FIRST_TOKEN_BOUNDS_S),
        token: histogram(&totals.token, &api::TOKEN_BOUNDS_S),
        duration: histogram(&totals.duration, &api::DURATION_BOUNDS_S),
        queue: histogram(&totals.queue, &api::DURATION_BOUNDS_S),
        prefill: histogram(&totals.prefill, &api::DURATION_BOUNDS_S),
    }
}

/// A member with other bounds is another build: its counts mean something else here.
fn histogram(told: &Histogram, bounds: &[f64]) -> api::HistogramView {
    if told.counts.len() != bounds.len() + 1 {
        return api::HistogramView::default();
    }
    api::HistogramView { counts: told.counts.clone(), sum_s: told.sum_us as f64 / 1e6 }
}

#[cfg(test)]
mod tests;
