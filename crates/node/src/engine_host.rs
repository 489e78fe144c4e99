//! A running engine, wherever it is: on a thread of this process ([`crate::engine_thread`]), or in a process
//! of its own ([`crate::worker`]) where a driver is involved.

use exo_machine::StepJob;
use exo_types::PageKey;

use crate::engine_thread::{Order, ThreadHost};
use crate::worker::WorkerHost;

/// A running engine. Dropping it stops it at the next layer.
pub enum EngineHost {
    Thread(ThreadHost),
    Worker(WorkerHost),
}

impl EngineHost {
    /// Hands over a step. The result comes as an event; an engine that died is reported by its `Unloaded`.
    pub fn compute(&self, job: StepJob) {
        self.order(Order::Compute(job));
    }

    /// Begins another term or placement, behind the steps that it was handed before: it forgets sequences and
    /// all kept pages but `keep`, and keeps its weights. `Rewired` follows the results of those steps.
    pub fn rewire(&self, keep: Vec<PageKey>) {
        self.order(Order::Rewire { keep });
    }

    fn order(&self, order: Order) {
        match self {
            Self::Thread(thread) => thread.order(order),
            Self::Worker(worker) => worker.order(order),
        }
    }

    /// Asks it to free everything and end: `Unloaded` follows.
    pub fn stop(&mut self) {
        match self {
            Self::Thread(thread) => thread.stop(),
            Self::Worker(worker) => worker.stop(),
        }
    }

    /// Its process, if it has one of its own.
    pub fn worker(&self) -> Option<&WorkerHost> {
        match self {
            Self::Thread(_) => None,
            Self::Worker(worker) => Some(worker),
        }
    }
}
