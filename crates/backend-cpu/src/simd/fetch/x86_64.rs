use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

/// Asks for the line that holds `at`.
#[inline(always)]
pub(crate) fn fetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing: an address outside of any mapping is ignored.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// Asks for the line that holds `at`, to the second-level cache.
#[inline(always)]
pub(crate) fn fetch_far(at: *const u8) {
    // SAFETY: as in `fetch`.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
}
