//! Memory for weights, caches and buffers: zeroed, aligned, and in 2 MiB pages where the system gives them.
//!
//! A processor translates addresses page by page and remembers a few thousand translations: in 4 KiB pages a
//! model of a gigabyte needs 250 000. The kernels read 1.05 to 1.3 times as fast from 2 MiB pages. Large
//! blocks are mappings of their own ([`system`]): explicit huge pages if some are free, else ordinary memory
//! for which transparent huge pages are asked, else what there is. What took effect is not assumed but read
//! back: [`Heap::huge_bytes`].
//!
//! Weights share mappings ([`Heap::slice`]): a matrix of 1.1 MB of its own would occupy a page of 2 MiB.
//! Vectors do not: they are written at once, and with them the page would come in which matrices beside them
//! lie that are packed much later.

mod filling;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod plain;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytemuck::Pod;
use exo_backend::AllocError;
pub(crate) use filling::Filling;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use plain as system;

/// A large page, and the least that is worth one.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Two cache lines: what processors fetch together, and more than any vector instruction asks.
pub(crate) const ALIGN: usize = 128;
/// Below this a slice has memory of its own, and a weight is there at once.
pub(crate) const SMALL_BYTES: usize = 64 << 10;
/// What slices are cut from. Untouched memory of it costs nothing.
const CHUNK: usize = 32 * HUGE_PAGE;

/// The pages that memory is asked in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// 4 KiB, or whatever the system's plain page is.
    Small,
    /// 2 MiB, as far as the system has them.
    Huge,
}

/// Whether this process gets large pages now: tried with 8 MiB. `None` where the system does not tell.
pub fn large_pages() -> Option<bool> {
    let heap = Heap::default();
    let mut block = heap.zeroed::<u8>("a trial", 4 * HUGE_PAGE).ok()?;
    block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    Some(heap.huge_bytes()? > 0)
}

/// Gives out memory and remembers what is in use.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Every region that may be alive.
    regions: Vec<Weak<Region>>,
    /// Regions that slices are cut from, and how much of each is cut. Not kept alive: they go with their last
    /// slices.
    chunks: Vec<(Weak<Region>, usize)>,
}

impl Heap {
    /// `len` zeros. Pages are not touched: they cost nothing until written.
    pub(crate) fn zeroed<T: Pod>(&self, what: &str, len: usize) -> Result<Block<T>, AllocError> {
        self.in_pages(what, len, PageSize::Huge)
    }

    /// As [`Self::zeroed`], in pages of the wanted size where there are 2 MiB of it or more.
    pub(crate) fn in_pages<T: Pod>(
        &self,
        what: &str,
        len: usize,
        pages: PageSize,
    ) -> Result<Block<T>, AllocError> {
        let region = len.checked_mul(size_of::<T>()).and_then(|bytes| Region::zeroed(bytes, pages));
        let needed_bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let region = Arc::new(region.ok_or_else(|| refused(what, needed_bytes))?);
        self.lock().remember(&region);
        Ok(Block { region, len, _elements: PhantomData })
    }

    /// `len` bytes of a mapping that is shared with other slices: where the least is left behind them, so
    /// that small matrices fill what large ones left over. Below [`SMALL_BYTES`], of their own.
    pub(crate) fn slice(&self, what: &str, len: usize) -> Result<Slice, AllocError> {
        if len < SMALL_BYTES {
            let region = Region::zeroed(len, PageSize::Small).ok_or_else(|| refused(what, len as u64))?;
            return Ok(Slice { region: Arc::new(region), range: 0..len });
        }
        let mut books = self.lock();
        books.chunks.retain(|(chunk, _)| chunk.strong_count() > 0);
        let left = |(chunk, used): &(Weak<Region>, usize)| Some(chunk.upgrade()?.len - used);
        let fitting = books.chunks.iter().enumerate().filter_map(|(i, chunk)| Some((left(chunk)?, i)));
        let fitting = fitting.filter(|(left, _)| *left >= len).min().map(|(_, i)| i);
        let found = fitting.and_then(|i| Some((books.chunks[i].0.upgrade()?, i)));
        let (region, i) = match found {
            Some(found) => found,
            None => {
                let region = Region::zeroed(len.max(CHUNK), PageSize::Huge)
                    .ok_or_else(|| refused(what, len as u64))?;
                let region = Arc::new(region);
                books.remember(&region);
                books.chunks.push((Arc::downgrade(&region), 0));
                (region, books.chunks.len() - 1)
            }
        };
        let used = &mut books.chunks[i].1;
        let start = *used;
        // Lengths are whole multiples of it in a mapping.
        *used = (start + len).next_multiple_of(ALIGN).min(region.len);
        Ok(Slice { region, range: start..start + len })
    }

    /// Bytes of living memory that lie in large pages; `None` where the system does not tell.
    pub(crate) fn huge_bytes(&self) -> Option<u64> {
        let regions: Vec<_> = self.lock().regions.iter().filter_map(Weak::upgrade).collect();
        let mapped = regions.iter().filter(|region| region.is_mapped);
        system::huge_bytes(&mapped.map(|region| region.addresses()).collect::<Vec<_>>())
    }

    /// The same of the mappings that slices share.
    pub(crate) fn huge_slice_bytes(&self) -> Option<u64> {
        let chunks: Vec<_> = self.lock().chunks.iter().filter_map(|(chunk, _)| chunk.upgrade()).collect();
        let mapped = chunks.iter().filter(|chunk| chunk.is_mapped);
        system::huge_bytes(&mapped.map(|chunk| chunk.addresses()).collect::<Vec<_>>())
    }

    /// About how much of the living memory outside of slices was never touched: it is taken, and the system
    /// still counts it as free. 0 where the system does not tell.
    pub(crate) fn untouched_bytes(&self) -> u64 {
        let books = self.lock();
        let is_cut = |region: &Arc<Region>| {
            books.chunks.iter().any(|(chunk, _)| chunk.as_ptr() == Arc::as_ptr(region))
        };
        let living = books.regions.iter().filter_map(Weak::upgrade);
        let whole: Vec<_> = living.filter(|region| region.is_mapped && !is_cut(region)).collect();
        drop(books);
        whole.iter().map(|region| system::untouched_bytes(region.addresses())).sum()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn remember(&mut self, region: &Arc<Region>) {
        self.regions.retain(|region| region.strong_count() > 0);
        self.regions.push(Arc::downgrade(region));
    }
}

fn refused(what: &str, needed_bytes: u64) -> AllocError {
    AllocError::OutOfMemory { what: what.to_owned(), needed_bytes, free_bytes: 0 }
}

/// Memory of one owner or cut into slices. Starts at a multiple of [`ALIGN`], of [`HUGE_PAGE`] if mapped.
struct Region {
    start: NonNull<u8>,
    len: usize,
    is_mapped: bool,
}

// SAFETY: a region is plain memory without ties to a thread; who may touch which part is the business of
// `Block` and `Slice`.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn zeroed(len: usize, pages: PageSize) -> Option<Self> {
        if len >= HUGE_PAGE
            && let Some((start, len)) = system::map(len, pages)
        {
            return Some(Self { start, len, is_mapped: true });
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(Self::layout(len)?) })?;
        Some(Self { start, len, is_mapped: false })
    }

    /// Of a region that is not mapped.
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len.max(1), ALIGN).ok()
    }

    fn addresses(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match Self::layout(self.len) {
            // SAFETY: `map` gave this range, and nothing refers to it any more.
            _ if self.is_mapped => unsafe { system::unmap(self.start, self.len) },
            // SAFETY: `alloc_zeroed` gave it for this layout, and nothing refers to it any more.
            Some(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            None => unreachable!("it was allocated with this layout"),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes{})", self.len, if self.is_mapped { ", mapped" } else { "" })
    }
}

/// Elements of one owner.
#[derive(Debug)]
pub(crate) struct Block<T> {
    region: Arc<Region>,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: Pod> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the region holds `len` elements, is aligned for them, and every bit pattern, zero first, is
        // a `T`. Only this block writes to it, and only through `&mut self`: the heap's own references look
        // at addresses.
        unsafe { std::slice::from_raw_parts(self.region.start.as_ptr().cast(), self.len) }
    }
}

impl<T: Pod> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only way in.
        unsafe { std::slice::from_raw_parts_mut(self.region.start.as_ptr().cast(), self.len) }
    }
}

/// Bytes in a mapping that others share, few of their own. Starts at a multiple of [`ALIGN`].
#[derive(Debug)]
pub(crate) struct Slice {
    region: Arc<Region>,
    range: Range<usize>,
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is within the region and was cut out for this slice alone; bytes start as zeros.
        unsafe {
            std::slice::from_raw_parts(self.region.start.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for Slice {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way in.
        unsafe {
            std::slice::from_raw_parts_mut(self.region.start.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        if self.region.is_mapped {
            // The mapping may live on for others; whole pages that were this slice's go back to the system
            // now.
            let start = self.range.start.next_multiple_of(HUGE_PAGE);
            let end = self.range.end / HUGE_PAGE * HUGE_PAGE;
            if start < end {
                // SAFETY: within the mapping, and no one else's: slices do not overlap and this one ends
                // here.
                unsafe { system::discard(self.region.start.add(start), end - start) };
            }
        }
    }
}

#[cfg(test)]
mod tests;
