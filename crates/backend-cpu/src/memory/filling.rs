//! Memory that is filled from its front while others read what is filled.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Slice;

/// A [`Slice`] that is filled once, in order.
#[derive(Debug)]
pub(crate) struct Filling {
    /// Reached through its start only: no one refers to the whole of it before all of it is filled.
    slice: Slice,
    filled: AtomicUsize,
    /// Of whoever fills.
    turn: Mutex<()>,
}

impl Filling {
    /// Nothing of `slice` is filled.
    pub(crate) fn new(slice: Slice) -> Self {
        Self { slice, filled: AtomicUsize::new(0), turn: Mutex::default() }
    }

    /// All of `slice` is.
    pub(crate) fn full(slice: Slice) -> Self {
        let filled = AtomicUsize::new(slice.len());
        Self { slice, filled, turn: Mutex::default() }
    }

    /// Bytes of it when it is full.
    pub(crate) fn len(&self) -> usize {
        self.slice.range.len()
    }

    /// What is filled; never less than before.
    #[inline(always)]
    pub(crate) fn filled(&self) -> &[u8] {
        let len = self.filled.load(Ordering::Acquire);
        // SAFETY: `len` bytes of the slice, which is ours, were written before `filled` said so, and `fill`
        // writes behind them only.
        unsafe { std::slice::from_raw_parts(self.start(), len) }
    }

    /// Fills up to `len` more bytes. They count as filled when `write` returns.
    pub(crate) fn fill(&self, len: usize, write: impl FnOnce(&mut [u8])) {
        // A `write` that panicked left numbers that do not count.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.filled.load(Ordering::Relaxed);
        let len = len.min(self.len() - at);
        // SAFETY: within the slice and behind what is filled, so no one reads it; the turn keeps other
        // writers out.
        write(unsafe { std::slice::from_raw_parts_mut(self.start().add(at), len) });
        self.filled.store(at + len, Ordering::Release);
    }

    fn start(&self) -> *mut u8 {
        let Slice { region, range } = &self.slice;
        // SAFETY: the range is within the region.
        unsafe { region.start.as_ptr().add(range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;

    #[test]
    fn what_is_filled_is_read_while_the_rest_is_written() {
        let filling = Filling::new(Heap::default().slice("a matrix", 1000).unwrap());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while seen < 1000 {
                    let filled = filling.filled();
                    assert!(filled.len() >= seen && filled.iter().enumerate().all(|(i, b)| *b == i as u8));
                    seen = filled.len();
                }
            });
            for at in (0..1000).step_by(64) {
                filling.fill(64, |part| (at..).zip(part).for_each(|(i, byte)| *byte = i as u8));
            }
            reader.join().unwrap();
        });
        filling.fill(64, |part| assert!(part.is_empty(), "it is full"));
        assert_eq!((filling.len(), filling.filled().len()), (1000, 1000));
    }

    #[test]
    fn a_part_whose_writer_panicked_is_written_again() {
        let filling = Filling::new(Heap::default().slice("a matrix", 100).unwrap());
        filling.fill(60, |part| part.fill(1));
        let write = || filling.fill(60, |_| panic!("no bytes"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).unwrap_err();
        assert_eq!(filling.filled(), [1; 60]);
        filling.fill(60, |part| part.fill(2));
        assert_eq!(filling.filled(), [[1; 60].as_slice(), &[2; 40]].concat());
    }
}
