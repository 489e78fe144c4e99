//! Systems whose large pages need privileges or do not exist: ordinary allocations serve.

use std::ops::Range;
use std::ptr::NonNull;

use super::PageSize;

/// Never: the caller allocates.
pub(super) fn map(_len: usize, _pages: PageSize) -> Option<(NonNull<u8>, usize)> {
    None
}

/// # Safety
/// Nothing was mapped, so no one can call it.
pub(super) unsafe fn unmap(_start: NonNull<u8>, _len: usize) {}

/// # Safety
/// Nothing was mapped, so no one can call it.
pub(super) unsafe fn discard(_start: NonNull<u8>, _len: usize) {}

/// The system does not tell.
pub(super) fn untouched_bytes(_mapped: Range<usize>) -> u64 {
    0
}

/// The system does not tell.
pub(super) fn huge_bytes(_ranges: &[Range<usize>]) -> Option<u64> {
    None
}
