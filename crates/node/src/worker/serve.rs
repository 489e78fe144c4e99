//! The child's side: what `exo worker` does.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exo_accelerators::{Survey, SurveyAsk, chain};
use exo_backend::{CancelToken, Device};
use exo_cluster::{ComputeResult, LoadFault};
use exo_machine::StepJob;
use exo_stdx::Mutex;
use exo_types::FailureKind;

use super::frames::{FrameError, FrameReader, FrameWriter};
use super::messages::{FromWorker, LoadShard, ToWorker, WorkerMemory};
use crate::engine_thread::{self, EngineEvent, Events, LoadRequest, Order};
use crate::host::Host;
use crate::open_device::shared_free_bytes;

/// From the end of our input to our own: a driver may be inside something that does not return.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Free memory changes by what others do: told this often, beside a step.
const MEMORY_EVERY: Duration = Duration::from_secs(1);

/// Sensors are read this often, and memory while nothing is computed.
const READ_EVERY: Duration = Duration::from_secs(2);

type Output<W> = Arc<Mutex<FrameWriter<W>>>;

/// Serves one node until `input` ends. `die` must end the process at once: it is called when that takes too
/// long.
pub fn serve<R, W>(input: R, output: W, host: &dyn Host, die: impl FnOnce() + Send + 'static)
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let (cancel, output) = (CancelToken::default(), Arc::new(Mutex::new(FrameWriter::new(output))));
    let (orders, inbox) = channel();
    let (steps, jobs) = channel();
    let (served, is_served) = channel();
    let reader = Reader { orders, steps, cancel: cancel.clone(), is_served };
    let reading = std::thread::Builder::new().name("node".to_owned());
    if let Err(error) = reading.spawn(move || reader.run(input, die)) {
        let reason = format!("no thread for its orders: {error}");
        tell(&output, FromWorker::Refused { code: "worker_not_started".to_owned(), reason }, &[]);
        return;
    }
    match inbox.recv() {
        Ok(ToWorker::Open(ask)) => {
            let answer = match exo_accelerators::examine(&ask, || shared_free_bytes(host)) {
                Ok(info) => FromWorker::Opened(Box::new(info)),
                Err(error) => FromWorker::Refused { code: error.code().to_owned(), reason: chain(&error) },
            };
            tell(&output, answer, &[]);
        }
        Ok(ToWorker::Survey(ask)) => survey(&ask, &output),
        Ok(ToWorker::Load(shard)) => load(&shard, host, &jobs, &cancel, &output),
        Ok(ToWorker::Step { .. } | ToWorker::Rewire { .. }) | Err(_) => {}
    }
    // Never dropped: a driver may hang in what it does when a process ends, and then the reader ends it.
    std::mem::forget::<Sender<()>>(served);
}

/// Tells what a backend shows, and before that, that its driver has listed it.
fn survey<W: Write>(ask: &SurveyAsk, output: &Output<W>) {
    let surveyed = exo_accelerators::survey(ask, || tell(output, FromWorker::Listed, &[]));
    let json = |survey: Survey| serde_json::to_vec(&survey).map_err(|error| error.to_string());
    match surveyed.map(json) {
        Ok(Ok(json)) => tell(output, FromWorker::Surveyed, &json),
        Ok(Err(reason)) => {
            tell(output, FromWorker::Refused { code: "driver_broken".to_owned(), reason }, &[]);
        }
        Err(error) => {
            let (code, reason) = (error.code().to_owned(), chain(&error));
            tell(output, FromWorker::Refused { code, reason }, &[]);
        }
    }
}

/// Reads what the node says, so that its end is noticed while the device works.
struct Reader {
    /// What it serves: one device, one survey or one shard.
    orders: Sender<ToWorker>,
    steps: Sender<Order>,
    cancel: CancelToken,
    /// Says nothing for as long as this process lives.
    is_served: Receiver<()>,
}

impl Reader {
    fn run(self, input: impl Read, die: impl FnOnce()) {
        let mut from = FrameReader::new(input);
        loop {
            let (message, rows) = match from.read() {
                Ok(frame) => frame,
                Err(FrameError::Ended) => break,
                Err(error) => {
                    // Its last words reach the node.
                    tracing::error!(%error, "the worker does not understand its node");
                    break;
                }
            };
            // No one takes them any more once serving has ended.
            match message {
                ToWorker::Step { commands, frame } => {
                    drop(self.steps.send(Order::Compute(StepJob { commands, frame, rows })));
                }
                ToWorker::Rewire { keep } => drop(self.steps.send(Order::Rewire { keep })),
                order => drop(self.orders.send(order)),
            }
        }
        self.cancel.cancel();
        drop((self.orders, self.steps));
        if self.is_served.recv_timeout(LEAVE_MAX) == Err(RecvTimeoutError::Timeout) {
            die();
        }
    }
}

fn load<W: Write + Send + 'static>(
    load: &LoadShard,
    host: &dyn Host,
    jobs: &Receiver<Order>,
    cancel: &CancelToken,
    output: &Output<W>,
) {
    let opened = crate::open_device::open_asked(&load.device, host, false)
        .map_err(|error| (LoadFault::Device, chain(&*error)));
    let opened = opened.and_then(|(device, _)| {
        let model = exo_formats::open(Path::new(&load.path)).map_err(|e| (LoadFault::Open, chain(&e)))?;
        Ok((device, Arc::new(model)))
    });
    let (device, model) = match opened {
        Ok(opened) => opened,
        Err((kind, detail)) => return tell(output, FromWorker::LoadFailed { kind, detail }, &[]),
    };
    let events = events(device.clone(), output.clone());
    let reading = watch_device(&device, output);
    let (shard, options, step_max) = (load.shard, load.options, engine_thread::STEP_MAX);
    engine_thread::run(
        LoadRequest { engine: load.engine, device, model, shard, options, step_max },
        jobs,
        cancel,
        &events,
    );
    drop(reading);
}

/// Tells memory and sensors until what it gives back is dropped. Without a thread for it they are told with
/// the steps, or not at all.
fn watch_device<W: Write + Send + 'static>(device: &Arc<dyn Device>, output: &Output<W>) -> Sender<()> {
    let (device, output) = (Arc::downgrade(device), output.clone());
    let (end, ended) = channel::<()>();
    let watching = std::thread::Builder::new().name("sensors".to_owned());
    let watch = move || {
        // The device goes with its shard: this thread must not keep it.
        while let Some(device) = device.upgrade() {
            let (memory, monitor) = (device.memory().into(), device.monitor());
            drop(device);
            tell(&output, FromWorker::Reading { memory, monitor }, &[]);
            if ended.recv_timeout(READ_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    if let Err(error) = watching.spawn(watch) {
        tracing::debug!(%error, "no thread for the sensors");
    }
    end
}

/// Sends what the engine's thread tells.
fn events<W: Write + Send + 'static>(device: Arc<dyn Device>, output: Output<W>) -> Events {
    let told = Mutex::new(Instant::now());
    let memory = move || WorkerMemory::from(device.memory());
    let is_due = move || {
        let mut told = told.lock();
        let due = told.elapsed() >= MEMORY_EVERY;
        if due {
            *told = Instant::now();
        }
        due
    };
    Arc::new(move |event| match event {
        EngineEvent::Progress { done_bytes, total_bytes, .. } => {
            tell(&output, FromWorker::Progress { done_bytes, total_bytes, memory: memory() }, &[]);
        }
        EngineEvent::Ready { loaded, slower_because, .. } => {
            let ready = FromWorker::Ready { loaded, slower_because, memory: memory() };
            tell(&output, ready, &[]);
        }
        EngineEvent::LoadFailed { kind, detail, .. } => {
            tell(&output, FromWorker::LoadFailed { kind, detail }, &[]);
        }
        EngineEvent::Computed { step, result, busy, .. } => {
            let rows = if let ComputeResult::Rows(rows) = &result { rows.clone() } else { Bytes::new() };
            let memory = is_due().then(&memory);
            computed(&output, FromWorker::Computed { step, busy, result, memory }, &rows);
        }
        EngineEvent::Rewired { .. } => tell(&output, FromWorker::Rewired, &[]),
        // Graphics processors copy weights when they take them in.
        EngineEvent::Unpacked { .. } | EngineEvent::WorkerLost { .. } | EngineEvent::Unloaded { .. } => {}
    })
}

/// Sends the result of a step; one that fits no frame is a failed step, not silence.
fn computed<W: Write>(output: &Output<W>, message: FromWorker, rows: &[u8]) {
    let sent = output.lock().write(&message, rows);
    let (Err(error @ FrameError::TooLong { .. }), FromWorker::Computed { step, busy, .. }) = (sent, message)
    else {
        return; // a node that is gone hears nothing; that it is gone, the reader sees
    };
    let message = format!("the result of step {step} cannot be sent: {error}");
    let result = ComputeResult::Failed { kind: FailureKind::Device, message };
    tell(output, FromWorker::Computed { step, busy, result, memory: None }, &[]);
}

/// A node that is gone hears nothing; that it is gone, the reader sees.
fn tell<W: Write>(output: &Output<W>, message: FromWorker, rows: &[u8]) {
    let sent = output.lock().write(&message, rows);
    if let Err(error) = sent {
        tracing::debug!(%error, "the node does not hear");
    }
}
