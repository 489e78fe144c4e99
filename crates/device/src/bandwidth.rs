//! How fast this machine reads memory, measured.

use std::thread;

use crate::sustained::{WINDOW, seconds_per_pass};

/// Larger than most caches. A processor with a larger one reads at its cache's speed; then so do small models.
const BUFFER_BYTES: usize = 96 << 20;

/// Sequential read bandwidth of `threads` threads together in bytes per second, as it is kept up over 300 ms. `None` if memory for the
/// measurement could not be had. Takes 96 MiB for the while.
pub fn read_bandwidth(threads: usize) -> Option<f64> {
    let threads = threads.clamp(1, 256);
    let mut buffer: Vec<u64> = Vec::new();
    buffer.try_reserve_exact(BUFFER_BYTES / 8).ok()?;
    // Written, so that each page is a page of its own and not the system's one page of zeros.
    buffer.resize(BUFFER_BYTES / 8, 0x0123_4567_89ab_cdef);
    let piece = buffer.len().div_ceil(threads);
    let pass = || {
        let sum = thread::scope(|scope| {
            let readers: Vec<_> = buffer.chunks(piece).map(|part| scope.spawn(|| sum(part))).collect();
            readers.into_iter().fold(0u64, |all, reader| all.wrapping_add(reader.join().unwrap_or(0)))
        });
        std::hint::black_box(sum);
        Ok::<(), std::convert::Infallible>(())
    };
    let Ok(seconds) = seconds_per_pass(WINDOW, pass);
    Some(BUFFER_BYTES as f64 / seconds)
}

/// Eight sums side by side: the adds must not be what is measured.
fn sum(part: &[u64]) -> u64 {
    let mut lanes = [0u64; 8];
    for chunk in part.chunks_exact(8) {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*value);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_faster_than_a_disk_and_slower_than_light() {
        let rate = read_bandwidth(crate::cores()).unwrap();
        assert!((1e8..1e13).contains(&rate), "{rate} bytes/s");
    }
}
