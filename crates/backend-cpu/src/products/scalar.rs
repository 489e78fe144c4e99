//! The formula in plain Rust: the reference of the other instruction sets, and what runs without any of them.

use super::{Products, Sums, check};
use crate::packed::{BLOCK, GROUP_ROWS, Group, RowBlock};
use crate::rounded::{RoundedBlock, RoundedRows};
use crate::simd::Scalar;

impl Products for Scalar {
    fn round(self, x: &[f32], out: &mut [RoundedBlock]) {
        let (blocks, rest) = x.as_chunks::<BLOCK>();
        assert!(rest.is_empty() && blocks.len() == out.len(), "{} blocks for {} columns", out.len(), x.len());
        out.iter_mut().zip(blocks).for_each(|(out, x)| *out = RoundedBlock::of(x));
    }

    fn multiply(self, weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
        check(weights, x, sums);
        sums.fill(Sums([0.0; GROUP_ROWS]));
        for at in 0..weights.blocks {
            for row in 0..GROUP_ROWS {
                let block = RowBlock::of(weights, at, row);
                for (t, sums) in sums.iter_mut().enumerate() {
                    let sum = &mut sums.0[row];
                    *sum = add_block(*sum, &block, &x.row(t)[at]);
                }
            }
        }
    }
}

/// One step of a sum.
fn add_block(sum: f32, w: &RowBlock, x: &RoundedBlock) -> f32 {
    let mut integer = 0;
    for half in 0..2 {
        let columns = 16 * half..16 * half + 16;
        let products = w.quants[columns.clone()].iter().zip(&x.quants[columns]);
        let dot: i32 = products.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
        integer += w.half_scales[half] * dot;
    }
    let sum = (integer as f32).mul_add(w.scale * x.scale, sum);
    w.minimum.map_or(sum, |minimum| minimum.mul_add(x.scaled_sum, sum))
}
