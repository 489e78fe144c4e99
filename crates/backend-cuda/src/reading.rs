//! Results on their way from the card, and places in the queue to wait for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exo_backend::{Download, FAULT_WORDS, Fence, RunError, complaint};

use crate::api::{Call, CallError};
use crate::device::Shop;
use crate::driver::{DeviceMemory, Pinned};
use crate::program::{FAULT_BYTES, Inner};
use crate::queue::{Marker, Queue};

/// Spare memory kept; more is only made while more downloads are on their way.
const SPARE_MAX: usize = 4;

/// What a stream and its downloads share.
#[derive(Default, Debug)]
pub(crate) struct Desk {
    /// Programs whose kernels may have complained since the last look.
    unseen: Mutex<Vec<Arc<Inner>>>,
    /// What the card copies results to, when nothing is on its way in it.
    spare: Mutex<Vec<Pinned>>,
    /// Where results are on their way to that nobody waits for any more: the card may still write there.
    late: Mutex<Vec<Landing>>,
}

/// Where results are on their way to, and the place in the queue behind them.
#[derive(Debug)]
struct Landing {
    memory: Pinned,
    end: Marker,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let is_landing = |landing: &Landing| !landing.end.is_done().unwrap_or(false);
        let late = std::mem::take(&mut *locked(&self.late));
        // Nobody asks any more, so nobody will know when it is safe to give these back.
        late.into_iter().filter(is_landing).for_each(|landing| std::mem::forget(landing.memory));
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// Remembers to look what the kernels of `program` complained of.
    pub(crate) fn look_at(&self, program: &Arc<Inner>) {
        let mut unseen = locked(&self.unseen);
        if !unseen.iter().any(|known| Arc::ptr_eq(known, program)) {
            unseen.push(Arc::clone(program));
        }
    }

    fn memory(&self, shop: &Shop, bytes: usize) -> Call<Pinned> {
        self.collect();
        let mut spare = locked(&self.spare);
        if let Some(fitting) = spare.iter().position(|memory| memory.bytes >= bytes) {
            return Ok(spare.swap_remove(fitting));
        }
        // The smaller ones make room for the one that serves both.
        spare.clear();
        shop.context.pinned(bytes.next_power_of_two())
    }

    /// Takes back what has landed since.
    fn collect(&self) {
        let mut late = locked(&self.late);
        let all = std::mem::take(&mut *late);
        let (landed, others): (Vec<_>, _) =
            all.into_iter().partition(|landing| landing.end.is_done().unwrap_or(false));
        *late = others;
        landed.into_iter().for_each(|landing| self.give_back(landing.memory));
    }

    fn give_back(&self, memory: Pinned) {
        let mut spare = locked(&self.spare);
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }
}

/// Bytes on their way, and what kernels complained of until then.
#[derive(Debug)]
pub(crate) struct Reading {
    shop: Arc<Shop>,
    desk: Arc<Desk>,
    /// Whose complaints are on their way; none once they were seen.
    programs: Vec<Arc<Inner>>,
    /// `None` once they have arrived.
    landing: Option<Landing>,
    /// Bytes asked for; complaints lie behind them.
    wanted: u64,
}

impl Reading {
    /// Queues copies of `parts` (memory, byte, bytes) and of what kernels complained of since the last look.
    pub(crate) fn queue(
        shop: &Arc<Shop>,
        desk: &Arc<Desk>,
        queue: &Queue,
        parts: &[(&DeviceMemory, u64, u64)],
    ) -> Result<Self, RunError> {
        shop.context.check()?;
        let lost = |error: CallError| shop.context.lost_run(&error);
        let programs = locked(&desk.unseen).clone();
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let total = wanted + FAULT_BYTES * programs.len() as u64;
        let mut memory = desk.memory(shop, total as usize).map_err(lost)?;
        let faults = programs.iter().map(|program| (&program.fault, 0, FAULT_BYTES));
        let mut to = 0;
        let copied = parts.iter().copied().chain(faults).try_for_each(|(from, at, bytes)| {
            let copied = queue.download(from, at, &mut memory, to, bytes);
            to += bytes as usize;
            copied
        });
        let end = match copied.and_then(|()| queue.mark()) {
            Ok(end) => end,
            Err(error) => {
                // Some of the copies may be under way.
                std::mem::forget(memory);
                return Err(lost(error));
            }
        };
        // Whoever runs one of them from now on puts it there again.
        locked(&desk.unseen).clear();
        let (shop, desk) = (Arc::clone(shop), Arc::clone(desk));
        Ok(Self { shop, desk, programs, landing: Some(Landing { memory, end }), wanted })
    }

    /// Waits and gives the bytes. A complaint of a kernel is the error.
    pub(crate) fn wait(mut self, deadline: Duration) -> Result<Vec<u8>, RunError> {
        let lost = |shop: &Shop, error: CallError| shop.context.lost_run(&error);
        let Some(landing) = self.landing.take() else { return Ok(Vec::new()) };
        let waited = landing.end.wait(deadline);
        if !matches!(waited, Ok(true)) {
            self.landing = Some(landing);
            waited.map_err(|error| lost(&self.shop, error))?;
            return Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 });
        }
        let mut bytes = vec![0; self.wanted as usize + FAULT_BYTES as usize * self.programs.len()];
        landing.memory.read(&mut bytes, 0);
        self.desk.give_back(landing.memory);
        let complaints = bytes.split_off(self.wanted as usize);
        let complaints: Vec<u32> =
            complaints.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut first = Ok(());
        for (program, words) in std::mem::take(&mut self.programs).iter().zip(complaints.chunks(FAULT_WORDS))
        {
            let told = complaint(words);
            if told.is_err() {
                self.shop.fill(&program.fault, 0, &[0; FAULT_BYTES as usize])?;
                self.shop.settle()?;
            }
            first = first.and(told);
        }
        first.map(|()| bytes)
    }
}

impl Drop for Reading {
    /// Complaints that nobody saw are looked for again.
    fn drop(&mut self) {
        self.programs.iter().for_each(|program| self.desk.look_at(program));
        locked(&self.desk.late).extend(self.landing.take());
    }
}

impl Download for Reading {
    fn is_ready(&self) -> Result<bool, RunError> {
        let is_done = self.landing.as_ref().map_or(Ok(true), |landing| landing.end.is_done());
        is_done.map_err(|error| self.shop.context.lost_run(&error))
    }

    fn finish(self: Box<Self>, into: &mut [f32], deadline: Duration) -> Result<(), RunError> {
        assert!(self.wanted == size_of_val(into) as u64, "{} bytes were asked for", self.wanted);
        let bytes = self.wait(deadline)?;
        bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
        Ok(())
    }
}

impl Fence for Marker {
    fn is_done(&self) -> Result<bool, RunError> {
        Marker::is_done(self).map_err(|error| self.context.lost_run(&error))
    }

    fn wait(&self, deadline: Duration) -> Result<(), RunError> {
        match Marker::wait(self, deadline).map_err(|error| self.context.lost_run(&error))? {
            true => Ok(()),
            false => Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 }),
        }
    }
}
