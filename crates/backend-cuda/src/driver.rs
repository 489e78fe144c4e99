//! The calls into the CUDA driver, each as a function that returns what it makes or the driver's word for what went wrong.
//!
//! The only file with `unsafe`. Handles made here release themselves; each keeps the context that it belongs to.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUresult};
use exo_backend::{AllocError, RunError};

/// The driver refused a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {name}: {text}")]
pub struct CallError {
    /// The function of the driver.
    pub call: &'static str,
    /// The driver's name for the error.
    pub name: String,
    /// The driver's words for it.
    pub text: String,
    code: CUresult,
}

impl CallError {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }

    pub(crate) fn is_no_device(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_NO_DEVICE
    }
}

type Call<T> = Result<T, CallError>;

fn check(call: &'static str, code: CUresult) -> Call<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (mut name, mut text) = (ptr::null(), ptr::null());
    // SAFETY: the driver writes pointers to texts of its own, which live for ever, or leaves null for a number it does not know.
    let words = unsafe {
        sys::cuGetErrorName(code, &mut name);
        sys::cuGetErrorString(code, &mut text);
        [name, text]
            .map(|word| (!word.is_null()).then(|| CStr::from_ptr(word).to_string_lossy().into_owned()))
    };
    let [name, text] = words;
    let unknown = || format!("error {}", code as u32);
    Err(CallError {
        call,
        name: name.unwrap_or_else(unknown),
        text: text.unwrap_or_else(|| "without words".to_owned()),
        code,
    })
}

/// Whether the driver's library can be opened. Nothing else here may be called before this was true.
pub(crate) fn is_there() -> bool {
    // SAFETY: opens and closes a library of the system, whose initialisers are NVIDIA's.
    unsafe { sys::is_culib_present() }
}

/// The newest CUDA version the driver knows: 12020 for 12.2.
pub(crate) fn version() -> Call<i32> {
    let mut version = 0;
    // SAFETY: needs no initialisation and writes one number.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(version)
}

pub(crate) fn init() -> Call<()> {
    // SAFETY: may be called any number of times.
    check("cuInit", unsafe { sys::cuInit(0) })
}

pub(crate) fn count() -> Call<i32> {
    let mut count = 0;
    // SAFETY: writes one number.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count)
}

/// A function that writes a text of at most so many bytes about a card.
type AskText = unsafe fn(*mut c_char, c_int, sys::CUdevice) -> CUresult;

/// A card, by its place in the driver's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ordinal(pub(crate) i32);

impl Ordinal {
    pub(crate) fn name(self) -> Call<String> {
        self.text("cuDeviceGetName", sys::cuDeviceGetName)
    }

    /// `0000:01:00.0`
    pub(crate) fn pci_address(self) -> Call<String> {
        Ok(self.text("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId)?.to_lowercase())
    }

    fn text(self, call: &'static str, ask: AskText) -> Call<String> {
        let mut text = [0u8; 256];
        // SAFETY: the driver writes at most the length it is given, one short of the whole, so that the last stays zero.
        check(call, unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int - 1, self.0) })?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    pub(crate) fn attribute(self, attribute: sys::CUdevice_attribute) -> Call<i32> {
        let mut value = 0;
        // SAFETY: writes one number.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.0) })?;
        Ok(value)
    }

    pub(crate) fn memory_bytes(self) -> Call<u64> {
        let mut bytes = 0;
        // SAFETY: writes one number.
        check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, self.0) })?;
        Ok(bytes as u64)
    }
}

/// A card in use: its primary context, and the first error after which nothing of it is to be believed.
#[derive(Debug)]
pub(crate) struct Context {
    raw: sys::CUcontext,
    ordinal: Ordinal,
    lost: Mutex<Option<String>>,
}

// SAFETY: the driver's handles may be used from any thread; each call makes the context current on its own.
unsafe impl Send for Context {}
// SAFETY: as above; what is ours is behind a lock.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`; everything made in it holds an `Arc` of it and is gone.
        let code = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.ordinal.0) };
        forgotten("cuDevicePrimaryCtxRelease", code);
    }
}

/// A failure to release something: there is nobody to tell.
fn forgotten(call: &'static str, code: CUresult) {
    if let Err(error) = check(call, code) {
        tracing::warn!(%error, "a CUDA resource was not released");
    }
}

impl Context {
    pub(crate) fn open(ordinal: Ordinal) -> Call<Arc<Self>> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes a handle, which `drop` gives back.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, ordinal.0) })?;
        Ok(Arc::new(Self { raw, ordinal, lost: Mutex::default() }))
    }

    /// Makes it this thread's current one, as most calls need it.
    fn enter(&self) -> Call<()> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
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
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Memory of the card: anything is in it.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Call<DeviceMemory> {
        self.enter()?;
        let mut at = 0;
        let size = usize::try_from(bytes.max(4)).unwrap_or(usize::MAX);
        // SAFETY: writes an address, which `DeviceMemory` frees.
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut at, size) })?;
        Ok(DeviceMemory { context: Arc::clone(self), at, bytes })
    }

    /// Memory of the machine that the card reads and writes by itself.
    pub(crate) fn pinned(self: &Arc<Self>, bytes: usize) -> Call<Pinned> {
        self.enter()?;
        let mut at = ptr::null_mut();
        // SAFETY: writes an address, which `Pinned` frees.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut at, bytes.max(1), 0) })?;
        Ok(Pinned { context: Arc::clone(self), at: at.cast(), bytes })
    }

    pub(crate) fn module(self: &Arc<Self>, ptx: &str) -> Call<Arc<Module>> {
        self.enter()?;
        let text = CString::new(ptx).unwrap_or_default(); // PTX holds no zero: it is our own text
        let mut raw = ptr::null_mut();
        // SAFETY: the text ends in a zero and is only read during the call.
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut raw, text.as_ptr().cast()) })?;
        Ok(Arc::new(Module { context: Arc::clone(self), raw }))
    }

    pub(crate) fn queue(self: &Arc<Self>) -> Call<Queue> {
        self.enter()?;
        let (mut raw, mut event) = (ptr::null_mut(), ptr::null_mut());
        let non_blocking = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: writes a handle, which `Queue` destroys.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, non_blocking) })?;
        let timeless = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: as above; without an event the queue is destroyed again.
        let made = check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, timeless) });
        if made.is_err() {
            // SAFETY: made above and used by nobody.
            forgotten("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(raw) });
        }
        made.map(|()| Queue { context: Arc::clone(self), raw, event })
    }

    /// Lets this card reach memory of another by itself; whether it can.
    pub(crate) fn reach(&self, memory: &DeviceMemory) -> Call<bool> {
        let other = &memory.context;
        let mut can = 0;
        let asked = unsafe {
            // SAFETY: writes one number.
            sys::cuDeviceCanAccessPeer(&mut can, self.ordinal.0, other.ordinal.0)
        };
        check("cuDeviceCanAccessPeer", asked)?;
        if can == 0 {
            return Ok(false);
        }
        self.enter()?;
        // SAFETY: both contexts are retained.
        let code = unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) };
        match code {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => check("cuCtxEnablePeerAccess", code).map(|()| true),
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
        let freed = entered.and_then(|()| check("cuMemFree", unsafe { sys::cuMemFree_v2(self.at) }));
        if let Err(error) = freed {
            tracing::warn!(%error, "memory of a CUDA card was not freed");
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
        let freed =
            entered.and_then(|()| check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(self.at.cast()) }));
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
        let code = entered.and_then(|()| check("cuModuleUnload", unsafe { sys::cuModuleUnload(self.raw) }));
        if let Err(error) = code {
            tracing::warn!(%error, "a CUDA module was not unloaded");
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
        check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut raw, self.raw, name.as_ptr()) })?;
        Ok(Function { raw, _module: Arc::clone(self) })
    }
}

/// A stream of the driver: work in order.
#[derive(Debug)]
pub(crate) struct Queue {
    context: Arc<Context>,
    raw: sys::CUstream,
    event: sys::CUevent,
}

// SAFETY: handles of the driver, usable from any thread, with one owner.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once, in `Context::queue`; the driver ends them when their work is done.
            unsafe {
                forgotten("cuEventDestroy", sys::cuEventDestroy_v2(self.event));
                forgotten("cuStreamDestroy", sys::cuStreamDestroy_v2(self.raw));
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
    /// Copies to the card. The bytes may change as soon as this returns: the driver has taken what it did not copy yet.
    pub(crate) fn upload(&self, to: &DeviceMemory, at: u64, data: &[u8]) -> Call<()> {
        assert_within(to, at, data.len() as u64);
        if data.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: both ranges are as long as said; from memory that is not pinned the driver copies before it returns.
        let code = unsafe {
            sys::cuMemcpyHtoDAsync_v2(to.at + at, data.as_ptr().cast::<c_void>(), data.len(), self.raw)
        };
        check("cuMemcpyHtoDAsync", code)
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
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(into.at.add(to).cast(), from.at + at, bytes as usize, self.raw)
        };
        check("cuMemcpyDtoHAsync", code)
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
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(to.at, from.at, bytes as usize, self.raw)
        })
    }

    /// Copies the first bytes from one card to another, by whatever way the driver has.
    pub(crate) fn copy_peer(&self, from: &DeviceMemory, to: &DeviceMemory, bytes: u64) -> Call<()> {
        assert_within(from, 0, bytes);
        assert_within(to, 0, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        let (source, target) = (from.context.raw, to.context.raw);
        // SAFETY: both ranges are within their allocations, whose contexts they keep.
        let code =
            unsafe { sys::cuMemcpyPeerAsync(to.at, target, from.at, source, bytes as usize, self.raw) };
        check("cuMemcpyPeerAsync", code)
    }

    pub(crate) fn clear(&self, memory: &DeviceMemory, at: u64, bytes: u64) -> Call<()> {
        assert_within(memory, at, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: within the allocation.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(memory.at + at, 0, bytes as usize, self.raw) })
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
        let code = unsafe {
            let (x, y) = grid;
            let params = params.as_mut_ptr();
            sys::cuLaunchKernel(function.raw, x, y, 1, threads, 1, 1, 0, self.raw, params, ptr::null_mut())
        };
        check("cuLaunchKernel", code)
    }

    /// Marks the end of what is queued now.
    pub(crate) fn mark(&self) -> Call<()> {
        self.context.enter()?;
        // SAFETY: both handles are this queue's.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.event, self.raw) })
    }

    /// Whether everything before the last mark is done.
    pub(crate) fn is_done(&self) -> Call<bool> {
        // SAFETY: the handle is this queue's.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Gathers what `work` queues instead of doing it, and makes one thing of it.
    pub(crate) fn capture(&self, work: impl FnOnce() -> Call<()>) -> Call<Captured> {
        self.context.enter()?;
        let own = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is this queue's.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, own) })?;
        let worked = work();
        let mut graph = ptr::null_mut();
        // SAFETY: ends what began above, whatever became of the work; writes a handle or null.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.raw, &mut graph) });
        let captured = worked.and(ended);
        if captured.is_err() && !graph.is_null() {
            // SAFETY: captured above and used by nobody.
            forgotten("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) });
        }
        captured?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was captured above; it is not needed once it was made executable.
        let made = unsafe {
            let made = check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            forgotten("cuGraphDestroy", sys::cuGraphDestroy(graph));
            made
        };
        made.map(|()| Captured { context: Arc::clone(&self.context), exec })
    }

    pub(crate) fn replay(&self, captured: &Captured) -> Call<()> {
        self.context.enter()?;
        // SAFETY: both handles are of this context; the program that captured it keeps its operands.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(captured.exec, self.raw) })
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
            forgotten("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.exec) });
        }
    }
}
