//! Arm has an instruction (`dc civac`), which not every system lets programs use, and no machine was here to
//! try what it does to caches beyond the cores.

pub(super) fn evict(_: &[u8]) -> bool {
    false
}
