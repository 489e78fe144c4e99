//! Engines: opening models, loading, computing, freeing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use exo_accelerators::chain;
use exo_cluster::{EngineId, LoadFault};
use exo_engine::EngineOptions;
use exo_formats::Model;
use exo_machine::{Input, LoadedFacts};
use exo_types::{DeviceId, DeviceState, PageKey, ShardPosition, ShardSpec, Term};
use tokio_util::sync::CancellationToken;

use super::Devices;
use crate::compute::ShardTarget;
use crate::draft::Draft;
use crate::draft_mismatch::DraftMismatch;
use crate::engine_host::EngineHost;
use crate::engine_start_error::EngineStartError;
use crate::engine_thread::{EngineEvent, Events, LoadRequest, Loaded, Order, STEP_MAX, ThreadHost};
use crate::events::{Event, EventSender, OpenedModel};
use crate::library::Library;
use crate::planning;
use crate::worker::{LoadShard, WorkerHost, WorkerMemory};

/// For a lost device to be verified: more than that takes.
const VERIFIED_MAX: Duration = Duration::from_secs(40);
/// For workers to end by themselves when the node does. One that hangs ends with its input.
const WORKERS_END_MAX: Duration = Duration::from_secs(4);

/// The engines of this node.
pub struct Engines {
    library: Arc<Library>,
    draft: Option<Arc<Draft>>,
    events: EventSender,
    engines: BTreeMap<EngineId, Entry>,
}

struct Entry {
    device: DeviceId,
    state: EngineState,
    spec: ShardSpec,
    draft: Option<Result<(), DraftMismatch>>,
    /// What the steps that it was handed belong to, in order.
    jobs: VecDeque<(ShardPosition, Term)>,
    rewires: VecDeque<(ShardPosition, Term)>,
}

enum EngineState {
    /// Its model is being opened.
    Opening(CancellationToken),
    Running(EngineHost),
}

impl Engines {
    pub fn new(library: Arc<Library>, draft: Option<Arc<Draft>>, events: EventSender) -> Self {
        Self { library, draft, events, engines: BTreeMap::new() }
    }

    /// Opening a model reads headers from disk; loading follows.
    pub fn load(&mut self, engine: EngineId, spec: ShardSpec, devices: &Devices) {
        let token = CancellationToken::new();
        let (library, events, model) = (self.library.clone(), self.events.clone(), spec.model);
        let draft = self.draft.clone().filter(|_| spec.embedding);
        // Beside another shard it would be measured with a part of the processor, and take that from what
        // runs.
        let is_alone = self.engines.is_empty();
        let (config, shard) = (devices.measures_types(&spec.device).filter(|_| is_alone), spec.shard());
        let state = devices.follow(&spec.device);
        let work = async move {
            if let Some(mut state) = state {
                // A device that was just lost is verified first; an end of the wait is seen when it is
                // loaded.
                let known =
                    state.wait_for(|state| !matches!(state, DeviceState::Lost | DeviceState::Verifying));
                let _ = tokio::time::timeout(VERIFIED_MAX, known).await;
            }
            let store = library.store().clone();
            let open = move || {
                let mut opened = store.open_model(model)?;
                let draft = draft.map(|draft| draft.check_model(model, &opened));
                opened.take_tokenizer();
                let of_shard = || planning::types_of_shard(&opened, &shard);
                let types = config.map(|config| crate::device::measure_types(&config, &of_shard()));
                Ok::<_, EngineStartError>((Arc::new(opened), draft, types))
            };
            let opened = tokio::task::spawn_blocking(open).await;
            match opened.unwrap_or_else(|error| Err(error.into())) {
                Ok((model, draft, types)) => OpenedModel { engine, model: Ok(model), draft, types },
                Err(error) => OpenedModel { engine, model: Err(error), draft: None, types: None },
            }
        };
        let opening = token.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = opening.cancelled() => {}
                opened = work => events.post(Event::Opened(opened)),
            }
        });
        let (device, draft, state) = (spec.device.clone(), None, EngineState::Opening(token));
        let (jobs, rewires) = (VecDeque::new(), VecDeque::new());
        self.engines.insert(engine, Entry { device, state, spec, draft, jobs, rewires });
    }

    pub fn opened(&mut self, opened: OpenedModel, devices: &mut Devices) -> Vec<Input> {
        let OpenedModel { engine, model, draft, types } = opened;
        let events = self.events_of();
        let measured = types.is_some_and(|types| devices.types_measured(types));
        let mut inputs: Vec<Input> = measured.then(|| devices.sampled(self)).into_iter().collect();
        let Some(entry) = self.engines.get_mut(&engine) else { return inputs };
        let host = model.and_then(|model| start(engine, &entry.spec, model, devices, events));
        match host {
            Ok(host) => {
                entry.draft = draft;
                entry.state = EngineState::Running(host);
                inputs
            }
            Err(error) => {
                self.engines.remove(&engine);
                let (kind, detail) = (LoadFault::Open, chain(&error));
                let event = exo_machine::EngineEvent::LoadFailed { kind, detail };
                inputs.push(Input::Engine { engine, event });
                inputs
            }
        }
    }

    fn events_of(&self) -> Events {
        let events = self.events.clone();
        Arc::new(move |event| events.post(Event::Engine(event)))
    }

    pub fn compute(&mut self, engine: EngineId, position: ShardPosition, job: exo_machine::StepJob) {
        let Some(Entry { state: EngineState::Running(host), jobs, .. }) = self.engines.get_mut(&engine)
        else {
            return tracing::trace!(
                engine = engine.0,
                step = job.frame.step,
                "a step for an engine that is gone"
            );
        };
        jobs.push_back((position, job.frame.term));
        host.order(Order::Compute(job));
    }

    pub fn rewire(&mut self, engine: EngineId, position: ShardPosition, term: Term, keep: Vec<PageKey>) {
        let Some(Entry { state: EngineState::Running(host), rewires, .. }) = self.engines.get_mut(&engine)
        else {
            return tracing::trace!(
                engine = engine.0,
                term = term.0,
                "a term for an engine that does not run"
            );
        };
        rewires.push_back((position, term));
        host.order(Order::Rewire { keep });
    }

    pub fn unload(&mut self, engine: EngineId) {
        match self.engines.get_mut(&engine).map(|entry| &mut entry.state) {
            Some(EngineState::Running(host)) => host.stop(),
            Some(EngineState::Opening(token)) => {
                token.cancel();
                self.engines.remove(&engine);
                let event = exo_machine::EngineEvent::Unloaded;
                self.events.post(Input::Engine { engine, event });
            }
            None => tracing::trace!(engine = engine.0, "nothing to unload"),
        }
    }

    /// What an engine says, for the machine. Its memory has changed with some of it: that is sampled first.
    pub fn event(&mut self, event: EngineEvent, devices: &mut Devices) -> Vec<Input> {
        use exo_machine::EngineEvent as News;
        let mut inputs = Vec::new();
        let (engine, news) = match event {
            EngineEvent::Computed { engine, step, result, busy } => {
                let job = self.engines.get_mut(&engine).and_then(|e| e.jobs.pop_front());
                let Some((position, term)) = job else {
                    tracing::trace!(engine = engine.0, step, "a result of no step");
                    return inputs;
                };
                return vec![Input::Computed { engine, position, term, step, result, busy }];
            }
            EngineEvent::Progress { engine, done_bytes, total_bytes } => {
                (engine, News::Progress { done_bytes, total_bytes })
            }
            EngineEvent::Unpacked { engine, unpacked_bytes } => {
                (engine, News::Unpacked { bytes: unpacked_bytes })
            }
            EngineEvent::Rewired { engine } => {
                match self.engines.get_mut(&engine).and_then(|e| e.rewires.pop_front()) {
                    Some((position, term)) => (engine, News::Rewired { position, term }),
                    None => {
                        tracing::trace!(engine = engine.0, "rewired for no term");
                        return inputs;
                    }
                }
            }
            EngineEvent::Ready { engine, loaded, slower_because } => {
                let draft = self.engines.get(&engine).and_then(|entry| entry.draft.clone());
                let draft = draft.map(|verdict| verdict.map_err(|mismatch| chain(&mismatch)));
                let Loaded { geometry, weight_bytes } = loaded;
                inputs.push(devices.sampled(self));
                (
                    engine,
                    News::Loaded(Box::new(LoadedFacts { geometry, weight_bytes, slower_because, draft })),
                )
            }
            EngineEvent::LoadFailed { engine, kind, detail } => {
                self.engines.remove(&engine);
                (engine, News::LoadFailed { kind, detail })
            }
            EngineEvent::WorkerLost { engine, reason } => {
                if let Some(entry) = self.engines.remove(&engine) {
                    // Before the shard is wanted again: what is loaded from now on waits for the device.
                    devices.lost(&entry.device, &reason);
                }
                inputs.push(devices.sampled(self));
                (engine, News::Lost { reason })
            }
            EngineEvent::Unloaded { engine } => {
                if self.engines.remove(&engine).is_none() {
                    return inputs; // it had failed before
                }
                inputs.push(devices.sampled(self));
                (engine, News::Unloaded)
            }
        };
        inputs.push(Input::Engine { engine, event: news });
        inputs
    }

    /// What the workers of a device last said of its memory.
    pub fn worker_memory(&self, device: &DeviceId) -> Vec<WorkerMemory> {
        self.hosts_on(device).filter_map(|host| host.worker()?.memory()).collect()
    }

    /// Every engine that may hold something of this device.
    pub fn hosts_on(&self, device: &DeviceId) -> impl Iterator<Item = &EngineHost> {
        let on = self.engines.values().filter(move |entry| entry.device == *device);
        on.filter_map(|entry| match &entry.state {
            EngineState::Running(host) => Some(host),
            EngineState::Opening(_) => None,
        })
    }

    /// Whether anything is, or is about to be, on this device.
    pub fn are_on(&self, device: &DeviceId) -> bool {
        self.engines.values().any(|entry| entry.device == *device)
    }

    /// Tells all to end, and waits for the processes: they free what they hold.
    pub async fn end(&mut self) {
        for entry in self.engines.values_mut() {
            match &mut entry.state {
                EngineState::Running(host) => host.stop(),
                EngineState::Opening(token) => token.cancel(),
            }
        }
        let is_there = |entry: &Entry| match &entry.state {
            EngineState::Running(host) => host.worker().is_some_and(|worker| !worker.is_gone()),
            EngineState::Opening(_) => false,
        };
        let all_gone = async {
            while self.engines.values().any(is_there) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(WORKERS_END_MAX, all_gone).await;
    }
}

/// Starts loading: on a thread of this process, or in a worker.
fn start(
    engine: EngineId,
    spec: &ShardSpec,
    model: Arc<Model>,
    devices: &Devices,
    events: Events,
) -> Result<EngineHost, EngineStartError> {
    let (cache, shard) = (spec.cache, spec.shard());
    let options = EngineOptions {
        // A step may carry a full chunk of prompt beside one token of every other sequence.
        chunk_tokens_max: exo_cluster::SchedulerConfig::default().chunk_tokens_max + cache.slots,
        cache_tokens: Some(cache.cache_tokens),
        kv_dtype: cache.kv,
        ..EngineOptions::new(cache.context_tokens, cache.slots)
    };
    match devices.shard_target(&spec.device) {
        Some(ShardTarget::Here(device)) => {
            let request = LoadRequest { engine, device, model, shard, options, step_max: STEP_MAX };
            Ok(EngineHost::Thread(ThreadHost::start(request, events)))
        }
        Some(ShardTarget::Worker(device, program)) => {
            let path = model.path().into_os_string();
            let load = LoadShard { engine, device, path, shard, options };
            Ok(EngineHost::Worker(WorkerHost::start(program, load, events)))
        }
        None => Err(EngineStartError::NoDevice { device: spec.device.clone() }),
    }
}
