//! The engine of one loaded shard, on a thread of its own. Loading and stepping block, tasks must not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_backend::{AllocError, CancelToken, Device, Residence, RunError};
use exo_cluster::wire::{StageCommand, TokenResult};
use exo_cluster::{ComputeResult, EngineId, FailedSequence, LoadFault, StageGeometry};
use exo_engine::{
    Engine, EngineOptions, LoadError, Sampled, SequenceError, StepError, StepInput, StepOutput,
};
use exo_formats::Model;
use exo_machine::StepJob;
use exo_sampler::SampleError;
use exo_types::{Attempt, FailureKind, PageKey, SampledToken, SequenceId, Shard, StepFrame, StepSequence};
use serde::{Deserialize, Serialize};

use exo_accelerators::chain;

/// Longest time one step may take on a device in this process: a chunk of prompt on a slow processor takes
/// seconds.
pub const STEP_MAX: Duration = Duration::from_secs(120);
/// How often a thread tells how far the weights are on their way to memory.
const REPACK_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Weights of less than this are read fast from pages of any size.
const LARGE_WEIGHTS_BYTES: u64 = 64 << 20;

/// What an engine thread tells.
#[derive(Debug)]
pub enum EngineEvent {
    /// Loading moved on.
    Progress { engine: EngineId, done_bytes: u64, total_bytes: u64 },
    /// Loaded, perhaps with weights left in their file against the user's wish.
    Ready { engine: EngineId, loaded: Loaded, slower_because: Option<String> },
    /// So many bytes of weights are on their way to memory and read from their file until they are there.
    /// Told before `Ready` and until there are none.
    Unpacked { engine: EngineId, unpacked_bytes: u64 },
    /// Not loaded; nothing is held.
    LoadFailed { engine: EngineId, kind: LoadFault, detail: String },
    /// A step is done, well or not.
    Computed { engine: EngineId, step: u64, result: ComputeResult, busy: Duration },
    /// Its sequences and kept pages are gone; whatever it computed before was told before.
    Rewired { engine: EngineId },
    /// The process of the shard ended unasked, or had to be ended.
    WorkerLost { engine: EngineId, reason: String },
    /// The thread or process has ended and freed everything.
    Unloaded { engine: EngineId },
}

/// Numbers of a loaded shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loaded {
    pub geometry: StageGeometry,
    pub weight_bytes: u64,
}

/// What an engine is to do next, in order.
pub enum Order {
    /// Compute a step.
    Compute(StepJob),
    /// Close all sequences and forget all kept pages but these, and keep the weights: another term begins, or
    /// it serves another placement from now on.
    Rewire { keep: Vec<PageKey> },
}

pub struct ThreadHost {
    orders: Option<Sender<Order>>,
    cancel: CancelToken,
}

/// What a thread is to load.
pub struct LoadRequest {
    pub engine: EngineId,
    pub device: Arc<dyn Device>,
    pub model: Arc<Model>,
    pub shard: Shard,
    pub options: EngineOptions,
    /// Longest time one step may take.
    pub step_max: Duration,
}

/// Where events go. Never blocks.
pub type Events = Arc<dyn Fn(EngineEvent) + Send + Sync>;

impl ThreadHost {
    /// Starts a thread that loads and then computes. Every outcome, also a refusal to start, comes as an
    /// event.
    pub fn start(request: LoadRequest, events: Events) -> Self {
        let (orders, inbox) = channel();
        let cancel = CancelToken::default();
        let (thread_cancel, engine, fallback) = (cancel.clone(), request.engine, events.clone());
        let name = format!("engine {}", engine.0);
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            run(request, &inbox, &thread_cancel, &events);
            // Everything the engine held is dropped by now.
            events(EngineEvent::Unloaded { engine });
        });
        if let Err(e) = spawned {
            fallback(not_taken(engine, format!("no thread for the shard: {e}")));
        }
        Self { orders: Some(orders), cancel }
    }

    pub(crate) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    pub(crate) fn stop(&mut self) {
        self.cancel.cancel();
        // Wakes it where it waits for work.
        self.orders = None;
    }
}

impl Drop for ThreadHost {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Loads, then computes until no one wants more. All but `Unloaded` is told here.
pub fn run(request: LoadRequest, inbox: &Receiver<Order>, cancel: &CancelToken, events: &Events) {
    let (id, step_max) = (request.engine, request.step_max);
    // A bug in a kernel must cost one shard, not the node.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // The model goes with the request: a vocabulary of 128 000 tokens must not stay for the life of a
        // shard.
        let mut engine = match load(request, events) {
            Ok(engine) => engine,
            Err(error) => return events(not_taken(id, chain(&error))),
        };
        let slower_because = engine.device().residence().mapped_because;
        let repacking = RepackProgress::begin(id, &mut engine, slower_because.clone(), events);
        events(EngineEvent::Ready { engine: id, loaded: loaded(&engine), slower_because });
        serve(id, &mut engine, inbox, repacking, Bounds { cancel, step_max }, events);
    }));
    if outcome.is_err() {
        events(not_taken(id, "the engine panicked; the log has the place".to_owned()));
    }
}

/// The device did not take a shard. Such failures are counted.
fn not_taken(engine: EngineId, detail: String) -> EngineEvent {
    EngineEvent::LoadFailed { engine, kind: LoadFault::Device, detail }
}

fn load(request: LoadRequest, events: &Events) -> Result<Engine, LoadError> {
    let engine = request.engine;
    let mut told = Instant::now();
    let mut progress = |p: exo_engine::LoadProgress| {
        if told.elapsed() > Duration::from_millis(100) {
            told = Instant::now();
            events(EngineEvent::Progress { engine, done_bytes: p.bytes_done, total_bytes: p.bytes_total });
        }
    };
    let (device, model) = (request.device.clone(), request.model.path());
    let mut engine = Engine::load(device, &request.model, request.shard, request.options, &mut progress)?;
    if request.shard.head {
        engine.follow_grammars(crate::grammar::for_stage(model));
    }
    Ok(engine)
}

fn loaded(engine: &Engine) -> Loaded {
    let (report, config) = (engine.report(), engine.config());
    let (pages, page_tokens) = (report.pages_total, engine.options().page_tokens);
    let geometry = StageGeometry { hidden: config.hidden, vocab: config.vocab, pages, page_tokens };
    Loaded { geometry, weight_bytes: report.weight_bytes }
}

/// Tells how weights come to memory.
struct RepackProgress {
    id: EngineId,
    began: Instant,
    told: Instant,
    unpacked_bytes: u64,
    /// Why a weight stays in its file that was to be packed, as known at the load.
    slower_because: Option<String>,
}

impl RepackProgress {
    fn begin(id: EngineId, engine: &mut Engine, slower_because: Option<String>, events: &Events) -> Self {
        let (now, unpacked_bytes) = (Instant::now(), engine.unpacked_bytes());
        if unpacked_bytes > 0 {
            events(EngineEvent::Unpacked { engine: id, unpacked_bytes });
        } else {
            warn_of_small_pages(&engine.device().residence());
        }
        Self { id, began: now, told: now, unpacked_bytes, slower_because }
    }

    /// The next order; gives up waiting where another look is due. Once all is packed, only an order or the
    /// end of who gives them wakes the thread.
    fn wait(&self, inbox: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        match self.unpacked_bytes {
            0 => inbox.recv().map_err(RecvTimeoutError::from),
            _ => inbox.recv_timeout(REPACK_LOOK_EVERY),
        }
    }

    /// Looks, if it is time to.
    fn look(&mut self, engine: &mut Engine, events: &Events) {
        if self.unpacked_bytes == 0 || self.told.elapsed() < REPACK_LOOK_EVERY {
            return;
        }
        (self.told, self.unpacked_bytes) = (Instant::now(), engine.unpacked_bytes());
        events(EngineEvent::Unpacked { engine: self.id, unpacked_bytes: self.unpacked_bytes });
        if self.unpacked_bytes == 0 {
            self.report_packed(engine);
        }
    }

    /// Says that all is packed and where it lies: the device's weights, those of other shards included.
    fn report_packed(&self, engine: &Engine) {
        let (layers, bytes) = (engine.shard().layers, engine.report().weight_bytes);
        let elapsed_ms = self.began.elapsed().as_millis() as u64;
        let held = engine.device().residence();
        warn_of_small_pages(&held);
        let Residence { copied_bytes, huge_page_bytes, mapped_because, .. } = held;
        match mapped_because {
            Some(reason) if self.slower_because.as_ref() != Some(&reason) => {
                tracing::warn!(%layers, reason, "some weights stay in their file, which is slower");
            }
            _ => tracing::info!(
                target: "events::shard", %layers, bytes, elapsed_ms, copied_bytes, huge_page_bytes, "packed in memory"
            ),
        }
    }
}

/// Pages of 2 MiB are asked for, and the system need not give them.
fn warn_of_small_pages(held: &Residence) {
    let Residence { copied_bytes, huge_page_bytes, .. } = held;
    if is_in_small_pages(held) {
        tracing::warn!(
            copied_bytes,
            huge_page_bytes,
            hint = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled; where it is set already, \
                    echo 1 > /proc/sys/vm/compact_memory, and load the model again",
            "more than a tenth of the weights lie in small pages, from which they are read up to a quarter more slowly"
        );
    }
}

/// Whether less than nine tenths of the weights in memory lie in large pages, as far as the system tells and
/// it matters.
fn is_in_small_pages(held: &Residence) -> bool {
    let copied = held.copied_bytes;
    copied >= LARGE_WEIGHTS_BYTES && held.huge_page_bytes.is_some_and(|huge| huge < copied / 10 * 9)
}

/// What ends a step early.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    cancel: &'a CancelToken,
    step_max: Duration,
}

fn serve(
    id: EngineId,
    engine: &mut Engine,
    inbox: &Receiver<Order>,
    mut repacking: RepackProgress,
    bounds: Bounds<'_>,
    events: &Events,
) {
    loop {
        repacking.look(engine, events);
        let StepJob { commands, frame, rows } = match repacking.wait(inbox) {
            Ok(Order::Compute(job)) => job,
            Ok(Order::Rewire { keep }) => {
                engine.reset(&keep);
                events(EngineEvent::Rewired { engine: id });
                continue;
            }
            Err(RecvTimeoutError::Timeout) if !bounds.cancel.is_cancelled() => continue,
            Err(_) => return,
        };
        let since = Instant::now();
        let result = match carry_out(engine, commands) {
            Ok(()) => compute(engine, &frame, &rows, bounds),
            Err(refused) => refused,
        };
        if !tell(id, frame.step, result, since, events) {
            return; // a lost device computes nothing more
        }
    }
}

/// `false` if the device is lost.
fn tell(id: EngineId, step: u64, result: ComputeResult, since: Instant, events: &Events) -> bool {
    let is_lost = matches!(result, ComputeResult::Failed { kind: FailureKind::StageLost, .. });
    events(EngineEvent::Computed { engine: id, step, result, busy: since.elapsed() });
    !is_lost
}

/// Carries out the commands of a step.
fn carry_out(engine: &mut Engine, commands: Vec<StageCommand>) -> Result<(), ComputeResult> {
    // One that is refused fails the step; the others are of other sequences, which go on from what they say.
    let refused =
        commands.into_iter().filter_map(|command| apply(engine, command).err()).reduce(|first, _| first);
    match refused {
        None => Ok(()),
        Some(error) => Err(ComputeResult::Failed { kind: FailureKind::Device, message: chain(&error) }),
    }
}

/// Computes a step whose commands are carried out.
fn compute(engine: &mut Engine, frame: &StepFrame, rows: &[u8], bounds: Bounds<'_>) -> ComputeResult {
    if frame.sequences.is_empty() {
        return if engine.shard().head {
            ComputeResult::Tokens(Vec::new())
        } else {
            ComputeResult::Rows(Bytes::new())
        };
    }
    let hidden = floats(rows);
    let input = if engine.shard().embedding { StepInput::Tokens } else { StepInput::Hidden(&hidden) };
    match engine.step(frame, input, bounds.cancel, bounds.step_max) {
        Ok(StepOutput::Hidden(rows)) => ComputeResult::Rows(bytes(&rows).into()),
        Ok(StepOutput::Sampled(sampled)) => results(engine, frame, sampled),
        Err(error) => ComputeResult::Failed { kind: kind_of(&error), message: chain(&error) },
    }
}

fn apply(engine: &mut Engine, command: StageCommand) -> Result<(), SequenceError> {
    match command {
        StageCommand::Open { spec, cached, .. } => engine.open_cached(spec, &cached),
        StageCommand::Keep { sequence, pages } => engine.keep(sequence, &pages),
        StageCommand::Forget(pages) => engine.forget(&pages),
        // It was never opened here if that was refused.
        StageCommand::Close(sequence) => match engine.close(sequence) {
            Err(SequenceError::Unknown { .. }) => Ok(()),
            closed => closed,
        },
    }
}

fn results(engine: &mut Engine, frame: &StepFrame, sampled: Sampled) -> ComputeResult {
    let Sampled { runs, failed } = sampled;
    let mut runs: BTreeMap<SequenceId, Vec<SampledToken>> = runs.into_iter().collect();
    let result = |part: &StepSequence| {
        let (sequence, tokens) = runs.remove_entry(&part.sequence)?;
        let (position, drafts, forced) = (part.sample_position(), part.drafts, engine.forced(sequence));
        let attempt = Attempt::FIRST; // the stage knows which
        Some(TokenResult { sequence, attempt, position, tokens, drafts, forced })
    };
    let results = frame.sequences.iter().filter(|part| part.sample).filter_map(result).collect();
    if failed.is_empty() {
        return ComputeResult::Tokens(results);
    }
    let failed = failed.into_iter().map(|(sequence, error)| FailedSequence {
        sequence,
        kind: kind_of_sample(&error),
        message: chain(&error),
        is_not_finite: matches!(error, SampleError::NotFinite { .. }),
    });
    ComputeResult::Partial { results, failed: failed.collect() }
}

fn kind_of(error: &StepError) -> FailureKind {
    match error {
        StepError::OutOfPages { .. } => FailureKind::OutOfMemory,
        StepError::Run(RunError::Alloc(AllocError::DeviceLost { .. })) => FailureKind::StageLost,
        StepError::Run(RunError::Alloc(_)) => FailureKind::OutOfMemory,
        StepError::Run(RunError::Deadline { .. }) => FailureKind::Deadline,
        StepError::Run(RunError::Cancelled { .. }) => FailureKind::InstanceGone,
        StepError::Run(_) => FailureKind::Device,
        StepError::Sample { source, .. } => kind_of_sample(source),
        _ => FailureKind::Protocol,
    }
}

/// Logits that are no numbers are the device's, and so is a vocabulary that cannot be read here: a grammar
/// that no token satisfies ends the answer and is no error.
fn kind_of_sample(error: &SampleError) -> FailureKind {
    match error {
        SampleError::Empty | SampleError::NotFinite { .. } | SampleError::Constraint { .. } => {
            FailureKind::Device
        }
        _ => FailureKind::Protocol,
    }
}

/// Little-endian f32 rows as numbers; a tail of less than four bytes is dropped, the stage machine refused
/// it.
fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bytes(rows: &[f32]) -> Vec<u8> {
    // As long as it will be, so that no value asks for room.
    let mut out = vec![0u8; rows.len() * 4];
    for (place, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(rows) {
        *place = value.to_le_bytes();
    }
    out
}

#[cfg(test)]
mod tests;
