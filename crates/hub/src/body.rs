//! Reading a body into memory: bounded in bytes and in time, and ended by a wish. A host that gives a byte
//! now and then holds nobody.

use std::io::Read;
use std::time::{Duration, Instant};

use ureq::Body;

use crate::Cancel;

/// A body or a range slower than this, over [`SLOW_STALLS`], is given up.
pub(crate) const SLOW_BYTES_PER_S: u64 = 1024;
/// A body that comes this fast is never given up for the time that it takes.
const STEADY_BYTES_PER_S: u64 = 16 << 10;
/// So many silences long, in a row, a rate must be too low: 15 s by default.
const SLOW_STALLS: u32 = 3;
const READ_BYTES: usize = 64 << 10;

/// Finds out whether bytes come too slowly.
pub(crate) struct Pace {
    stall: Duration,
    since: Instant,
    bytes: u64,
    slow_stalls: u32,
}

impl Pace {
    /// Beginning now. `stall` is the silence that a read bears.
    pub(crate) fn begin(stall: Duration) -> Self {
        Self { stall, since: Instant::now(), bytes: 0, slow_stalls: 0 }
    }

    /// So many bytes came; the rate if it is too low, which `slow_below` bytes a second are not.
    pub(crate) fn slow_after(&mut self, bytes: u64, slow_below: u64) -> Option<u64> {
        self.bytes += bytes;
        let elapsed = self.since.elapsed();
        if elapsed < self.stall {
            return None;
        }
        let rate = (self.bytes as f64 / elapsed.as_secs_f64()) as u64;
        (self.since, self.bytes) = (Instant::now(), 0);
        self.slow_stalls = if rate < slow_below { self.slow_stalls + 1 } else { 0 };
        (self.slow_stalls >= SLOW_STALLS).then_some(rate)
    }
}

/// Why a body did not come.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum BodyError {
    Cancelled,
    /// It has more bytes than are taken.
    TooLarge,
    /// What happened, with the numbers.
    Broken(String),
}

/// What a body may take.
pub(crate) struct Bounds {
    pub(crate) bytes_max: u64,
    /// Beside a second for each [`STEADY_BYTES_PER_S`] that came.
    pub(crate) time_max: Duration,
    /// The silence that a read bears, as the agent has it.
    pub(crate) stall: Duration,
}

/// The whole body.
pub(crate) fn read(body: &mut Body, bounds: &Bounds, cancel: &Cancel) -> Result<Vec<u8>, BodyError> {
    let Bounds { bytes_max, time_max, stall } = *bounds;
    let (begun, mut pace) = (Instant::now(), Pace::begin(stall));
    let (mut bytes, mut reader) = (Vec::new(), body.as_reader());
    loop {
        let at = bytes.len();
        bytes.resize(at + READ_BYTES, 0);
        let read = reader.read(&mut bytes[at..]);
        let came = *read.as_ref().unwrap_or(&0);
        bytes.truncate(at + came);
        let broken = |what: String| Err(BodyError::Broken(format!("{what} after {} bytes", bytes.len())));
        match read {
            Ok(0) => return Ok(bytes),
            Err(error) => return broken(format!("it broke off ({error})")),
            Ok(_) if bytes.len() as u64 > bytes_max => return Err(BodyError::TooLarge),
            Ok(_) if cancel.is_cancelled() => return Err(BodyError::Cancelled),
            Ok(_) => {}
        }
        if let Some(rate) = pace.slow_after(came as u64, SLOW_BYTES_PER_S) {
            return broken(format!("it came with {rate} bytes a second and was given up"));
        }
        // A large document on a slow line comes all the same.
        let time_max = time_max.saturating_add(Duration::from_secs(bytes.len() as u64 / STEADY_BYTES_PER_S));
        if begun.elapsed() > time_max {
            return broken(format!("it was not whole within {} s and was given up", time_max.as_secs()));
        }
    }
}
