use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{OnceLock, PoisonError, RwLock};

use libc::{c_int, c_void, siginfo_t};

/// What the system maps at most around a byte that is read, where it is in memory: the whole folio of the
/// page cache that holds it, from Linux 6.18 on; before that 64 KiB. A multiple of every page size.
const AROUND_BYTES: usize = 2 << 20;
/// More files than one process maps; a model in 200 pieces is rare. The table is 160 KiB of zeros.
const SLOTS: usize = 4096;

/// One mapping. A seqlock: `version` is odd while `start` and `len` are being written, so that the handler
/// never combines the start of one mapping with the length of another.
struct Slot {
    taken: AtomicBool,
    lost: AtomicBool,
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            taken: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    fn set(&self, start: usize, len: usize) {
        self.version.fetch_add(1, Ordering::Acquire);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The mapping's start and length, unless it is being written. The slot of a mapping somebody is reading
    /// is stable: it changes only when the mapping is made and when its last owner drops it.
    fn get(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let value = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_stable = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        is_stable.then_some(value)
    }
}

static TABLE: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// What handled SIGBUS before us. Written once, before our handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static INSTALLED: RwLock<bool> = RwLock::new(false);

/// A mapping known to the handler, until dropped.
#[derive(Debug)]
pub(super) struct Registration {
    slot: usize,
}

impl Registration {
    /// Fails if the handler cannot be installed or the table is full.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        install()?;
        let claim =
            |s: &Slot| s.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = TABLE
            .iter()
            .position(claim)
            .ok_or_else(|| io::Error::other(format!("{SLOTS} files are mapped already")))?;
        TABLE[slot].lost.store(false, Ordering::Relaxed);
        TABLE[slot].set(start, len);
        Ok(Self { slot })
    }

    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.slot].lost.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        TABLE[self.slot].set(0, 0);
        TABLE[self.slot].taken.store(false, Ordering::Release);
    }
}

/// Whether half the pages that hold `range` are in memory; also where the system does not say.
pub(super) fn is_warm(start: usize, range: Range<usize>) -> bool {
    let page_bytes = PAGE_BYTES.load(Ordering::Acquire);
    let first = start + range.start - (start + range.start) % page_bytes;
    let len = start + range.end - first;
    let mut pages = vec![0u8; len.div_ceil(page_bytes)];
    // SAFETY: the pages from `first` on belong to one of our mappings, which is alive as long as its owner
    // calls this; there is a byte for each of them.
    let told = unsafe { libc::mincore(first as *mut c_void, len, pages.as_mut_ptr().cast()) };
    told != 0 || 2 * pages.iter().filter(|page| **page & 1 != 0).count() >= pages.len()
}

/// Takes the pages that hold `range` of the mapping at `start` out of this process's memory, with all that a
/// read of it may have mapped: folios begin at multiples of their size in the file. The next read brings them
/// back from the file, so it does not matter that they hold neighbours too.
pub(super) fn release(start: usize, len: usize, range: Range<usize>) {
    let first = start + (range.start - range.start % AROUND_BYTES);
    let end = start + range.end.next_multiple_of(AROUND_BYTES).min(len);
    // SAFETY: the pages from `first` to `end` belong to one of our mappings, which is alive as long as its
    // owner calls this, and is a read-only view of a file: dropping its pages loses nothing. Where the guard
    // has put zero pages they come back as zeros. A refusal leaves things as they are.
    unsafe { libc::madvise(first as *mut c_void, end - first, libc::MADV_DONTNEED) };
}

/// Installs the handler if this process has not yet.
fn install() -> io::Result<()> {
    if *INSTALLED.read().unwrap_or_else(PoisonError::into_inner) {
        return Ok(());
    }
    let mut installed = INSTALLED.write().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    // SAFETY: sysconf has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page_bytes).map_err(io::Error::other)?, Ordering::Release);
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only reads the current one, into memory large enough for it.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), previous.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded, so it filled `previous`.
    PREVIOUS.get_or_init(|| unsafe { previous.assume_init() });
    // SAFETY: all zeros is a valid sigaction (no flags, empty mask, default action).
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    // On the alternate stack, where Rust's own handler for stack overflow runs too.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is initialised, its function has the signature SA_SIGINFO asks for and is async-signal
    // safe: it touches atomics, mmap and sigaction only.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo, which for SIGBUS carries an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if !replace_by_zeros(address) {
        chain(signal, info, context);
    }
}

/// Puts zero pages from the faulting page to the end of its mapping, if it is one of ours. To the end, not
/// one page: a truncation takes the whole tail, and a fault per page would be a million signals for 4 GiB.
fn replace_by_zeros(address: usize) -> bool {
    let page_bytes = PAGE_BYTES.load(Ordering::Acquire);
    for slot in &TABLE {
        let Some((start, len)) = slot.get() else { continue };
        if address < start || address - start >= len {
            continue;
        }
        slot.lost.store(true, Ordering::Release);
        let page = address - address % page_bytes;
        let rest = (start + len).next_multiple_of(page_bytes) - page;
        // SAFETY: [page, page + rest) lies inside a mapping that is alive, because a thread is reading it,
        // and that belongs to us, because it is in the table. Replacing it in place keeps every reference to
        // it valid; `Mmap` later unmaps the whole range whatever is behind it.
        let replaced = unsafe {
            libc::mmap(
                page as *mut c_void,
                rest,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        return replaced != libc::MAP_FAILED;
    }
    false
}

/// Does what would have been done without us.
fn chain(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(previous) = PREVIOUS.get() else { return };
    let handler = previous.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: all zeros is the default action. The faulting instruction runs again and the kernel ends
        // the process, as it also does for an ignored SIGBUS that a fault raised.
        unsafe {
            let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            libc::sigaction(signal, &default, std::ptr::null_mut());
        }
    } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: a handler installed with SA_SIGINFO has this signature.
        let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
        call(signal, info, context);
    } else {
        // SAFETY: a handler installed without SA_SIGINFO has this signature.
        let call: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        call(signal);
    }
}
