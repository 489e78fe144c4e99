//! The cluster as this node sees it, for people and scripts. Reads what the other parts hold, and keeps
//! nothing.

mod alone;
mod prediction;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use exo_api as api;
use exo_api::plan::PlanObjective;
use exo_cluster::wire::{
    Bandwidth, HeldModel, LoadReport, NodeReport, PhaseTimes, RecentPackets, SequenceTimes, StageReport,
};
use exo_cluster::{
    InstanceRequest, InstanceState, InstanceView, Moving, NodeName, PlaceObjective, StageStatus, State,
};
use exo_trust::{Role, TrustLog};
use exo_types::{
    DeviceFacts, Epoch, Exclusion, LogHead, ModelId, NodeId, PacketCounts, Pin, PlacedShard, PlacementId,
    ShardPosition, Transport, hex,
};

use crate::joining::Request;
use crate::names::Names;
use crate::telemetry::{load_view, source_views};

pub use self::prediction::view as prediction_view;

/// What a view is made of.
pub(crate) struct ViewInputs<'a> {
    pub(crate) me: NodeId,
    pub(crate) names: &'a Names,
    pub(crate) listen: SocketAddr,
    /// What is placed, and the end of the log that it stands for.
    pub(crate) state: &'a State,
    pub(crate) trust: &'a TrustLog,
    pub(crate) head: LogHead,
    pub(crate) leader: Option<(Epoch, NodeId)>,
    /// A member that follows a coordinator which this node does not hear, and that coordinator.
    pub(crate) followed_elsewhere: Option<(NodeId, NodeId)>,
    pub(crate) statuses: &'a BTreeMap<NodeId, api::NodeStatus>,
    /// Since when a node is gone, in seconds since 1970.
    pub(crate) gone_since: &'a BTreeMap<NodeId, u64>,
    /// The last report of each member, this node included.
    pub(crate) reports: &'a BTreeMap<NodeId, NodeReport>,
    /// The instances, as the coordinator last described them.
    pub(crate) instances: &'a [InstanceView],
    /// What the scheduler of an instance counts now, if it runs here.
    pub(crate) own_load: &'a dyn Fn(PlacementId) -> Option<LoadReport>,
    /// Where a member may be reached, best first.
    pub(crate) addresses: &'a dyn Fn(NodeId) -> Vec<SocketAddr>,
    /// What carries the tokens to a member.
    pub(crate) data_via: &'a dyn Fn(NodeId) -> Option<Transport>,
    /// Strangers that asked to join.
    pub(crate) requests: &'a BTreeMap<NodeId, Request>,
    /// Nodes nearby with a cluster of their own, while this node does not join them by itself.
    pub(crate) other_clusters: Vec<api::OtherClusterView>,
    /// Whether strangers nearby join without a question, and until when.
    pub(crate) join_window: api::JoinWindowView,
    /// Since when an instance is in its state, in seconds since 1970.
    pub(crate) states_since: &'a dyn Fn(exo_types::InstanceId) -> u64,
    /// How far a stage is that fetches or loads.
    pub(crate) stage_progress: &'a dyn Fn(&InstanceView, usize) -> Option<api::StageProgressView>,
    /// Members that have this log on their disks.
    pub(crate) log_holders: u32,
    pub(crate) warnings: Vec<api::WarningView>,
}

pub(crate) fn view(inputs: &ViewInputs<'_>) -> api::ClusterView {
    let ViewInputs { me, trust, head, .. } = inputs;
    let mut nodes: Vec<_> = trust.view().members().keys().map(|node| inputs.node_view(*node)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id)));
    let epoch = |(epoch, node): (Epoch, NodeId)| api::EpochView {
        counter: epoch.counter,
        coordinator: node.to_full(),
    };
    api::ClusterView {
        cluster: Some(hex(&trust.cluster().0)),
        self_node: me.to_full(),
        epoch: inputs.leader.map(epoch),
        unheard_coordinator: inputs.followed_elsewhere.map(|(member, coordinator)| {
            api::UnheardCoordinatorView { coordinator: coordinator.to_full(), followed_by: member.to_full() }
        }),
        nodes,
        links: inputs.link_views(),
        instances: inputs.instances.iter().map(|instance| inputs.instance_view(instance)).collect(),
        join_window: inputs.join_window,
        join_requests: inputs.join_request_views(),
        other_clusters: inputs.other_clusters.clone(),
        journal: api::JournalView { entries: head.index, head: hex(&head.hash), holders: inputs.log_holders },
        warnings: inputs.warnings.clone(),
        alerts: Vec::new(),
    }
}

/// The view of a node that has not begun.
pub fn empty_view(me: NodeId) -> api::ClusterView {
    api::ClusterView { self_node: me.to_full(), ..api::ClusterView::default() }
}

/// How far an instance is loaded, 0 to 1. Fetching counts for nine tenths of a stage.
pub(crate) fn load_progress(instance: &InstanceView) -> f64 {
    let (mut done, mut total) = (0.0, 0.0);
    for stage in &instance.stages {
        let all = stage.memory_bytes.max(1) as f64;
        let share = match &stage.status {
            StageStatus::Loaded | StageStatus::Serving => 1.0,
            StageStatus::Fetching { done_bytes, total_bytes, .. } if *total_bytes > 0 => {
                0.9 * *done_bytes as f64 / *total_bytes as f64
            }
            StageStatus::Loading { done_bytes, total_bytes } if *total_bytes > 0 => {
                0.9 + 0.1 * *done_bytes as f64 / *total_bytes as f64
            }
            _ => 0.0,
        };
        done += share.min(1.0) * all;
        total += all;
    }
    if total > 0.0 { done / total } else { 0.0 }
}

/// Whether a node calls a model by its commit, because it has a newer one of the name.
pub(crate) fn bears_commit(name: &str, plain: &str) -> bool {
    name.strip_prefix(plain).is_some_and(|rest| rest.starts_with('@'))
}

impl ViewInputs<'_> {
    fn name_of(&self, node: NodeId) -> String {
        self.names.of(node)
    }

    fn node_view(&self, node: NodeId) -> api::NodeView {
        let report = self.reports.get(&node);
        let facts = report.map(|r| &r.facts);
        let is_self = node == self.me;
        let role = self.trust.view().members().get(&node).map(|m| m.role);
        let addresses = if is_self { vec![self.listen] } else { (self.addresses)(node) };
        api::NodeView {
            id: node.to_full(),
            name: self.name_of(node),
            is_self,
            role: if role == Some(Role::Admin) { api::MemberRole::Admin } else { api::MemberRole::Worker },
            status: self.statuses.get(&node).copied().unwrap_or(api::NodeStatus::Lost),
            gone_since_unix_s: self.gone_since.get(&node).copied(),
            version: facts.map(|f| f.version.clone()).unwrap_or_default(),
            platform: facts.map(|f| f.platform.clone()).unwrap_or_default(),
            devices: report.map(device_views).unwrap_or_default(),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            mains_power: facts.and_then(|f| f.mains_power),
            process_bytes: report.and_then(|r| r.process_bytes),
            card_events: report.map(card_event_views).unwrap_or_default(),
            is_drained: self.state.drained().contains(&node) || report.is_some_and(|r| r.is_leaving),
            is_disk_hung: report.is_some_and(|r| r.is_disk_hung),
            has_forked: role == Some(Role::Admin) && self.trust.forked().contains(&node),
        }
    }

    fn link_views(&self) -> Vec<api::LinkView> {
        let mut links = Vec::new();
        // Whoever receives says how fast.
        let inbound = |(at, report): (&NodeId, &NodeReport)| -> Vec<((NodeId, NodeId), Bandwidth)> {
            report.links.iter().filter_map(|link| Some(((link.peer, *at), link.inbound?))).collect()
        };
        let bandwidths: BTreeMap<_, _> = self.reports.iter().flat_map(inbound).collect();
        for (from, report) in self.reports {
            for link in &report.links {
                let outbound = bandwidths.get(&(*from, link.peer));
                let via = (*from == self.me).then(|| (self.data_via)(link.peer)).flatten();
                links.push(api::LinkView {
                    from: from.to_full(),
                    to: link.peer.to_full(),
                    rtt_ms: Some(f64::from(link.rtt_us) / 1e3),
                    rtt_samples: link.rtt_count,
                    rtt_age_s: Some(f64::from(link.rtt_age_ms) / 1e3),
                    jitter_ms: Some(f64::from(link.jitter_us) / 1e3),
                    bytes_per_s: outbound.map(|b| b.bytes_per_s as f64),
                    bandwidth_samples: outbound.map_or(0, |b| b.count),
                    bandwidth_age_s: outbound.map(|b| f64::from(b.age_s)),
                    loss: link.traffic.and_then(|traffic| Some(loss_view(traffic.recent_packets?))),
                    transport: via.map(|v| v.to_string()).unwrap_or_default(),
                });
            }
        }
        links
    }

    fn join_request_views(&self) -> Vec<api::JoinRequestView> {
        let view = |(node, request): (&NodeId, &Request)| api::JoinRequestView {
            node: node.to_full(),
            name: request.name.clone(),
            address: request.listen.to_string(),
            check_words: request.words.clone(),
        };
        self.requests.iter().map(view).collect()
    }

    /// What the model is called now: since it was placed, a newer commit may have taken its name.
    fn model_name(&self, instance: &InstanceView) -> String {
        let own = self.reports.get(&self.me).into_iter().flat_map(|report| &report.models);
        let is_own = |own: &HeldModel| (own.model, &own.name) == (instance.model(), &instance.model_name);
        if own.into_iter().any(|own| own.complete && is_own(own)) {
            return instance.model_name.clone(); // what is whole here is called as this node calls it
        }
        let held = self.reports.values().flat_map(|report| &report.models);
        let mut named = held.filter(|held| held.model == instance.model());
        let by_commit = named.find(|held| bears_commit(&held.name, &instance.model_name));
        by_commit.map_or(&instance.model_name, |held| &held.name).clone()
    }

    fn instance_view(&self, instance: &InstanceView) -> api::InstanceView {
        let placement = &instance.placement;
        let load = self.load(&instance.placement);
        let reports = placement.shards().map(|(at, shard)| self.stage_report(at, shard.node));
        let reports: Vec<Option<&StageReport>> = reports.collect();
        let busy_us = |report: &Option<&StageReport>| report.map_or(0, |r| r.busy_us);
        // Of a stage that has told nothing yet no share is known, and then of no other.
        let have_all_told = reports.iter().all(|report| busy_us(report) > 0);
        let total: u64 = reports.iter().map(busy_us).sum();
        let wanted = self.state.instances().get(&placement.instance).map(|i| &i.request);
        let objective = wanted.map(|wanted| wanted.objective);
        let known = (self.reports, self.state);
        let expected = wanted.and_then(|wanted| prediction::of(placement, wanted, load.as_ref(), known));
        let predicted = expected.as_ref().map(|expected| expected.whole);
        let stages = placement.shards().zip(&reports).map(|((at, shard), report)| {
            let share = have_all_told.then(|| busy_us(report) as f64 / total as f64);
            let predicted =
                expected.as_ref().and_then(|expected| expected.stages.get(at.stage as usize).copied());
            let alone = expected.as_ref().and_then(|expected| expected.alone.as_ref());
            let measured = alone.and_then(|alone| alone.stages.get(at.stage as usize).copied());
            let progress = (self.stage_progress)(instance, at.stage as usize);
            let sources = || report.map(|r| source_views(&r.sources, self.names)).unwrap_or_default();
            let progress = progress.map(|progress| api::StageProgressView { sources: sources(), ..progress });
            api::StageView {
                predicted,
                measured,
                progress,
                ..self.stage_view(instance, shard, *report, share)
            }
        });
        api::InstanceView {
            id: placement.instance.to_string(),
            model_id: placement.model.to_full(),
            model: self.model_name(instance),
            state: state_view(instance, &|node| self.name_of(node)),
            moving: instance.moving.as_ref().map(|moving| moving_view(moving, &|node| self.name_of(node))),
            advice: instance.advice.map(|advice| advice.text(&|node| self.name_of(node))),
            state_since_unix_s: (self.states_since)(placement.instance),
            is_file_gone: instance.state == InstanceState::Ready && !self.is_held(placement.model),
            is_on_demand: wanted.is_some_and(|wanted| wanted.is_on_demand),
            placement: placement.id.to_string(),
            context_tokens: placement.context_tokens,
            slots: placement.slots,
            cache_tokens: placement.cache_tokens,
            kv: placement.kv,
            objective: match objective {
                Some(PlaceObjective::Throughput { .. }) => PlanObjective::Throughput,
                Some(PlaceObjective::Fit | PlaceObjective::Spread { .. }) | None => PlanObjective::Latency,
            },
            streams: match objective {
                Some(PlaceObjective::Throughput { streams }) => Some(streams),
                Some(PlaceObjective::Fit | PlaceObjective::Spread { .. }) | None => None,
            },
            pins: wanted.map(|wanted| self.pin_texts(wanted)).unwrap_or_default(),
            exclude: wanted.map(|wanted| self.exclusion_texts(wanted)).unwrap_or_default(),
            stages: stages.collect(),
            load: load.as_ref().map(load_view),
            predicted_tokens_per_s: predicted.map(|p| p.tokens_per_s.expected),
            predicted,
            reasons: Vec::new(),
            measured_tokens_per_s: load.as_ref().and_then(|load| load.tokens_per_s),
            measured_alone: expected.as_ref().and_then(|expected| Some(expected.alone.as_ref()?.answer)),
        }
    }

    /// Whether a machine that is there has a model's file, or can fetch it.
    fn is_held(&self, model: ModelId) -> bool {
        let mut held = self.reports.values().flat_map(|report| &report.models);
        held.any(|held| held.model == model && held.is_served())
    }

    /// Whether a machine that is there knows the hub that a model is from.
    fn is_of_hub(&self, model: ModelId) -> bool {
        let mut held = self.reports.values().flat_map(|report| &report.models);
        held.any(|held| held.model == model && held.is_of_hub)
    }

    fn pin_texts(&self, wanted: &InstanceRequest) -> Vec<String> {
        let text = |pin: &Pin| format!("{}/{}{}", self.name_of(pin.node), pin.device, pin.layers);
        wanted.pins.iter().map(text).collect()
    }

    fn exclusion_texts(&self, wanted: &InstanceRequest) -> Vec<String> {
        let text = |excluded: &Exclusion| match &excluded.device {
            Some(device) => format!("{}/{device}", self.name_of(excluded.node)),
            None => self.name_of(excluded.node),
        };
        wanted.excluded.iter().map(text).collect()
    }

    /// What the scheduler of a placement counts: it runs on the node of the first stage.
    fn load(&self, placement: &exo_types::Placement) -> Option<LoadReport> {
        (self.own_load)(placement.id).or_else(|| {
            let first = placement.stages.first()?.shards.first()?.node;
            let loads = &self.reports.get(&first)?.measured.loads;
            loads.iter().find(|load| load.placement == placement.id).cloned()
        })
    }

    /// What a node last reported of a shard.
    fn stage_report(&self, at: ShardPosition, node: NodeId) -> Option<&StageReport> {
        self.reports.get(&node)?.stages.iter().find(|report| report.serves == Some(at))
    }

    fn stage_view(
        &self,
        instance: &InstanceView,
        placed: &PlacedShard,
        report: Option<&StageReport>,
        time_share: Option<f64>,
    ) -> api::StageView {
        let (placement, shard) = (&instance.placement, &placed.shard);
        let request = self.state.instances().get(&placement.instance).map(|i| &i.request);
        let tokens = u64::from(placement.cache_tokens);
        let has_file = request.is_some_and(|r| r.holders.contains(&placed.node));
        let holder = request.and_then(|r| r.holders.first()).map(|holder| self.name_of(*holder));
        let source =
            holder.or_else(|| self.is_of_hub(placement.model).then(|| "its hub and members".to_owned()));
        api::StageView {
            node: placed.node.to_full(),
            node_name: self.name_of(placed.node),
            device: placed.device.to_string(),
            layers: shard.layers,
            embedding: shard.embedding,
            head: shard.head,
            weight_bytes: request.map_or(0, |r| r.shape.shard_weight_bytes(shard)),
            weight_bytes_held: report.map_or(0, |r| r.weight_bytes),
            weight_bytes_waiting: report.map_or(0, |r| r.unpacked_bytes),
            kv_bytes: request.map_or(0, |r| r.shape.shard_kv_bytes_per_token(shard) * tokens),
            rows_bytes: report.map_or(0, |r| r.rows_bytes),
            rows_bytes_max: report.map_or(0, |r| r.rows_bytes_max),
            time_share,
            predicted: None,
            measured: None,
            fetched_from: source.filter(|_| !has_file),
            progress: None,
        }
    }
}

/// Where the time of a sequence's steps went, if its scheduler told as many times as there are stages.
pub(crate) fn step_times_view(
    placement: &exo_types::Placement,
    times: &SequenceTimes,
) -> Option<api::StepTimesView> {
    let ms = |us: u64| us as f64 / 1e3;
    let count = placement.stages.len();
    let of_stage = |of: &PhaseTimes, at: usize| of.stages_us.get(at).map_or(0.0, |us| ms(*us));
    let is_told = times.prompt.stages_us.len() == count && times.answer.stages_us.len() <= count;
    let view = |(at, stage): (usize, &exo_types::Stage)| api::StageTimeView {
        node: Some(stage.leader().node.to_full()),
        device: Some(stage.leader().device.to_string()),
        prompt_ms: of_stage(&times.prompt, at),
        answer_ms: of_stage(&times.answer, at),
    };
    is_told.then(|| api::StepTimesView {
        stages: placement.stages.iter().enumerate().map(view).collect(),
        between_prompt_ms: ms(times.prompt.between_us),
        between_answer_ms: ms(times.answer.between_us),
    })
}

fn device_views(report: &NodeReport) -> Vec<api::DeviceView> {
    let view = |facts: &DeviceFacts| {
        let mut view = api::DeviceView::from(facts);
        if let Some(device) = report.devices.iter().find(|device| device.device == facts.id) {
            view.state = device.state;
            device.reason.clone_into(&mut view.state_reason);
            view.driver.clone_from(&device.driver);
            view.sensors = device.monitor.into();
        }
        view
    };
    report.facts.devices.iter().map(view).collect()
}

fn loss_view(recent: RecentPackets) -> api::LossView {
    let PacketCounts { sent, lost } = recent.counts;
    api::LossView { share: lost as f64 / sent.max(1) as f64, packets: sent, window_s: recent.window_s }
}

fn card_event_views(report: &NodeReport) -> Vec<api::CardEventView> {
    let view = |event: &exo_cluster::wire::CardEvent| api::CardEventView {
        at_unix_s: event.at_unix_s,
        text: event.to_string(),
    };
    report.card_events.iter().map(view).collect()
}

fn state_view(instance: &InstanceView, name: NodeName<'_>) -> api::InstanceState {
    match &instance.state {
        InstanceState::Placing => api::InstanceState::Placing,
        InstanceState::Loading => {
            let failed = instance.stages.iter().find_map(|s| match &s.status {
                told @ (StageStatus::Failed { .. } | StageStatus::Fetching { hub_wait_s: 1.., .. }) => {
                    Some(told.text(name))
                }
                _ => None,
            });
            match failed {
                Some(reason) => api::InstanceState::Degraded { reason },
                None => api::InstanceState::Loading { progress: load_progress(instance) },
            }
        }
        // Loaded; its stages find each other.
        InstanceState::Wiring => api::InstanceState::Loading { progress: 1.0 },
        InstanceState::Ready => api::InstanceState::Ready,
        InstanceState::Degraded { reason } => api::InstanceState::Degraded { reason: reason.text(name) },
        InstanceState::Waiting { reason } => api::InstanceState::Waiting { reason: reason.text(name) },
        InstanceState::Failed { reason } => api::InstanceState::Failed { reason: reason.text(name) },
    }
}

fn moving_view(moving: &Moving, name: NodeName<'_>) -> api::MovingView {
    let reason = moving.text(name);
    match moving {
        Moving::Loading { done_bytes, total_bytes, .. } => {
            let progress = *done_bytes as f64 / (*total_bytes).max(1) as f64;
            api::MovingView::Loading { reason, progress }
        }
        Moving::Stays { .. } => api::MovingView::Stays { reason },
    }
}

#[cfg(test)]
mod tests;
