use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _mm_mfence};

const LINE: usize = 64;

/// By `clflushopt`, 64 MiB in 2.4 ms. The older `clflush` waits for each line, 35 ms, so a processor with
/// nothing else does without.
pub(super) fn evict(bytes: &[u8]) -> bool {
    if !has_clflushopt() {
        return false;
    }
    let lines = bytes.chunks(LINE).map(<[u8]>::as_ptr).chain(bytes.last().map(std::ptr::from_ref));
    for line in lines {
        // SAFETY: the processor has the instruction. It reads no value and changes none, and the address
        // is one of `bytes`.
        unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: every processor of this architecture has SSE2.
    unsafe { _mm_mfence() };
    true
}

fn has_clflushopt() -> bool {
    const LEAF: u32 = 7;
    const EBX_CLFLUSHOPT: u32 = 1 << 23;
    __cpuid(0).eax >= LEAF && __cpuid_count(LEAF, 0).ebx & EBX_CLFLUSHOPT != 0
}
