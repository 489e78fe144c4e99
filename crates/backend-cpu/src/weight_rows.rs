//! Where the rows of a weight are, and how they come from its file to memory while it is used.
//!
//! Rows are moved in parts, from the first on. A part counts once it is in memory: ops read rows that are
//! there from memory, the others from the file, and as both give the same numbers it does not matter when in
//! an op that changes. With the last part the file is let go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exo_backend::Ticket;
use exo_types::TensorView;

use crate::load::{self, Places};
use crate::memory::{Filling, Slice};

/// Bytes that are moved at a time: what each thread has in memory twice, and what whoever drops the weight
/// waits for, 2 ms where memory is slow at its first touch.
const PART_BYTES: usize = 1 << 20;

/// Where the rows of a weight are.
#[derive(Debug)]
pub(crate) struct WeightRows {
    /// Whether rows in memory lie in groups (see [`crate::packed`]) or as they are stored.
    pub(crate) is_packed: bool,
    /// Of the device: rows from the first on.
    memory: Option<Filling>,
    /// As long as it has rows that memory has not. A run asks afterwards whether it was still there.
    file: Mutex<Option<Arc<TensorView>>>,
    /// In the books of where the rows are. Held while rows are moved.
    ticket: Mutex<Option<Ticket>>,
    /// Nothing will be moved any more, but for the part at hand.
    is_over: AtomicBool,
}

/// How far a weight is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// There is more to move.
    Part,
    /// All of it is in memory.
    All,
    /// It stays as it is: it was dropped, or its file is lost.
    Never,
}

impl WeightRows {
    /// All rows in memory.
    pub(crate) fn held(memory: Slice, is_packed: bool, ticket: Ticket) -> Self {
        Self::new(Some(Filling::full(memory)), is_packed, None, ticket)
    }

    /// All rows in the file, for ever.
    pub(crate) fn mapped(tensor: TensorView, ticket: Ticket) -> Self {
        Self::new(None, false, Some(tensor), ticket)
    }

    /// All rows in the file, and `memory` for them.
    pub(crate) fn repacked_later(memory: Slice, is_packed: bool, tensor: TensorView, ticket: Ticket) -> Self {
        Self::new(Some(Filling::new(memory)), is_packed, Some(tensor), ticket)
    }

    fn new(memory: Option<Filling>, is_packed: bool, file: Option<TensorView>, ticket: Ticket) -> Self {
        let is_over = memory.is_none() || file.is_none();
        let (file, ticket) = (Mutex::new(file.map(Arc::new)), Mutex::new(Some(ticket)));
        Self { is_packed, memory, file, ticket, is_over: is_over.into() }
    }

    /// Rows from the first on, as far as they are in memory; `None` if they never will be.
    #[inline(always)]
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        self.memory.as_ref().map(Filling::filled)
    }

    /// The file, if there are rows that memory has not.
    pub(crate) fn file(&self) -> Option<Arc<TensorView>> {
        self.lock_file().clone()
    }

    /// Bytes of memory that are still to be filled.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        match &self.memory {
            Some(memory) if !self.is_over() => (memory.len() - memory.filled().len()) as u64,
            _ => 0,
        }
    }

    /// Moves the next part of a weight that is repacking.
    pub(crate) fn move_part(&self, places: &Places) -> Moved {
        let mut ticket = self.lock_ticket();
        let (false, Some(memory), Some(tensor)) = (self.is_over(), &self.memory, self.file()) else {
            return Moved::Never;
        };
        let unit = load::Unit::of(&tensor, memory.len());
        let (first, count) = (memory.filled().len() / unit.held.max(1), unit.count(PART_BYTES));
        let stored = tensor.bytes();
        let part = first * unit.stored..((first + count) * unit.stored).min(stored.len());
        memory.fill(count * unit.held, |out| unit.lay(&tensor, &stored[part.clone()], out));
        // With the parts before: an op that began earlier still reads them from the file, which brings their
        // pages back.
        load::release(&tensor, 0..part.end);
        if memory.filled().len() < memory.len() {
            return Moved::Part;
        }
        let (books, bytes, moved) = match tensor.source.check() {
            Ok(()) => (&places.copied, memory.len(), Moved::All),
            // What was moved may be zeros. Runs will find the file lost, now and later.
            Err(lost) => {
                places.note(&lost);
                (&places.mapped, stored.len(), Moved::Never)
            }
        };
        *ticket = books.take(&tensor.name, bytes as u64).ok();
        self.end();
        if moved == Moved::All {
            *self.lock_file() = None;
            // What ops have read of it since its parts were released.
            load::release(&tensor, 0..stored.len());
        }
        moved
    }

    /// Moves nothing any more. Waits for the part at hand.
    pub(crate) fn stay(&self) {
        // Before the wait, so that whoever moves it stops there.
        self.end();
        *self.lock_ticket() = None;
    }

    /// The weight stays in its file because moving it went wrong.
    pub(crate) fn fail(&self, places: &Places, reason: &str) {
        let mut ticket = self.lock_ticket();
        if let (false, Some(tensor)) = (self.is_over(), self.file()) {
            self.end();
            places.note(&reason);
            *ticket = places.mapped.take(&tensor.name, tensor.range.len() as u64).ok();
        }
    }

    fn lock_file(&self) -> MutexGuard<'_, Option<Arc<TensorView>>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_ticket(&self) -> MutexGuard<'_, Option<Ticket>> {
        self.ticket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}
