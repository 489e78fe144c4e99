//! What stands behind the handles of this device, and the way back from a handle to it.

use exo_backend::{Buffer, DeviceOwned, KvCache, Owner, Ticket, Weight};

use crate::driver::DeviceMemory;

/// Working memory.
#[derive(Debug)]
pub(crate) struct CudaBuffer {
    pub(crate) owner: Owner,
    pub(crate) memory: DeviceMemory,
    pub(crate) _ticket: Ticket,
}

/// A weight in the layout of [`crate::layout`]: three planes of one allocation.
#[derive(Debug)]
pub(crate) struct CudaWeight {
    pub(crate) owner: Owner,
    pub(crate) memory: DeviceMemory,
    /// Bytes at which the high bits and the scales begin.
    pub(crate) high_at: u64,
    pub(crate) scales_at: u64,
    /// The only row of floats as f32: norms, biases and frequencies.
    pub(crate) vector: Option<DeviceMemory>,
    pub(crate) _ticket: Ticket,
}

/// Keys and values of one layer: `[pages, K, P]` rows each.
#[derive(Debug)]
pub(crate) struct KvLayer {
    pub(crate) keys: DeviceMemory,
    pub(crate) values: DeviceMemory,
}

#[derive(Debug)]
pub(crate) struct CudaKv {
    pub(crate) owner: Owner,
    pub(crate) layers: Vec<KvLayer>,
    /// Bytes of one row of D elements.
    pub(crate) row_bytes: usize,
    pub(crate) _ticket: Ticket,
}

impl DeviceOwned for CudaBuffer {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl DeviceOwned for CudaWeight {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl DeviceOwned for CudaKv {
    fn owner(&self) -> Owner {
        self.owner
    }
}

/// The buffer behind a handle. Panics if another device made it.
pub(crate) fn buffer(handle: &Buffer, owner: Owner) -> &CudaBuffer {
    owner.behind(&*handle.storage, handle)
}

/// The weight behind a handle. Panics if another device made it.
pub(crate) fn weight(handle: &Weight, owner: Owner) -> &CudaWeight {
    owner.behind(&*handle.storage, handle)
}

/// The cache behind a handle. Panics if another device made it.
pub(crate) fn kv(handle: &KvCache, owner: Owner) -> &CudaKv {
    owner.behind(&*handle.storage, handle)
}
