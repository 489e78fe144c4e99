//! Carries out the worker's actions: fetching, loading, computing, freeing.

use std::sync::Arc;
use std::time::Duration;

use exo_cluster::wire::{DataMessage, NodeReport, StageReport, StepMessage};
use exo_cluster::{
    Action, ComputeResult, ShardKey, StageInput, StageMachine, StageOutput, StageStatus, Undeliverable,
    WorkerInput,
};
use exo_engine::EngineOptions;
use exo_types::{DeviceId, DeviceState, InstanceId, ModelId, NodeId, Placement, Shard};
use tokio_util::sync::CancellationToken;

use super::{Core, CoreEvent};
use crate::Notice;
use crate::compute::Seat;
use crate::engine_host::{
    Ended, EngineEvent, EngineHost, Events, Job, LoadRequest, Loaded, STEP_MAX, ThreadHost, chain,
};
use crate::library::Holder;
use crate::worker::{LoadWords, MemoryWords, WorkerHost};

/// How a fetch goes.
pub enum FetchEvent {
    /// The manifest is on disk.
    ManifestHeld,
    /// Bytes moved.
    Progress { done_bytes: u64, total_bytes: u64 },
    /// Everything is on disk.
    Stored,
    /// The model is open and can be loaded.
    Opened { model: Arc<exo_formats::Model>, placement: Box<Placement> },
    /// It did not work; nothing of it runs any more.
    Failed { reason: String },
}

/// For a lost device to be verified: more than that takes.
const VERIFIED_MAX: Duration = Duration::from_secs(40);
/// For the engine of an older generation to end: a worker is killed long before.
const LEFT_MAX: Duration = Duration::from_secs(12);
/// For workers to end by themselves when the node does.
const WORKERS_END_MAX: Duration = Duration::from_secs(4);

/// A shard on this node: its engine and, once loaded, its stage.
pub(super) struct StageEntry {
    host: EngineHost,
    placement: Placement,
    machine: Option<StageMachine>,
    pub(super) loaded: Option<Loaded>,
    /// Bytes of weights on their way to memory.
    pub(super) waiting_bytes: u64,
    /// Time spent computing.
    pub(super) busy: Duration,
    /// Steps computed.
    pub(super) steps: u64,
}

impl StageEntry {
    fn device(&self, key: ShardKey) -> Option<&DeviceId> {
        self.placement.stages.get(key.stage as usize).map(|stage| &stage.device)
    }

    pub(super) fn stop(&mut self) {
        self.host.stop();
    }
}

/// An engine told to end whose shard a newer generation has taken over.
pub(super) struct Leaving {
    device: DeviceId,
    host: EngineHost,
}

impl Core {
    pub(super) fn tick_worker(&mut self) {
        self.feed_worker(WorkerInput::Tick);
    }

    pub(super) fn feed_worker(&mut self, input: WorkerInput) {
        let me = self.me;
        self.feed_worker_from(me, input);
    }

    /// Like `feed_worker`, for a wish that came from somewhere: a stale one is refused there.
    pub(super) fn feed_worker_from(&mut self, from: NodeId, input: WorkerInput) {
        let now = self.now();
        match self.p.worker.handle(now, input) {
            Ok(actions) => {
                let any = !actions.is_empty();
                actions.into_iter().for_each(|action| self.act(action));
                if any {
                    self.report_now();
                }
            }
            Err(refusal) => {
                self.send_control(from, exo_cluster::wire::ControlMessage::Refused(refusal));
            }
        }
    }

    fn act(&mut self, action: Action) {
        tracing::debug!(?action, "worker");
        match action {
            Action::FetchManifest { key, model, holders } => self.fetch_manifest(key, model, &holders),
            Action::FetchChunks { key, model, shard, holders } => {
                self.fetch_chunks(key, model, shard, &holders)
            }
            Action::LoadShard { key, placement } => self.open_and_load(key, placement),
            Action::AdoptShard { from, to, placement } => self.adopt(from, to, placement),
            Action::UnloadShard { key } | Action::Cancel { key } => self.release(key),
            other => tracing::error!(?other, "an action this version does not know"),
        }
    }

    // ---- fetching ----

    /// Who has a model and where they are; this node itself needs no fetching.
    pub(super) fn holders_of(&self, model: ModelId, named: &[NodeId]) -> Vec<Holder> {
        let has = |report: &NodeReport| report.models.iter().any(|m| m.model == model && m.complete);
        let reporting = self.reports.iter().filter(|(_, r)| has(r)).map(|(n, _)| *n);
        let mut nodes: Vec<NodeId> =
            named.iter().copied().chain(reporting).filter(|n| *n != self.me).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let holder = |node| Some(Holder { node, addresses: self.peers.get(&node)?.addresses.clone() });
        nodes.into_iter().filter_map(holder).filter(|h| !h.addresses.is_empty()).collect()
    }

    fn fetch_manifest(&mut self, key: ShardKey, model: ModelId, named: &[NodeId]) {
        let (library, holders) = (self.p.library.clone(), self.holders_of(model, named));
        self.spawn_fetch(key, async move {
            match library.ensure_manifest(model, &holders).await {
                Ok(()) => FetchEvent::ManifestHeld,
                Err(reason) => FetchEvent::Failed { reason },
            }
        });
    }

    fn fetch_chunks(&mut self, key: ShardKey, model: ModelId, shard: Shard, named: &[NodeId]) {
        let (library, holders) = (self.p.library.clone(), self.holders_of(model, named));
        let core = self.p.sender.clone();
        self.spawn_fetch(key, async move {
            let mut progress = |done_bytes, total_bytes| {
                core.post(CoreEvent::Fetch { key, event: FetchEvent::Progress { done_bytes, total_bytes } });
            };
            match library.ensure_shard(model, &shard, &holders, &mut progress).await {
                Ok(()) => FetchEvent::Stored,
                Err(reason) => FetchEvent::Failed { reason },
            }
        });
    }

    /// Opening a model reads headers from disk: done like a fetch, loading follows.
    fn open_and_load(&mut self, key: ShardKey, placement: Placement) {
        let library = self.p.library.clone();
        let model = placement.model;
        let draft = self.p.draft.clone().filter(|_| key.stage == 0);
        let device = placement.stages.get(key.stage as usize).map(|stage| &stage.device);
        let stand = device.and_then(|device| self.p.compute.follow(device));
        let leaving = self.leaving.values().filter(|leaving| Some(&leaving.device) == device);
        let leaving: Vec<Ended> = leaving.map(|leaving| leaving.host.ended()).collect();
        self.spawn_fetch(key, async move {
            if let Err(reason) = all_ended(leaving).await {
                return FetchEvent::Failed { reason };
            }
            if let Some(mut stand) = stand {
                // A device that was just lost is verified first; an end of the wait is seen when it is loaded.
                let known =
                    stand.wait_for(|state| !matches!(state, DeviceState::Lost | DeviceState::Verifying));
                let _ = tokio::time::timeout(VERIFIED_MAX, known).await;
            }
            let store = library.store().clone();
            let open = move || {
                let mut opened = store.open_model(model)?;
                if let Some(draft) = draft {
                    // Kept there; whether it matters is seen when the instance is ready.
                    let _ = draft.check_model(model, &opened);
                }
                opened.take_tokenizer();
                Ok::<_, exo_store::StoreError>(opened)
            };
            let opened = tokio::task::spawn_blocking(open).await;
            match opened {
                Ok(Ok(model)) => {
                    FetchEvent::Opened { model: Arc::new(model), placement: Box::new(placement) }
                }
                Ok(Err(error)) => FetchEvent::Failed { reason: chain(&error) },
                Err(error) => FetchEvent::Failed { reason: error.to_string() },
            }
        });
    }

    fn spawn_fetch(&mut self, key: ShardKey, work: impl Future<Output = FetchEvent> + Send + 'static) {
        let token = CancellationToken::new();
        if let Some(before) = self.fetches.insert(key, token.clone()) {
            before.cancel();
        }
        let core = self.p.sender.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                event = work => core.post(CoreEvent::Fetch { key, event }),
            }
        });
    }

    pub(super) fn fetch_event(&mut self, key: ShardKey, event: FetchEvent) {
        self.view_stale = true;
        if !matches!(event, FetchEvent::Progress { .. }) && self.fetches.remove(&key).is_none() {
            return; // cancelled while it was on its way here
        }
        match event {
            FetchEvent::ManifestHeld => self.feed_worker(WorkerInput::ManifestHeld(key)),
            FetchEvent::Progress { done_bytes, total_bytes } => {
                self.feed_worker(WorkerInput::Progress { key, done_bytes, total_bytes });
            }
            FetchEvent::Stored => {
                self.refresh_models();
                self.feed_worker(WorkerInput::Stored(key));
            }
            FetchEvent::Opened { model, placement } => self.load(key, model, *placement),
            FetchEvent::Failed { reason } => self.feed_worker(WorkerInput::Failed { key, reason }),
        }
    }

    // ---- loading and computing ----

    fn load(&mut self, key: ShardKey, model: Arc<exo_formats::Model>, placement: Placement) {
        let Some(stage) = placement.stages.get(key.stage as usize) else { return };
        let options = EngineOptions {
            // A step may carry a full chunk of prompt beside one token of every other sequence.
            chunk_tokens_max: exo_cluster::SchedulerConfig::default().chunk_tokens_max + placement.slots,
            cache_tokens: Some(placement.cache_tokens),
            kv_dtype: placement.kv,
            ..EngineOptions::new(placement.context_tokens, placement.slots)
        };
        let host = match self.p.compute.seat(&stage.device) {
            Some(Seat::Here(device)) => {
                let (shard, step_max) = (stage.shard, STEP_MAX);
                let request = LoadRequest { key, device, model, shard, options, step_max };
                EngineHost::Thread(ThreadHost::start(request, self.events()))
            }
            Some(Seat::Worker(device, program)) => {
                let path = model.path().into_os_string();
                let load = LoadWords::new(key, device, path, stage.shard, options);
                EngineHost::Worker(WorkerHost::start(program, load, self.events()))
            }
            None => {
                let reason = format!("this node computes on no device {} at present", stage.device);
                return self.feed_worker(WorkerInput::Failed { key, reason });
            }
        };
        let (machine, loaded, busy) = (None, None, Duration::ZERO);
        self.stages
            .insert(key, StageEntry { host, placement, machine, loaded, waiting_bytes: 0, busy, steps: 0 });
    }

    fn events(&self) -> Events {
        let core = self.p.sender.clone();
        Arc::new(move |event| core.post(CoreEvent::Engine(event)))
    }

    /// What the workers of a device last said of its memory.
    pub(super) fn worker_memory(&self, device: &DeviceId) -> Vec<MemoryWords> {
        self.hosts_on(device).filter_map(|host| host.worker()?.memory()).collect()
    }

    /// Every engine that may hold something of this device.
    pub(super) fn hosts_on(&self, device: &DeviceId) -> impl Iterator<Item = &EngineHost> {
        self.hosts().filter_map(move |(on, host)| (on? == device).then_some(host))
    }

    /// Every engine, with the device that it may hold something of.
    fn hosts(&self) -> impl Iterator<Item = (Option<&DeviceId>, &EngineHost)> {
        let stages = self.stages.iter().map(|(key, entry)| (entry.device(*key), &entry.host));
        stages.chain(self.leaving.values().map(|leaving| (Some(&leaving.device), &leaving.host)))
    }

    /// The device that a shard is on, or was before a newer generation took it over.
    pub(super) fn device_of(&self, key: ShardKey) -> Option<DeviceId> {
        let leaving = || self.leaving.get(&key).map(|leaving| &leaving.device);
        self.stages.get(&key).and_then(|entry| entry.device(key)).or_else(leaving).cloned()
    }

    /// After all were told to stop: they free what they hold, and the node goes when they are gone.
    pub(super) async fn wait_for_workers(&self) {
        let is_there = |host: &EngineHost| host.worker().is_some_and(|worker| !worker.is_gone());
        let all_gone = async {
            while self.hosts().any(|(_, host)| is_there(host)) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // One that hangs ends with its input.
        let _ = tokio::time::timeout(WORKERS_END_MAX, all_gone).await;
    }

    /// The same weights serve a newer generation; its sequences are gone, so the engine starts empty. It is loaded once
    /// the old one has let go of the device, which may not hold both.
    fn adopt(&mut self, from: ShardKey, to: ShardKey, placement: Placement) {
        self.drop_scheduler(from.instance, from.generation);
        let old = self.stages.remove(&from);
        if let (Some(mut old), Some(stage)) = (old, placement.stages.get(to.stage as usize)) {
            old.stop();
            self.leaving.insert(from, Leaving { device: stage.device.clone(), host: old.host });
        }
        // The mapped file is still cached by the system, so loading again costs little and keeps no second state.
        self.open_and_load(to, placement);
    }

    fn release(&mut self, key: ShardKey) {
        if let Some(fetch) = self.fetches.remove(&key) {
            fetch.cancel();
        }
        self.drop_scheduler(key.instance, key.generation);
        match self.stages.get_mut(&key) {
            Some(stage) => {
                stage.loaded = None;
                stage.stop(); // `Unloaded` comes when its thread or process has ended
            }
            None => self.feed_worker(WorkerInput::Unloaded(key)),
        }
    }

    pub(super) fn engine_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Progress { key, done_bytes, total_bytes } => {
                self.view_stale = true;
                self.feed_worker(WorkerInput::Progress { key, done_bytes, total_bytes });
            }
            EngineEvent::Ready { key, loaded, slower_because } => {
                if let Some(reason) = slower_because {
                    self.notice(Notice::Warning(format!(
                        "weights are read from their file, which is slower: {reason}"
                    )));
                }
                self.stage_ready(key, loaded);
            }
            EngineEvent::Settling { key, waiting_bytes } => {
                if let Some(entry) = self.stages.get_mut(&key) {
                    entry.waiting_bytes = waiting_bytes;
                    self.view_stale = true;
                    self.report_now();
                }
            }
            EngineEvent::LoadFailed { key, reason } => {
                self.stages.remove(&key);
                self.feed_worker(WorkerInput::Refused { key, reason });
            }
            EngineEvent::Computed { key, step, result, busy } => self.computed(key, step, result, busy),
            EngineEvent::WorkerLost { key, reason } => self.worker_lost(key, &reason),
            EngineEvent::Unloaded { key } => {
                self.leaving.remove(&key);
                if self.stages.remove(&key).is_some() {
                    self.feed_worker(WorkerInput::Unloaded(key));
                }
            }
        }
    }

    fn stage_ready(&mut self, key: ShardKey, loaded: Loaded) {
        let Some(entry) = self.stages.get_mut(&key) else { return };
        let index = key.stage as usize;
        entry.machine = Some(StageMachine::new(entry.placement.clone(), index, loaded.geometry));
        entry.loaded = Some(loaded);
        self.view_stale = true;
        self.feed_worker(WorkerInput::Ready(key));
        self.report_now();
        for (from, message) in self.held_steps.take(key) {
            self.feed_stage(key, StageInput::Step { from, message });
        }
    }

    fn computed(&mut self, key: ShardKey, step: u64, result: ComputeResult, busy: Duration) {
        if let Some(entry) = self.stages.get_mut(&key) {
            entry.busy += busy;
            entry.steps += 1;
        }
        self.feed_stage(key, StageInput::ComputeDone { step, result });
    }

    /// A step arrived for one of this node's stages.
    pub(super) fn step_arrived(&mut self, from: NodeId, message: StepMessage) {
        let (instance, generation) = (message.frame.instance, message.frame.generation);
        let key = ShardKey { instance, generation, stage: message.stage };
        let here = self.stages.get(&key);
        if here.is_some_and(|entry| entry.machine.is_some()) {
            return self.feed_stage(key, StageInput::Step { from, message });
        }
        let (is_loading, step) = (here.is_some(), message.frame.step);
        let newest = self.stages.keys().filter(|k| k.instance == instance).map(|k| k.generation).max();
        let answer = match newest {
            Some(serving) if serving > generation => {
                tracing::trace!(%from, %instance, got = generation, serving, step, "a step of an older generation");
                Some(DataMessage::StaleGeneration { instance, got: generation, serving: newest })
            }
            // The word that it is to be here, or its weights, may be on their way.
            Some(_) | None => {
                let what = if is_loading { "is being loaded on" } else { "is not known on" };
                let missing = format!("it {what} {}", self.name_of(self.me));
                self.held_steps.hold(self.now(), from, message, &missing)
            }
        };
        if let Some(answer) = answer {
            self.send_data(from, answer);
        }
    }

    /// Ends what has waited too long for its stage or its link.
    pub(super) fn tick_steps(&mut self) {
        let now = self.now();
        for (to, answer) in self.held_steps.expire(now) {
            self.send_data(to, answer);
        }
        for undeliverable in self.outbox.expire(now) {
            self.undeliverable(undeliverable);
        }
    }

    /// A data message did not go out: whom it concerns hears of it.
    pub(super) fn undeliverable(&mut self, undeliverable: Undeliverable) {
        let (step, reason) = (undeliverable.kind.step(), undeliverable.reason);
        let Undeliverable { to, waited_ms, .. } = undeliverable;
        tracing::trace!(%to, ?step, waited_ms, ?reason, "a data message is not delivered");
        match undeliverable.kind.pipeline() {
            Some((instance, generation)) => {
                for key in self.stages_of(instance, generation) {
                    self.feed_stage(key, StageInput::Undeliverable(undeliverable.clone()));
                }
            }
            None => self.unreachable(to),
        }
    }

    /// This node's stages of an instance, in order.
    fn stages_of(&self, instance: InstanceId, generation: u32) -> Vec<ShardKey> {
        let is_of = |key: &&ShardKey| (key.instance, key.generation) == (instance, generation);
        self.stages.keys().filter(is_of).copied().collect()
    }

    /// A later stage's word for a scheduler that is not on this node: on towards it.
    pub(super) fn pass_on_report(&mut self, from: NodeId, at: (InstanceId, u32), message: DataMessage) {
        match self.stages_of(at.0, at.1).first() {
            Some(&key) => self.feed_stage(key, StageInput::Report { from, message }),
            None => {
                tracing::trace!(%from, instance = %at.0, got = at.1, "a report of a pipeline that is not here")
            }
        }
    }

    /// The data link to a node ended: stages that used it go on no more.
    pub(super) fn stages_lost_link(&mut self, node: NodeId) {
        let keys: Vec<_> = self.stages.keys().copied().collect();
        for key in keys {
            self.feed_stage(key, StageInput::LinkLost(node));
        }
    }

    fn feed_stage(&mut self, key: ShardKey, input: StageInput) {
        let now = self.now();
        let Some(entry) = self.stages.get_mut(&key) else { return };
        let Some(machine) = &mut entry.machine else {
            return tracing::trace!(?key, "nothing is loaded for this");
        };
        let outputs = machine.handle(now, input);
        let mut sends = Vec::new();
        for output in outputs {
            match output {
                StageOutput::Compute { commands, frame, rows } => {
                    entry.host.compute(Job { commands, frame, rows })
                }
                StageOutput::Send { to, message } => sends.push((to, message)),
            }
        }
        for (to, message) in sends {
            self.send_data(to, message);
        }
    }

    pub(super) fn stage_reports(&self) -> Vec<StageReport> {
        let mut reports = self.p.worker.reports();
        for report in &mut reports {
            let key =
                ShardKey { instance: report.instance, generation: report.generation, stage: report.stage };
            (report.weight_bytes, report.waiting_bytes, report.busy_us) = self.stage_numbers(key);
            if report.status == StageStatus::Loaded && self.is_serving(key) {
                report.status = StageStatus::Serving;
            }
        }
        reports
    }

    /// Whether a shard is on this device of the node.
    pub(super) fn computes_on(&self, device: &DeviceId) -> bool {
        self.stages.iter().any(|(key, entry)| entry.device(*key) == Some(device))
    }

    /// Whether a shard of this instance computes here.
    pub(super) fn is_loaded(&self, key: ShardKey) -> bool {
        self.stages.get(&key).is_some_and(|s| s.loaded.is_some())
    }
}

/// Waits for engines that were told to end, within a bound.
async fn all_ended(engines: Vec<Ended>) -> Result<(), String> {
    let all = async {
        for mut ended in engines {
            // Closed means that nothing is left of it.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    };
    tokio::time::timeout(LEFT_MAX, all).await.map_err(|_| {
        let seconds = LEFT_MAX.as_secs();
        format!("what computed the generation before has not let go of the device within {seconds} s")
    })
}
