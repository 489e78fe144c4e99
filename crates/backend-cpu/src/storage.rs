//! What stands behind the handles of this device, and the way back from a handle to it.

use std::ops::{Deref, Range};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::Pod;
pub(crate) use exo_backend::Owner;
use exo_backend::{AllocError, Buffer, DeviceOwned, Ticket, Weight};
use exo_types::{DType, TensorView};

use crate::memory::{Block, Heap, PageSize};
use crate::packed::{GROUP_ROWS, Group, Groups, Interleaved, LINE, group_lines, is_interleaved};
use crate::quant;
use crate::weight_rows::WeightRows;

/// Elements behind a lock. A kernel that panicked leaves numbers, not broken structures: poison is ignored.
#[derive(Debug)]
pub(crate) struct LockedBlock<T>(RwLock<Block<T>>);

impl<T: Pod> LockedBlock<T> {
    /// `len` zeros, or the system's refusal.
    pub(crate) fn zeroed(heap: &Heap, what: &str, len: usize, pages: PageSize) -> Result<Self, AllocError> {
        Ok(Self(RwLock::new(heap.in_pages(what, len, pages)?)))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Block<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Block<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Working memory.
#[derive(Debug)]
pub(crate) struct CpuBuffer {
    pub(crate) owner: Owner,
    pub(crate) data: BufferData,
    pub(crate) _ticket: Ticket,
}

#[derive(Debug)]
pub(crate) enum BufferData {
    F32(LockedBlock<f32>),
    U32(LockedBlock<u32>),
}

impl CpuBuffer {
    pub(crate) fn f32(&self) -> &LockedBlock<f32> {
        match &self.data {
            BufferData::F32(data) => data,
            BufferData::U32(_) => panic!("the buffer holds u32 where f32 is needed"),
        }
    }

    pub(crate) fn u32(&self) -> &LockedBlock<u32> {
        match &self.data {
            BufferData::U32(data) => data,
            BufferData::F32(_) => panic!("the buffer holds f32 where u32 is needed"),
        }
    }
}

/// A weight: its rows, and for a vector its elements too.
#[derive(Debug)]
pub(crate) struct CpuWeight {
    pub(crate) owner: Owner,
    pub(crate) name: Box<str>,
    pub(crate) dtype: DType,
    /// Number of outputs.
    pub(crate) rows: usize,
    /// Number of inputs.
    pub(crate) cols: usize,
    pub(crate) row_bytes: usize,
    pub(crate) place: Arc<WeightRows>,
    /// The only row as f32: norms, biases and frequencies are read whole at every step.
    pub(crate) vector: Option<Vec<f32>>,
    pub(crate) _ticket: Ticket,
}

/// A weight while an op reads it: rows that are in its file stay readable.
pub(crate) struct WeightGuard<'a> {
    weight: &'a CpuWeight,
    file: Option<Arc<TensorView>>,
}

impl Deref for WeightGuard<'_> {
    type Target = CpuWeight;

    fn deref(&self) -> &CpuWeight {
        self.weight
    }
}

impl WeightGuard<'_> {
    /// Stored bytes of row `n`. Panics as [`Self::rows_stored`].
    pub(crate) fn row(&self, n: usize) -> &[u8] {
        self.rows_stored(n..n + 1)
    }

    /// Stored bytes of neighbouring rows. Panics if they were packed.
    pub(crate) fn rows_stored(&self, rows: Range<usize>) -> &[u8] {
        let range = rows.start * self.row_bytes..rows.end * self.row_bytes;
        let held = if self.place.is_packed { None } else { self.place.memory() };
        let held = held.and_then(|bytes| bytes.get(range.clone()));
        let mapped = || Some(&self.file.as_ref()?.bytes()[range]);
        held.or_else(mapped).unwrap_or_else(|| panic!("the rows of {} are packed", self.name))
    }
}

/// What is common to the groups of a weight, and how many of them, from the first on, are in memory.
#[derive(Clone, Copy)]
pub(crate) struct InMemory<T> {
    groups: T,
    count: usize,
}

impl<'a> InMemory<Groups<'a>> {
    /// Group `g`, if it is in memory.
    #[inline(always)]
    pub(crate) fn get(self, g: usize) -> Option<Group<'a>> {
        (g < self.count).then(|| self.groups.get(g))
    }

    /// The group of row `n` and its number in it, if they are in memory.
    pub(crate) fn row(self, n: usize) -> Option<(Group<'a>, usize)> {
        Some((self.get(n / GROUP_ROWS)?, n % GROUP_ROWS))
    }
}

impl<'a> InMemory<Interleaved<'a>> {
    /// Group `g`, if it is in memory.
    #[inline(always)]
    pub(crate) fn get(self, g: usize) -> Option<&'a [u8]> {
        (g < self.count).then(|| self.groups.group(g))
    }

    /// The floats, if row `n` of them is in memory.
    pub(crate) fn row(self, n: usize) -> Option<Interleaved<'a>> {
        (n / GROUP_ROWS < self.count).then_some(self.groups)
    }
}

impl CpuWeight {
    pub(crate) fn vector(&self) -> &[f32] {
        self.vector.as_deref().unwrap_or_else(|| panic!("{} is a matrix where a vector is needed", self.name))
    }

    /// For an op that reads its rows.
    pub(crate) fn read(&self) -> WeightGuard<'_> {
        WeightGuard { weight: self, file: self.place.file() }
    }

    /// The floats of a matrix that is interleaved.
    #[inline(always)]
    pub(crate) fn interleaved(&self) -> Option<InMemory<Interleaved<'_>>> {
        let bytes = self.packed().filter(|_| is_interleaved(self.dtype))?;
        let count = bytes.len() / (GROUP_ROWS * self.row_bytes);
        Some(InMemory { groups: Interleaved::new(self.dtype, self.cols, bytes), count })
    }

    /// Its groups; `None` if the rows are not packed quants.
    pub(crate) fn groups(&self) -> Option<InMemory<Groups<'_>>> {
        let bytes = self.packed().filter(|_| !is_interleaved(self.dtype))?;
        let count = bytes.len() / (LINE * group_lines(self.dtype, self.cols)?);
        Some(InMemory { groups: Groups::new(self.dtype, self.cols, bytemuck::cast_slice(bytes)), count })
    }

    /// What is in memory in groups.
    #[inline(always)]
    fn packed(&self) -> Option<&[u8]> {
        if self.place.is_packed { self.place.memory() } else { None }
    }

    /// The only row of a one-row tensor as f32.
    pub(crate) fn decode_vector(tensor: &TensorView) -> Vec<f32> {
        let mut vector = vec![0.0; tensor.cols as usize];
        quant::dequantise_row(tensor.dtype, tensor.bytes(), &mut vector);
        vector
    }
}

impl DeviceOwned for CpuBuffer {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl DeviceOwned for CpuWeight {
    fn owner(&self) -> Owner {
        self.owner
    }

    fn unpacked_bytes(&self) -> u64 {
        self.place.unpacked_bytes()
    }
}

impl Drop for CpuWeight {
    fn drop(&mut self) {
        self.place.stay();
    }
}

/// The buffer behind a handle. Panics if another device made it.
pub(crate) fn buffer(handle: &Buffer, owner: Owner) -> &CpuBuffer {
    owner.behind(&*handle.storage, handle)
}

/// The weight behind a handle. Panics if another device made it.
pub(crate) fn weight(handle: &Weight, owner: Owner) -> &CpuWeight {
    owner.behind(&*handle.storage, handle)
}
