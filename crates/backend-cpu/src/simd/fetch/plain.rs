/// The instruction has no stable name here.
#[inline(always)]
pub(crate) fn fetch(_at: *const u8) {}

/// As [`fetch`].
#[inline(always)]
pub(crate) fn fetch_far(_at: *const u8) {}
