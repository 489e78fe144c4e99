//! The cache of keys and values: its memory, where things lie in it ([`KvLayout`]), and single rows of it.

mod layout;
mod rows;

use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use exo_backend::{AllocError, DeviceOwned, KvCache, KvShape, Ticket};

pub(crate) use layout::{BLOCK, KvLayout};
pub(crate) use rows::{Half, WriteRow, read_row};

use crate::memory::{Block, Heap, PageSize};
use crate::storage::{LockedBlock, Owner};

/// Keys and values of many sequences.
#[derive(Debug)]
pub(crate) struct CpuKv {
    pub(crate) owner: Owner,
    pub(crate) layout: KvLayout,
    bytes: LockedBlock<u8>,
    _ticket: Ticket,
}

impl CpuKv {
    /// Bytes of a cache of that shape; `u64::MAX` if it cannot be addressed.
    pub(crate) fn booked_bytes(shape: &KvShape) -> u64 {
        KvLayout::new(shape).map_or(u64::MAX, |layout| layout.bytes(shape.pages) as u64)
    }

    /// All zero. Panics on a shape that cannot be addressed: its bytes could not be booked.
    pub(crate) fn zeroed(
        heap: &Heap,
        owner: Owner,
        shape: &KvShape,
        ticket: Ticket,
    ) -> Result<Self, AllocError> {
        let layout = KvLayout::new(shape).expect("a cache whose bytes were booked can be addressed");
        let bytes =
            LockedBlock::zeroed(heap, "a key-value cache", layout.bytes(shape.pages), PageSize::Huge)?;
        Ok(Self { owner, layout, bytes, _ticket: ticket })
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Block<u8>> {
        self.bytes.read()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Block<u8>> {
        self.bytes.write()
    }
}

impl DeviceOwned for CpuKv {
    fn owner(&self) -> Owner {
        self.owner
    }
}

/// The cache behind a handle. Panics if another device made it.
pub(crate) fn of(handle: &KvCache, owner: Owner) -> &CpuKv {
    owner.behind(&*handle.storage, handle)
}
