//! The node's side of one worker: it starts the process, hands it steps, and tells what becomes of them.
//!
//! Three threads: one writes orders, one reads answers, one watches the clock. The first two may wait for as
//! long as a broken worker likes; whoever of the last two first finds that it is over has the last word.

use std::collections::VecDeque;
use std::fmt;
use std::process::{ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_accelerators::chain;
use exo_cluster::{ComputeResult, EngineId, LoadFault, STEP_PER_TOKEN};
use exo_machine::StepJob;
use exo_types::{FailureKind, Monitor};

use super::frames::{FrameError, FrameReader, FrameWriter};
use super::messages::{FromWorker, LoadShard, ToWorker, WorkerMemory};
use super::process::{Process, WorkerProgram};
use crate::engine_thread::{EngineEvent, Events, Order};

/// From the end of its input to the end of the worker.
const STOP_MAX: Duration = Duration::from_secs(3);
/// A worker that loads says something this often; shorter than the cluster's own patience, so that the cause
/// is told.
const LOAD_SILENCE_MAX: Duration = Duration::from_secs(50);
/// For the end of a worker whose output has ended.
const END_MAX: Duration = Duration::from_secs(1);
/// From the end of a worker to that of its output: one that hangs inside the kernel keeps it open.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// To forget sequences and kept pages: no device is asked for that. From when the steps in front of it are
/// done.
const REWIRE_MAX: Duration = Duration::from_secs(5);
/// Between two looks at the clock.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// A worker and the shard in it. Dropping it ends it.
pub struct WorkerHost {
    orders: Option<Sender<Order>>,
    shared: Inner,
}

/// What the threads share.
#[derive(Clone)]
struct Inner {
    engine: EngineId,
    step_max: Duration,
    events: Events,
    state: Arc<(Mutex<WorkerState>, Condvar)>,
    /// Its process is no more, or cannot be ended.
    gone: Arc<AtomicBool>,
}

/// An order that is out.
#[derive(Clone, Copy)]
struct InFlight {
    what: Pending,
    /// When it was given, or the one before it came back.
    since: Instant,
    at_most: Duration,
}

/// What an answer is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    Step(u64),
    Rewire,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => write!(f, "step {step}"),
            Self::Rewire => f.write_str("to forget its sequences"),
        }
    }
}

#[derive(Default)]
struct WorkerState {
    process: Option<Process>,
    is_ready: bool,
    heard: Option<Instant>,
    /// In order: what is behind the first waits for it.
    in_flight: VecDeque<InFlight>,
    stopping_since: Option<Instant>,
    /// Why we ended it, and when.
    killed_because: Option<String>,
    killed_since: Option<Instant>,
    /// Why it does not load, and in whose words.
    refused: Option<(LoadFault, String)>,
    memory: Option<WorkerMemory>,
    monitor: Option<Monitor>,
    has_ended: bool,
}

impl WorkerHost {
    /// Starts a worker that loads and then computes. Every outcome, also a refusal to start, comes as an
    /// event; the last one is `Unloaded`, once the process is gone.
    pub fn start(how: WorkerProgram, load: LoadShard, events: Events) -> Self {
        let (orders, inbox) = channel();
        let (engine, step_max) = (load.engine, how.step_max);
        let shared = Inner { engine, step_max, events, state: Arc::default(), gone: Arc::default() };
        let (writer, fallback) = (shared.clone(), shared.clone());
        let thread = std::thread::Builder::new().name(format!("worker {}", shared.engine.0));
        if let Err(error) = thread.spawn(move || writer.run(&how, load, &inbox)) {
            fallback.not_started(format!("no thread for the shard: {error}"));
        }
        Self { orders: Some(orders), shared }
    }

    /// Hands over a step, or what comes between two. The result comes as an event.
    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    /// Asks the worker to free everything and end, and ends it if it does not.
    pub fn stop(&mut self) {
        // First, or an end at once would count as a loss.
        self.shared.state().stopping_since.get_or_insert_with(Instant::now);
        self.shared.state.1.notify_all();
        // Its input closes with the last sender.
        self.orders = None;
    }

    /// What its device had free and it held, when it last said.
    pub fn memory(&self) -> Option<WorkerMemory> {
        let state = self.shared.state();
        state.memory.filter(|_| !state.has_ended)
    }

    /// The sensors of its device, when it last said.
    pub fn monitor(&self) -> Option<Monitor> {
        let state = self.shared.state();
        state.monitor.filter(|_| !state.has_ended)
    }

    /// Whether the process is gone.
    pub fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }
}

impl Drop for WorkerHost {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: EngineEvent) {
        (self.events)(event);
    }

    fn not_started(&self, reason: String) {
        let engine = self.engine;
        self.state().has_ended = true;
        self.gone.store(true, Ordering::Release);
        self.tell(EngineEvent::WorkerLost { engine, reason });
        self.tell(EngineEvent::Unloaded { engine });
    }

    // ---- the thread that writes ----

    fn run(self, how: &WorkerProgram, load: LoadShard, inbox: &Receiver<Order>) {
        let (process, stdin, stdout) = match Process::spawn(how) {
            Ok(started) => started,
            Err(error) => return self.not_started(chain(&error)),
        };
        {
            let mut state = self.state();
            state.process = Some(process);
            state.heard = Some(Instant::now());
        }
        let (reader, watchdog) = (self.clone(), self.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let reading = named("worker's answers").spawn(move || reader.listen(stdout));
        if let Err(error) = reading {
            let gone = self.state().process.take();
            drop(gone); // which ends it, outside of the lock
            return self.not_started(format!("no thread for the worker's answers: {error}"));
        }
        if let Err(error) = named("worker's clock").spawn(move || watchdog.watch()) {
            self.kill(format!("no thread to watch it: {error}"));
        }
        self.feed(stdin, load, inbox);
    }

    /// Writes what there is to do, until no one has anything more.
    fn feed(&self, stdin: ChildStdin, load: LoadShard, inbox: &Receiver<Order>) {
        let mut to = FrameWriter::new(stdin);
        match to.write(&ToWorker::Load(Box::new(load)), &[]) {
            Ok(()) | Err(FrameError::Io(_)) => {} // a closed pipe: the reader sees the end too
            Err(error) => self.kill(format!("its orders could not be written: {error}")),
        }
        for order in inbox {
            let sent = match order {
                Order::Compute(job) => self.send_step(&mut to, job),
                // Where the worker has ended, its end is the answer.
                Order::Rewire { keep } if self.begin(Pending::Rewire, REWIRE_MAX) => {
                    to.write(&ToWorker::Rewire { keep }, &[])
                }
                Order::Rewire { .. } => Ok(()),
            };
            match sent {
                Ok(()) | Err(FrameError::Io(_)) => {} // a closed pipe: the reader sees the end too
                Err(error) => {
                    self.kill(format!("a step could not be written: {error}"));
                }
            }
        }
    }

    fn send_step(&self, to: &mut FrameWriter<ChildStdin>, job: StepJob) -> Result<(), FrameError> {
        let StepJob { commands, frame, rows } = job;
        let step = frame.step;
        let tokens = u32::try_from(frame.token_count()).unwrap_or(u32::MAX);
        let at_most = self.step_max.saturating_add(STEP_PER_TOKEN.saturating_mul(tokens));
        if !self.begin(Pending::Step(step), at_most) {
            // Perhaps before those in flight are told of: the stage goes with the worker.
            self.failed(step, FailureKind::StageLost, "the worker has ended".to_owned());
            return Ok(());
        }
        to.write(&ToWorker::Step { commands, frame }, &rows)
    }

    /// Notes an order that is out. `false` if the worker has ended.
    fn begin(&self, what: Pending, at_most: Duration) -> bool {
        let mut state = self.state();
        if !state.has_ended {
            state.in_flight.push_back(InFlight { what, since: Instant::now(), at_most });
        }
        !state.has_ended
    }

    fn failed(&self, step: u64, kind: FailureKind, message: String) {
        let result = ComputeResult::Failed { kind, message };
        self.tell(EngineEvent::Computed { engine: self.engine, step, result, busy: Duration::ZERO });
    }

    // ---- the thread that reads ----

    fn listen(&self, stdout: ChildStdout) {
        let mut from = FrameReader::new(stdout);
        loop {
            match from.read() {
                Ok((message, rows)) => self.hear(message, rows),
                Err(error) => return self.end(&error),
            }
        }
    }

    fn hear(&self, message: FromWorker, rows: Bytes) {
        let engine = self.engine;
        match message {
            FromWorker::Progress { done_bytes, total_bytes, memory } => {
                let mut state = self.state();
                (state.heard, state.memory) = (Some(Instant::now()), Some(memory));
                drop(state);
                self.tell(EngineEvent::Progress { engine, done_bytes, total_bytes });
            }
            FromWorker::Ready { loaded, slower_because, memory } => {
                let mut state = self.state();
                (state.is_ready, state.memory) = (true, Some(memory));
                drop(state);
                self.tell(EngineEvent::Ready { engine, loaded, slower_because });
            }
            FromWorker::LoadFailed { kind, detail } => {
                let mut state = self.state();
                if state.is_ready {
                    // A panic in the middle of serving: a loss like any other.
                    state.kill(detail);
                } else {
                    // A refusal, not a fault: it ends by itself now, and is told once nothing is held.
                    state.refused.get_or_insert((kind, detail));
                    state.stopping_since.get_or_insert_with(Instant::now);
                }
            }
            FromWorker::Rewired => {
                if self.answered(Pending::Rewire, None).is_some() {
                    self.tell(EngineEvent::Rewired { engine });
                }
            }
            FromWorker::Computed { step, busy, mut result, memory } => {
                let Some(out) = self.answered(Pending::Step(step), memory) else { return };
                let way = out.since.elapsed().saturating_sub(busy);
                tracing::trace!(
                    step,
                    busy_us = busy.as_micros(),
                    way_us = way.as_micros(),
                    "step of a worker"
                );
                if let ComputeResult::Rows(of_step) = &mut result {
                    *of_step = rows;
                }
                if let ComputeResult::Failed {
                    kind: FailureKind::Deadline | FailureKind::StageLost,
                    message,
                } = &result
                {
                    self.kill(message.clone());
                }
                let busy = busy.min(out.since.elapsed());
                self.tell(EngineEvent::Computed { engine, step, result, busy });
            }
            FromWorker::Reading { memory, monitor } => {
                let mut state = self.state();
                (state.memory, state.monitor) = (Some(memory), Some(monitor));
            }
            FromWorker::Opened(_)
            | FromWorker::Listed
            | FromWorker::Surveyed
            | FromWorker::Refused { .. } => {
                self.kill("it answered what it was not asked".to_owned());
            }
        }
    }

    /// Takes the order off that an answer is for, which is the first that is out; any other answer ends the
    /// worker.
    fn answered(&self, what: Pending, memory: Option<WorkerMemory>) -> Option<InFlight> {
        let mut state = self.state();
        state.memory = memory.or(state.memory);
        let Some(out) = state.in_flight.pop_front_if(|out| out.what == what) else {
            state.kill(format!("it answered {what}, which it was not given yet or any more"));
            return None;
        };
        if let Some(next) = state.in_flight.front_mut() {
            next.since = Instant::now();
        }
        Some(out)
    }

    /// Its output has ended, or it was killed and hangs: it is over. The first call counts.
    fn end(&self, error: &FrameError) {
        let engine = self.engine;
        let (process, in_flight, is_stopping, refused) = {
            let mut state = self.state();
            if std::mem::replace(&mut state.has_ended, true) {
                return;
            }
            let is_stopping = state.stopping_since.is_some();
            (state.process.take(), std::mem::take(&mut state.in_flight), is_stopping, state.refused.take())
        };
        self.state.1.notify_all();
        let how = process.map_or_else(String::new, |mut process| {
            let patience = if matches!(error, FrameError::Ended | FrameError::Truncated) {
                END_MAX
            } else {
                Duration::ZERO
            };
            let status = process.end(patience).map_or("it hangs".to_owned(), |status| status.to_string());
            format!("({status}){}", process.last_output())
        });
        let killed = self.state().killed_because.take();
        self.gone.store(true, Ordering::Release);
        let reason = match (killed, error) {
            (Some(reason), _) => format!("{reason} {how}"),
            (None, FrameError::Ended | FrameError::Truncated) => format!("its process ended {how}"),
            (None, nonsense) => format!("its process answered with nonsense: {nonsense} {how}"),
        };
        for InFlight { what, .. } in in_flight {
            let Pending::Step(step) = what else { continue };
            let kind = if is_stopping { FailureKind::InstanceGone } else { FailureKind::StageLost };
            self.failed(step, kind, format!("the device is lost: {reason}"));
        }
        if let Some((kind, detail)) = refused {
            self.tell(EngineEvent::LoadFailed { engine, kind, detail });
        } else if !is_stopping {
            self.tell(EngineEvent::WorkerLost { engine, reason });
        }
        self.tell(EngineEvent::Unloaded { engine });
    }

    // ---- the thread that watches ----

    fn watch(&self) {
        let mut state = self.state();
        while !state.has_ended {
            let now = Instant::now();
            match state.killed_since {
                Some(since) if now.saturating_duration_since(since) > KILLED_MAX => {
                    drop(state);
                    return self.end(&FrameError::Ended);
                }
                Some(_) => {}
                None => {
                    if let Some(reason) = state.overdue(now) {
                        state.kill(reason);
                    }
                }
            }
            let look = (self.step_max / 4).clamp(LOOK_MIN, LOOK_MAX);
            state = self.state.1.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn kill(&self, reason: String) {
        self.state().kill(reason);
    }
}

impl WorkerState {
    fn kill(&mut self, reason: String) {
        self.killed_because.get_or_insert(reason);
        self.killed_since.get_or_insert_with(Instant::now);
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }

    /// What takes too long, in words.
    fn overdue(&self, now: Instant) -> Option<String> {
        let over = |since: Instant, max: Duration| now.saturating_duration_since(since) > max;
        if self.stopping_since.is_some_and(|since| over(since, STOP_MAX)) {
            return Some(format!("its process did not end within {} s and was ended", STOP_MAX.as_secs()));
        }
        let loading = self.heard.filter(|_| !self.is_ready && self.stopping_since.is_none());
        if loading.is_some_and(|heard| over(heard, LOAD_SILENCE_MAX)) {
            let seconds = LOAD_SILENCE_MAX.as_secs();
            return Some(format!("loading did not move for {seconds} s, and its process was ended"));
        }
        let InFlight { what, since, at_most } = *self.in_flight.front()?;
        over(since, at_most).then(|| {
            format!("{what} took more than {:.1} s, and its process was ended", at_most.as_secs_f32())
        })
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use exo_accelerators::DeviceAsk;
    use exo_engine::EngineOptions;
    use exo_types::{Shard, StepFrame};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const ENGINE: EngineId = EngineId(1);

    /// What is told of a worker that is this program, until it is unloaded.
    fn told(program: &str, argument: &str) -> Vec<String> {
        told_of(program, argument, |_| {})
    }

    /// As [`told`], of one with which something is done once it is started.
    fn told_of(program: &str, argument: &str, act: impl FnOnce(&mut WorkerHost)) -> Vec<String> {
        let how = WorkerProgram { program: program.into(), args: vec![argument.into()], step_max: LONG };
        let device = DeviceAsk {
            backend: exo_accelerators::Backend::Vulkan,
            which: String::new(),
            memory_max_bytes: None,
            data_dir: "/nonexistent".into(),
            heeds_quarantine: false,
        };
        let load = LoadShard {
            engine: ENGINE,
            device,
            path: "m.gguf".into(),
            shard: Shard::whole(1),
            options: EngineOptions::new(32, 1),
        };
        let (tell, events) = channel();
        let mut host = WorkerHost::start(how, load, Arc::new(move |event| drop(tell.send(event))));
        act(&mut host);
        let mut told = Vec::new();
        loop {
            match events.recv_timeout(LONG).unwrap() {
                EngineEvent::LoadFailed { detail, .. } => told.push(format!("not loaded: {detail}")),
                EngineEvent::WorkerLost { reason, .. } => told.push(format!("lost: {reason}")),
                EngineEvent::Computed { step, result, .. } => told.push(shown(step, &result)),
                EngineEvent::Unloaded { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(host.is_gone());
        told
    }

    /// What is told of a step, in a line.
    fn shown(step: u64, result: &ComputeResult) -> String {
        match result {
            ComputeResult::Failed { kind, message } => format!("step {step}: {kind:?}, {message}"),
            result => format!("step {step}: {result:?}"),
        }
    }

    /// A step of nothing.
    fn job(step: u64) -> Order {
        let frame = StepFrame::unplaced(step, Vec::new());
        Order::Compute(StepJob { commands: Vec::new(), frame, rows: Bytes::new() })
    }

    /// What the threads of a worker share that was given steps 1 and 2 some time ago and has ten seconds for
    /// each; and what is told of them.
    fn two_out(ago: Duration) -> (Inner, Receiver<EngineEvent>) {
        let (tell, events) = channel();
        let shared = Inner {
            engine: ENGINE,
            step_max: Duration::from_secs(10),
            events: Arc::new(move |event| drop(tell.send(event))),
            state: Arc::default(),
            gone: Arc::default(),
        };
        let begin = |step| shared.begin(Pending::Step(step), shared.step_max);
        assert!(begin(1) && begin(2));
        shared.state().in_flight.iter_mut().for_each(|out| out.since = out.since.checked_sub(ago).unwrap());
        (shared, events)
    }

    fn computed(step: u64) -> FromWorker {
        let result = ComputeResult::Tokens(Vec::new());
        FromWorker::Computed { step, busy: Duration::ZERO, result, memory: None }
    }

    #[test]
    fn a_step_has_its_time_from_when_the_one_in_front_of_it_is_done() {
        let (shared, _events) = two_out(Duration::from_secs(8));
        let overdue = |after_s| shared.state().overdue(Instant::now() + Duration::from_secs(after_s));
        assert_eq!(overdue(1), None);
        let late = "step 1 took more than 10.0 s, and its process was ended".to_owned();
        assert_eq!(overdue(3), Some(late));
        shared.hear(computed(1), Bytes::new());
        assert_eq!(overdue(3), None, "the second waited for the first");
        let late = "step 2 took more than 10.0 s, and its process was ended".to_owned();
        assert_eq!(overdue(11), Some(late));
        shared.hear(computed(2), Bytes::new());
        assert_eq!(overdue(60), None, "nothing is out");
    }

    #[test]
    fn rewiring_has_its_time_once_the_steps_in_front_of_it_are_done() {
        let (shared, events) = two_out(Duration::ZERO);
        assert!(shared.begin(Pending::Rewire, REWIRE_MAX));
        shared.hear(computed(1), Bytes::new());
        let overdue = |after_s| shared.state().overdue(Instant::now() + Duration::from_secs(after_s));
        assert_eq!(overdue(8), None, "the second step has ten seconds");
        shared.hear(computed(2), Bytes::new());
        assert_eq!(overdue(4), None);
        let late = "to forget its sequences took more than 5.0 s, and its process was ended".to_owned();
        assert_eq!(overdue(6), Some(late));
        shared.hear(FromWorker::Rewired, Bytes::new());
        assert_eq!(overdue(60), None);
        let told: Vec<EngineEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        assert!(matches!(told[..], [_, _, EngineEvent::Rewired { engine: ENGINE }]), "{told:?}");
        shared.hear(FromWorker::Rewired, Bytes::new());
        let killed = shared.state().killed_because.clone();
        assert!(killed.is_some_and(|why| why.contains("which it was not given")), "it was asked once");
    }

    #[test]
    fn an_answer_that_overtakes_is_none() {
        let (shared, events) = two_out(Duration::ZERO);
        shared.hear(computed(2), Bytes::new());
        assert_eq!(shared.state().in_flight.len(), 2, "both are still out");
        shared.end(&FrameError::Ended);
        let told: Vec<String> = std::iter::from_fn(|| events.try_recv().ok())
            .map(|event| match event {
                EngineEvent::Computed { step, result, .. } => shown(step, &result),
                EngineEvent::WorkerLost { reason, .. } => format!("lost: {reason}"),
                other => format!("{other:?}"),
            })
            .collect();
        let why = "it answered step 2, which it was not given yet or any more ";
        let expected = [
            format!("step 1: StageLost, the device is lost: {why}"),
            format!("step 2: StageLost, the device is lost: {why}"),
            format!("lost: {why}"),
            format!("{:?}", EngineEvent::Unloaded { engine: ENGINE }),
        ];
        assert_eq!(told, expected);
        assert!(!shared.begin(Pending::Step(3), LONG), "nothing is there to take another");
    }

    #[test]
    fn rows_travel_once_beside_their_result() {
        let rows = Bytes::from(vec![7; 1000]);
        let result = ComputeResult::Rows(rows.clone());
        let message = FromWorker::Computed { step: 1, busy: Duration::ZERO, result, memory: None };
        let mut sent = Vec::new();
        FrameWriter::new(&mut sent).write(&message, &rows).unwrap();
        assert!(sent.len() < 2 * rows.len(), "{} bytes for {} of rows", sent.len(), rows.len());
        let (shared, events) = two_out(Duration::ZERO);
        let (message, beside) = FrameReader::new(&sent[..]).read().unwrap();
        shared.hear(message, beside);
        let told = events.try_recv().unwrap();
        let EngineEvent::Computed { step: 1, result, .. } = told else { panic!("{told:?}") };
        assert_eq!(result, ComputeResult::Rows(rows));
    }

    #[test]
    fn why_a_worker_did_not_load_is_told_with_its_code() {
        let (shared, events) = two_out(Duration::ZERO);
        let (kind, detail) = (LoadFault::Open, "no such file".to_owned());
        shared.hear(FromWorker::LoadFailed { kind, detail }, Bytes::new());
        shared.end(&FrameError::Ended);
        let told: Vec<EngineEvent> = std::iter::from_fn(|| events.try_recv().ok()).collect();
        let is_it = |event: &EngineEvent| match event {
            EngineEvent::LoadFailed { kind, detail, .. } => {
                (*kind, &**detail) == (LoadFault::Open, "no such file")
            }
            _ => false,
        };
        assert!(told.iter().any(is_it), "{told:?}");
    }

    #[test]
    fn both_steps_of_a_worker_that_dies_are_told() {
        // It reads nothing and answers nothing.
        let mut told =
            told_of("sleep", "1", |host| [1, 2].into_iter().for_each(|step| host.order(job(step))));
        assert_eq!(told.pop().unwrap(), "lost: its process ended (exit status: 0)");
        assert!(told.len() == 2, "{told:?}");
        assert!(
            told[0].starts_with("step 1: StageLost, ") && told[1].starts_with("step 2: StageLost, "),
            "{told:?}"
        );
    }

    #[test]
    fn a_worker_that_ends_at_once_is_a_loss() {
        assert_eq!(told("false", ""), ["lost: its process ended (exit status: 1)"]);
    }

    #[test]
    fn what_it_wrote_last_is_part_of_the_reason() {
        let mut told = told("sh", "-c");
        assert!(told.pop().unwrap().contains("it wrote: "), "the shell complains of its argument");
    }

    #[test]
    fn a_worker_that_answers_nonsense_is_ended() {
        // It says back what it is told, and that is nothing a worker says.
        let told = told("cat", "-");
        assert!(told.len() == 1 && told[0].starts_with("lost: "), "{told:?}");
    }

    #[test]
    fn a_worker_that_ends_because_it_was_told_to_is_no_loss() {
        // It counts what it is told until its input closes, and ends at once then.
        for _ in 0..20 {
            assert!(told_of("wc", "-c", WorkerHost::stop).is_empty());
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let told = told("/nonexistent/exo", "worker");
        assert!(told[0].contains("cannot start /nonexistent/exo"), "{told:?}");
    }
}
