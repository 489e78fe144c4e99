//! Devices and engines of a process: how long they take, and when they fail.

use std::time::Duration;

use exo_cluster::{ComputeResult, EngineId, LoadFault, StageGeometry};
use exo_machine::{EngineEvent, Input, LoadedFacts, StepJob};
use exo_types::{PageKey, ShardPosition, ShardSpec, Term, Time};

use crate::engine::{Engine, PAGE_TOKENS};
use crate::model::{HIDDEN, VOCAB};
use crate::node::Node;
use crate::shape::{model_shape, pages_of};
use crate::world::{Event, World};

/// Bytes per second that weights are read with.
const LOAD_RATE: u64 = 500_000_000;

/// An engine of a process.
#[derive(Debug)]
pub struct Loaded {
    /// What it holds.
    pub spec: ShardSpec,
    /// In memory.
    pub bytes: u64,
    /// It can compute; `None` while it loads.
    pub engine: Option<Engine>,
    /// What it was last wired to.
    pub wired: Option<ShardPosition>,
    /// When the last of what was asked of it is done: answers come in order.
    pub free_at: Time,
}

impl World {
    pub(crate) fn load(&mut self, node: usize, engine: EngineId, spec: ShardSpec) {
        let bytes = model_shape().shard_weight_bytes(&spec.shard());
        let took = Duration::from_micros(bytes * 1_000_000 / LOAD_RATE)
            + self.nodes[node].draws.draw().millis(5, 60);
        let now = self.now;
        let fails = self.load_failure(node);
        let Some(process) = &mut self.nodes[node].process else { return };
        let loaded = Loaded { spec, bytes, engine: None, wired: None, free_at: now + took };
        if process.engines.insert(engine, loaded).is_some() {
            return self.fail("effects_make_sense", format!("n{node} loads {engine:?} twice"));
        }
        if let Some((kind, detail)) = fails {
            let event = EngineEvent::LoadFailed { kind, detail: detail.to_owned() };
            return self.engine_at(now + took / 2, node, engine, Input::Engine { engine, event });
        }
        for part in 1..4u32 {
            let event = EngineEvent::Progress { done_bytes: bytes / 4 * u64::from(part), total_bytes: bytes };
            self.engine_at(now + took * part / 4, node, engine, Input::Engine { engine, event });
        }
        let event = EngineEvent::Loaded(Box::new(self.facts(node, engine, bytes)));
        self.engine_at(now + took, node, engine, Input::Engine { engine, event });
    }

    /// At what the next load of a node fails, and in which words; `None` if it does not.
    fn load_failure(&mut self, node: usize) -> Option<(LoadFault, &'static str)> {
        let troubles = &mut self.nodes[node].troubles;
        if let Some(is_refusal) = troubles.fail_load.take() {
            self.fired("load fails");
            let kind = if is_refusal { LoadFault::Device } else { LoadFault::Open };
            return Some((kind, "the simulated load failed"));
        }
        if std::mem::take(&mut troubles.starve_load) {
            self.fired("load out of memory");
            return Some((LoadFault::Device, "the simulated device has no memory left"));
        }
        None
    }

    fn facts(&self, node: usize, engine: EngineId, weight_bytes: u64) -> LoadedFacts {
        let process = self.nodes[node].process.as_ref();
        let spec = process.and_then(|process| process.engines.get(&engine)).map(|loaded| &loaded.spec);
        let pages = spec.map_or(0, pages_of);
        LoadedFacts {
            geometry: StageGeometry { hidden: HIDDEN, vocab: VOCAB, page_tokens: PAGE_TOKENS, pages },
            weight_bytes,
            slower_because: None,
            draft: None,
        }
    }

    /// An engine says something then, unless it is gone.
    fn engine_at(&mut self, at: Time, node: usize, engine: EngineId, input: Input) {
        self.process_at(at, node, Event::Engine(engine, Box::new(input)));
    }

    /// An engine says something. What it holds is sampled before its news.
    pub(crate) fn engine_says(&mut self, node: usize, engine: EngineId, input: Input) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let Some(loaded) = process.engines.get_mut(&engine) else { return };
        let is_news = match &input {
            Input::Engine { event: EngineEvent::Loaded(_), .. } => {
                loaded.engine = Some(Engine::new(loaded.spec.shard(), pages_of(&loaded.spec)));
                true
            }
            Input::Engine { event: EngineEvent::LoadFailed { .. }, .. } => {
                process.engines.remove(&engine);
                true
            }
            _ => false,
        };
        if is_news {
            self.sample(node);
        }
        self.feed(node, input);
    }

    fn sample(&mut self, node: usize) {
        let samples = self.nodes[node].samples();
        self.feed(node, Input::Sampled(Box::new(samples)));
    }

    pub(crate) fn rewire(
        &mut self,
        node: usize,
        engine: EngineId,
        (position, term): (ShardPosition, Term),
        keep: &[PageKey],
    ) {
        let (now, took) = (self.now, self.nodes[node].draws.draw().micros(20, 1000));
        let Some(process) = &mut self.nodes[node].process else { return };
        let loaded = process.engines.get_mut(&engine);
        let Some(loaded) = loaded.filter(|loaded| loaded.engine.is_some()) else { return };
        loaded.free_at = loaded.free_at.max(now) + took;
        loaded.wired = Some(position);
        let at = loaded.free_at;
        let rewired = loaded.engine.as_mut().map_or(Ok(()), |engine| engine.rewire(keep));
        if let Err(misuse) = rewired {
            let text = format!("n{node} {engine:?} {position:?} {term}: {}", misuse.0);
            return self.fail("engines_get_what_fits", text);
        }
        let event = EngineEvent::Rewired { position, term };
        self.engine_at(at, node, engine, Input::Engine { engine, event });
    }

    pub(crate) fn compute(&mut self, node: usize, engine: EngineId, position: ShardPosition, job: &StepJob) {
        let tokens = job.frame.token_count() as u64;
        let took = self.step_time(node, tokens);
        let (now, term, step) = (self.now, job.frame.term, job.frame.step);
        let has_parts = !job.frame.sequences.is_empty();
        let Node { process: Some(process), troubles, .. } = &mut self.nodes[node] else { return };
        let Some(loaded) = process.engines.get_mut(&engine) else { return }; // lost: the machine hears of it
        let Some(runs) = &mut loaded.engine else {
            return self
                .fail("effects_make_sense", format!("n{node} computes on {engine:?}, which is not loaded"));
        };
        self.embedded += if loaded.spec.embedding { tokens } else { 0 };
        self.headed += if loaded.spec.head { tokens } else { 0 };
        let fault = if has_parts { troubles.take_step_fault() } else { None };
        let result = match runs.run(self.model.as_ref(), job, fault.map(|(fault, _)| fault)) {
            Ok(result) => result,
            Err(misuse) => {
                let text = format!("n{node} {engine:?} {position:?} step {step}: {}", misuse.0);
                return self.fail("engines_get_what_fits", text);
            }
        };
        process.device_free_at = process.device_free_at.max(now).max(loaded.free_at) + took;
        loaded.free_at = process.device_free_at;
        let at = loaded.free_at;
        if let Some((_, name)) = fault {
            self.fired(name);
        }
        self.computed_at(at, node, engine, (position, term, step), result, took);
    }

    fn computed_at(
        &mut self,
        at: Time,
        node: usize,
        engine: EngineId,
        (position, term, step): (ShardPosition, Term, u64),
        result: ComputeResult,
        busy: Duration,
    ) {
        self.engine_at(at, node, engine, Input::Computed { engine, position, term, step, result, busy });
    }

    /// Time of a step of so many rows.
    fn step_time(&mut self, node: usize, tokens: u64) -> Duration {
        if tokens == 0 {
            return self.nodes[node].draws.draw().micros(20, 200);
        }
        let usual = self.nodes[node].draws.draw().micros(800, 4000) + Duration::from_micros(150 * tokens);
        match self.nodes[node].draws.draw().below(300) {
            0 => usual + self.nodes[node].draws.draw().millis(50, 400),
            _ => usual,
        }
    }

    pub(crate) fn unload(&mut self, node: usize, engine: EngineId) {
        let delay = self.nodes[node].draws.draw().millis(1, 40);
        let Some(process) = &mut self.nodes[node].process else { return };
        if process.engines.remove(&engine).is_none() {
            return; // lost or failed: the machine hears of that instead
        }
        self.input_at(self.now + delay, node, Input::Engine { engine, event: EngineEvent::Unloaded });
    }

    /// What is asked of the device from now on comes so much later.
    pub(crate) fn hang_device(&mut self, node: usize, lasting: Duration) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        process.device_free_at = process.device_free_at.max(now) + lasting;
        for loaded in process.engines.values_mut() {
            loaded.free_at = loaded.free_at.max(now) + lasting;
        }
    }

    /// An engine's process dies: what it was at is not answered.
    pub(crate) fn lose_engine(&mut self, node: usize) {
        let draw = self.draws.draw();
        let Some(process) = &mut self.nodes[node].process else { return };
        let engines: Vec<EngineId> = process.engines.keys().copied().collect();
        let Some(&engine) = engines.get((draw.0 % engines.len().max(1) as u64) as usize) else { return };
        process.engines.remove(&engine);
        let event = EngineEvent::Lost { reason: "the simulated engine died".to_owned() };
        let at = self.now + Duration::from_millis(1 + draw.0 / 1000 % 20);
        self.input_at(at, node, Input::Engine { engine, event });
    }
}
