//! What time it is on the wall, for people and for files.

use std::time::{Duration, SystemTime};

/// Seconds since 1970; 0 on a machine whose clock is before.
pub fn unix_s() -> u64 {
    since_1970().as_secs()
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
