//! What the backend has of a driver: cards, contexts, memory and modules, each as a handle that releases
//! itself and keeps what it belongs to. Queues are in `queue.rs`.
//!
//! `unsafe` is here, in `queue.rs`, `api.rs` and `hip.rs`, and nowhere else.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;
use exo_backend::{AllocError, RunError};

use crate::api::{Api, Attribute, Call, CallError, CardHandle};

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
    pub(crate) place: CardHandle,
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

/// A failure to release something: there is no one to tell.
pub(crate) fn forgotten(released: Call<()>) {
    if let Err(error) = released {
        tracing::warn!(%error, "something of a card was not released");
    }
}

impl Context {
    pub(crate) fn open(ordinal: Ordinal) -> Call<Arc<Self>> {
        let place = CardHandle::open(ordinal.api, ordinal.device)?;
        Ok(Arc::new(Self { place, lost: Mutex::default() }))
    }

    /// Makes it this thread's current one, as most calls need it.
    pub(crate) fn enter(&self) -> Call<()> {
        self.place.enter()
    }

    pub(crate) fn api(&self) -> Api {
        self.place.api
    }

    /// An error of a call on this card. All but a lack of memory are for good: the driver repeats them until
    /// the context ends.
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
}

/// Memory of a card. Freeing it waits for the work that uses it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) context: Arc<Context>,
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
    pub(crate) at: *mut u8,
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
    pub(crate) raw: sys::CUfunction,
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
