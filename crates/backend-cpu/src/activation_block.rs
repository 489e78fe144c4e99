//! Blocks of activations with the products that read them, by the instruction set that was found.

use crate::isa::Level;
use crate::packed::Group;
use crate::products::{Sums, bf16};
use crate::rounded::{RoundedBlock, RoundedRows, WideBlock};

/// Blocks of activations, and the products that read them: [`Products`](crate::products::Products) of eight
/// bits, or [`bf16`] ones.
pub(crate) trait Block: bytemuck::Pod + Send + Sync {
    /// Rounds one row, zero-padded to whole blocks.
    ///
    /// Panics unless `out` holds exactly the blocks of the row.
    fn round(level: Level, x: &[f32], out: &mut [Self]);
    /// As [`Products::multiply`](crate::products::Products::multiply).
    fn multiply(level: Level, weights: &Group<'_>, x: RoundedRows<'_, Self>, sums: &mut [Sums]);
    /// As [`Products::multiply_two`](crate::products::Products::multiply_two).
    fn multiply_two(level: Level, weights: [&Group<'_>; 2], x: RoundedRows<'_, Self>, sums: [&mut [Sums]; 2]);
}

impl Block for RoundedBlock {
    fn round(level: Level, x: &[f32], out: &mut [Self]) {
        level.round(x, out);
    }

    fn multiply(level: Level, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
        level.multiply(weights, x, sums);
    }

    fn multiply_two(level: Level, weights: [&Group<'_>; 2], x: RoundedRows<'_>, sums: [&mut [Sums]; 2]) {
        level.multiply_two(weights, x, sums);
    }
}

impl Block for WideBlock {
    fn round(level: Level, x: &[f32], out: &mut [Self]) {
        level.dispatch(bf16::Round { x, out });
    }

    fn multiply(level: Level, weights: &Group<'_>, x: RoundedRows<'_, Self>, sums: &mut [Sums]) {
        level.dispatch(bf16::Multiply { weights: [weights], x, sums: [sums] });
    }

    fn multiply_two(
        level: Level,
        weights: [&Group<'_>; 2],
        x: RoundedRows<'_, Self>,
        sums: [&mut [Sums]; 2],
    ) {
        level.dispatch(bf16::Multiply { weights, x, sums });
    }
}
