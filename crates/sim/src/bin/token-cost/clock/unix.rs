use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that this thread has computed: what other processes take in between does not count.
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
