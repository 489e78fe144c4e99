//! Files mapped into memory, and the guard that keeps a shrinking file from killing the process.
//!
//! A mapped file may be truncated by anybody while we read it; the kernel then answers a read with SIGBUS, whose
//! default is death. A process-wide handler, installed with the first mapping, looks the faulting address up in a
//! fixed table of *our* mappings, puts zero pages in place of the rest of that mapping, marks it lost and lets the
//! read go on. [`ByteSource::check`] then reports the loss, and whoever computed with those bytes discards the
//! result. A fault outside of our mappings goes to the handler that was there before.
//!
//! This is the only file of this crate with unsafe code. Where there is no SIGBUS (Windows) the system itself
//! refuses to truncate a mapped file, and the guard is empty.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use exo_types::{ByteSource, SourceLost};
use memmap2::Mmap;

/// A whole file mapped into memory, read-only. Its bytes never fault; see [`ByteSource::check`].
#[derive(Debug)]
pub struct MappedFile {
    // Declared before `map`, so that it is dropped first: the table must never name unmapped memory.
    guard: guard::Registration,
    map: Mmap,
    file: File,
    name: String,
}

impl MappedFile {
    /// Maps the file as long as it is now.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: `Mmap::map` asks that the file is not changed or truncated while it is mapped. Nobody can promise
        // that for a file on disk, so we rely on two facts instead: truncation is turned into zero pages by the
        // guard registered below, before anyone sees the bytes; and every byte pattern is valid for the plain
        // `u8` that we read, and whoever parses re-checks bounds on each read, so a change gives wrong numbers at
        // worst, never an out-of-bounds access.
        let map = unsafe { Mmap::map(&file)? };
        let guard = guard::Registration::new(map.as_ptr() as usize, map.len())?;
        Ok(Self { guard, map, file, name: path.display().to_string() })
    }
}

impl ByteSource for MappedFile {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn check(&self) -> Result<(), SourceLost> {
        // The length too: bytes between the new end and the end of its page read as zeros without any fault.
        let is_long_enough = self.file.metadata().is_ok_and(|m| m.len() >= self.map.len() as u64);
        if self.guard.is_lost() || !is_long_enough {
            return Err(SourceLost { name: self.name.clone() });
        }
        Ok(())
    }

    fn is_warm(&self, range: Range<usize>) -> bool {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?} is beyond {}", self.name);
        guard::is_warm(self.map.as_ptr() as usize, range)
    }

    fn release(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.map.len(), "{range:?} is beyond {}", self.name);
        guard::release(self.map.as_ptr() as usize, self.map.len(), range);
    }
}

#[cfg(unix)]
mod guard {
    use std::io;
    use std::mem::MaybeUninit;
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    use std::sync::{OnceLock, PoisonError, RwLock};

    use libc::{c_int, c_void, siginfo_t};

    /// What the system maps at most around a byte that is read, where it is in memory: the whole folio of the page cache that holds
    /// it, from Linux 6.18 on; before that 64 KiB. A multiple of every page size.
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
        // SAFETY: the pages from `first` on belong to one of our mappings, which is alive as long as its owner calls this; there is
        // a byte for each of them.
        let told = unsafe { libc::mincore(first as *mut c_void, len, pages.as_mut_ptr().cast()) };
        told != 0 || 2 * pages.iter().filter(|page| **page & 1 != 0).count() >= pages.len()
    }

    /// Takes the pages that hold `range` of the mapping at `start` out of this process's memory, with all that a read of it may have
    /// mapped: folios begin at multiples of their size in the file. The next read brings them back from the file, so it does
    /// not matter that they hold neighbours too.
    pub(super) fn release(start: usize, len: usize, range: Range<usize>) {
        let first = start + (range.start - range.start % AROUND_BYTES);
        let end = start + range.end.next_multiple_of(AROUND_BYTES).min(len);
        // SAFETY: the pages from `first` to `end` belong to one of our mappings, which is alive as long as its owner calls this,
        // and is a read-only view of a file: dropping its pages loses nothing. Where the guard has put zero pages
        // they come back as zeros. A refusal leaves things as they are.
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

    /// Puts zero pages from the faulting page to the end of its mapping, if it is one of ours. To the end, not one
    /// page: a truncation takes the whole tail, and a fault per page would be a million signals for 4 GiB.
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
            // SAFETY: [page, page + rest) lies inside a mapping that is alive, because a thread is reading it, and
            // that belongs to us, because it is in the table. Replacing it in place keeps every reference to it
            // valid; `Mmap` later unmaps the whole range whatever is behind it.
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
            // SAFETY: all zeros is the default action. The faulting instruction runs again and the kernel ends the
            // process, as it also does for an ignored SIGBUS that a fault raised.
            unsafe {
                let default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                libc::sigaction(signal, &default, std::ptr::null_mut());
            }
        } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
            // SAFETY: a handler installed with SA_SIGINFO has this signature.
            let call: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            call(signal, info, context);
        } else {
            // SAFETY: a handler installed without SA_SIGINFO has this signature.
            let call: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            call(signal);
        }
    }
}

#[cfg(not(unix))]
mod guard {
    /// Nothing to guard: Windows refuses to truncate a file while it is mapped.
    #[derive(Debug)]
    pub(super) struct Registration;

    impl Registration {
        pub(super) fn new(_start: usize, _len: usize) -> std::io::Result<Self> {
            Ok(Self)
        }

        pub(super) fn is_lost(&self) -> bool {
            false
        }
    }

    /// The system does not say.
    pub(super) fn is_warm(_start: usize, _range: std::ops::Range<usize>) -> bool {
        true
    }

    /// The system takes pages back by itself.
    pub(super) fn release(_start: usize, _len: usize, _range: std::ops::Range<usize>) {}
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // clippy knows a test module by a plain `cfg(test)` only
mod tests {
    use super::*;

    const PAGE: usize = 1 << 16; // a multiple of every page size there is

    fn file_of_ones(pages: usize) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1u8; pages * PAGE]).unwrap();
        file
    }

    #[test]
    fn a_file_truncated_under_its_mapping_reads_as_zeros_and_is_reported() {
        let file = file_of_ones(4);
        let mapped = MappedFile::open(file.path()).unwrap();
        assert_eq!(mapped.check(), Ok(()));
        file.as_file().set_len(PAGE as u64).unwrap();
        // Grown back, so that only the fault can tell: the length is right again, the bytes are not.
        let sum = |bytes: &[u8]| bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
        assert_eq!(sum(&mapped.bytes()[PAGE..]), 0);
        file.as_file().set_len(4 * PAGE as u64).unwrap();
        assert!(mapped.check().is_err(), "the loss is remembered");
        assert_eq!(sum(&mapped.bytes()[..PAGE]), PAGE as u64, "what is still there still reads");
    }

    #[test]
    fn a_file_cut_inside_a_page_is_reported_though_nothing_faults() {
        let file = file_of_ones(2);
        let mapped = MappedFile::open(file.path()).unwrap();
        file.as_file().set_len(2 * PAGE as u64 - 10).unwrap();
        assert_eq!(mapped.bytes()[2 * PAGE - 1], 0);
        assert!(mapped.check().is_err());
    }

    #[test]
    fn only_the_truncated_one_of_many_mappings_is_lost() {
        let files: Vec<_> = (0..8).map(|_| file_of_ones(1)).collect();
        let maps: Vec<_> = files.iter().map(|f| MappedFile::open(f.path()).unwrap()).collect();
        files[3].as_file().set_len(0).unwrap();
        let faulting = std::thread::scope(|s| {
            let readers: Vec<_> =
                (0..4).map(|_| s.spawn(|| maps[3].bytes().iter().all(|b| *b == 0))).collect();
            readers.into_iter().all(|r| r.join().unwrap())
        });
        assert!(faulting);
        for (i, map) in maps.iter().enumerate() {
            assert_eq!(map.check().is_err(), i == 3);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_was_just_written_is_warm_and_what_the_system_dropped_is_not() {
        use std::os::fd::AsRawFd;
        const PAGES: usize = 64;
        let file = file_of_ones(PAGES);
        let mapped = MappedFile::open(file.path()).unwrap();
        assert!(mapped.is_warm(1..PAGES * PAGE - 1) && mapped.is_warm(5..5));
        file.as_file().sync_all().unwrap();
        // SAFETY: advice about a file that is open; it changes no bytes.
        let dropped =
            unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert_eq!(dropped, 0);
        let on_disk = !std::fs::read_to_string("/proc/mounts").unwrap().lines().any(|line| {
            let mut words = line.split(' ').skip(1);
            words.next() == Some("/tmp") && words.next() == Some("tmpfs")
        });
        // A file system in memory has nothing to drop.
        assert_eq!(mapped.is_warm(0..PAGES * PAGE), !on_disk);
    }

    #[test]
    fn released_pages_leave_the_process_and_still_read() {
        if !cfg!(target_os = "linux") {
            return; // the only system that says how much of a file is in memory
        }
        const PAGES: usize = 512;
        let file = file_of_ones(PAGES);
        let mapped = MappedFile::open(file.path()).unwrap();
        let file_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        let sum = || mapped.bytes().iter().map(|b| *b as usize).sum::<usize>();
        assert_eq!(sum(), PAGES * PAGE);
        let full = file_kib();
        mapped.release(1..PAGES * PAGE - 1);
        let released = (full - file_kib()) as usize * 1024;
        assert!(released > PAGES * PAGE / 2, "{released} of {} bytes left", PAGES * PAGE);
        assert_eq!(sum(), PAGES * PAGE);
        assert_eq!(mapped.check(), Ok(()));
    }

    #[test]
    fn slots_are_given_back() {
        let file = file_of_ones(1);
        for _ in 0..5000 {
            drop(MappedFile::open(file.path()).unwrap());
        }
    }

    /// Runs this test binary again with a fault that is not ours, and expects it to die of SIGBUS.
    #[test]
    fn a_fault_outside_of_our_mappings_still_kills() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os("EXO_TEST_FOREIGN_FAULT").is_some() {
            let file = file_of_ones(1);
            let _ours = MappedFile::open(file.path()).unwrap();
            // SAFETY: the fault is the point of the test; it happens in a process of its own.
            let foreign = unsafe { Mmap::map(file.as_file()).unwrap() };
            file.as_file().set_len(0).unwrap();
            std::hint::black_box(foreign[PAGE - 1]);
            return;
        }
        let this = "mapped::tests::a_fault_outside_of_our_mappings_still_kills";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([this, "--exact"])
            .env("EXO_TEST_FOREIGN_FAULT", "1")
            .output()
            .unwrap();
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}
