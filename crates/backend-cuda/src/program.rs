//! A checked recording as launches, and one run of it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::{
    Buffer, CancelToken, Capacity, DeviceOwned, Exchange, FAULT_WORDS, Op, Owner, Program, Recording,
    RunError, RunShape, Ticket, check_op,
};

use crate::api::CallError;
use crate::driver::DeviceMemory;
use crate::graph::{Graphs, LaunchMode};
use crate::inner::DeviceInner;
use crate::launch::{Launch, Planner, Scratch, rounded_bytes, spans_bytes};
use crate::queue::{Captured, Queue};

/// Bytes of the place where a program's kernels report faults.
pub(crate) const FAULT_BYTES: u64 = 4 * FAULT_WORDS as u64;

#[derive(Debug)]
pub(crate) enum Step {
    Launch(Launch),
    Exchange { x: Buffer, width: usize },
    LayerBoundary { layer: u32 },
}

/// What a program is made of; shared with the streams that ran it until they know that it went well.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) owner: Owner,
    pub(crate) steps: Vec<Step>,
    capacity: Capacity,
    has_exchange: bool,
    graphs: Option<Mutex<Graphs>>,
    pub(crate) fault: DeviceMemory,
    _scratch: Scratch,
    _ticket: Ticket,
    /// Keeps the operands, whose addresses the launches hold.
    _ops: Vec<Op>,
}

/// A recording on a card.
#[derive(Debug)]
pub struct CudaProgram {
    pub(crate) inner: Arc<Inner>,
}

impl DeviceOwned for CudaProgram {
    fn owner(&self) -> Owner {
        self.inner.owner
    }
}

impl Program for CudaProgram {}

impl CudaProgram {
    /// Panics on operands that contradict each other or belong elsewhere.
    pub(crate) fn new(device: &Arc<DeviceInner>, recording: Recording) -> Result<Self, RunError> {
        let mut capacity = Capacity::default();
        recording.ops.iter().for_each(|op| check_op(op, device.owner, &mut capacity));
        let most = |a: (u64, u64), b: (u64, u64)| (a.0.max(b.0), a.1.max(b.1));
        let rounded = |op| rounded_bytes(op, device.has_tensor_cores);
        let (rounded, scales) = recording.ops.iter().map(rounded).fold((0, 0), most);
        let (spans, counts) = recording.ops.iter().map(spans_bytes).fold((0, 0), most);
        let what = "what the kernels of a step leave for each other";
        let ticket = device.ledger.take(what, rounded + scales + spans + counts)?;
        let scratch = Scratch {
            rounded: device.allocate(what, rounded)?,
            scales: device.allocate(what, scales)?,
            spans: device.allocate(what, spans)?,
            spans_done: device.zeroed(what, counts)?,
        };
        let fault = device.zeroed("the faults of kernels", FAULT_BYTES)?;
        device.settle()?;
        let mut planner = Planner { device, fault: &fault, scratch: &scratch, rounded: None };
        let (mut steps, mut launches) = (Vec::new(), Vec::new());
        let mut rest = &recording.ops[..];
        while let Some(op) = rest.first() {
            let planned = planner.plan(rest, &mut launches)?;
            rest = &rest[planned..];
            steps.extend(launches.drain(..).map(Step::Launch));
            match op {
                Op::Exchange { x, width } => steps.push(Step::Exchange { x: x.clone(), width: *width }),
                Op::LayerBoundary { layer } => steps.push(Step::LayerBoundary { layer: *layer }),
                _ => {}
            }
        }
        let inner = Inner {
            owner: device.owner,
            has_exchange: steps.iter().any(|step| matches!(step, Step::Exchange { .. })),
            steps,
            capacity,
            graphs: device.has_graphs.then(Mutex::default),
            fault,
            _scratch: scratch,
            _ticket: ticket,
            _ops: recording.ops,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    pub(crate) fn assert_fits(&self, shape: RunShape) {
        self.capacity.assert_holds(shape);
    }

    /// Whether a run is one piece of work, which may be captured: no one to exchange with, no one who
    /// cancelled.
    pub(crate) fn is_whole(&self, exchange: &dyn Exchange, cancel: &CancelToken) -> bool {
        !cancel.is_cancelled() && (exchange.is_alone() || !self.has_exchange)
    }

    /// Queues a whole run, as a graph if it came before.
    pub(crate) fn run_whole(
        &self,
        device: &DeviceInner,
        queue: &Queue,
        shape: RunShape,
    ) -> Result<(), RunError> {
        let replay = |captured: &Captured| {
            device.replays.fetch_add(1, Ordering::Relaxed);
            queue.replay(captured)
        };
        let queued = match &self.graphs {
            None => self.launch_all(queue, shape),
            Some(graphs) => {
                let mut graphs = graphs.lock().unwrap_or_else(PoisonError::into_inner);
                match graphs.plan(shape) {
                    LaunchMode::Plain => self.launch_all(queue, shape),
                    LaunchMode::Replay(captured) => replay(captured),
                    LaunchMode::Capture => match queue.capture(|| self.launch_all(queue, shape)) {
                        Ok(captured) => {
                            let replayed = replay(&captured);
                            graphs.keep(shape, captured);
                            replayed
                        }
                        Err(error) => {
                            graphs.refuse(shape);
                            tracing::warn!(%error, "a step could not be captured as a CUDA graph");
                            self.launch_all(queue, shape)
                        }
                    },
                }
            }
        };
        queued.map_err(|error| device.context.lost_run(&error))
    }

    fn launch_all(&self, queue: &Queue, shape: RunShape) -> Result<(), CallError> {
        let mut launches = self.steps.iter().filter_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            _ => None,
        });
        launches.try_for_each(|launch| start(queue, launch, shape))
    }
}

/// Queues one kernel, if the run has rows for it.
pub(crate) fn start(queue: &Queue, launch: &Launch, shape: RunShape) -> Result<(), CallError> {
    match launch.size(shape) {
        Some(grid) => queue.launch(&launch.function, grid, launch.threads, &launch.args(shape)),
        None => Ok(()),
    }
}
