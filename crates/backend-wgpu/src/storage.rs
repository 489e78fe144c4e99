//! What stands behind the handles of this device, and the way back from a handle to it.

use exo_backend::{Buffer, DeviceOwned, KvCache, Owner, Ticket, Weight};

use crate::memory::Allocation;

/// Working memory.
#[derive(Debug)]
pub(crate) struct GpuBuffer {
    pub(crate) owner: Owner,
    pub(crate) data: Allocation,
}

/// Some rows of a weight: as many as one binding holds.
#[derive(Debug)]
pub(crate) struct WeightBuffer {
    /// Its first row in the weight.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) buffer: wgpu::Buffer,
}

/// A weight in the layout of [`crate::layout`].
#[derive(Debug)]
pub(crate) struct GpuWeight {
    pub(crate) owner: Owner,
    pub(crate) pieces: Vec<WeightBuffer>,
    /// The only row of floats as f32: norms, biases and frequencies.
    pub(crate) vector: Option<wgpu::Buffer>,
    pub(crate) _ticket: Ticket,
}

/// Keys and values of one layer for some of its heads, as many as one binding holds: `[pages, K, P, D']`
/// each, D' filling whole u32.
#[derive(Debug)]
pub(crate) struct KvPart {
    pub(crate) first_head: usize,
    pub(crate) heads: usize,
    pub(crate) keys: wgpu::Buffer,
    pub(crate) values: wgpu::Buffer,
}

#[derive(Debug)]
pub(crate) struct GpuKv {
    pub(crate) owner: Owner,
    /// The parts of each layer, alike in all of them.
    pub(crate) layers: Vec<Vec<KvPart>>,
    /// Bytes of one row of D elements.
    pub(crate) row_bytes: usize,
    pub(crate) _ticket: Ticket,
}

impl DeviceOwned for GpuBuffer {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl DeviceOwned for GpuWeight {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl DeviceOwned for GpuKv {
    fn owner(&self) -> Owner {
        self.owner
    }
}

/// The buffer behind a handle. Panics if another device made it.
pub(crate) fn buffer(handle: &Buffer, owner: Owner) -> &GpuBuffer {
    owner.behind(&*handle.storage, handle)
}

/// The weight behind a handle. Panics if another device made it.
pub(crate) fn weight(handle: &Weight, owner: Owner) -> &GpuWeight {
    owner.behind(&*handle.storage, handle)
}

/// The cache behind a handle. Panics if another device made it.
pub(crate) fn kv(handle: &KvCache, owner: Owner) -> &GpuKv {
    owner.behind(&*handle.storage, handle)
}
