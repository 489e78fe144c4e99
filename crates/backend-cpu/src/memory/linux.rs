//! Mappings with large pages, on Linux.

use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use super::{HUGE_PAGE, PageSize};

/// At least `len` zero bytes from a multiple of [`HUGE_PAGE`] on, and how many. `None` if the system refuses.
///
/// What is no whole large page at the end is in small ones: a megabyte in a large page of its own would cost
/// two.
pub(super) fn map(len: usize, pages: PageSize) -> Option<(NonNull<u8>, usize)> {
    let (small, huge) =
        (len.checked_next_multiple_of(page_bytes())?, len.checked_next_multiple_of(HUGE_PAGE)?);
    match pages {
        PageSize::Small => Some((advised(small, libc::MADV_NOHUGEPAGE)?, small)),
        PageSize::Huge => match explicit(huge) {
            Some(start) => Some((start, huge)),
            None => Some((advised(small, libc::MADV_HUGEPAGE)?, small)),
        },
    }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(HUGE_PAGE)
}

/// Pages that the administrator set aside, if enough are free.
fn explicit(len: usize) -> Option<NonNull<u8>> {
    let start = anonymous(len, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
    // Taken at once: a control group without leave for them lets us map them and kills at the first touch.
    // Kernels that cannot take them at once (before 5.14) go without. SAFETY: the mapping is ours and its
    // memory is plain.
    if unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_POPULATE_WRITE) } == 0 {
        return Some(start);
    }
    // SAFETY: the mapping is ours and nothing refers to it.
    unsafe { unmap(start, len) };
    None
}

/// Ordinary memory of whole pages, with a word to the kernel about the pages to put it in.
fn advised(len: usize, advice: libc::c_int) -> Option<NonNull<u8>> {
    let base = anonymous(len.checked_add(HUGE_PAGE)?, 0)?;
    let before = base.as_ptr().align_offset(HUGE_PAGE);
    // SAFETY: `before` is below HUGE_PAGE, so `len` bytes fit behind it; what lies before and after them is
    // ours and unused.
    unsafe {
        let start = base.add(before);
        if before > 0 {
            unmap(base, before);
        }
        if before < HUGE_PAGE {
            unmap(start.add(len), HUGE_PAGE - before);
        }
        // A kernel that knows no large pages refuses: 4 KiB pages, which work.
        libc::madvise(start.as_ptr().cast(), len, advice);
        Some(start)
    }
}

fn anonymous(len: usize, flags: libc::c_int) -> Option<NonNull<u8>> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: a new mapping where the kernel likes; it replaces nothing.
    let start = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// Gives addresses back.
///
/// # Safety
/// The range is (part of) what [`map`] gave, and nothing refers to it any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), len) };
}

/// Gives the memory of whole large pages back and keeps the addresses, which read as zeros.
///
/// # Safety
/// The range is part of what [`map`] gave, and no one relies on what it holds.
pub(super) unsafe fn discard(start: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTNEED) };
}

/// About how much of what [`map`] gave is not in memory: one page in the middle of every 2 MiB stands for
/// them.
pub(super) fn untouched_bytes(mapped: Range<usize>) -> u64 {
    let page = page_bytes();
    let untouched = |start: usize| {
        let len = (mapped.end - start).min(HUGE_PAGE);
        let middle = start + len / 2 / page * page;
        let mut residence = 1u8;
        // SAFETY: the kernel looks up an address, which need not be mapped, and writes the one byte that
        // stands for one page.
        let asked = unsafe { libc::mincore(middle as *mut libc::c_void, 1, (&raw mut residence).cast()) };
        if asked == 0 && residence & 1 == 0 { len as u64 } else { 0 }
    };
    mapped.clone().step_by(HUGE_PAGE).map(untouched).sum()
}

/// Bytes in large pages within `ranges`.
pub(super) fn huge_bytes(ranges: &[Range<usize>]) -> Option<u64> {
    count(&std::fs::read_to_string("/proc/self/smaps").ok()?, ranges)
}

/// Adds up what `smaps` says of the areas that `ranges` touch. The kernel joins neighbouring areas, so that
/// one may reach beyond them: it counts for no more than it has in common with them.
fn count(smaps: &str, ranges: &[Range<usize>]) -> Option<u64> {
    let mut total = 0;
    let mut common = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next()?;
        if let Some(area) = area(first) {
            let overlap =
                |range: &Range<usize>| range.end.min(area.end).saturating_sub(range.start.max(area.start));
            common = ranges.iter().map(overlap).sum::<usize>() as u64;
        } else if matches!(first, "AnonHugePages:" | "Private_Hugetlb:") {
            let kib: u64 = words.next()?.parse().ok()?;
            total += (kib << 10).min(common);
        }
    }
    Some(total)
}

/// `7f0000000000-7f0000200000`
fn area(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_count_for_what_they_have_in_common_with_the_ranges() {
        let smaps = "\
200000-800000 rw-p 00000000 00:00 0 \nAnonHugePages:      6144 kB\nPrivate_Hugetlb:       0 kB\nVmFlags: rd wr\n\
900000-a00000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      1024 kB\n\
c00000-e00000 rw-s 00000000 00:10 7 /anon_hugepage (deleted)\nAnonHugePages: 0 kB\nPrivate_Hugetlb: 2048 kB\n";
        let check = |ranges: &[(usize, usize)]| {
            count(smaps, &ranges.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>())
        };
        assert_eq!(check(&[(0x200000, 0x600000)]), Some(4 << 20));
        let ranges = [(0x200000, 0x400000), (0x400000, 0x600000), (0xc00000, 0xe00000)];
        assert_eq!(check(&ranges), Some(6 << 20));
        assert_eq!(check(&[(0x10000, 0x20000)]), Some(0));
        assert_eq!(check(&[]), Some(0));
    }
}
