//! How the kernels of a graphics processor complain of numbers in buffers that point nowhere: in four words of a program's.

use crate::{OpKind, RunError};

/// u32 of the place where a program's kernels complain: how often, the first's code, the value, and the first value not
/// allowed.
pub const FAULT_WORDS: usize = 4;

/// What they find, by code from 1.
pub const FAULTS: [(OpKind, &str); 5] = [
    (OpKind::Embed, "token"),
    (OpKind::SelectRows, "row"),
    (OpKind::Attention, "sequence"),
    (OpKind::Attention, "position"),
    (OpKind::Attention, "page"),
];

/// Added to a code by a kernel that writes the cache.
pub const FAULT_OF_KV_WRITE: u32 = 16;

/// The error that a kernel left behind, if it did.
pub fn complaint(words: &[u32]) -> Result<(), RunError> {
    let [count, code, value, limit] = words else { return Ok(()) };
    let is_write = *code > FAULT_OF_KV_WRITE;
    let number = if is_write { code - FAULT_OF_KV_WRITE } else { *code };
    match FAULTS.get(number.wrapping_sub(1) as usize) {
        Some((op, what)) if *count > 0 => {
            let op = if is_write { OpKind::KvWrite } else { *op };
            Err(RunError::OutOfRange { op, what, value: u64::from(*value), limit: u64::from(*limit) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_the_error_of_its_op_and_silence_is_none() {
        assert_eq!(complaint(&[0, 0, 0, 0]), Ok(()));
        assert_eq!(complaint(&[0, 2, 7, 5]), Ok(()), "a code without a count is what is left of another");
        let page = |op| Err(RunError::OutOfRange { op, what: "page", value: 9, limit: 4 });
        assert_eq!(complaint(&[3, 5, 9, 4]), page(OpKind::Attention));
        assert_eq!(complaint(&[1, 5 + FAULT_OF_KV_WRITE, 9, 4]), page(OpKind::KvWrite));
        assert_eq!(complaint(&[1, 6, 9, 4]), Ok(()), "no kernel has this code");
    }
}
