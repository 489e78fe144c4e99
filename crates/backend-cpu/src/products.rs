//! Products of packed quantised weights by rounded activations: one file per instruction set, all equal in
//! bits. Those of BF16 weights are in [`bf16`].
//!
//! **The formula.** For row n of the weights and row t of the activations, over the blocks b of 32 columns in
//! ascending order, starting from 0, each line rounded once (`fma`):
//!
//! | types                | integer, exact in i32 and in f32              | sum                                               |
//! |----------------------|-----------------------------------------------|---------------------------------------------------|
//! | Q8_0, Q4_0, Q5_0     | `I = Σ (w - c) · x`                           | `sum = fma(I, s · d, sum)`                        |
//! | Q4_1, Q5_1, Q4_K, Q5_K | `I = Σ w · x`                               | `sum = fma(I, s · d, sum)`, `sum = fma(m, e, sum)` |
//! | Q6_K                 | `I = g₀ · Σ (w - c) · x + g₁ · Σ (w - c) · x` | `sum = fma(I, s · d, sum)`                        |
//!
//! `w` stored quants and `c` their centre, `s` the block's scale (K-quants: `d · scale`, exact), `m` its
//! minimum (K-quants: `-(dmin · min)`, exact), `g` the integer scales of its two halves (see
//! [`crate::packed`]); `x` rounded activations, `d` their scale and `e` their scaled sum (see
//! [`crate::rounded`]). `s · d` is rounded to f32; |I| <= 2^24.
//!
//! Every float operation is in the table, so a result depends on nothing else: not on the instruction set,
//! the number of rows on either side, tiles, chunks or threads. Integer sums may be taken in any order that
//! does not overflow.
//!
//! Start reading at [`scalar`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod bf16;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packed_types;
mod scalar;

use exo_types::DType;

use crate::packed::{GROUP_ROWS, Group};
use crate::rounded::{RoundedBlock, RoundedRows};

/// Sums of the sixteen rows of a group for one row of activations.
#[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Sums(pub(crate) [f32; GROUP_ROWS]);

/// Rows of activations from which on two groups of a type are multiplied together, where there is a kernel
/// for it: as measured with AVX-512. Fewer rows of types whose words are unpacked go faster by one group.
pub(crate) const fn two_rows_min(dtype: DType) -> usize {
    match dtype {
        DType::BF16 => 2,
        DType::Q8_0 => 5,
        _ => 9,
    }
}

/// What an instruction set must be able to do. Implemented by the proof that the processor has it.
pub(crate) trait Products: Copy + Send + Sync {
    /// Rounds one row of activations: `out[b]` is [`RoundedBlock::of`] columns 32b to 32b + 32, bit by bit.
    ///
    /// Panics unless `x` fills the blocks of `out`.
    fn round(self, x: &[f32], out: &mut [RoundedBlock]);

    /// Multiplies the sixteen rows of a group by each row of `x`: `sums[t]` becomes the formula of this
    /// module. Bound by the weights' bandwidth for few rows of `x`, by arithmetic for many.
    ///
    /// Panics unless `x` is as wide as the group and `sums` has an element for each row of `x`.
    fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]);

    /// The same with two groups of one matrix; from [`two_rows_min`] rows of `x` on faster than one after the
    /// other where there is a kernel for it.
    fn multiply_two(self, weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) {
        for (weights, sums) in weights.into_iter().zip(sums) {
            self.multiply(weights, x, sums);
        }
    }
}

/// The check that every product begins with; its loads rely on it.
#[inline(always)]
fn check<B>(weights: &Group<'_>, x: RoundedRows<'_, B>, sums: &[Sums]) {
    assert!(weights.blocks == x.blocks, "weights of {} blocks by rows of {}", weights.blocks, x.blocks);
    assert!(x.rows() == sums.len(), "{} sums for {} rows", sums.len(), x.rows());
}

#[cfg(test)]
mod tests;
