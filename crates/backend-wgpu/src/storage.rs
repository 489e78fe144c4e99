//! What stands behind the handles of this device, and the way back from a handle to it.

use std::sync::atomic::{AtomicU64, Ordering};

use exo_backend::{Buffer, KvCache, Owns, Storage, Ticket, Weight};

use crate::memory::Allocation;

/// Tells the handles of one open device from those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Owns for Owner {
    fn assert_owns_buffer(&self, handle: &Buffer) {
        buffer(handle, *self);
    }

    fn assert_owns_weight(&self, handle: &Weight) {
        weight(handle, *self);
    }

    fn assert_owns_kv(&self, handle: &KvCache) {
        kv(handle, *self);
    }
}

/// Working memory.
#[derive(Debug)]
pub(crate) struct GpuBuffer {
    pub(crate) owner: Owner,
    pub(crate) data: Allocation,
}

/// Some rows of a weight: as many as one binding holds.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Its first row in the weight.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) buffer: wgpu::Buffer,
}

/// A weight in the layout of [`crate::layout`].
#[derive(Debug)]
pub(crate) struct GpuWeight {
    pub(crate) owner: Owner,
    pub(crate) pieces: Vec<Piece>,
    /// The only row of floats as f32: norms, biases and frequencies.
    pub(crate) vector: Option<wgpu::Buffer>,
    pub(crate) _ticket: Ticket,
}

/// Keys and values of one layer: `[pages, K, P, D']` each, D' filling whole u32.
#[derive(Debug)]
pub(crate) struct KvLayer {
    pub(crate) keys: wgpu::Buffer,
    pub(crate) values: wgpu::Buffer,
}

#[derive(Debug)]
pub(crate) struct GpuKv {
    pub(crate) owner: Owner,
    pub(crate) layers: Vec<KvLayer>,
    /// u32 of one row of D elements.
    pub(crate) words: usize,
    pub(crate) _ticket: Ticket,
}

fn own<'a, T: 'static>(
    storage: &'a Storage,
    owner: Owner,
    of: impl Fn(&T) -> Owner,
    what: &dyn std::fmt::Debug,
) -> &'a T {
    let inner = storage.downcast_ref::<T>();
    let inner = inner.unwrap_or_else(|| panic!("{what:?} belongs to another backend"));
    assert!(of(inner) == owner, "{what:?} belongs to another device");
    inner
}

/// The buffer behind a handle. Panics if another device made it.
pub(crate) fn buffer(handle: &Buffer, owner: Owner) -> &GpuBuffer {
    own(&handle.storage, owner, |b: &GpuBuffer| b.owner, handle)
}

/// The weight behind a handle. Panics if another device made it.
pub(crate) fn weight(handle: &Weight, owner: Owner) -> &GpuWeight {
    own(&handle.storage, owner, |w: &GpuWeight| w.owner, handle)
}

/// The cache behind a handle. Panics if another device made it.
pub(crate) fn kv(handle: &KvCache, owner: Owner) -> &GpuKv {
    own(&handle.storage, owner, |k: &GpuKv| k.owner, handle)
}
