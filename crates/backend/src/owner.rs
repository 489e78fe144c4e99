//! Whose handle it is, and the way from a handle back to what the backend put behind it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One open device. No two are equal, of whatever backend, while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(u64);

impl Owner {
    /// A new one, for a device that is being opened.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Panics unless this device made `stored`; `what` is its handle, for the message.
    pub fn assert_owns(self, stored: &dyn DeviceOwned, what: &dyn Debug) {
        assert!(stored.owner() == self, "{what:?} belongs to another device");
    }

    /// What this device put behind a handle. Panics if another device made it; `what` is the handle, for the
    /// message.
    pub fn behind<'a, T: DeviceOwned>(self, stored: &'a dyn DeviceOwned, what: &dyn Debug) -> &'a T {
        self.assert_owns(stored, what);
        let stored: &dyn Any = stored;
        stored.downcast_ref().expect("a device puts one type behind each kind of handle")
    }
}

/// Something that a device made and that only it can use.
pub trait DeviceOwned: Any + Send + Sync {
    /// The device that made it.
    fn owner(&self) -> Owner;

    /// Of a weight that is used from its file for now: bytes of the device's memory that are still to be
    /// filled from there.
    fn unpacked_bytes(&self) -> u64 {
        0
    }
}

/// What stands behind a handle: the backend's own.
pub type Storage = Arc<dyn DeviceOwned>;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug)]
    struct Thing(Owner);

    impl DeviceOwned for Thing {
        fn owner(&self) -> Owner {
            self.0
        }
    }

    #[test]
    fn a_device_finds_its_own_and_refuses_what_is_not() {
        let (mine, other) = (Owner::next(), Owner::next());
        assert_eq!(mine.behind::<Thing>(&Thing(mine), &"a thing"), &Thing(mine));
        let refused = std::panic::catch_unwind(|| other.behind::<Thing>(&Thing(mine), &"a thing").0);
        let message = refused.unwrap_err();
        assert_eq!(message.downcast_ref::<String>().unwrap(), "\"a thing\" belongs to another device");
    }
}
