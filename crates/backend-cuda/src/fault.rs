//! What kernels complain of: numbers in buffers that point nowhere. `kernels/fault.cuh` numbers them the same way.

use exo_backend::{OpKind, RunError};

/// Bytes of the place where a program's kernels complain: `[count, code, value, limit]`.
pub(crate) const FAULT_BYTES: u64 = 16;

/// By code, from 1.
const FAULTS: [(OpKind, &str); 5] = [
    (OpKind::Embed, "token"),
    (OpKind::SelectRows, "row"),
    (OpKind::Attention, "sequence"),
    (OpKind::Attention, "position"),
    (OpKind::Attention, "page"),
];

/// Added to a code by the kernel that writes the cache.
const OF_KV_WRITE: u32 = 16;

/// The error that a kernel left behind, if it did.
pub(crate) fn read(words: &[u32]) -> Result<(), RunError> {
    let [count, code, value, limit] = words else { return Ok(()) };
    let is_write = *code > OF_KV_WRITE;
    let number = if is_write { code - OF_KV_WRITE } else { *code };
    match FAULTS.get(number.wrapping_sub(1) as usize) {
        Some((op, what)) if *count > 0 => {
            let op = if is_write { OpKind::KvWrite } else { *op };
            Err(RunError::OutOfRange { op, what, value: u64::from(*value), limit: u64::from(*limit) })
        }
        _ => Ok(()),
    }
}
