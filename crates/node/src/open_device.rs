//! Opening one accelerator in this process.

use std::sync::Arc;

use exo_accelerators::DeviceAsk;
use exo_backend::Device;
use exo_types::DeviceFacts;

use crate::Host;

/// A device and what it is.
pub type Opened = (Arc<dyn Device>, DeviceFacts);

/// Why it cannot be used.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Why the processor does not stand in for a device that is in quarantine.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    #[error(transparent)]
    Open(Failure),
    #[error("it was not open after {seconds} s")]
    Late { seconds: u64 },
    #[error("a task of this node broke off")]
    BrokenOff(#[from] tokio::task::JoinError),
}

/// Opens an accelerator in this process; makes it compute and compare, and finds out what it can do, if
/// `is_examined`.
pub fn open_asked(ask: &DeviceAsk, host: &dyn Host, is_examined: bool) -> Result<Opened, Failure> {
    Ok(exo_accelerators::open(ask, None, || shared_free_bytes(host), is_examined)?)
}

/// What one that shares the machine's memory has of it.
pub fn shared_free_bytes(host: &dyn Host) -> u64 {
    host.processor().memory_free_bytes
}
