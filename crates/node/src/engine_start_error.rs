//! Why no engine was started for a shard.

use exo_store::StoreError;
use exo_types::DeviceId;

/// Why no engine was started for a shard.
#[derive(Debug, thiserror::Error)]
pub enum EngineStartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is lost, or there is none of that name.
    #[error("this node computes on no device {device} at present")]
    NoDevice { device: DeviceId },
    #[error("a task of this node broke off")]
    BrokenOff(#[from] tokio::task::JoinError),
}
