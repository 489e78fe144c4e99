/// What glibc starts with; saying so keeps it there.
const LIMIT_BYTES: libc::c_int = 128 << 10;

pub(super) fn return_freed_memory() {
    // SAFETY: mallopt stores a number under glibc's own lock; every number is valid for these two names.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, LIMIT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LIMIT_BYTES);
    }
}

pub(super) fn give_freed_memory_back() {
    // SAFETY: malloc_trim takes glibc's own locks and touches free memory only; every number is valid.
    unsafe {
        libc::malloc_trim(0);
    }
}
