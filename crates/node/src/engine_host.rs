//! A running engine, wherever it is: on a thread of this process ([`crate::engine_thread`]), or in a process
//! of its own ([`crate::worker`]) where a driver is involved.

use crate::engine_thread::{Order, ThreadHost};
use crate::worker::WorkerHost;

/// A running engine. Dropping it stops it at the next layer.
pub enum EngineHost {
    Thread(ThreadHost),
    Worker(WorkerHost),
}

impl EngineHost {
    /// Hands over what it does next. The result of a step comes as an event, and `Rewired` behind the results
    /// of the steps before; an engine that died is reported by its `Unloaded`.
    pub fn order(&self, order: Order) {
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
