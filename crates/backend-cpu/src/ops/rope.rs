//! Rotary position embedding.

use super::PARALLEL_ELEMENTS_MIN;
use crate::pool::PoolGuard;
use exo_backend::RopeStyle;

/// Rotates each pair of elements of each head by an angle that grows with the row's position, in place.
///
/// `(a, b) = (a·cos φ - b·sin φ, a·sin φ + b·cos φ)` with `φ = position[t] · frequencies[i]`
///
/// | operand       | shape             | layout          | type |
/// |---------------|-------------------|-----------------|------|
/// | `x`           | `[T, heads, D]`   | rows contiguous | f32  |
/// | `positions`   | `[T]`             | contiguous      | u32  |
/// | `frequencies` | `[rotary/2]`      | contiguous      | f32  |
///
/// The angle is rounded to f32, as the reference implementations do: at position 100 000 that rounding is
/// worth 4 milliradians, and agreeing with them matters more than being right. Its sine and cosine are taken
/// in f64 and rounded once, so they are the same on every machine. Source: Su et al. 2021, arXiv:2104.09864.
pub(super) fn rope(
    turn: &PoolGuard<'_>,
    x: &mut [f32],
    positions: &[u32],
    frequencies: &[f32],
    heads: usize,
    head_dim: usize,
    style: RopeStyle,
) {
    let width = heads * head_dim;
    let rows = (PARALLEL_ELEMENTS_MIN / width).max(1);
    turn.chunks_mut(x, rows * width, |i, x| {
        let mut turns = vec![(0.0, 0.0); frequencies.len()];
        for (row, position) in x.chunks_exact_mut(width).zip(&positions[i * rows..]) {
            for (turn, frequency) in turns.iter_mut().zip(frequencies) {
                let angle = f64::from(*position as f32 * frequency);
                *turn = (angle.cos() as f32, angle.sin() as f32);
            }
            row.chunks_exact_mut(head_dim).for_each(|head| rotate(head, &turns, style));
        }
    });
}

fn rotate(head: &mut [f32], turns: &[(f32, f32)], style: RopeStyle) {
    let turn = |a: &mut f32, b: &mut f32, (cos, sin): (f32, f32)| {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    };
    match style {
        RopeStyle::Halves => {
            let (low, high) = head[..2 * turns.len()].split_at_mut(turns.len());
            for ((a, b), t) in low.iter_mut().zip(high).zip(turns) {
                turn(a, b, *t);
            }
        }
        RopeStyle::Interleaved => {
            for (pair, t) in head.chunks_exact_mut(2).zip(turns) {
                let (a, b) = pair.split_at_mut(1);
                turn(&mut a[0], &mut b[0], *t);
            }
        }
    }
}
