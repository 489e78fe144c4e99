//! Cache lines asked for before they are read. Nothing but time depends on it, and an address that cannot be read does nothing.

/// Bytes ahead of the multiplier at which lines of weights, keys and values are fetched from memory to the second-level cache, and
/// from there to the first.
const FAR: usize = 4096;
pub(crate) const NEAR: usize = 1024;

/// Asks for the line that holds `at`.
#[inline(always)]
pub(crate) fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing: an address outside of any mapping is ignored.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for the line that holds `at`, to the second-level cache.
#[inline(always)]
pub(crate) fn fetch_far(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `fetch`.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for lines of weights that come after the one that holds `at`, in two steps: from memory come as many at a time as the
/// second-level cache can wait for, which is more than the first can.
#[inline(always)]
pub(crate) fn fetch_weights(at: *const u8) {
    fetch_far(at.wrapping_add(FAR));
    fetch(at.wrapping_add(NEAR));
}
