//! Which instructions the kernels use, decided once when the device opens.

use crate::packed::Group;
use crate::products::{Products, Sums};
use crate::rounded::{RoundedBlock, RoundedRows};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Scalar, Simd};

/// An instruction set the kernels were written for. Results are bitwise equal within one, not between two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the target guarantees; eight lanes, multiply and add rounded apart.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C; eight lanes.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL; sixteen lanes.
    Avx512,
}

impl Isa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// Lower-case name, as it stands in [`exo_types::DeviceFacts::backend`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        Level::detect(self).is_some()
    }

    /// The widest one this processor has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }
}

/// A kernel body, written once and compiled for each instruction set.
///
/// `run` must be `#[inline(always)]`, and so must everything hot that it calls: code that is not inlined into
/// the wrapper of [`Level::dispatch`] is compiled for the plain target.
pub(crate) trait Kernel {
    type Out;
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// An instruction set that was found to be there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    pub(crate) fn detect(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Scalar => Some(Self::Scalar(Scalar)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => None,
        }
    }

    pub(crate) fn isa(self) -> Isa {
        match self {
            Self::Scalar(_) => Isa::Scalar,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => Isa::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => Isa::Avx512,
        }
    }

    #[allow(dead_code, reason = "see lib.rs")]
    /// [`Products::round`] of this instruction set.
    pub(crate) fn round(self, x: &[f32], out: &mut [RoundedBlock]) {
        Scalar.round(x, out);
    }

    #[allow(dead_code, reason = "see lib.rs")]
    /// [`Products::multiply`] of this instruction set.
    pub(crate) fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
        Scalar.multiply(weights, x, sums);
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Out {
        match self {
            Self::Scalar(simd) => kernel.run(simd),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.vectorise(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.vectorise(kernel),
        }
    }
}
