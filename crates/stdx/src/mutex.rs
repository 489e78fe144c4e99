//! A lock that outlives a panic of who held it.

use std::sync::{MutexGuard, PoisonError};

/// As [`std::sync::Mutex`], but what it guards is taken as a panic left it: the panic itself is told where it
/// happens, and whoever comes next must not stop for it.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// With what it guards.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Waits until nobody else has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it guarded.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_left_is_there_for_the_next() {
        let number = Mutex::new(1);
        let panicked = std::panic::catch_unwind(|| {
            let mut held = number.lock();
            *held = 2;
            assert_eq!(*held, 1, "it panics with the lock held");
        });
        assert!(panicked.is_err());
        assert_eq!(*number.lock(), 2);
        assert_eq!(number.into_inner(), 2);
    }
}
