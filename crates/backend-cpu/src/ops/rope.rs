//! Rotary position embedding.

use exo_backend::RopeStyle;

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::Level;
use crate::pool::PoolGuard;
use crate::simd::{Kernel, Simd};

/// Sines and cosines that one piece of work takes: each is worth tens of the elements of other ops.
const PIECE_ANGLES: usize = 1 << 10;

/// The cosines and sines of the rows at hand. All layers of a step turn their queries and keys by the same
/// ones, so they are kept until an op has other rows or frequencies.
#[derive(Debug, Default)]
pub(crate) struct Angles {
    positions: Vec<u32>,
    /// Their bits: zeros of either sign differ.
    frequencies: Vec<u32>,
    /// Of each row first the cosines, then the sines.
    rows: Vec<f32>,
}

impl Angles {
    /// Makes them those of these rows.
    ///
    /// The angle is rounded to f32, as the reference implementations do: at position 100 000 that rounding is
    /// worth 4 milliradians, and agreeing with them matters more than being right. Its sine and cosine are
    /// taken in f64 and rounded once, so they are the same on every machine.
    pub(super) fn fill(&mut self, turn: &PoolGuard<'_>, positions: &[u32], frequencies: &[f32]) {
        let bits: &[u32] = bytemuck::cast_slice(frequencies);
        if self.positions == positions && self.frequencies == bits {
            return;
        }
        // Of no rows until they are there.
        self.positions.clear();
        let count = frequencies.len();
        self.rows.resize(positions.len() * 2 * count, 0.0);
        let each = (PIECE_ANGLES / count.max(1)).max(1);
        turn.chunks_mut(&mut self.rows, (each * 2 * count).max(1), |i, rows| {
            for (row, position) in rows.chunks_exact_mut(2 * count).zip(&positions[i * each..]) {
                let (cosines, sines) = row.split_at_mut(count);
                for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
                    let angle = f64::from(*position as f32 * frequency);
                    (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        });
        self.positions.extend_from_slice(positions);
        self.frequencies.clear();
        self.frequencies.extend_from_slice(bits);
    }

    /// Cosines and sines of row `t`.
    fn row(&self, t: usize) -> (&[f32], &[f32]) {
        let count = self.frequencies.len();
        self.rows[2 * t * count..][..2 * count].split_at(count)
    }
}

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
/// `angles` are those of the positions and frequencies. Source: Su et al. 2021, arXiv:2104.09864.
pub(super) fn rope(
    turn: &PoolGuard<'_>,
    level: Level,
    x: &mut [f32],
    angles: &Angles,
    heads: usize,
    head_dim: usize,
    style: RopeStyle,
) {
    let width = heads * head_dim;
    let each = (PARALLEL_ELEMENTS_MIN / width).max(1);
    turn.chunks_mut(x, each * width, |i, x| {
        for (t, row) in (i * each..).zip(x.chunks_exact_mut(width)) {
            level.dispatch(Rotate { row, head_dim, angles: angles.row(t), style });
        }
    });
}

/// The heads of one row.
struct Rotate<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    angles: (&'a [f32], &'a [f32]),
    style: RopeStyle,
}

impl Kernel for Rotate<'_> {
    type Out = ();

    /// No operation is fused, whatever the instruction set.
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { row, head_dim, angles: (cosines, sines), style } = self;
        let turn = |a: &mut f32, b: &mut f32, cos: f32, sin: f32| {
            (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
        };
        for head in row.chunks_exact_mut(head_dim) {
            let angles = cosines.iter().zip(sines);
            match style {
                RopeStyle::Halves => {
                    let (low, high) = head[..2 * cosines.len()].split_at_mut(cosines.len());
                    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
                        turn(a, b, *cos, *sin);
                    }
                }
                RopeStyle::Interleaved => {
                    for ([a, b], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(angles) {
                        turn(a, b, *cos, *sin);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn angles_are_kept_for_the_same_rows_and_no_others() {
        let pool = Pool::new(2, None).unwrap();
        let turn = pool.turn();
        let mut kept = Angles::default();
        let many: Vec<u32> = (0..700).collect();
        for (positions, frequencies) in [
            (&[3, 7][..], &[1.0, 0.5][..]),
            (&[3, 8], &[1.0, 0.5]),
            (&[3, 8], &[1.0, 0.25]),
            (&[3], &[1.0, 0.25]),
            (&[3], &[0.0]),
            (&[3], &[-0.0]),
            (&many, &[1.0, 0.1, 0.01]),
            (&[], &[1.0]),
            (&[5], &[]),
        ] {
            kept.fill(&turn, positions, frequencies);
            for (t, position) in positions.iter().enumerate() {
                let angle = |frequency: &f32| f64::from(*position as f32 * frequency);
                let cosines: Vec<f32> = frequencies.iter().map(|f| angle(f).cos() as f32).collect();
                let sines: Vec<f32> = frequencies.iter().map(|f| angle(f).sin() as f32).collect();
                let got = kept.row(t);
                assert!(got == (&cosines, &sines), "row {t} of {positions:?} by {frequencies:?}");
                assert!(got.1.iter().zip(&sines).all(|(got, want)| got.to_bits() == want.to_bits()));
            }
            // What is kept is not computed again.
            kept.rows.fill(9.0);
            kept.fill(&turn, positions, frequencies);
            assert!(kept.rows.iter().all(|x| *x == 9.0), "{positions:?} by {frequencies:?} again");
        }
    }
}
