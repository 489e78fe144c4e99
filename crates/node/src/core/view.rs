//! The cluster as this node sees it, for people and scripts.

use exo_api as api;
use exo_cluster::wire::NodeReport;
use exo_cluster::{InstanceState, InstanceView, Role, SchedulerStats, ShardKey, StageStatus};
use exo_types::{DeviceFacts, NodeId, Shard};

use super::Core;
use super::requests::load_progress;

impl Core {
    /// Publishes a view when something changed; at most ten a second, because ticks come that often.
    pub(super) fn publish_view(&mut self) {
        if self.view_stale {
            self.view_stale = false;
            let view = self.view();
            self.view.send_replace(view);
        }
    }

    fn view(&self) -> api::ClusterView {
        let state = self.p.coordinator.state();
        let until = state.join_window_until_unix_s();
        let open = self.window_open();
        let head = self.log_head();
        let mut nodes: Vec<_> = state.members().keys().map(|n| self.node_view(*n)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id)));
        api::ClusterView {
            cluster: state.cluster().map(|(id, _)| id.0.iter().map(|b| format!("{b:02x}")).collect()),
            self_node: self.me.to_full(),
            epoch: self
                .leader
                .map(|(epoch, node)| api::EpochView { counter: epoch.counter, coordinator: node.to_full() }),
            nodes,
            links: self.link_views(),
            instances: self.instances.iter().map(|i| self.instance_view(i)).collect(),
            join_window: api::JoinWindowView { open, open_until_unix_s: open.then_some(until) },
            join_requests: self.join_request_views(),
            journal: api::JournalView {
                entries: head.index,
                head: head.hash.iter().map(|b| format!("{b:02x}")).collect(),
            },
        }
    }

    fn node_view(&self, node: NodeId) -> api::NodeView {
        let report = self.reports.get(&node);
        let facts = report.map(|r| &r.facts);
        let is_self = node == self.me;
        let role = self.p.coordinator.state().members().get(&node).map(|m| m.role);
        let addresses = if is_self {
            vec![self.p.endpoint.local_addr().to_string()]
        } else {
            let known = self.peers.get(&node).map(|p| p.addresses.as_slice()).unwrap_or_default();
            known.iter().map(ToString::to_string).collect()
        };
        api::NodeView {
            id: node.to_full(),
            name: self.name_of(node),
            is_self,
            role: if role == Some(Role::Admin) { api::MemberRole::Admin } else { api::MemberRole::Worker },
            status: self.statuses.get(&node).copied().unwrap_or(api::NodeStatus::Lost),
            version: facts.map(|f| f.version.clone()).unwrap_or_default(),
            platform: facts.map(|f| f.platform.clone()).unwrap_or_default(),
            devices: report.map(device_views).unwrap_or_default(),
            addresses,
            mains_power: facts.and_then(|f| f.mains_power),
            process_bytes: report.and_then(|r| r.process_bytes),
            card_events: report.map(card_event_views).unwrap_or_default(),
        }
    }

    fn link_views(&self) -> Vec<api::LinkView> {
        let mut links = Vec::new();
        for (from, report) in &self.reports {
            for link in &report.links {
                let via = (*from == self.me).then(|| self.peers.get(&link.peer)?.data_via()).flatten();
                links.push(api::LinkView {
                    from: from.to_full(),
                    to: link.peer.to_full(),
                    rtt_ms: Some(f64::from(link.rtt_us) / 1e3),
                    bytes_per_s: link.bytes_per_s,
                    transport: via.map(|v| v.to_string()).unwrap_or_default(),
                });
            }
        }
        links
    }

    fn join_request_views(&self) -> Vec<api::JoinRequestView> {
        let view = |(node, request): (&NodeId, &super::joining::Request)| api::JoinRequestView {
            node: node.to_full(),
            name: request.name.clone(),
            address: request.listen.to_string(),
            check_words: exo_identity::check_words(self.me, *node).join(" "),
        };
        self.strangers.requests.iter().map(view).collect()
    }

    /// An instance as people see it.
    pub(super) fn instance_view(&self, instance: &InstanceView) -> api::InstanceView {
        let placement = &instance.placement;
        let load = self.schedulers.get(&instance.instance()).map(|s| load_view(&s.scheduler.stats()));
        let busy: Vec<u64> = (0..placement.stages.len()).map(|i| self.busy_us(instance, i)).collect();
        let total: u64 = busy.iter().sum();
        let stages = placement.stages.iter().enumerate().map(|(index, stage)| {
            let share = (total > 0).then(|| busy[index] as f64 / total as f64);
            self.stage_view(instance, index, stage.node, &stage.shard, share)
        });
        api::InstanceView {
            id: placement.instance.to_string(),
            model_id: placement.model.to_full(),
            model: instance.model_name.clone(),
            state: state_view(instance),
            generation: placement.generation,
            context_tokens: placement.context_tokens,
            slots: placement.slots,
            cache_tokens: placement.cache_tokens,
            kv: placement.kv.into(),
            stages: stages.collect(),
            load,
            predicted_tokens_per_s: None,
            measured_tokens_per_s: None,
        }
    }

    fn busy_us(&self, instance: &InstanceView, index: usize) -> u64 {
        let node = instance.placement.stages[index].node;
        let report = self.reports.get(&node);
        report.and_then(|r| stage_report(r, instance, index)).map_or(0, |s| s.busy_us)
    }

    fn stage_view(
        &self,
        instance: &InstanceView,
        index: usize,
        node: NodeId,
        shard: &Shard,
        time_share: Option<f64>,
    ) -> api::StageView {
        let placement = &instance.placement;
        let request = self.p.coordinator.state().instances().get(&placement.instance).map(|i| &i.request);
        let weight_bytes = request.map_or(0, |r| r.shape.shard_weight_bytes(shard));
        let tokens = u64::from(placement.cache_tokens);
        let kv_bytes = request.map_or(0, |r| r.shape.shard_kv_bytes_per_token(shard) * tokens);
        let report = self.reports.get(&node);
        let (held, waiting) = report
            .and_then(|r| stage_report(r, instance, index))
            .map_or((0, 0), |s| (s.weight_bytes, s.waiting_bytes));
        let has_file = request.is_some_and(|r| r.holders.contains(&node));
        let source = request.and_then(|r| r.holders.first()).filter(|_| !has_file);
        api::StageView {
            node: node.to_full(),
            node_name: self.name_of(node),
            device: placement.stages[index].device.to_string(),
            layers: shard.layers.into(),
            embedding: shard.embedding,
            head: shard.head,
            weight_bytes,
            weight_bytes_held: held,
            weight_bytes_waiting: waiting,
            kv_bytes,
            time_share,
            fetched_from: source.map(|n| self.name_of(*n)),
        }
    }

    /// What this node's engines tell of a stage: bytes of weights held and of these on their way, microseconds computed.
    pub(super) fn stage_numbers(&self, key: ShardKey) -> (u64, u64, u64) {
        let entry = self.stages.get(&key);
        let weights = entry.and_then(|e| e.loaded).map_or(0, |l| l.weight_bytes);
        let busy = entry.map_or(0, |e| u64::try_from(e.busy.as_micros()).unwrap_or(u64::MAX));
        (weights, entry.map_or(0, |e| e.waiting_bytes), busy)
    }
}

fn device_views(report: &NodeReport) -> Vec<api::DeviceView> {
    let view = |facts: &DeviceFacts| {
        let mut view = api::DeviceView::from(facts);
        if let Some(told) = report.devices.iter().find(|told| told.device == facts.id) {
            view.state = told.state;
            told.reason.clone_into(&mut view.state_reason);
            view.sensors = told.monitor.into();
        }
        view
    };
    report.facts.devices.iter().map(view).collect()
}

fn card_event_views(report: &NodeReport) -> Vec<api::CardEventView> {
    let view = |event: &exo_cluster::wire::CardEvent| api::CardEventView {
        at_unix_s: event.at_unix_s,
        text: event.text.clone(),
    };
    report.card_events.iter().map(view).collect()
}

/// The view before the core has made its first.
pub fn empty_view(me: NodeId) -> api::ClusterView {
    api::ClusterView {
        cluster: None,
        self_node: me.to_full(),
        epoch: None,
        nodes: Vec::new(),
        links: Vec::new(),
        instances: Vec::new(),
        join_window: api::JoinWindowView::default(),
        join_requests: Vec::new(),
        journal: api::JournalView::default(),
    }
}

fn load_view(stats: &SchedulerStats) -> api::LoadView {
    api::LoadView {
        running: stats.running as u32,
        waiting: stats.queued as u32,
        waiting_max: stats.queue_len_max as u32,
        pages: stats.pages,
        pages_used: stats.pages_used,
        pages_cached: stats.pages_cached,
        prompt_tokens: stats.prompt_tokens,
        cached_tokens: stats.cached_tokens,
        drafts: stats.drafts,
        drafts_accepted: stats.drafts_accepted,
        prompt_tokens_per_s: stats.prompt_tokens_per_s,
        tokens_per_s: stats.decode_tokens_per_s,
    }
}

fn stage_report<'a>(
    report: &'a NodeReport,
    instance: &InstanceView,
    index: usize,
) -> Option<&'a exo_cluster::wire::StageReport> {
    let generation = instance.placement.generation;
    report.stages.iter().find(|s| {
        s.instance == instance.instance() && s.generation == generation && s.stage as usize == index
    })
}

fn state_view(instance: &InstanceView) -> api::InstanceState {
    match &instance.state {
        InstanceState::Placing => api::InstanceState::Placing,
        InstanceState::Loading => {
            let failed = instance.stages.iter().find_map(|s| match &s.status {
                StageStatus::Failed { reason, .. } => Some(reason.clone()),
                _ => None,
            });
            match failed {
                Some(reason) => api::InstanceState::Degraded { reason },
                None => api::InstanceState::Loading { progress: load_progress(instance) },
            }
        }
        InstanceState::Wiring => api::InstanceState::Loading { progress: 1.0 },
        InstanceState::Ready => api::InstanceState::Ready,
        InstanceState::Degraded { reason } => api::InstanceState::Degraded { reason: reason.clone() },
        InstanceState::Failed { reason } => api::InstanceState::Failed { reason: reason.clone() },
    }
}
