//! How fast memory is read, by the fastest of several loops.

#[cfg(not(target_arch = "x86_64"))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::hint::black_box;
use std::time::{Duration, Instant};

#[cfg(not(target_arch = "x86_64"))]
use plain as processor;
#[cfg(target_arch = "x86_64")]
use x86_64 as processor;

use super::team::{self, Member};
use crate::memory::{Block, Heap, PageSize};

/// Many times the last-level cache of a processor that a model's weights do not fit into either.
const BUFFER_BYTES: usize = 256 << 20;
/// The least that is still worth a measurement; a machine with little memory gives a sixteenth of what is
/// free.
const BUFFER_BYTES_MIN: usize = 32 << 20;
/// For one reading. Every loop runs at least once, whatever it takes.
const READ_TIME: Duration = Duration::from_millis(100);
/// Bytes that a loop takes at once from each of its streams.
const STRIDE_WORDS: usize = 16;

/// No memory to measure with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {needed_bytes} bytes of memory to measure read bandwidth with")]
#[allow(missing_docs)] // the messages say what the fields are
pub struct ProbeError {
    pub needed_bytes: usize,
}

/// The best of the loops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReadRate {
    /// Bytes per second of all threads together.
    pub bytes_per_s: f64,
    /// Which loop it was, for example `32-byte loads, two streams`.
    pub kernel: &'static str,
}

/// Memory to read, kept between readings: filling it takes longer than reading it.
pub struct BandwidthProbe {
    heap: Heap,
    words: Block<u64>,
}

impl BandwidthProbe {
    /// Takes up to 256 MiB in pages of the wanted size and writes to each.
    pub fn new(pages: PageSize) -> Result<Self, ProbeError> {
        let free = exo_device::memory(std::path::Path::new("/")).map_or(u64::MAX, |m| m.available_bytes);
        let bytes = usize::try_from(free / 16).unwrap_or(usize::MAX);
        let bytes = bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES).next_multiple_of(2 << 20);
        let heap = Heap::default();
        let words = heap.in_pages("a bandwidth probe", bytes / 8, pages);
        let mut words: Block<u64> = words.map_err(|_| ProbeError { needed_bytes: bytes })?;
        words.fill(0x0123_4567_89ab_cdef);
        Ok(Self { heap, words })
    }

    /// Resident bytes it holds.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    /// How much of it the system has put into 2 MiB pages, 0 to 1; `None` where it does not say.
    pub fn huge_share(&self) -> Option<f64> {
        self.heap.huge_bytes().map(|huge| huge as f64 / self.bytes() as f64)
    }

    /// Reads with `threads` threads (at most one per processor), each its own part, for about 100 ms: the
    /// fastest pass of the fastest loop.
    pub fn read(&self, threads: usize) -> ReadRate {
        let kernels = kernels();
        let words = &*self.words;
        let times = team::run(threads, |member| {
            let piece = words.len() / member.count;
            passes(&words[member.index * piece..][..piece], &kernels, member)
        });
        let bytes = (words.len() / times.len() * times.len() * 8) as f64;
        // A pass is over when its last thread is done; every thread did the same passes.
        let slowest = |pass: usize| times.iter().map(|t| t[pass]).fold(1e-9, f64::max);
        let passes = (0..times[0].len()).map(|pass| ReadRate {
            bytes_per_s: bytes / slowest(pass),
            kernel: kernels[pass % kernels.len()].name,
        });
        let best = passes.max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
        best.expect("every loop runs at least once")
    }
}

/// Runs every loop in turn, all threads at once, until the time is over: seconds of each pass.
fn passes(part: &[u64], kernels: &[Kernel], member: &Member<'_>) -> Vec<f64> {
    let (began, mut times) = (Instant::now(), Vec::new());
    loop {
        for kernel in kernels {
            member.line_up();
            let pass = Instant::now();
            // SAFETY: `kernels` lists only loops whose instructions this processor has.
            black_box(unsafe { (kernel.run)(black_box(part)) });
            times.push(pass.elapsed().as_secs_f64());
        }
        if !member.go_on(began, READ_TIME) {
            return times;
        }
    }
}

/// Reads words and gives their sum.
type Loop = unsafe fn(&[u64]) -> u64;

/// One way to read memory.
struct Kernel {
    name: &'static str,
    run: Loop,
}

/// The loops this processor can run. Which is fastest differs by machine and by the number of threads: wider
/// loads ask for more at once, two streams keep two of the prefetchers busy, and asking for the page after
/// this one gets past the 4 KiB boundary at which hardware prefetchers stop.
fn kernels() -> Vec<Kernel> {
    let mut kernels = vec![
        Kernel { name: "plain loads", run: plain_loads::<1> },
        Kernel { name: "plain loads, two streams", run: plain_loads::<2> },
    ];
    kernels.extend(processor::wide());
    kernels
}

/// # Safety
/// None is needed: it has the signature of its siblings.
unsafe fn plain_loads<const STREAMS: usize>(words: &[u64]) -> u64 {
    sum::<STREAMS>(words, |_| ())
}

/// Adds up `words`, read as `STREAMS` parts side by side. `ahead` is shown the address of every stride.
/// Sixteen sums side by side per stream: the adds must not be what is measured. Compiled once for each width
/// of load.
#[inline(always)]
fn sum<const STREAMS: usize>(words: &[u64], ahead: impl Fn(*const u64)) -> u64 {
    let part = words.len() / STREAMS;
    let mut lanes = [[0u64; STRIDE_WORDS]; STREAMS];
    for at in (0..part - part % STRIDE_WORDS).step_by(STRIDE_WORDS) {
        for (stream, lanes) in lanes.iter_mut().enumerate() {
            let stride = &words[stream * part + at..][..STRIDE_WORDS];
            ahead(stride.as_ptr());
            for (lane, word) in lanes.iter_mut().zip(stride) {
                *lane = lane.wrapping_add(*word);
            }
        }
    }
    lanes.as_flattened().iter().fold(0, |all, lane| all.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_reads_every_word_of_its_strides() {
        let words: Vec<u64> = (0..4 * STRIDE_WORDS as u64).collect();
        let all = words.iter().sum::<u64>();
        for kernel in kernels() {
            // SAFETY: `kernels` lists only loops whose instructions this processor has.
            assert_eq!(unsafe { (kernel.run)(&words) }, all, "{}", kernel.name);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn small_pages_are_small() {
        assert_eq!(BandwidthProbe::new(PageSize::Small).unwrap().huge_share(), Some(0.0));
    }

    #[test]
    fn memory_reads_faster_than_a_disk_and_slower_than_light() {
        let probe = BandwidthProbe::new(PageSize::Huge).unwrap();
        for threads in [1, 2, 10_000] {
            let began = Instant::now();
            let reading = probe.read(threads);
            assert!((1e8..1e13).contains(&reading.bytes_per_s), "{reading:?}");
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        assert!(probe.huge_share().is_none_or(|share| (0.0..=1.0).contains(&share)));
    }
}
