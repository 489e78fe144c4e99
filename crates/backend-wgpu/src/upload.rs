//! Bytes on their way to the device, through staging buffers of our own that are used again and again.
//!
//! `wgpu` would make one for each write; but when the driver has no memory for that one, the device is lost
//! to `wgpu` for good. Here it is an error, and only where there is none at all: with the one made when the
//! device is opened, uploads go on while the device is full, piece by piece.

use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::AllocError;

use crate::memory::Memory;

/// Bytes of a staging buffer, and the most that is copied at once.
pub(crate) const PIECE_BYTES: usize = 2 << 20;
/// Staging buffers at most, on their way or not: two chunks of a prompt's hidden states are on their way
/// together.
const STAGING_MAX: usize = 32;
/// Those kept when nothing is on its way.
const SPARE_MAX: usize = 4;
/// Where data may begin: mapped ranges begin at multiples of eight.
const ALIGN: u64 = 8;

#[derive(Default, Debug)]
struct StagingPool {
    /// Mapped, for anything.
    spare: Vec<wgpu::Buffer>,
    /// How many the device reads from.
    away: usize,
}

/// The staging buffers of a queue.
#[derive(Default, Debug)]
pub(crate) struct Uploads {
    /// Mapped, with the bytes in use: read by commands that are not handed over yet.
    open: Vec<(wgpu::Buffer, u64)>,
    shared: Arc<Mutex<StagingPool>>,
}

impl Uploads {
    /// Makes the staging buffer that is always there.
    pub(crate) fn with_one(memory: &Memory) -> Result<Self, AllocError> {
        let uploads = Self::default();
        uploads.shared().spare.push(memory.staging(PIECE_BYTES as u64)?);
        Ok(uploads)
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, StagingPool> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds room for `bytes`, at most a piece. `false`: there will be some when what was written is handed
    /// over and done.
    pub(crate) fn find_room(&mut self, memory: &Memory, bytes: usize) -> Result<bool, AllocError> {
        let end = PIECE_BYTES as u64;
        if self.open.last().is_some_and(|(_, used)| used + bytes as u64 <= end) {
            return Ok(true);
        }
        let (spare, away) = {
            let mut shared = self.shared();
            (shared.spare.pop(), shared.away)
        };
        let in_use = self.open.len() + away;
        let found = match spare {
            Some(buffer) => Ok(buffer),
            None if in_use >= STAGING_MAX => return Ok(false),
            None => memory.staging(end),
        };
        match found {
            Ok(buffer) => self.open.push((buffer, 0)),
            Err(AllocError::OutOfMemory { .. }) if in_use > 0 => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Queues the copy of `data`, for which there is room, to byte `at` of `to`.
    pub(crate) fn copy(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        to: &wgpu::Buffer,
        at: u64,
        data: &[u8],
    ) -> Result<(), AllocError> {
        let (staging, used) = self.open.last_mut().expect("room was found before");
        let bytes = data.len() as u64;
        let lost = |error: wgpu::MapRangeError| AllocError::DeviceLost { reason: error.to_string() };
        staging.get_mapped_range_mut(*used..*used + bytes).map_err(lost)?.copy_from_slice(data);
        encoder.copy_buffer_to_buffer(staging, *used, to, at, bytes);
        *used = (*used + bytes).next_multiple_of(ALIGN);
        Ok(())
    }

    /// Makes what was written ready to be handed over.
    pub(crate) fn close(&mut self) -> Vec<wgpu::Buffer> {
        let closed: Vec<_> = self.open.drain(..).map(|(buffer, _)| buffer).collect();
        closed.iter().for_each(wgpu::Buffer::unmap);
        self.shared().away += closed.len();
        closed
    }

    /// Takes back, once the device has read them, the buffers that were handed over.
    pub(crate) fn take_back(&self, closed: Vec<wgpu::Buffer>) {
        for buffer in closed {
            let (shared, own) = (Arc::clone(&self.shared), buffer.clone());
            buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.away -= 1;
                if mapped.is_ok() && shared.spare.len() < SPARE_MAX {
                    shared.spare.push(own);
                }
            });
        }
    }
}
