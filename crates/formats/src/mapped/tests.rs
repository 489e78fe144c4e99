#![allow(clippy::unwrap_used)] // clippy knows a test module by a plain `cfg(test)` only

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
        let readers: Vec<_> = (0..4).map(|_| s.spawn(|| maps[3].bytes().iter().all(|b| *b == 0))).collect();
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
    let dropped = unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(dropped, 0);
    let on_disk = !std::fs::read_to_string("/proc/mounts").unwrap().lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        words.next() == Some("/tmp") && words.next() == Some("tmpfs")
    });
    // A file system in memory has nothing to drop.
    assert_eq!(mapped.is_warm(0..PAGES * PAGE), !on_disk);
}

#[test]
#[cfg(target_os = "linux")] // the only system that says how much of a file is in memory
fn released_pages_leave_the_process_and_still_read() {
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
