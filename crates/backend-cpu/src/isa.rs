//! Which instructions the kernels use, decided once when the device opens.

use crate::simd::Kernel;

/// An instruction set the kernels were written for. Results are bitwise equal within one, not between two;
/// products with quantised or BF16 weights are equal between any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the target guarantees; eight lanes, multiply and add rounded apart.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C; eight lanes.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI; sixteen lanes. Processors with AVX-512 but without VNNI
    /// use AVX2: they are few, and their wide units slow the clock.
    Avx512,
    /// 64-bit Arm with NEON and the dot-product extension; eight lanes in two registers.
    Neon,
}

impl Isa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon];

    /// Lower-case name, as it stands in [`exo_types::DeviceFacts::backend`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        Level::detect(self).is_some()
    }

    /// The names of those that this processor has, comma between.
    pub(crate) fn available_names() -> String {
        let names: Vec<_> = Self::ALL.into_iter().filter(|isa| isa.is_available()).map(Self::name).collect();
        names.join(", ")
    }

    /// The widest one this processor has.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Scalar)
    }
}

/// The text names no instruction set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no kernels are written for `{0}`; there are: {names}", names = Isa::ALL.map(Isa::name).join(", "))]
pub struct UnknownIsa(pub String);

impl std::str::FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

/// Defines [`Level`] with the instruction sets of one architecture beside the plain one; its own file names
/// them.
macro_rules! levels {
    ($($set:ident),*) => {
        /// An instruction set that was found to be there.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Level {
            Scalar(Scalar),
            $($set($set),)*
        }

        impl Level {
            pub(crate) fn detect(isa: Isa) -> Option<Self> {
                match isa {
                    Isa::Scalar => Some(Self::Scalar(Scalar)),
                    $(Isa::$set => $set::detect().map(Self::$set),)*
                    _ => None,
                }
            }

            pub(crate) fn isa(self) -> Isa {
                match self {
                    Self::Scalar(_) => Isa::Scalar,
                    $(Self::$set(_) => Isa::$set,)*
                }
            }

            /// [`Products::round`] of this instruction set.
            pub(crate) fn round(self, x: &[f32], out: &mut [RoundedBlock]) {
                match self {
                    Self::Scalar(simd) => simd.round(x, out),
                    $(Self::$set(simd) => simd.round(x, out),)*
                }
            }

            /// [`Products::multiply`] of this instruction set.
            pub(crate) fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
                match self {
                    Self::Scalar(simd) => simd.multiply(weights, x, sums),
                    $(Self::$set(simd) => simd.multiply(weights, x, sums),)*
                }
            }

            /// [`Products::multiply_two`] of this instruction set.
            pub(crate) fn multiply_two(
                self,
                weights: [&Group<'_>; 2],
                x: RoundedRows<'_>,
                sums: [&mut [Sums]; 2],
            ) {
                match self {
                    Self::Scalar(simd) => simd.multiply_two(weights, x, sums),
                    $(Self::$set(simd) => simd.multiply_two(weights, x, sums),)*
                }
            }

            /// Runs `kernel` compiled for this instruction set.
            pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Out {
                match self {
                    Self::Scalar(simd) => kernel.run(simd),
                    $(Self::$set(simd) => simd.call(kernel),)*
                }
            }
        }
    };
}

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod plain;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Level;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
pub(crate) use plain::Level;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::Level;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
            assert_eq!(Level::detect(isa).map(Level::isa), isa.is_available().then_some(isa));
        }
        let error = "avx10".parse::<Isa>().unwrap_err().to_string();
        assert!(
            error.starts_with("no kernels are written for `avx10`; there are: scalar, avx2, avx512"),
            "{error}"
        );
    }
}
