//! The loops are in assembler because a compiler sees that the operands never change and moves the work out
//! of them. All registers are cleared first: what a register held before may be slow to compute with.

use core::arch::asm;

use super::Instruction;

pub(super) fn spin(instruction: Instruction) -> Option<unsafe fn(u64)> {
    match instruction {
        Instruction::Fma256 if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") => {
            Some(fma_256)
        }
        Instruction::ByteMadd256 if is_x86_feature_detected!("avx2") => Some(byte_madd_256),
        Instruction::PairMadd256 if is_x86_feature_detected!("avx2") => Some(pair_madd_256),
        Instruction::Fma512 if is_x86_feature_detected!("avx512f") => Some(fma_512),
        Instruction::Vnni512 if is_x86_feature_detected!("avx512vnni") => Some(vnni_512),
        Instruction::PairDot512 if is_x86_feature_detected!("avx512vnni") => Some(pair_dot_512),
        Instruction::Bf16Dot512 if is_x86_feature_detected!("avx512bf16") => Some(bf16_dot_512),
        _ => None,
    }
}

/// Lanes in registers 0 to 11; the line may use 12 to 15.
macro_rules! turns {
    ($line:expr, $turns:ident, $($register:tt)*) => {
        asm!(
            "vzeroall",
            "2:",
            $line,
            "dec {n}",
            "jnz 2b",
            n = inout(reg) $turns => _,
            $(out($register) _,)*
            options(nomem, nostack),
        )
    };
    (ymm, $line:expr, $turns:ident) => {
        turns!($line, $turns, "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10"
            "ymm11" "ymm12" "ymm13" "ymm14" "ymm15")
    };
    (zmm, $line:expr, $turns:ident) => {
        turns!($line, $turns, "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10"
            "zmm11" "zmm12" "zmm13" "zmm14" "zmm15")
    };
}

/// # Safety
/// The processor must have AVX2 and FMA; `turns` must not be 0.
#[target_feature(enable = "avx2,fma")]
unsafe fn fma_256(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(ymm, lanes!("vfmadd231ps ymm", ", ymm14, ymm15"), turns) }
}

/// # Safety
/// The processor must have AVX2; `turns` must not be 0.
#[target_feature(enable = "avx2")]
unsafe fn byte_madd_256(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe {
        turns!(
            ymm,
            lanes!(
                "vpmaddubsw ymm12, ymm13, ymm14\n vpmaddwd ymm12, ymm12, ymm15\n vpaddd ymm",
                ", ymm",
                ", ymm12"
            ),
            turns
        )
    }
}

/// # Safety
/// The processor must have AVX2; `turns` must not be 0.
#[target_feature(enable = "avx2")]
unsafe fn pair_madd_256(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(ymm, lanes!("vpmaddwd ymm12, ymm13, ymm14\n vpaddd ymm", ", ymm", ", ymm12"), turns) }
}

/// # Safety
/// The processor must have AVX-512 F; `turns` must not be 0.
#[target_feature(enable = "avx512f")]
unsafe fn fma_512(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(zmm, lanes!("vfmadd231ps zmm", ", zmm14, zmm15"), turns) }
}

/// # Safety
/// The processor must have AVX-512 VNNI; `turns` must not be 0.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni_512(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(zmm, lanes!("vpdpbusd zmm", ", zmm14, zmm15"), turns) }
}

/// # Safety
/// The processor must have AVX-512 VNNI; `turns` must not be 0.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn pair_dot_512(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(zmm, lanes!("vpdpwssd zmm", ", zmm14, zmm15"), turns) }
}

/// # Safety
/// The processor must have AVX-512 BF16; `turns` must not be 0.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn bf16_dot_512(turns: u64) {
    // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
    unsafe { turns!(zmm, lanes!("vdpbf16ps zmm", ", zmm14, zmm15"), turns) }
}
