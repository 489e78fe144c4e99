use std::sync::LazyLock;
use std::time::Instant;

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds that have passed: here other processes count too.
pub fn thread_ns() -> u64 {
    BEGAN.elapsed().as_nanos() as u64
}
