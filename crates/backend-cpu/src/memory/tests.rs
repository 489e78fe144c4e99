use super::*;

fn fill(bytes: &mut [u8]) {
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

#[test]
fn memory_is_zero_aligned_and_its_owner_s_alone() {
    let heap = Heap::default();
    for len in [0, 1, 1000, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5] {
        let (mut a, mut b) = (heap.slice("a", len).unwrap(), heap.slice("b", len).unwrap());
        let mut own = heap.zeroed::<u8>("own", len).unwrap();
        for bytes in [&mut *a, &mut *b, &mut *own] {
            assert_eq!((bytes.len(), bytes.as_ptr().align_offset(ALIGN)), (len, 0));
            assert!(bytes.iter().all(|byte| *byte == 0), "{len} bytes");
            bytes.fill(7);
        }
        a.fill(1);
        assert!(b.iter().chain(own.iter()).all(|byte| *byte == 7), "{len} bytes");
    }
}

#[test]
fn slices_share_a_mapping_and_it_goes_with_the_last() {
    let heap = Heap::default();
    let slices: Vec<_> = (0..100).map(|_| heap.slice("w", HUGE_PAGE / 4).unwrap()).collect();
    let live = || heap.lock().regions.iter().filter(|region| region.strong_count() > 0).count();
    assert_eq!(live(), 1, "100 slices of half a megabyte fit one chunk");
    drop(slices);
    assert_eq!(live(), 0);
    assert!(heap.slice("w", HUGE_PAGE).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn small_slices_fill_what_large_ones_left_over() {
    let heap = Heap::default();
    let piece = CHUNK / 8;
    let cut = |len| heap.slice("w", len).unwrap();
    let live = || heap.lock().regions.iter().filter(|region| region.strong_count() > 0).count();
    let mut slices = vec![cut(5 * piece), cut(4 * piece)];
    assert_eq!(live(), 2, "the second has no room behind the first");
    // Three and four pieces are left.
    slices.extend([cut(2 * piece), cut(piece), cut(4 * piece)]);
    assert_eq!(live(), 2);
    for (i, slice) in slices.iter_mut().enumerate() {
        slice.iter_mut().step_by(4096).for_each(|byte| *byte = i as u8 + 1);
    }
    for (i, slice) in slices.iter().enumerate() {
        assert!(slice.iter().step_by(4096).all(|byte| *byte == i as u8 + 1), "slice {i}");
    }
}

/// Memory of this process that is there.
#[cfg(target_os = "linux")]
fn resident_bytes(block: &[u8]) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", block.as_ptr() as usize);
    let area = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let line = area.skip(1).find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Large pages that the administrator set aside come whole.
#[cfg(target_os = "linux")]
fn are_huge_pages_set_aside() -> bool {
    std::fs::read_to_string("/proc/sys/vm/nr_hugepages").is_ok_and(|n| n.trim() != "0")
}

#[test]
#[cfg(target_os = "linux")]
fn a_block_takes_no_large_page_for_its_end() {
    let heap = Heap::default();
    let mut block = heap.zeroed::<u8>("b", 3 << 20).unwrap();
    fill(&mut block);
    let explicit = are_huge_pages_set_aside();
    let resident = resident_bytes(&block);
    assert!(explicit || resident == 3 << 20, "{resident} bytes for 3 MiB");
}

#[test]
#[cfg(target_os = "linux")]
fn memory_that_nobody_touched_is_told_and_that_of_slices_is_not() {
    let heap = Heap::default();
    let slice = heap.slice("w", 4 * HUGE_PAGE).unwrap();
    assert_eq!(heap.untouched_bytes(), 0, "what is packed later is counted there");
    let mut small = heap.in_pages::<u8>("a buffer", 8 * HUGE_PAGE, PageSize::Small).unwrap();
    assert_eq!(heap.untouched_bytes(), 8 * HUGE_PAGE as u64);
    small[..2 * HUGE_PAGE].iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    assert_eq!(heap.untouched_bytes(), 6 * HUGE_PAGE as u64);
    fill(&mut small);
    assert_eq!(heap.untouched_bytes(), 0);
    let cache = heap.zeroed::<u8>("kv", 8 * HUGE_PAGE).unwrap();
    let expected = if are_huge_pages_set_aside() { 0 } else { 8 * HUGE_PAGE as u64 };
    assert_eq!(heap.untouched_bytes(), expected);
    drop((slice, cache));
    assert_eq!(heap.untouched_bytes(), 0);
}

#[test]
fn what_the_system_cannot_give_is_refused() {
    let heap = Heap::default();
    for len in [usize::MAX, usize::MAX / 2, isize::MAX as usize] {
        assert!(heap.zeroed::<u8>("all there is", len).is_err());
        assert!(heap.slice("all there is", len).is_err());
    }
    assert!(heap.zeroed::<u64>("more than can be counted", usize::MAX / 4).is_err());
}

/// Whether transparent huge pages are to be had on this machine.
#[cfg(target_os = "linux")]
fn offers_huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    enabled.contains("[madvise]") || enabled.contains("[always]")
}

#[test]
#[cfg(target_os = "linux")]
fn the_report_of_huge_pages_is_what_took_effect() {
    let heap = Heap::default();
    assert_eq!(heap.huge_bytes(), Some(0));
    let mut slices: Vec<_> = (0..16).map(|_| heap.slice("w", HUGE_PAGE).unwrap()).collect();
    let mut cache = heap.zeroed::<u8>("kv", 16 * HUGE_PAGE).unwrap();
    assert_eq!(heap.huge_bytes(), Some(0), "memory that nobody touched is not there yet");
    slices.iter_mut().for_each(|slice| fill(slice));
    let of_slices = heap.huge_slice_bytes();
    assert_eq!(of_slices, heap.huge_bytes(), "nothing else was touched");
    fill(&mut cache);
    let huge = heap.huge_bytes().unwrap();
    assert_eq!(heap.huge_slice_bytes(), of_slices, "a cache is no slice");
    if offers_huge_pages() {
        // A machine whose memory is in small pieces gives fewer, but hardly none.
        assert!((HUGE_PAGE as u64..=32 * HUGE_PAGE as u64).contains(&huge), "{huge}");
    } else {
        assert_eq!(huge, 0);
    }
    drop((slices, cache));
    assert_eq!(heap.huge_bytes(), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn a_slice_that_goes_gives_its_pages_back_though_its_neighbour_stays() {
    let heap = Heap::default();
    let (mut large, mut small) =
        (heap.slice("large", 8 * HUGE_PAGE).unwrap(), heap.slice("small", SMALL_BYTES).unwrap());
    fill(&mut large);
    small.fill(3);
    let before = heap.huge_bytes().unwrap();
    drop(large);
    let after = heap.huge_bytes().unwrap();
    assert!(
        before < 4 * HUGE_PAGE as u64 || before - after >= 4 * HUGE_PAGE as u64,
        "{before}, then {after}"
    );
    assert!(small.iter().all(|byte| *byte == 3));
}

/// Vectors are there at once; matrices between them may only be promised yet.
#[test]
#[cfg(target_os = "linux")]
fn what_is_small_brings_no_page_of_what_is_large() {
    let heap = Heap::default();
    let (mut large, mut small) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        large.push(heap.slice("a matrix", HUGE_PAGE).unwrap());
        small.push(heap.slice("a vector", 4096).unwrap());
    }
    small.iter_mut().for_each(|slice| slice.fill(1));
    assert!(are_huge_pages_set_aside() || resident_bytes(&large[0]) == 0);
    large[0].fill(1);
    assert!(resident_bytes(&large[0]) >= HUGE_PAGE as u64);
}
