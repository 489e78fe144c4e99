//! What this node holds: carries out the worker's actions, and wires what is loaded into the stages that are
//! wanted.
//!
//! An engine is named by its [`EngineId`] and knows what it holds, not when it was placed. A stage is one
//! position of one placement; it stands on an engine. When the next placement wants the same content, the
//! engine is rewired: its sequences go, its weights stay, and where it is the same instance its kept pages.

use std::time::Duration;

use exo_cluster::wire::{FetchSource, NodeReport, StageReport};
use exo_cluster::{
    Action, ComputeResult, EngineId, HOLDERS_NAMED_MAX, InstanceRequest, LoadFailure, LoadFault, StageInput,
    StageMachine, StagePagesLeft, StageStatus, WorkerInput,
};
use exo_types::{ModelId, NodeId, ShardPosition, ShardSpec, Term};

use crate::corrections::expected;
use crate::{Effect, EngineEvent, FetchEvent, FetchId, FetchWhat, Holder, LoadedFacts, NodeMachine, Notice};

/// An engine of this node: asked for, loading, or loaded.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) spec: ShardSpec,
    pub(crate) loaded: Option<LoadedFacts>,
    /// Bytes of weights that are read from their file until they are in memory.
    pub(crate) unpacked_bytes: u64,
    /// Time spent computing.
    pub(crate) busy: Duration,
    /// Whether any of its steps gave numbers.
    pub(crate) gave_numbers: bool,
    /// What its sequences belong to.
    wired: Option<ShardPosition>,
    /// What it is being rewired for.
    rewiring: Option<ShardPosition>,
    /// What the last stage on it kept.
    left: Option<StagePagesLeft>,
}

/// Bytes of hidden rows that the stages of a node keep in all, for when the stage behind one of them is lost.
/// They are part of what a node leaves free on its machine.
pub(crate) const KEPT_ROWS_BYTES_MAX: u64 = 128 << 20;

/// A fetch under way.
#[derive(Debug)]
pub(crate) struct Fetch {
    engine: EngineId,
    model: ModelId,
    what: FetchWhat,
    /// What came from where, to show.
    sources: Vec<FetchSource>,
}

impl NodeMachine {
    pub(crate) fn feed_worker(&mut self, input: WorkerInput) {
        let me = self.me;
        self.feed_worker_from(me, input);
    }

    /// Like `feed_worker`, for a wish that came from somewhere: a stale one is refused there.
    pub(crate) fn feed_worker_from(&mut self, from: NodeId, input: WorkerInput) {
        match self.worker.handle(self.now.time, input) {
            Ok(actions) => {
                let any = !actions.is_empty();
                actions.into_iter().for_each(|action| self.act(action));
                let is_rewired = self.wire();
                if any || is_rewired {
                    self.report_now();
                }
            }
            Err(refusal) => {
                tracing::trace!(peer = %from, %refusal, "a wish of the past");
                self.send_control(from, exo_cluster::wire::ControlMessage::Refused(refusal));
            }
        }
    }

    fn act(&mut self, action: Action) {
        tracing::debug!(?action, "worker");
        match action {
            Action::FetchManifest { engine, model, holders } => {
                self.fetch(engine, model, FetchWhat::Manifest, &holders);
            }
            Action::FetchChunks { engine, model, shard, mut holders } => {
                holders.extend(self.fetching_beside(engine, model));
                self.fetch(engine, model, FetchWhat::Shard(shard), &holders);
            }
            Action::LoadShard { engine, spec } => self.load(engine, spec),
            Action::UnloadShard { engine } | Action::Cancel { engine } => self.release(engine),
        }
    }

    // ---- fetching ----

    /// Who is asked for a model and where they are, the nearest first: by the round trip to them, those
    /// without one last. This node itself needs no fetching.
    pub(crate) fn holders_of(&self, model: ModelId, named: &[NodeId]) -> Vec<Holder> {
        let has = |report: &NodeReport| report.models.iter().any(|m| m.model == model && m.is_served());
        let reporting = self.reports.iter().filter(|(_, r)| has(r)).map(|(n, _)| *n);
        let mut nodes: Vec<NodeId> =
            named.iter().copied().chain(reporting).filter(|n| *n != self.me).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let round_trip = |node: &NodeId| {
            self.links.round_trips(self.now.time, *node).map_or(Duration::MAX, |trips| trips.median)
        };
        nodes.sort_by_cached_key(round_trip);
        let holder = |node| Holder { node, addresses: self.links.addresses(node).to_vec() };
        nodes.into_iter().map(holder).filter(|h| !h.addresses.is_empty()).collect()
    }

    /// Nodes that fetch other layers of the same model of a hub: what two of them need is fetched by one.
    fn fetching_beside(&self, engine: EngineId, model: ModelId) -> Vec<NodeId> {
        if !self.is_of_hub(model) {
            return Vec::new();
        }
        let position = self.worker.position_of(engine);
        let wanted = self.worker.desired().iter().find(|desired| Some(desired.position()) == position);
        wanted.iter().flat_map(|desired| desired.placement.shards()).map(|(_, shard)| shard.node).collect()
    }

    fn is_of_hub(&self, model: ModelId) -> bool {
        self.reports.values().any(|r| r.models.iter().any(|held| held.model == model && held.is_of_hub))
    }

    fn fetch(&mut self, engine: EngineId, model: ModelId, what: FetchWhat, named: &[NodeId]) {
        self.cancel_fetch(engine);
        self.fetch_last = FetchId(self.fetch_last.0 + 1);
        let (fetch, holders) = (self.fetch_last, self.holders_of(model, named));
        self.fetches.insert(fetch, Fetch { engine, model, what, sources: Vec::new() });
        self.out.push(Effect::Fetch { fetch, model, what, holders });
    }

    /// Whether there was one.
    fn cancel_fetch(&mut self, engine: EngineId) -> bool {
        let fetch = self.fetches.iter().find(|(_, fetch)| fetch.engine == engine).map(|(id, _)| *id);
        let Some(fetch) = fetch else { return false };
        self.fetches.remove(&fetch);
        self.out.push(Effect::CancelFetch(fetch));
        true
    }

    pub(crate) fn fetched(&mut self, fetch: FetchId, event: FetchEvent) {
        let Some(Fetch { engine, model, what, .. }) = self.fetches.get(&fetch) else {
            return tracing::trace!(
                fetch = fetch.0,
                last = self.fetch_last.0,
                "news of a fetch that is over"
            );
        };
        let (engine, model, what) = (*engine, *model, *what);
        self.view_changed();
        let input = match event {
            FetchEvent::Progress { done_bytes, total_bytes, hub_wait_s, sources } => {
                if let Some(entry) = self.fetches.get_mut(&fetch) {
                    entry.sources = sources;
                }
                let input = WorkerInput::Progress { engine, done_bytes, total_bytes, hub_wait_s };
                return self.feed_worker(input);
            }
            FetchEvent::Done => match what {
                FetchWhat::Manifest => WorkerInput::ManifestHeld(engine),
                FetchWhat::Shard(_) => WorkerInput::Stored(engine),
            },
            FetchEvent::NoHolder => WorkerInput::Failed { engine, why: self.no_holder(model) },
            FetchEvent::Failed { kind, detail } => {
                WorkerInput::Failed { engine, why: LoadFailure::Fault { kind, detail } }
            }
        };
        self.fetches.remove(&fetch);
        // Of a model of a hub others ask for what is here while the rest comes.
        let is_known = matches!(input, WorkerInput::ManifestHeld(_)) && self.is_of_hub(model);
        if is_known || matches!(input, WorkerInput::Stored(_)) {
            self.scan_models();
        }
        self.feed_worker(input);
    }

    /// That nobody who is reachable has a model, and which members had it.
    fn no_holder(&self, model: ModelId) -> LoadFailure {
        let placed = self.state().instances().values().find(|placed| placed.request.model == model);
        let model_name = placed.map_or_else(|| format!("model {model}"), |p| p.request.model_name.clone());
        let holders = placed.map(|placed| placed.request.holders.as_slice()).unwrap_or_default();
        // As they were when it was placed: who was removed since cannot be started.
        let is_member = |node: &&NodeId| self.trust.view().members().contains_key(*node);
        let others = holders.iter().filter(|node| **node != self.me).filter(is_member);
        LoadFailure::NoHolder { model_name, had: others.take(HOLDERS_NAMED_MAX).copied().collect() }
    }

    // ---- engines ----

    fn load(&mut self, engine: EngineId, spec: ShardSpec) {
        tracing::info!(target: "events::shard", engine = engine.0, layers = %spec.layers, "loading");
        self.out.push(Effect::Load { engine, spec: Box::new(spec.clone()) });
        let (loaded, unpacked_bytes, busy, wired, rewiring) = (None, 0, Duration::ZERO, None, None);
        let (gave_numbers, left) = (false, None);
        let entry = Engine { spec, loaded, unpacked_bytes, busy, gave_numbers, wired, rewiring, left };
        self.engines.insert(engine, entry);
    }

    fn release(&mut self, engine: EngineId) {
        let was_fetched = self.cancel_fetch(engine);
        match self.engines.get_mut(&engine) {
            Some(entry) => {
                entry.loaded = None;
                self.unwire(engine);
                if let Some(entry) = self.engines.get_mut(&engine) {
                    entry.left = None;
                }
                self.out.push(Effect::Unload(engine)); // `Unloaded` comes when nothing is left of it
            }
            None => {
                tracing::trace!(engine = engine.0, was_fetched, "nothing to unload");
                self.feed_worker(WorkerInput::Unloaded(engine));
            }
        }
    }

    pub(crate) fn engine_event(&mut self, engine: EngineId, event: EngineEvent) {
        if !self.engines.contains_key(&engine) {
            return tracing::trace!(engine = engine.0, ?event, "news of an engine that is gone");
        }
        match event {
            EngineEvent::Progress { done_bytes, total_bytes } => {
                self.view_changed();
                self.feed_worker(WorkerInput::Progress { engine, done_bytes, total_bytes, hub_wait_s: 0 });
            }
            EngineEvent::Loaded(facts) => self.engine_loaded(engine, *facts),
            EngineEvent::LoadFailed { kind, detail } => {
                self.forget_engine(engine);
                self.feed_worker(WorkerInput::Failed { engine, why: LoadFailure::Fault { kind, detail } });
            }
            EngineEvent::Rewired { position, term } => self.engine_rewired(engine, position, term),
            EngineEvent::Unpacked { bytes } => {
                if let Some(entry) = self.engines.get_mut(&engine) {
                    entry.unpacked_bytes = bytes;
                }
                self.view_changed();
                self.report_now();
            }
            EngineEvent::Lost { reason } => self.engine_lost(engine, &reason),
            EngineEvent::Unloaded => {
                self.forget_engine(engine);
                self.feed_worker(WorkerInput::Unloaded(engine));
            }
        }
    }

    fn engine_loaded(&mut self, engine: EngineId, facts: LoadedFacts) {
        if let Some(reason) = &facts.slower_because {
            let warning = format!("weights are read from their file, which is slower: {reason}");
            self.notice(Notice::Warning(warning));
        }
        if let Some(entry) = self.engines.get_mut(&engine) {
            entry.loaded = Some(facts);
        }
        self.view_changed();
        self.feed_worker(WorkerInput::Ready(engine));
        self.report_now();
    }

    /// The engine is empty: for a stage that waits to stand on it, or for the next term of the one that does.
    fn engine_rewired(&mut self, engine: EngineId, position: ShardPosition, term: Term) {
        let Some(entry) = self.engines.get_mut(&engine) else { return };
        let (wired, rewiring) = (entry.wired, entry.rewiring);
        if rewiring.is_none() && wired == Some(position) {
            return self.feed_stage(position, StageInput::Rewired { term });
        }
        if term != Term::FIRST || rewiring != Some(position) {
            return tracing::trace!(
                engine = engine.0, got = ?position, %term, ?wired, ?rewiring, "rewired for a placement or a term of the past"
            );
        }
        (entry.wired, entry.rewiring) = (None, None);
        if self.wire() {
            self.report_now();
        }
    }

    fn engine_lost(&mut self, engine: EngineId, reason: &str) {
        #[cfg(feature = "planted")]
        if self.has_bug(crate::planted::Bug::QuietLoss) {
            return self.forget_engine(engine);
        }
        let stage = self.worker.position_of(engine);
        let wanted = self.worker.desired().iter().find(|d| Some(d.position()) == stage);
        let whose = wanted.map_or("a shard that is not wanted".to_owned(), |d| {
            format!("stage {} of instance {}", d.stage, d.placement.instance)
        });
        self.notice(Notice::Warning(format!("{whose} lost its device: {reason}")));
        if let Some(entry) = self.engines.get(&engine) {
            self.step_corrections.forget_device(&entry.spec.device);
        }
        // First, and told at once: that its scheduler has ended as well says less.
        let why = LoadFailure::Fault { kind: LoadFault::Lost, detail: reason.to_owned() };
        self.feed_worker(WorkerInput::Failed { engine, why });
        self.report_now();
        self.forget_engine(engine);
    }

    fn forget_engine(&mut self, engine: EngineId) {
        self.unwire(engine);
        self.step_corrections.forget_engine(engine);
        self.engines.remove(&engine);
    }

    // ---- wiring ----

    /// The stage that stands on an engine ends, and its scheduler with it.
    fn unwire(&mut self, engine: EngineId) {
        let stage = self.stages.iter().find(|(_, stage)| stage.engine == engine).map(|(p, _)| *p);
        if let Some(position) = stage {
            self.end_stage(position);
        }
    }

    /// What it keeps stays on its engine until the next stage stands there.
    fn end_stage(&mut self, position: ShardPosition) {
        if let Some(stage) = self.stages.remove(&position)
            && let Some(entry) = self.engines.get_mut(&stage.engine)
        {
            entry.left = Some(stage.machine.into_left());
        }
        if position.stage == 0 {
            self.drop_scheduler(position.placement);
        }
    }

    /// Lets every wanted stage stand on the engine that holds its content, once that is loaded and empty.
    /// Whether anything changed.
    fn wire(&mut self) -> bool {
        let wanted: Vec<ShardPosition> = self.worker.desired().iter().map(|d| d.position()).collect();
        let over: Vec<ShardPosition> = self.stages.keys().filter(|p| !wanted.contains(p)).copied().collect();
        let mut is_changed = !over.is_empty();
        over.into_iter().for_each(|position| self.end_stage(position));
        for index in 0..self.worker.desired().len() {
            is_changed |= self.wire_one(index);
        }
        let desired = self.worker.desired();
        self.pages_left
            .retain(|instance, _| desired.iter().any(|d| d.stage == 0 && d.placement.instance == *instance));
        self.share_rows();
        is_changed
    }

    /// Shares the bytes of rows among the stages, whichever was wired first. What one gives up is free before
    /// another gets it.
    fn share_rows(&mut self) {
        let left = self.engines.values().filter_map(|engine| engine.left.as_ref());
        let of_left: u64 = left.map(StagePagesLeft::rows_bytes).sum();
        let all = self.stages.values_mut().map(|stage| &mut stage.machine);
        let mut stages: Vec<&mut StageMachine> = all.collect();
        let wanted: Vec<u64> = stages.iter().map(|stage| stage.rows_bytes_of_all()).collect();
        let shares = rows_shares(KEPT_ROWS_BYTES_MAX.saturating_sub(of_left), &wanted);
        let mut taken = of_left;
        for (stage, share) in stages.iter_mut().zip(&shares) {
            let (_, max) = stage.rows_kept();
            stage.set_rows_max(max.min(*share));
            // What is promised to a stage that lacks it stays beyond that.
            let (bytes, max) = stage.rows_kept();
            taken += bytes.max(max);
        }
        let mut room = KEPT_ROWS_BYTES_MAX.saturating_sub(taken);
        for (stage, share) in stages.into_iter().zip(shares) {
            let (bytes, max) = stage.rows_kept();
            let taken = bytes.max(max);
            let more = share.saturating_sub(taken).min(room);
            if more > 0 {
                room -= more;
                stage.set_rows_max(taken + more);
            }
        }
    }

    fn wire_one(&mut self, index: usize) -> bool {
        let wanted = &self.worker.desired()[index];
        let position = wanted.position();
        // The leader of a stage takes its steps; there are no others today.
        if wanted.is_ahead || position.rank > 0 || self.stages.contains_key(&position) {
            return false;
        }
        let Some(engine) = self.worker.engine_of(position) else { return false };
        let placement = wanted.placement.clone();
        let Some(entry) = self.engines.get_mut(&engine) else { return false };
        let Some(geometry) = entry.loaded.as_ref().map(|facts| facts.geometry) else { return false };
        // An engine that was rewired for another instance, and not taken by it, still has that one's pages.
        let is_of_other = entry.left.take_if(|left| left.instance() != placement.instance).is_some();
        match (entry.wired, entry.rewiring) {
            (None, None) if !is_of_other => {}
            (_, Some(under_way)) if under_way == position => return false,
            #[cfg(feature = "planted")]
            _ if self.config.planted == Some(crate::planted::Bug::KeepsPages) => {}
            _ => {
                entry.rewiring = Some(position);
                let layers = entry.spec.layers;
                let keep = entry.left.as_ref().map(StagePagesLeft::keys).unwrap_or_default();
                tracing::info!(target: "events::shard", engine = engine.0, %layers, placement = %position.placement, pages = keep.len(), "kept in memory");
                self.out.push(Effect::Rewire { engine, position, term: Term::FIRST, keep });
                return true;
            }
        }
        entry.wired = Some(position);
        let mut machine = StageMachine::new(placement.clone(), position.stage as usize, geometry);
        if let Some(left) = entry.left.take() {
            machine = machine.inheriting(left);
        }
        self.stages.insert(position, crate::pipelines::Stage { engine, machine });
        self.stage_wired(position, placement);
        true
    }

    /// What to report of what is in memory here.
    pub(crate) fn stage_reports(&self) -> Vec<StageReport> {
        let mut reports = self.worker.reports();
        for report in &mut reports {
            if let Some(entry) = self.engines.get(&report.engine) {
                report.weight_bytes = entry.loaded.as_ref().map_or(0, |facts| facts.weight_bytes);
                report.unpacked_bytes = entry.unpacked_bytes;
                report.busy_us = u64::try_from(entry.busy.as_micros()).unwrap_or(u64::MAX);
            }
            if let Some(stage) = self.stages.values().find(|stage| stage.engine == report.engine) {
                (report.rows_bytes, report.rows_bytes_max) = stage.machine.rows_kept();
            }
            if let Some(fetch) = self.fetches.values().find(|fetch| fetch.engine == report.engine) {
                report.sources.clone_from(&fetch.sources);
            }
            let serves = report.serves.is_some_and(|p| p.stage == 0 && p.rank == 0 && self.is_serving(p));
            let scheduler = report.serves.filter(|_| serves).and_then(|p| self.schedulers.get(&p.placement));
            report.sequences = scheduler.map_or(0, |entry| {
                let load = entry.scheduler.load_report();
                load.waiting.saturating_add(load.running)
            });
            if serves && report.status == StageStatus::Loaded {
                report.status = StageStatus::Serving;
            }
        }
        reports
    }

    /// An engine is done with a step. The answer is for the wiring that the step belonged to, or for none.
    pub(crate) fn computed(
        &mut self,
        engine: EngineId,
        position: ShardPosition,
        (term, step): (Term, u64),
        result: ComputeResult,
        busy: Duration,
    ) {
        if let Some(entry) = self.engines.get_mut(&engine) {
            entry.busy += busy;
        }
        self.learn_from(engine, (position, term, step), &result, busy);
        match self.stages.get(&position).filter(|stage| stage.engine == engine) {
            Some(_) => self.feed_stage(position, StageInput::ComputeDone { term, step, result }),
            None => {
                let wired = self.engines.get(&engine).and_then(|entry| entry.wired);
                tracing::trace!(engine = engine.0, got = ?position, ?wired, %term, step, "computed for a stage that is over");
            }
        }
    }

    /// What a step that had the node to itself says of its device.
    fn learn_from(
        &mut self,
        engine: EngineId,
        step: (ShardPosition, Term, u64),
        result: &ComputeResult,
        took: Duration,
    ) {
        // What is read from its file is slower, and so is what others load beside it.
        let is_in_memory = |engine: &Engine| {
            let loaded = engine.loaded.as_ref();
            engine.unpacked_bytes == 0 && loaded.is_some_and(|facts| facts.slower_because.is_none())
        };
        let counts =
            !matches!(result, ComputeResult::Failed { .. }) && self.engines.values().all(is_in_memory);
        let Some((phase, tokens, took)) = self.step_corrections.sampled(engine, step, took, counts) else {
            return;
        };
        let Some(spec) = self.engines.get(&engine).map(|engine| &engine.spec) else { return };
        let facts = self.samples.facts.devices.iter().find(|facts| facts.id == spec.device);
        let wanted = self.worker.desired().iter().find(|desired| desired.position() == step.0);
        let instance = wanted.map(|desired| desired.placement.instance);
        let placed = instance.and_then(|instance| self.state().instances().get(&instance));
        let Some((facts, placed)) = facts.zip(placed) else { return };
        let InstanceRequest { shape, weight_types, kv, .. } = &placed.request;
        let model = (shape, weight_types.as_deref(), *kv, spec.layers);
        if let Some(expected) = expected(self.me, facts, model, (phase, tokens)) {
            self.step_corrections.learn(&facts.clone(), phase, expected, took);
        }
    }
}

/// Of `room` bytes each stage has an equal share, or as much as it wants; what is left over by that goes to
/// those that want more.
fn rows_shares(room: u64, wanted: &[u64]) -> Vec<u64> {
    let mut by_wish: Vec<usize> = (0..wanted.len()).collect();
    by_wish.sort_by_key(|stage| wanted[*stage]);
    let (mut room, mut shares) = (room, vec![0; wanted.len()]);
    for (stages_before, stage) in by_wish.into_iter().enumerate() {
        shares[stage] = wanted[stage].min(room / (wanted.len() - stages_before) as u64);
        room -= shares[stage];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::rows_shares;

    #[test]
    fn every_stage_has_an_equal_share_of_rows_and_what_one_does_not_want_goes_to_the_others() {
        assert_eq!(rows_shares(120, &[]), [0; 0]);
        assert_eq!(rows_shares(120, &[1000]), [120]);
        assert_eq!(rows_shares(120, &[1000, 1000, 1000]), [40, 40, 40]);
        assert_eq!(rows_shares(120, &[1000, 10, 0, 1000]), [55, 10, 0, 55]);
        assert_eq!(rows_shares(120, &[10, 20, 30]), [10, 20, 30]);
    }
}
