//! Vectors of f32 lanes, one type per instruction set, and the sums built from them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod exp;
mod fetch;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pairs;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use element::{Element, F16, F32, I8};
pub(crate) use exp::exp;
pub(crate) use fetch::{NEAR, fetch, fetch_far, fetch_weights};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, widen_f16};
pub(crate) use pairs::Pairs;
pub(crate) use scalar::Scalar;

/// Lanes of the widest instruction set: room for a padded tail.
pub(crate) const LANES_MAX: usize = 16;

/// A kernel body, written once and compiled for each instruction set.
///
/// `run` must be `#[inline(always)]`, and so must everything hot that it calls: code that is not inlined into
/// the wrapper of [`Level::dispatch`](crate::isa::Level::dispatch) is compiled for the plain target.
pub(crate) trait Kernel {
    type Out;
    fn run<S: Simd>(self, simd: S) -> Self::Out;
}

/// The few vector operations the kernels need. A value is the proof that the processor has the instructions.
pub(crate) trait Simd: Pairs {
    const LANES: usize;
    /// Whether sums of six by two vectors stay in registers.
    const WIDE: bool;
    /// Runs a kernel as a function of its own, compiled for this instruction set.
    fn call<K: Kernel>(self, kernel: K) -> K::Out;
    fn splat(self, value: f32) -> Self::V;
    /// The first `LANES` elements.
    fn load(self, from: &[f32]) -> Self::V;
    /// The first `LANES` little-endian f32, at any address.
    fn load_f32_bytes(self, from: &[u8]) -> Self::V;
    /// The first `LANES` little-endian IEEE halves, at any address.
    fn load_f16(self, from: &[u8]) -> Self::V;
    /// The first `LANES` little-endian bfloat16, at any address.
    fn load_bf16(self, from: &[u8]) -> Self::V;
    /// One little-endian half in every lane.
    fn splat_f16(self, from: [u8; 2]) -> Self::V;
    /// Of the first `LANES` bytes the bits that `mask` keeps after a shift to the right, as numbers.
    fn load_bits(self, from: &[u8], shift: u32, mask: u32) -> Self::V;
    /// The first `LANES` bytes as signed numbers.
    fn load_i8(self, from: &[u8]) -> Self::V;
    /// Bit l of `bits` as lane l: 0 or 1.
    fn spread_bits(self, bits: u32) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32]);
    /// Rounded to IEEE halves, ties to even, as bits.
    fn store_f16(self, v: Self::V, to: &mut [u16]);
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`; rounded once where the instruction set can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` where either is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where either is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer, ties to even.
    fn nearest(self, v: Self::V) -> Self::V;
    /// 2 to the power of `n`, for integers from -126 to 127.
    fn pow2(self, n: Self::V) -> Self::V;
    /// All lanes added by halving: lane i with lane i + n/2, then again.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane; none is NaN.
    fn largest(self, v: Self::V) -> f32;
}

/// Elements that can be loaded as f32 lanes: a row of a weight or of the cache.
pub(crate) trait Row: Copy {
    /// `LANES` elements from `at` on.
    fn load<S: Simd>(self, simd: S, at: usize) -> S::V;
    /// Element `at`.
    fn get(self, at: usize) -> f32;
}

/// f32 elements in memory.
#[derive(Clone, Copy)]
pub(crate) struct F32Row<'a>(pub(crate) &'a [f32]);

impl Row for F32Row<'_> {
    #[inline(always)]
    fn load<S: Simd>(self, simd: S, at: usize) -> S::V {
        simd.load(&self.0[at..at + S::LANES])
    }
    #[inline(always)]
    fn get(self, at: usize) -> f32 {
        self.0[at]
    }
}

/// The last `len - at` elements, padded with zeros to a whole vector.
#[inline(always)]
pub(crate) fn load_tail<S: Simd, A: Row>(simd: S, row: A, at: usize, len: usize) -> S::V {
    let mut padded = [0.0; LANES_MAX];
    for (slot, i) in padded.iter_mut().zip(at..len) {
        *slot = row.get(i);
    }
    simd.load(&padded)
}

/// `Σ_i a[i] · b[i]` over `len` elements: lane l adds the elements l, l + LANES, … in order.
#[inline(always)]
pub(crate) fn dot<S: Simd, A: Row, B: Row>(simd: S, a: A, b: B, len: usize) -> f32 {
    let mut sum = simd.splat(0.0);
    let mut at = 0;
    while at + S::LANES <= len {
        sum = simd.mul_add(a.load(simd, at), b.load(simd, at), sum);
        at += S::LANES;
    }
    if at < len {
        sum = simd.mul_add(load_tail(simd, a, at, len), load_tail(simd, b, at, len), sum);
    }
    simd.sum(sum)
}
