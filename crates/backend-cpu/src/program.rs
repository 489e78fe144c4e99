//! A checked recording, and running it op by op.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exo_backend::{
    CancelToken, Capacity, DeviceOwned, Exchange, Op, Program, Recording, RunError, RunShape, Weight,
    check_op,
};
use exo_types::ByteSource;

use crate::inner::DeviceInner;
use crate::ops::{self, Operands};
use crate::storage::{self, Owner};

/// A recording whose operands were found to fit each other and this device.
pub struct CpuProgram {
    owner: Owner,
    ops: Vec<Op>,
    /// Runs of `ops` that are computed together: one op, or products of the same rows.
    steps: Vec<Range<usize>>,
    capacity: Capacity,
    /// Whether weights may have rows in a file. Once they have none they never will again.
    reads_files: AtomicBool,
}

impl std::fmt::Debug for CpuProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuProgram({} ops)", self.ops.len())
    }
}

impl DeviceOwned for CpuProgram {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl Program for CpuProgram {}

impl CpuProgram {
    /// Panics on operands that contradict each other or belong elsewhere.
    pub(crate) fn new(inner: &DeviceInner, recording: Recording) -> Self {
        let mut capacity = Capacity::default();
        for op in &recording.ops {
            check_op(op, inner.owner, &mut capacity);
        }
        let ops = recording.ops;
        let steps = steps(&ops);
        Self { owner: inner.owner, ops, steps, capacity, reads_files: AtomicBool::new(true) }
    }

    pub(crate) fn run(
        &self,
        inner: &DeviceInner,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        self.capacity.assert_holds(shape);
        let sources = self.sources();
        let result = self.steps.iter().try_for_each(|step| match &self.ops[step.clone()] {
            [Op::LayerBoundary { layer }] if cancel.is_cancelled() => {
                Err(RunError::Cancelled { layer: *layer })
            }
            [Op::Exchange { x, width }] => {
                // Without the turn: the sum may wait for another stream of this very device.
                let mut x = storage::buffer(x, self.owner).f32().write();
                Ok(exchange.sum(&mut x[..shape.tokens * width])?)
            }
            ops => {
                let turn = inner.pool.turn();
                let DeviceInner { level, rounded, angles, pace, .. } = inner;
                let operands = Operands { owner: self.owner, level: *level, shape, turn, rounded, angles };
                // In its turn: what rests is the device, whoever computes on it.
                pace.keep(|| match ops {
                    [op] => ops::run(op, &operands),
                    products => {
                        ops::products(products, &operands);
                        Ok(())
                    }
                })
            }
        });
        // A lost file may have caused whatever else went wrong, so it is the answer that explains most.
        sources.iter().try_for_each(|source| source.check())?;
        result
    }

    /// The files that weights are read from now, each once.
    fn sources(&self) -> Vec<Arc<dyn ByteSource>> {
        let mut sources: Vec<Arc<dyn ByteSource>> = Vec::new();
        if !self.reads_files.load(Ordering::Relaxed) {
            return sources;
        }
        for weight in self.ops.iter().flat_map(weights_of) {
            if let Some(tensor) = storage::weight(weight, self.owner).place.file()
                && !sources.iter().any(|known| Arc::ptr_eq(known, &tensor.source))
            {
                sources.push(Arc::clone(&tensor.source));
            }
        }
        self.reads_files.store(!sources.is_empty(), Ordering::Relaxed);
        sources
    }
}

/// Cuts `ops` where neighbours do not go together.
fn steps(ops: &[Op]) -> Vec<Range<usize>> {
    let mut steps: Vec<Range<usize>> = Vec::new();
    for at in 0..ops.len() {
        match steps.last_mut() {
            Some(step) if ops[step.clone()].iter().all(|op| ops::go_together(op, &ops[at])) => step.end += 1,
            _ => steps.push(at..at + 1),
        }
    }
    steps
}

fn weights_of(op: &Op) -> Vec<&Weight> {
    match op {
        Op::Embed { table, .. } => vec![table],
        Op::RmsNorm { weight, .. } => vec![weight],
        Op::MatMul { weight, bias, .. } => std::iter::once(weight).chain(bias).collect(),
        Op::Rope { frequencies, .. } => vec![frequencies],
        _ => Vec::new(),
    }
}
