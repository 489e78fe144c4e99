//! What the device, its programs and its streams share.

use std::sync::{Arc, Mutex};

use exo_backend::Ledger;

use crate::isa::Level;
use crate::load::Places;
use crate::memory::Heap;
use crate::ops::{Angles, Rounded};
use crate::pace::Pace;
use crate::pool::Pool;
use crate::repack::Repacker;
use crate::storage::Owner;

/// What the device, its programs and its streams share.
pub(crate) struct DeviceInner {
    pub(crate) owner: Owner,
    pub(crate) level: Level,
    /// Its turn is held while one op locks its operands: two streams that use the same buffers in opposite
    /// order cannot wait for each other.
    pub(crate) pool: Pool,
    pub(crate) pace: Pace,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) heap: Heap,
    pub(crate) places: Arc<Places>,
    pub(crate) repacker: Repacker,
    /// Locked by whose turn it is.
    pub(crate) rounded: Mutex<Rounded>,
    pub(crate) angles: Mutex<Angles>,
}

impl std::fmt::Debug for DeviceInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.level.isa().name(), self.pool.threads())
    }
}
