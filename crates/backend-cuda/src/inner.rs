//! What the device, its programs and its streams share.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exo_backend::{AllocError, Ledger, Owner, RunError};

use crate::api::CallError;
use crate::driver::{Context, DeviceMemory};
use crate::kernels::Kernels;
use crate::queue::{Queue, wait};

/// Longest wait for work that only prepares something: an upload at load, a cleared buffer.
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// What the device, its programs and its streams share.
#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub(crate) owner: Owner,
    pub(crate) context: Arc<Context>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) kernels: Kernels,
    pub(crate) has_tensor_cores: bool,
    /// From how many large tiles on a product takes them.
    pub(crate) large_tiles_min: usize,
    pub(crate) has_graphs: bool,
    /// Runs that were launched as graphs.
    pub(crate) replays: AtomicU64,
    /// What fills memory that is given out.
    pub(crate) loading: Mutex<Queue>,
}

impl DeviceInner {
    /// Memory that counts in no book of ours; anything is in it.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Result<DeviceMemory, AllocError> {
        self.context.check()?;
        self.context.allocate(bytes).map_err(|error| match error.is_out_of_memory() {
            true => {
                let free_bytes = self.context.memory().map_or(0, |(free, _)| free);
                AllocError::OutOfMemory { what: what.to_owned(), needed_bytes: bytes, free_bytes }
            }
            false => self.context.lost(&error),
        })
    }

    /// Memory of zeros. The caller settles.
    pub(crate) fn zeroed(&self, what: &str, bytes: u64) -> Result<DeviceMemory, AllocError> {
        let memory = self.allocate(what, bytes)?;
        self.with_loading(|queue| queue.clear(&memory, 0, bytes))?;
        Ok(memory)
    }

    /// Copies to the card. The caller settles.
    pub(crate) fn fill(&self, memory: &DeviceMemory, at: u64, data: &[u8]) -> Result<(), AllocError> {
        self.with_loading(|queue| queue.upload(memory, at, data))
    }

    /// Waits until what was filled is there for every stream.
    pub(crate) fn settle(&self) -> Result<(), AllocError> {
        let queue = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        match wait(&self.context, &queue, SETTLE_MAX) {
            Ok(()) => Ok(()),
            Err(RunError::Alloc(error)) => Err(error),
            Err(late) => Err(AllocError::DeviceLost { reason: late.to_string() }),
        }
    }

    fn with_loading(&self, work: impl FnOnce(&Queue) -> Result<(), CallError>) -> Result<(), AllocError> {
        let queue = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        work(&queue).map_err(|error| self.context.lost(&error))
    }
}
