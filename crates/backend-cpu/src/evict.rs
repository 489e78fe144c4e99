//! Bytes leave the processor's caches, so that a measurement meets them in memory.

#[cfg(not(target_arch = "x86_64"))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(not(target_arch = "x86_64"))]
use plain as system;
#[cfg(target_arch = "x86_64")]
use x86_64 as system;

/// Whether the processor has the instruction; then no cache of the machine holds any of the bytes.
pub(crate) fn evict(bytes: &[u8]) -> bool {
    system::evict(bytes)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    /// Fits the second-level cache of any processor that has the instruction.
    const BYTES: usize = 256 << 10;

    #[test]
    fn what_was_evicted_is_the_same_and_comes_from_memory() {
        let bytes: Vec<u8> = (0..BYTES).map(|i| (i * 7) as u8).collect();
        if !super::evict(&bytes) {
            return;
        }
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let expected = sum(&bytes);
        // Lines in an order that no processor fetches ahead.
        let walk = || {
            let start = Instant::now();
            let lines = BYTES / 64;
            let mut at = 0;
            for _ in 0..lines {
                at = (at * 1_365 + 2_049 + usize::from(black_box(bytes[at * 64]) == 255)) % lines;
            }
            black_box(at);
            start.elapsed()
        };
        // Other programs only make a walk slower.
        let quickest = |evicted: bool| {
            let walks = (0..20).map(|_| {
                if evicted {
                    super::evict(&bytes);
                }
                walk()
            });
            walks.min().unwrap()
        };
        walk();
        let (cached, from_memory) = (quickest(false), quickest(true));
        assert!(from_memory > cached * 2, "{cached:?} cached, {from_memory:?} evicted");
        assert_eq!(sum(&bytes), expected);
    }
}
