//! How many multiply-adds per second the arithmetic units can do, measured in registers.

use std::time::{Duration, Instant};

use exo_backend::Activations;
use exo_types::DType;

use super::team;
use crate::Isa;
use crate::packed::activations;

/// For one measurement.
const PEAK_TIME: Duration = Duration::from_millis(50);
/// Turns of a loop between two looks at the clock: some 10 to 100 microseconds.
const TURNS: u64 = 20_000;

/// The instructions a prefill kernel spends its time in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Instruction {
    /// AVX2: 8 f32 products, added exactly.
    Fma256,
    /// AVX2: 32 products of bytes, added in pairs, in fours, then to the sum: three instructions.
    ByteMadd256,
    /// AVX2: 16 products of 16 bits, added in pairs, then to the sum: two instructions.
    PairMadd256,
    /// AVX-512: 16 f32 products.
    Fma512,
    /// AVX-512 VNNI: 64 products of bytes.
    Vnni512,
    /// AVX-512 VNNI: 32 products of 16 bits.
    PairDot512,
    /// AVX-512 BF16: 32 products of BF16. No kernel uses it (decision 0021).
    Bf16Dot512,
    /// NEON: 4 f32 products.
    FmaNeon,
    /// NEON dot product: 16 products of bytes.
    DotNeon,
    /// NEON: 4 products of 16 bits.
    PairNeon,
}

impl Instruction {
    /// Every one, whether this processor has it or not.
    pub const ALL: [Self; 10] = [
        Self::Fma256,
        Self::ByteMadd256,
        Self::PairMadd256,
        Self::Fma512,
        Self::Vnni512,
        Self::PairDot512,
        Self::Bf16Dot512,
        Self::FmaNeon,
        Self::DotNeon,
        Self::PairNeon,
    ];

    /// What the kernels of `isa` multiply weights of `dtype` with, as far as this processor has it; `None` if there is no
    /// loop for it here.
    pub fn for_weights(isa: Isa, dtype: DType) -> Option<Self> {
        let [exact, eight, sixteen] = match isa {
            Isa::Scalar => return None,
            Isa::Avx2 => [Self::Fma256, Self::ByteMadd256, Self::PairMadd256],
            Isa::Avx512 => [Self::Fma512, Self::Vnni512, Self::PairDot512],
            Isa::Neon => [Self::FmaNeon, Self::DotNeon, Self::PairNeon],
        };
        let used = match activations(dtype) {
            Activations::Exact => exact,
            Activations::Rounded8 => eight,
            Activations::Rounded16 => sixteen,
        };
        used.is_available().then_some(used)
    }

    /// Assembler name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fma256 => "vfmadd ymm",
            Self::ByteMadd256 => "vpmaddubsw + vpmaddwd + vpaddd ymm",
            Self::PairMadd256 => "vpmaddwd + vpaddd ymm",
            Self::Fma512 => "vfmadd zmm",
            Self::Vnni512 => "vpdpbusd zmm",
            Self::PairDot512 => "vpdpwssd zmm",
            Self::Bf16Dot512 => "vdpbf16ps zmm",
            Self::FmaNeon => "fmla",
            Self::DotNeon => "sdot",
            Self::PairNeon => "smlal",
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        self.spin().is_some()
    }

    /// Multiply-adds of one turn of the loop.
    const fn products_per_turn(self) -> u64 {
        let each = match self {
            Self::Fma256 => 8,
            Self::ByteMadd256 => 32,
            Self::PairMadd256 | Self::Fma512 => 16,
            Self::Vnni512 => 64,
            Self::PairDot512 | Self::Bf16Dot512 => 32,
            Self::FmaNeon | Self::PairNeon => 4,
            Self::DotNeon => 16,
        };
        each * LANES
    }

    /// The loop, if this processor has the instructions.
    fn spin(self) -> Option<unsafe fn(u64)> {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Fma256 if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") => {
                return Some(x86::fma_256);
            }
            Self::ByteMadd256 if is_x86_feature_detected!("avx2") => return Some(x86::byte_madd_256),
            Self::PairMadd256 if is_x86_feature_detected!("avx2") => return Some(x86::pair_madd_256),
            Self::Fma512 if is_x86_feature_detected!("avx512f") => return Some(x86::fma_512),
            Self::Vnni512 if is_x86_feature_detected!("avx512vnni") => return Some(x86::vnni_512),
            Self::PairDot512 if is_x86_feature_detected!("avx512vnni") => return Some(x86::pair_dot_512),
            Self::Bf16Dot512 if is_x86_feature_detected!("avx512bf16") => return Some(x86::bf16_dot_512),
            _ => {}
        }
        #[cfg(target_arch = "aarch64")]
        match self {
            Self::FmaNeon if std::arch::is_aarch64_feature_detected!("neon") => return Some(arm::fma),
            Self::DotNeon if std::arch::is_aarch64_feature_detected!("dotprod") => return Some(arm::dot),
            Self::PairNeon if std::arch::is_aarch64_feature_detected!("neon") => return Some(arm::pairs),
            _ => {}
        }
        None
    }
}

/// Multiply-adds per second of `threads` threads (at most one per processor) that do nothing else, over about 50 ms.
/// `None` if this processor lacks the instruction.
pub fn peak(instruction: Instruction, threads: usize) -> Option<f64> {
    let spin = instruction.spin()?;
    let rates = team::run(threads, |member| {
        // SAFETY: `spin` is there only for instructions that this processor has.
        let turn = || unsafe { spin(TURNS) };
        turn(); // wakes the clock and the wide units
        member.line_up();
        let (began, mut best) = (Instant::now(), f64::INFINITY);
        while began.elapsed() < PEAK_TIME {
            let start = Instant::now();
            turn();
            best = best.min(start.elapsed().as_secs_f64());
        }
        (TURNS * instruction.products_per_turn()) as f64 / best.max(1e-9)
    });
    Some(rates.iter().sum())
}

/// Sums side by side in each loop: more than latency times instructions per cycle (4 x 2), so that none waits.
const LANES: u64 = 12;

/// One instruction or more for each lane, spelt out: `$before`, the lane's number, `$between`, the number, `$after`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! lanes {
    ($before:literal, $between:literal, $after:literal) => {
        lanes!(@each $before $between $after; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11")
    };
    ($before:literal, $after:literal) => {
        lanes!(@once $before $after; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11")
    };
    (@each $before:literal $between:literal $after:literal; $($lane:literal)*) => {
        concat!($($before, $lane, $between, $lane, $after, "\n"),*)
    };
    (@once $before:literal $after:literal; $($lane:literal)*) => {
        concat!($($before, $lane, $after, "\n"),*)
    };
}

/// The loops are in assembler because a compiler sees that the operands never change and moves the work out of them.
/// All registers are cleared first: what a register held before may be slow to compute with.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::asm;

    /// Lanes in registers 0 to 11; the line may use 12 to 15.
    macro_rules! spin {
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
            spin!($line, $turns, "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10"
                "ymm11" "ymm12" "ymm13" "ymm14" "ymm15")
        };
        (zmm, $line:expr, $turns:ident) => {
            spin!($line, $turns, "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10"
                "zmm11" "zmm12" "zmm13" "zmm14" "zmm15")
        };
    }

    /// # Safety
    /// The processor must have AVX2 and FMA; `turns` must not be 0.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn fma_256(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(ymm, lanes!("vfmadd231ps ymm", ", ymm14, ymm15"), turns) }
    }

    /// # Safety
    /// The processor must have AVX2; `turns` must not be 0.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn byte_madd_256(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe {
            spin!(
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
    pub(super) unsafe fn pair_madd_256(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(ymm, lanes!("vpmaddwd ymm12, ymm13, ymm14\n vpaddd ymm", ", ymm", ", ymm12"), turns) }
    }

    /// # Safety
    /// The processor must have AVX-512 F; `turns` must not be 0.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn fma_512(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(zmm, lanes!("vfmadd231ps zmm", ", zmm14, zmm15"), turns) }
    }

    /// # Safety
    /// The processor must have AVX-512 VNNI; `turns` must not be 0.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn vnni_512(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(zmm, lanes!("vpdpbusd zmm", ", zmm14, zmm15"), turns) }
    }

    /// # Safety
    /// The processor must have AVX-512 VNNI; `turns` must not be 0.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn pair_dot_512(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(zmm, lanes!("vpdpwssd zmm", ", zmm14, zmm15"), turns) }
    }

    /// # Safety
    /// The processor must have AVX-512 BF16; `turns` must not be 0.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn bf16_dot_512(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(zmm, lanes!("vdpbf16ps zmm", ", zmm14, zmm15"), turns) }
    }
}

/// See `x86`.
#[cfg(target_arch = "aarch64")]
mod arm {
    use core::arch::asm;

    macro_rules! spin {
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
    pub(super) unsafe fn fma(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(lanes!("fmla v", ".4s, v14.4s, v15.4s"), turns) }
    }

    /// # Safety
    /// The processor must have the dot-product extension; `turns` must not be 0.
    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn dot(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(lanes!("sdot v", ".4s, v14.16b, v15.16b"), turns) }
    }

    /// # Safety
    /// The processor must have NEON; `turns` must not be 0.
    #[target_feature(enable = "neon")]
    pub(super) unsafe fn pairs(turns: u64) {
        // SAFETY: touches the registers named and no memory, and ends after `turns` turns.
        unsafe { spin!(lanes!("smlal v", ".4s, v14.4h, v15.4h"), turns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core does 1 to 10 such instructions per nanosecond; a loop that was optimised away does thousands.
    #[test]
    fn each_instruction_there_is_has_a_believable_peak() {
        for instruction in Instruction::ALL {
            let rate = peak(instruction, 1);
            assert_eq!(rate.is_some(), instruction.is_available());
            if let Some(rate) = rate {
                let per_turn = instruction.products_per_turn() as f64 / LANES as f64;
                let per_ns = rate / per_turn / 1e9;
                assert!((0.05..20.0).contains(&per_ns), "{}: {per_ns} per ns", instruction.name());
            }
        }
    }

    #[test]
    fn the_widest_set_has_an_instruction_for_every_type_it_multiplies() {
        let isa = Isa::best();
        if isa != Isa::Scalar {
            for dtype in DType::ALL {
                assert!(Instruction::for_weights(isa, dtype).is_some(), "{} {dtype}", isa.name());
            }
        }
        assert_eq!(Instruction::for_weights(Isa::Scalar, DType::Q8_0), None);
        // Without a packing a type is multiplied in f32.
        assert_eq!(Instruction::for_weights(isa, DType::Q2_K), Instruction::for_weights(isa, DType::F32));
    }
}
