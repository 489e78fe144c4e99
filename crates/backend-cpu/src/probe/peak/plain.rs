use super::Instruction;

/// No loop is written for this processor.
pub(super) fn spin(_instruction: Instruction) -> Option<unsafe fn(u64)> {
    None
}
