//! What the backend has of a driver: cards, contexts, memory, modules, queues and graphs, each as a handle that releases itself and
//! keeps what it belongs to.
//!
//! `unsafe` is here, in `api.rs` and in `hip.rs`, and nowhere else.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use exo_backend::{AllocError, RunError};

use crate::api::{Api, Attribute, Call, CallError, NOT_READY, PEER_ACCESS_ALREADY_ENABLED, Place};

/// Longest wait for an upload that may not return before it is done.
const UPLOAD_MAX: Duration = Duration::from_secs(60);
/// How long a wait looks again and again before it sleeps in between: a decode step on a fast card.
const SPIN_MAX: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// Whether NVIDIA's library can be opened. Nothing of it may be called before this was true.
pub(crate) fn has_cuda() -> bool {
    // SAFETY: opens and closes a library of the system, whose initialisers are NVIDIA's.
    unsafe { sys::is_culib_present() }
}

/// The newest version the driver knows: 12020 for CUDA 12.2, 50221153 for HIP 5.2.
pub(crate) fn version(api: Api) -> Call<i32> {
    let mut version = 0;
    // SAFETY: needs no initialisation and writes one number.
    unsafe { api.driver_version(&mut version) }?;
    Ok(version)
}

pub(crate) fn init(api: Api) -> Call<()> {
    // SAFETY: may be called any number of times.
    unsafe { api.init(0) }
}

pub(crate) fn count(api: Api) -> Call<i32> {
    let mut count = 0;
    // SAFETY: writes one number.
    unsafe { api.device_count(&mut count) }?;
    Ok(count)
}

/// A card, by its place in its driver's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ordinal {
    pub(crate) api: Api,
    pub(crate) device: i32,
}

impl Ordinal {
    pub(crate) fn name(self) -> Call<String> {
        // SAFETY: `text` hands on room for as many bytes as it says.
        text(|to, len| unsafe { self.api.device_name(to, len, self.device) })
    }

    /// `0000:01:00.0`
    pub(crate) fn pci_address(self) -> Call<String> {
        // SAFETY: as above.
        let address = text(|to, len| unsafe { self.api.device_pci_bus_id(to, len, self.device) })?;
        Ok(address.to_lowercase())
    }

    pub(crate) fn attribute(self, attribute: Attribute) -> Call<i32> {
        self.api.attribute(attribute, self.device)
    }

    pub(crate) fn memory_bytes(self) -> Call<u64> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        unsafe { self.api.device_total_mem(&mut bytes, self.device) }?;
        Ok(bytes as u64)
    }
}

/// A text that a driver writes to where it is told, at most so many bytes.
fn text(ask: impl FnOnce(*mut c_char, c_int) -> Call<()>) -> Call<String> {
    let mut text = [0u8; 256];
    // One short of the whole, so that the last stays zero.
    ask(text.as_mut_ptr().cast(), text.len() as c_int - 1)?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}

/// A card in use, and the first error after which nothing of it is to be believed.
#[derive(Debug)]
pub(crate) struct Context {
    place: Place,
    lost: Mutex<Option<String>>,
}

// SAFETY: the driver's handles may be used from any thread; each call makes the context current on its own.
unsafe impl Send for Context {}
// SAFETY: as above; what is ours is behind a lock.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // Everything made in it holds an `Arc` of it and is gone.
        forgotten(self.place.close());
    }
}

/// A failure to release something: there is nobody to tell.
fn forgotten(released: Call<()>) {
    if let Err(error) = released {
        tracing::warn!(%error, "something of a card was not released");
    }
}

impl Context {
    pub(crate) fn open(ordinal: Ordinal) -> Call<Arc<Self>> {
        let place = Place::open(ordinal.api, ordinal.device)?;
        Ok(Arc::new(Self { place, lost: Mutex::default() }))
    }

    /// Makes it this thread's current one, as most calls need it.
    pub(crate) fn enter(&self) -> Call<()> {
        self.place.enter()
    }

    pub(crate) fn api(&self) -> Api {
        self.place.api
    }

    /// An error of a call on this card. All but a lack of memory are for good: the driver repeats them until the context ends.
    pub(crate) fn lost(&self, error: &CallError) -> AllocError {
        if error.is_out_of_memory() {
            let free_bytes = self.memory().map_or(0, |(free, _)| free);
            // The driver does not say for how much.
            return AllocError::OutOfMemory { what: error.to_string(), needed_bytes: 0, free_bytes };
        }
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        AllocError::DeviceLost { reason: lost.get_or_insert_with(|| error.to_string()).clone() }
    }

    pub(crate) fn lost_run(&self, error: &CallError) -> RunError {
        self.lost(error).into()
    }

    /// Whether it can still be used.
    pub(crate) fn check(&self) -> Result<(), AllocError> {
        match &*self.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(AllocError::DeviceLost { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Bytes free and in all, with what other programs hold.
    pub(crate) fn memory(&self) -> Call<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers about the current context's card.
        unsafe { self.api().mem_info(&mut free, &mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// Memory of the card: anything is in it.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Call<DeviceMemory> {
        self.enter()?;
        let mut at = 0;
        let size = usize::try_from(bytes.max(4)).unwrap_or(usize::MAX);
        // SAFETY: writes an address, which `DeviceMemory` frees.
        unsafe { self.api().mem_alloc(&mut at, size) }?;
        Ok(DeviceMemory { context: Arc::clone(self), at, bytes })
    }

    /// Memory of the machine that the card reads and writes by itself.
    pub(crate) fn pinned(self: &Arc<Self>, bytes: usize) -> Call<Pinned> {
        self.enter()?;
        let mut at = ptr::null_mut();
        // SAFETY: writes an address, which `Pinned` frees.
        unsafe { self.api().mem_host_alloc(&mut at, bytes.max(1), 0) }?;
        Ok(Pinned { context: Arc::clone(self), at: at.cast(), bytes })
    }

    /// Loads kernels: PTX that ends in a zero, or what AMD's compiler made.
    pub(crate) fn module(self: &Arc<Self>, image: &[u8]) -> Call<Arc<Module>> {
        self.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the image says itself how long it is, and is only read during the call.
        unsafe { self.api().module_load(&mut raw, image.as_ptr().cast()) }?;
        Ok(Arc::new(Module { context: Arc::clone(self), raw }))
    }

    pub(crate) fn queue(self: &Arc<Self>) -> Call<Queue> {
        self.enter()?;
        let (mut raw, mut event) = (ptr::null_mut(), ptr::null_mut());
        let non_blocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: writes a handle, which `Queue` destroys.
        unsafe { self.api().stream_create(&mut raw, non_blocking) }?;
        let timeless = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: as above; without an event the queue is destroyed again.
        let made = unsafe { self.api().event_create(&mut event, timeless) };
        if made.is_err() {
            // SAFETY: made above and used by nobody.
            forgotten(unsafe { self.api().stream_destroy(raw) });
        }
        made.map(|()| Queue { context: Arc::clone(self), raw, event, staging: RefCell::default() })
    }

    /// Lets this card reach memory of another by itself; whether it can.
    pub(crate) fn reach(&self, memory: &DeviceMemory) -> Call<bool> {
        let (own, other) = (self.place, memory.context.place);
        if own.api != other.api {
            return Ok(false);
        }
        let mut can = 0;
        // SAFETY: writes one number.
        unsafe { own.api.can_access_peer(&mut can, own.device, other.device) }?;
        if can == 0 {
            return Ok(false);
        }
        self.enter()?;
        match other.open_to_current() {
            Err(error) if error.code != PEER_ACCESS_ALREADY_ENABLED => Err(error),
            _ => Ok(true),
        }
    }
}

/// Memory of a card. Freeing it waits for the work that uses it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    /// Address on the card.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let entered = self.context.enter();
        // SAFETY: allocated in this context and freed once; the driver waits for work that uses it.
        let freed = entered.and_then(|()| unsafe { self.context.api().mem_free(self.at) });
        if let Err(error) = freed {
            tracing::warn!(%error, "memory of a card was not freed");
        }
    }
}

/// Memory of the machine for copies.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    at: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// What lies in it. The caller has waited for every copy into it.
    pub(crate) fn read(&self, into: &mut [u8], from: usize) {
        assert!(
            from.checked_add(into.len()).is_some_and(|end| end <= self.bytes),
            "a read past the staging memory"
        );
        // SAFETY: within the allocation, by the line above; no copy is under way, by contract.
        unsafe { ptr::copy_nonoverlapping(self.at.add(from), into.as_mut_ptr(), into.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let entered = self.context.enter();
        // SAFETY: allocated by the driver and freed once.
        let freed = entered.and_then(|()| unsafe { self.context.api().mem_host_free(self.at.cast()) });
        if let Err(error) = freed {
            tracing::warn!(%error, "staging memory was not freed");
        }
    }
}

/// Loaded kernels.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: a handle of the driver, usable from any thread and never changed.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        let entered = self.context.enter();
        // SAFETY: loaded once; programs that launch its kernels hold an `Arc` of it.
        let unloaded = entered.and_then(|()| unsafe { self.context.api().module_unload(self.raw) });
        if let Err(error) = unloaded {
            tracing::warn!(%error, "kernels of a card were not unloaded");
        }
    }
}

/// One kernel of a module, which it keeps.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    raw: sys::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: a handle of the driver, usable from any thread and never changed.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Call<Function> {
        let name = CString::new(name).unwrap_or_default(); // our own names hold no zero
        let mut raw = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends in a zero.
        unsafe { self.context.api().module_function(&mut raw, self.raw, name.as_ptr()) }?;
        Ok(Function { raw, _module: Arc::clone(self) })
    }
}

/// A stream of the driver: work in order.
#[derive(Debug)]
pub(crate) struct Queue {
    context: Arc<Context>,
    raw: sys::CUstream,
    event: sys::CUevent,
    /// What uploads go through where they must, grown as needed.
    staging: RefCell<Option<Pinned>>,
}

// SAFETY: handles of the driver, usable from any thread, with one owner.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once, in `Context::queue`; the driver ends them when their work is done.
            unsafe {
                forgotten(self.context.api().event_destroy(self.event));
                forgotten(self.context.api().stream_destroy(self.raw));
            }
        }
    }
}

/// `bytes` from `at` on must lie in `memory`: addresses of the card are not checked by anybody else.
fn assert_within(memory: &DeviceMemory, at: u64, bytes: u64) {
    let fits = at.checked_add(bytes).is_some_and(|end| end <= memory.bytes);
    assert!(fits, "{bytes} bytes from {at} on are not within {} bytes of the card", memory.bytes);
}

impl Queue {
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
        // SAFETY: both ranges are as long as said; from memory that is not pinned this driver copies before it returns.
        unsafe { self.context.api().copy_to_card(to.at + at, from, data.len(), self.raw) }
    }

    /// For a driver that may read the bytes after it returned: they go through memory that stays, and the wait is here.
    fn upload_through(&self, to: &DeviceMemory, at: u64, data: &[u8]) -> Call<()> {
        let staging = match self.staging.take() {
            Some(staging) if staging.bytes >= data.len() => staging,
            _ => self.context.pinned(data.len().next_power_of_two())?,
        };
        // SAFETY: the memory is at least as long as the data, by the lines above; nobody else has it, and it is kept, for ever
        // if the copy does not end. The range on the card was checked by the caller.
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
        // SAFETY: both ranges are as long as said; the caller keeps `into` until the queue is done, or for ever.
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

    /// Copies the first bytes from one card to another, by whatever way the driver has.
    pub(crate) fn copy_peer(&self, from: &DeviceMemory, to: &DeviceMemory, bytes: u64) -> Call<()> {
        assert_within(from, 0, bytes);
        assert_within(to, 0, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        let (source, target) = (from.context.place, to.context.place);
        // SAFETY: both ranges are within their allocations, whose contexts they keep.
        unsafe { source.copy_to_peer((to.at, &target), from.at, bytes as usize, self.raw) }
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
        // SAFETY: `args` is at least as long as the kernel's only parameter (a test holds the structures against the
        // PTX), and the driver copies it before it returns. Addresses in it belong to operands that the program keeps.
        unsafe {
            let ((x, y), params, none) = (grid, params.as_mut_ptr(), ptr::null_mut());
            self.context.api().launch(function.raw, x, y, 1, threads, 1, 1, 0, self.raw, params, none)
        }
    }

    /// Marks the end of what is queued now.
    fn mark(&self) -> Call<()> {
        self.context.enter()?;
        // SAFETY: both handles are this queue's.
        unsafe { self.context.api().event_record(self.event, self.raw) }
    }

    /// Whether everything before the last mark is done.
    fn is_done(&self) -> Call<bool> {
        // SAFETY: the handle is this queue's.
        match unsafe { self.context.api().event_query(self.event) } {
            Err(error) if error.code == NOT_READY => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Waits until everything queued now is done; `false` if that takes longer than `deadline`. Blocks its thread, as every
    /// download does: the engine has one of its own.
    #[allow(clippy::disallowed_methods, reason = "the drivers have no wait with a deadline")]
    pub(crate) fn drain(&self, deadline: Duration) -> Call<bool> {
        self.mark()?;
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
            // SAFETY: captured above and used by nobody.
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
