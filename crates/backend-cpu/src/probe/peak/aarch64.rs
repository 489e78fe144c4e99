//! Assembler for the reason given in `x86_64.rs`.

use core::arch::asm;
use std::arch::is_aarch64_feature_detected;

use super::Instruction;

pub(super) fn spin(instruction: Instruction) -> Option<unsafe fn(u64)> {
    match instruction {
        Instruction::FmaNeon if is_aarch64_feature_detected!("neon") => Some(fma),
        Instruction::DotNeon if is_aarch64_feature_detected!("dotprod") => Some(dot),
        Instruction::PairNeon if is_aarch64_feature_detected!("neon") => Some(pairs),
        _ => None,
    }
}

macro_rules! turns {
    ($line:expr, $turns:ident) => {
        asm!(
            "movi v14.16b, #0",
            "movi v15.16b, #0",
            "2:",
            $line,
            "subs {n}, {n}, #1",
            "b.ne 2b",
            n = inout(reg) $turns => _,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _,
            out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v14") _, out("v15") _,
            options(nomem, nostack),
        )
    };
}

/// # Safety
/// The processor must have NEON; `turns` must not be 0.
#[target_feature(enable = "neon")]
unsafe fn fma(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(lanes!("fmla v", ".4s, v14.4s, v15.4s"), turns) }
}

/// # Safety
/// The processor must have the dot-product extension; `turns` must not be 0.
#[target_feature(enable = "neon,dotprod")]
unsafe fn dot(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(lanes!("sdot v", ".4s, v14.16b, v15.16b"), turns) }
}

/// # Safety
/// The processor must have NEON; `turns` must not be 0.
#[target_feature(enable = "neon")]
unsafe fn pairs(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(lanes!("smlal v", ".4s, v14.4h, v15.4h"), turns) }
}
