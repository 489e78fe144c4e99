//! How the kernels of a graphics processor report numbers in buffers that point nowhere: in four words of a
//! program's.

use std::collections::BTreeMap;

use crate::{OpKind, RunError};

/// u32 of the place where a program's kernels report faults: how many, the first's code, the value, and the
/// first value not allowed.
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

/// Faults that came with results that no one waited for, by the number of the result. They are told with the
/// next result behind them that someone waits for.
#[derive(Default, Debug)]
pub(crate) struct UnreportedFaults(BTreeMap<u64, RunError>);

impl UnreportedFaults {
    /// Result `number` was given up; `words` are what came with it.
    pub(crate) fn note(&mut self, number: u64, words: &[u32]) {
        if let Err(error) = device_fault(words) {
            self.0.insert(number, error);
        }
    }

    /// The first fault in front of result `number`, whose own come after it. None is told a second time.
    pub(crate) fn before(&mut self, number: u64) -> Result<(), RunError> {
        let behind = self.0.split_off(&number);
        let told = std::mem::replace(&mut self.0, behind);
        told.into_values().next().map_or(Ok(()), Err)
    }
}

/// The first error that the kernels of programs left behind, [`FAULT_WORDS`] each.
pub(crate) fn device_fault(words: &[u32]) -> Result<(), RunError> {
    words.as_chunks().0.iter().try_for_each(of_program)
}

fn of_program([count, code, value, limit]: &[u32; FAULT_WORDS]) -> Result<(), RunError> {
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
    fn a_fault_is_the_error_of_its_op_and_none_is_no_error() {
        assert_eq!(device_fault(&[0, 0, 0, 0]), Ok(()));
        assert_eq!(device_fault(&[0, 2, 7, 5]), Ok(()), "a code without a count is what is left of another");
        let page = |op| Err(RunError::OutOfRange { op, what: "page", value: 9, limit: 4 });
        assert_eq!(device_fault(&[3, 5, 9, 4]), page(OpKind::Attention));
        assert_eq!(device_fault(&[1, 5 + FAULT_OF_KV_WRITE, 9, 4]), page(OpKind::KvWrite));
        assert_eq!(device_fault(&[1, 6, 9, 4]), Ok(()), "no kernel has this code");
        assert_eq!(
            device_fault(&[0, 0, 0, 0, 3, 5, 9, 4, 1, 5, 8, 4]),
            page(OpKind::Attention),
            "the first of three"
        );
    }

    #[test]
    fn what_nobody_waited_for_is_told_once_and_to_nobody_in_front_of_it() {
        let mut unreported = UnreportedFaults::default();
        unreported.note(2, &[0, 0, 0, 0]);
        unreported.note(6, &[1, 1, 60, 5]);
        unreported.note(4, &[1, 1, 40, 5]);
        unreported.note(3, &[1, 1, 30, 5]);
        let token = |value| Err(RunError::OutOfRange { op: OpKind::Embed, what: "token", value, limit: 5 });
        assert_eq!(unreported.before(3), Ok(()));
        assert_eq!(unreported.before(5), token(30), "the first");
        assert_eq!(unreported.before(6), Ok(()), "nor the second with it again");
        assert_eq!(unreported.before(7), token(60));
    }
}
