//! How many multiply-adds per second the arithmetic units can do, measured in registers.

use std::time::{Duration, Instant};

use exo_backend::Activations;
use exo_types::DType;

use super::team;
use crate::Isa;
use crate::packed::activations;

/// One instruction or more for each lane, spelt out: `$before`, the lane's number, `$between`, the number,
/// `$after`.
#[allow(unused_macros, reason = "of processors that have no loop")]
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

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as processor;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
use plain as processor;
#[cfg(target_arch = "x86_64")]
use x86_64 as processor;

/// For one measurement.
const PEAK_TIME: Duration = Duration::from_millis(50);
/// Turns of a loop between two looks at the clock: some 10 to 100 microseconds.
const TURNS: u64 = 20_000;

exo_types::enum_with_all! {
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
}

impl Instruction {
    /// What the kernels of `isa` multiply weights of `dtype` with, as far as this processor has it; `None` if
    /// there is no loop for it here.
    pub fn for_weights(isa: Isa, dtype: DType) -> Option<Self> {
        let [exact, eight, sixteen] = match isa {
            Isa::Scalar => return None,
            Isa::Avx2 => [Self::Fma256, Self::ByteMadd256, Self::PairMadd256],
            Isa::Avx512 => [Self::Fma512, Self::Vnni512, Self::PairDot512],
            Isa::Neon => [Self::FmaNeon, Self::DotNeon, Self::PairNeon],
        };
        let used = match activations(dtype) {
            Activations::Exact | Activations::RoundedHalf => exact,
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
        processor::spin(self)
    }
}

/// Multiply-adds per second of `threads` threads (at most one per processor) that do nothing else, over about
/// 50 ms. `None` if this processor lacks the instruction.
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

/// Sums side by side in each loop: more than latency times instructions per cycle (4 x 2), so that none
/// waits.
const LANES: u64 = 12;

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
