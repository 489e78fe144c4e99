//! Cache lines asked for before they are read. Nothing but time depends on it, and an address that cannot be
//! read does nothing.

#[cfg(not(target_arch = "x86_64"))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use plain::{fetch, fetch_far};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{fetch, fetch_far};

/// Bytes ahead of the multiplier at which lines of weights, keys and values are fetched from memory to the
/// second-level cache, and from there to the first.
const FAR: usize = 4096;
pub(crate) const NEAR: usize = 1024;

/// Asks for lines of weights that come after the one that holds `at`, in two steps: from memory come as many
/// at a time as the second-level cache can wait for, which is more than the first can.
#[inline(always)]
pub(crate) fn fetch_weights(at: *const u8) {
    fetch_far(at.wrapping_add(FAR));
    fetch(at.wrapping_add(NEAR));
}
