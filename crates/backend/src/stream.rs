//! Ordered work on a device: copies, programs, and waiting for them with a bound.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::{Arrived, Buffer, DeviceOwned, Download, Element, ExchangeError, KvCache, RunError};

/// Longest wait of a backend that waits where others queue.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A compiled recording. The device that compiled it runs it.
pub trait Program: DeviceOwned {}

/// The numbers of one run: how many rows the buffers hold this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunShape {
    /// T
    pub tokens: usize,
    /// R
    pub selected: usize,
}

/// Asks a run to stop at the next layer boundary that is not handed to the device yet: see [`Stream::run`].
#[derive(Clone, Default, Debug)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks every run that was given this token to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Adds up partial sums over the devices that share a layer.
pub trait Exchange: Send + Sync {
    /// Whether there is no one to exchange with; `models` then records no [`crate::Op::Exchange`].
    fn is_alone(&self) -> bool;

    /// Replaces `partial` by the sum over the group, added in the group's order.
    fn sum(&self, partial: &mut [f32]) -> Result<(), ExchangeError>;
}

/// The group of one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Alone;

impl Exchange for Alone {
    fn is_alone(&self) -> bool {
        true
    }

    fn sum(&self, _partial: &mut [f32]) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// A queue of work. Calls return when the work is queued, not when it is done; a download or
/// [`Self::synchronize`] says when. Work of one stream runs in the order it was queued; streams do not wait
/// for each other.
pub trait Stream: Send {
    /// Copies `data` into `to`, from element `at` on. Panics if it does not fit or the type differs.
    fn upload_f32(&mut self, to: &Buffer, at: usize, data: &[f32]) -> Result<(), RunError>;

    /// Copies `data` into `to`, from element `at` on. Panics if it does not fit or the type differs.
    fn upload_u32(&mut self, to: &Buffer, at: usize, data: &[u32]) -> Result<(), RunError>;

    /// Runs a program once. Panics if `shape` asks for more rows than the program's buffers hold.
    ///
    /// `cancel` is looked at where a layer begins, on the host. A processor does so while it computes. A card
    /// gets a run as a whole, as far as its next exchange of partial sums: one that is cancelled behind that
    /// computes to its end, and the caller learns of it with what it waits for. So a run is the most that a
    /// card does in vain, and a caller bounds it by the rows it asks for; prompts are read in chunks.
    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError>;

    /// Copies one buffer to another of the same device and element type, `len` elements from the start.
    /// Panics if they do not fit.
    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError>;

    /// Queues a download of `len` elements from element `at` on. Panics if they are not there. A backend that
    /// has nothing better waits here.
    fn download_later(
        &mut self,
        from: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<Box<dyn Download>, RunError> {
        from.assert_fits(Element::F32, at, len);
        let mut elements = vec![0.0; len];
        self.download_f32(from, at, &mut elements, WAIT_MAX)?;
        Ok(Box::new(Arrived(elements)))
    }

    /// Waits for everything queued and fills `into` from element `at` on.
    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        deadline: Duration,
    ) -> Result<(), RunError>;

    /// Waits for everything queued and shows some elements. They are copied to `room`, unless the host can
    /// read them where they are. `see` asks nothing of the device.
    fn show_f32(
        &mut self,
        from: &Buffer,
        elements: Range<usize>,
        room: &mut Vec<f32>,
        deadline: Duration,
        see: &mut dyn FnMut(&[f32]),
    ) -> Result<(), RunError> {
        room.resize(elements.len(), 0.0);
        self.download_f32(from, elements.start, room, deadline)?;
        see(room);
        Ok(())
    }

    /// Waits for everything queued.
    fn synchronize(&mut self, deadline: Duration) -> Result<(), RunError>;

    /// The keys and values of one page of one layer in the neutral format: keys `[K, P, D]` then values
    /// `[K, P, D]`, as f32.
    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError>;

    /// Writes a page in the neutral format. Panics if `data` is not one page long.
    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError>;

    /// Overwrites a page of every layer with zeros, before another principal gets it.
    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError>;
}
