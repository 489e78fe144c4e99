//! What the device, its programs and its streams share.

use exo_backend::Owner;

use crate::memory::Memory;
use crate::pipelines::Pipelines;
use crate::queue::Queue;

/// What the device, its programs and its streams share.
#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub(crate) owner: Owner,
    pub(crate) queue: Queue,
    pub(crate) memory: Memory,
    pub(crate) pipelines: Pipelines,
    pub(crate) split_bytes_max: u64,
    pub(crate) has_subgroups: bool,
    pub(crate) is_fusing: bool,
    /// Storage buffers that a kernel may have.
    pub(crate) storage_buffers_max: usize,
}
