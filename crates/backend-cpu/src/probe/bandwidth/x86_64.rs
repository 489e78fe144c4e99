use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::{Kernel, sum};

/// The loops with wide loads that this processor can run.
pub(super) fn wide() -> Vec<Kernel> {
    let mut kernels = Vec::new();
    if is_x86_feature_detected!("avx2") {
        kernels.extend([
            Kernel { name: "32-byte loads", run: avx2::<1, 0> },
            Kernel { name: "32-byte loads, two streams", run: avx2::<2, 0> },
            Kernel { name: "32-byte loads, prefetched", run: avx2::<1, 4096> },
        ]);
    }
    if is_x86_feature_detected!("avx512f") {
        kernels.extend([
            Kernel { name: "64-byte loads", run: avx512::<1, 0> },
            Kernel { name: "64-byte loads, two streams", run: avx512::<2, 0> },
            Kernel { name: "64-byte loads, prefetched", run: avx512::<1, 4096> },
        ]);
    }
    kernels
}

/// Asks for both cache lines of the stride `AHEAD` bytes further on.
#[inline(always)]
fn prefetch<const AHEAD: usize>(from: *const u64) {
    if AHEAD > 0 {
        let ahead = from.wrapping_byte_add(AHEAD).cast::<i8>();
        // SAFETY: a prefetch reads nothing: an address outside of any mapping is ignored.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(ahead);
            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_byte_add(64));
        }
    }
}

/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const STREAMS: usize, const AHEAD: usize>(words: &[u64]) -> u64 {
    sum::<STREAMS>(words, prefetch::<AHEAD>)
}

/// # Safety
/// The processor must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const STREAMS: usize, const AHEAD: usize>(words: &[u64]) -> u64 {
    sum::<STREAMS>(words, prefetch::<AHEAD>)
}
