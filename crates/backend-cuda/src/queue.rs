//! Queues of a card: work in order, places in it to wait for, and work that was captured once.

use std::cell::RefCell;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use exo_backend::RunError;

use crate::api::{Call, CallError, NOT_READY};
use crate::driver::{Context, DeviceMemory, Function, Pinned, forgotten};

/// Longest wait for an upload that may not return before it is done.
const UPLOAD_MAX: Duration = Duration::from_secs(60);
/// How long a wait looks again and again before it sleeps in between: a decode step on a fast card.
const SPIN_MAX: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// A stream of the driver: work in order.
#[derive(Debug)]
pub(crate) struct Queue {
    context: Arc<Context>,
    raw: sys::CUstream,
    /// Where a wait marks the end.
    end: Marker,
    /// What uploads go through where they must, grown as needed.
    staging: RefCell<Option<Pinned>>,
}

// SAFETY: a handle of the driver, usable from any thread, with one owner.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once, in `open`; the driver ends it when its work is done.
            forgotten(unsafe { self.context.api().stream_destroy(self.raw) });
        }
    }
}

/// `bytes` from `at` on must lie in `memory`: addresses of the card are not checked by anybody else.
fn assert_within(memory: &DeviceMemory, at: u64, bytes: u64) {
    let fits = at.checked_add(bytes).is_some_and(|end| end <= memory.bytes);
    assert!(fits, "{bytes} bytes from {at} on are not within {} bytes of the card", memory.bytes);
}

impl Queue {
    pub(crate) fn open(context: &Arc<Context>) -> Call<Self> {
        let end = Marker::new(context)?;
        let mut raw = ptr::null_mut();
        let non_blocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: writes a handle, which `drop` destroys.
        unsafe { context.api().stream_create(&mut raw, non_blocking) }?;
        Ok(Self { context: Arc::clone(context), raw, end, staging: RefCell::default() })
    }

    /// Copies to the card. The bytes may change as soon as this returns.
    pub(crate) fn upload(&self, to: &DeviceMemory, at: u64, data: &[u8]) -> Call<()> {
        assert_within(to, at, data.len() as u64);
        if data.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        if self.context.api().reads_after_return() {
            return self.upload_through(to, at, data);
        }
        let from = data.as_ptr().cast::<c_void>();
        // SAFETY: both ranges are as long as said; from memory that is not pinned this driver copies before
        // it returns.
        unsafe { self.context.api().copy_to_card(to.at + at, from, data.len(), self.raw) }
    }

    /// For a driver that may read the bytes after it returned: they go through memory that stays, and the
    /// wait is here.
    fn upload_through(&self, to: &DeviceMemory, at: u64, data: &[u8]) -> Call<()> {
        let staging = match self.staging.take() {
            Some(staging) if staging.bytes >= data.len() => staging,
            _ => self.context.pinned(data.len().next_power_of_two())?,
        };
        // SAFETY: the memory is at least as long as the data, by the lines above; no one else has it, and it
        // is kept, for ever if the copy does not end. The range on the card was checked by the caller.
        let copied = unsafe {
            ptr::copy_nonoverlapping(data.as_ptr(), staging.at, data.len());
            self.context.api().copy_to_card(to.at + at, staging.at.cast(), data.len(), self.raw)
        };
        match copied.and_then(|()| self.drain(UPLOAD_MAX)) {
            Ok(true) => {
                self.staging.replace(Some(staging));
                Ok(())
            }
            other => {
                std::mem::forget(staging);
                let text = format!("an upload of {} bytes took more than {UPLOAD_MAX:?}", data.len());
                other.and(Err(CallError::late("an upload", text)))
            }
        }
    }

    /// Copies from the card to byte `to` of `into`; done when the queue is.
    pub(crate) fn download(
        &self,
        from: &DeviceMemory,
        at: u64,
        into: &mut Pinned,
        to: usize,
        bytes: u64,
    ) -> Call<()> {
        assert_within(from, at, bytes);
        assert!(to as u64 + bytes <= into.bytes as u64, "a copy past the staging memory");
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: both ranges are as long as said; the caller keeps `into` until the queue is done, or for
        // ever.
        unsafe {
            let to = into.at.add(to).cast();
            self.context.api().copy_from_card(to, from.at + at, bytes as usize, self.raw)
        }
    }

    /// Copies the first bytes from one place on the card to another.
    pub(crate) fn copy(&self, from: &DeviceMemory, to: &DeviceMemory, bytes: u64) -> Call<()> {
        assert_within(from, 0, bytes);
        assert_within(to, 0, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: both ranges are within their allocations.
        unsafe { self.context.api().copy_on_card(to.at, from.at, bytes as usize, self.raw) }
    }

    pub(crate) fn clear(&self, memory: &DeviceMemory, at: u64, bytes: u64) -> Call<()> {
        assert_within(memory, at, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: within the allocation.
        unsafe { self.context.api().set_bytes(memory.at + at, 0, bytes as usize, self.raw) }
    }

    /// Starts a kernel that takes one structure, whose bytes are `args`.
    pub(crate) fn launch(
        &self,
        function: &Function,
        grid: (u32, u32),
        threads: u32,
        args: &[u64],
    ) -> Call<()> {
        self.context.enter()?;
        let mut params = [args.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: `args` is at least as long as the kernel's only parameter (a test holds the structures
        // against the PTX), and the driver copies it before it returns. Addresses in it belong to operands
        // that the program keeps.
        unsafe {
            let ((x, y), params, none) = (grid, params.as_mut_ptr(), ptr::null_mut());
            self.context.api().launch(function.raw, x, y, 1, threads, 1, 1, 0, self.raw, params, none)
        }
    }

    /// The place behind everything queued now.
    pub(crate) fn mark(&self) -> Call<Marker> {
        let marker = Marker::new(&self.context)?;
        self.record(&marker)?;
        Ok(marker)
    }

    fn record(&self, marker: &Marker) -> Call<()> {
        self.context.enter()?;
        // SAFETY: both handles are of this context.
        unsafe { self.context.api().event_record(marker.event, self.raw) }
    }

    /// Waits until everything queued now is done; `false` if that takes longer than `deadline`.
    pub(crate) fn drain(&self, deadline: Duration) -> Call<bool> {
        self.record(&self.end)?;
        self.end.wait(deadline)
    }

    /// Gathers what `work` queues instead of doing it, and makes one thing of it.
    pub(crate) fn capture(&self, work: impl FnOnce() -> Call<()>) -> Call<Captured> {
        self.context.enter()?;
        let own = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is this queue's.
        unsafe { self.context.api().begin_capture(self.raw, own) }?;
        let worked = work();
        let mut graph = ptr::null_mut();
        // SAFETY: ends what began above, whatever became of the work; writes a handle or null.
        let ended = unsafe { self.context.api().end_capture(self.raw, &mut graph) };
        let captured = worked.and(ended);
        if captured.is_err() && !graph.is_null() {
            // SAFETY: captured above and used by no one.
            forgotten(unsafe { self.context.api().graph_destroy(graph) });
        }
        captured?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was captured above; it is not needed once it was made executable.
        let made = unsafe {
            let made = self.context.api().graph_instantiate(&mut exec, graph, 0);
            forgotten(self.context.api().graph_destroy(graph));
            made
        };
        made.map(|()| Captured { context: Arc::clone(&self.context), exec })
    }

    pub(crate) fn replay(&self, captured: &Captured) -> Call<()> {
        self.context.enter()?;
        // SAFETY: both handles are of this context; the program that captured it keeps its operands.
        unsafe { self.context.api().graph_launch(captured.exec, self.raw) }
    }
}

/// Work that was captured once and can be launched as one.
#[derive(Debug)]
pub(crate) struct Captured {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}

// SAFETY: a handle of the driver; launches of one graph follow each other.
unsafe impl Send for Captured {}

impl Drop for Captured {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; the driver keeps what still runs.
            forgotten(unsafe { self.context.api().graph_exec_destroy(self.exec) });
        }
    }
}

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Marker {
    pub(crate) context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver, usable from any thread.
unsafe impl Send for Marker {}
// SAFETY: as above; asking changes nothing.
unsafe impl Sync for Marker {}

impl Drop for Marker {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once; the driver ends it when no one waits for it.
            forgotten(unsafe { self.context.api().event_destroy(self.event) });
        }
    }
}

impl Marker {
    fn new(context: &Arc<Context>) -> Call<Self> {
        context.enter()?;
        let mut event = ptr::null_mut();
        let timeless = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: writes a handle, which `drop` destroys.
        unsafe { context.api().event_create(&mut event, timeless) }?;
        Ok(Self { context: Arc::clone(context), event })
    }

    /// Whether everything before it is done.
    pub(crate) fn is_done(&self) -> Call<bool> {
        // SAFETY: the handle is there.
        match unsafe { self.context.api().event_query(self.event) } {
            Err(error) if error.code == NOT_READY => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits until everything before it is done; `false` if that takes longer than `deadline`. Blocks its
    /// thread, as every download does: the engine has one of its own.
    #[allow(clippy::disallowed_methods, reason = "the drivers have no wait with a deadline")]
    pub(crate) fn wait(&self, deadline: Duration) -> Call<bool> {
        let started = Instant::now();
        while !self.is_done()? {
            let waited = started.elapsed();
            if waited > deadline {
                return Ok(false);
            }
            match waited < SPIN_MAX {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(SLEEP),
            }
        }
        Ok(true)
    }
}

/// Waits until everything queued now is done.
pub(crate) fn wait(context: &Context, queue: &Queue, deadline: Duration) -> Result<(), RunError> {
    match queue.drain(deadline).map_err(|error| context.lost_run(&error))? {
        true => Ok(()),
        false => Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 }),
    }
}
