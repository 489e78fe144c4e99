//! Memory in pages of a known size.

use super::PageSize;

/// Words of memory, each page of it written once. The address is a multiple of 2 MiB where the system maps pages.
pub(super) struct Region {
    words: *mut u64,
    len: usize,
    /// What was mapped: more than `len`, so that the start could be aligned.
    #[cfg(unix)]
    mapping: (*mut libc::c_void, usize),
    #[cfg(not(unix))]
    _memory: Vec<u64>,
}

// SAFETY: the words are owned, and after `new` they are only read.
unsafe impl Send for Region {}
// SAFETY: the words are owned, and after `new` they are only read.
unsafe impl Sync for Region {}

/// The size of a huge page on x86-64 and of the usual kernel on AArch64.
const HUGE_BYTES: usize = 2 << 20;

impl Region {
    pub(super) fn words(&self) -> &[u64] {
        // SAFETY: `words` points to `len` words that were mapped and written in `new` and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.words, self.len) }
    }

    /// Bytes of it that the system has put into 2 MiB pages; `None` where it does not say.
    pub(super) fn huge_bytes(&self) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let (start, end) = (self.words as u64, self.words as u64 + (self.len * 8) as u64);
        Some(huge_bytes_in(&smaps, start, end))
    }
}

/// Adds up `AnonHugePages` of the mappings that overlap `start..end`, at most the overlap of each.
fn huge_bytes_in(smaps: &str, start: u64, end: u64) -> u64 {
    let (mut sum, mut overlap) = (0, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("AnonHugePages:") {
            let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            sum += (kib << 10).min(overlap);
        } else if let Some((from, to)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            overlap = to.min(end).saturating_sub(from.max(start));
        }
    }
    sum
}

#[cfg(unix)]
impl Region {
    /// `None` if the system has no `bytes` to give. What pages it took is asked afterwards.
    pub(super) fn new(bytes: usize, pages: PageSize) -> Option<Self> {
        let mapped = bytes.checked_add(HUGE_BYTES)?;
        // SAFETY: a new anonymous mapping overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let words = (base as usize).next_multiple_of(HUGE_BYTES) as *mut u64;
        #[cfg(target_os = "linux")]
        {
            let advice = match pages {
                PageSize::Small => libc::MADV_NOHUGEPAGE,
                PageSize::Huge => libc::MADV_HUGEPAGE,
            };
            // SAFETY: the range lies inside the mapping; the advice changes no contents. A kernel without huge pages
            // refuses, and `huge_bytes` then tells.
            unsafe { libc::madvise(words.cast(), bytes, advice) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = pages;
        let len = bytes / 8;
        // SAFETY: `len` words from `words` lie inside the mapping, which nobody else knows.
        unsafe { std::slice::from_raw_parts_mut(words, len) }.fill(0x0123_4567_89ab_cdef);
        Some(Self { words, len, mapping: (base, mapped) })
    }
}

#[cfg(unix)]
impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more. Its failure would leak, no more.
        unsafe { libc::munmap(self.mapping.0, self.mapping.1) };
    }
}

#[cfg(not(unix))]
impl Region {
    /// `None` if the system has no `bytes` to give. Always in the system's ordinary pages.
    pub(super) fn new(bytes: usize, _pages: PageSize) -> Option<Self> {
        let len = bytes / 8;
        let mut memory: Vec<u64> = Vec::new();
        memory.try_reserve_exact(len).ok()?;
        memory.resize(len, 0x0123_4567_89ab_cdef);
        Some(Self { words: memory.as_mut_ptr(), len, _memory: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_huge_pages_of_the_region_count() {
        let smaps = "\
            1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nAnonHugePages:         8 kB\n\
            3000-9000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:        24 kB\nVmFlags: rd wr\n";
        assert_eq!(huge_bytes_in(smaps, 0x1000, 0x3000), 8 << 10);
        assert_eq!(huge_bytes_in(smaps, 0x2000, 0x4000), 0x2000);
        assert_eq!(huge_bytes_in(smaps, 0x9000, 0xa000), 0);
    }

    #[test]
    fn a_region_is_written_and_as_long_as_asked() {
        for pages in [PageSize::Small, PageSize::Huge] {
            let region = Region::new(4 << 20, pages).unwrap();
            assert_eq!(region.words().len(), (4 << 20) / 8);
            assert!(region.words().iter().all(|w| *w == 0x0123_4567_89ab_cdef));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn small_pages_are_small() {
        assert_eq!(Region::new(4 << 20, PageSize::Small).unwrap().huge_bytes(), Some(0));
    }
}
