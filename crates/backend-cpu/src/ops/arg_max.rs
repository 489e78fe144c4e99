//! Where the greatest of a row is.

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::Level;
use crate::pool::PoolGuard;
use crate::simd::{Kernel, Simd};

/// Elements looked at before it is known whether the greatest is among them.
const BLOCK: usize = 4096;

/// `out[r] = i`: where the greatest `x[r, i]` is, the lowest i among equals; `-1 - i` of the first that is
/// not finite.
///
/// | operand | shape    | layout          | type |
/// |---------|----------|-----------------|------|
/// | `x`     | `[R, V]` | rows contiguous | f32  |
/// | `out`   | `[R]`    | contiguous      | f32  |
///
/// Floats are compared as whole numbers in the same order, which vectors do without a thought for NaN. Cost:
/// reads a row once, and one block of it twice.
pub(super) fn arg_max(turn: &PoolGuard<'_>, level: Level, out: &mut [f32], x: &[f32], width: usize) {
    let rows = (PARALLEL_ELEMENTS_MIN / width).max(1);
    turn.chunks_mut(out, rows, |i, out| {
        let x = &x[i * rows * width..];
        out.iter_mut().zip(x.chunks_exact(width)).for_each(|(out, row)| *out = level.dispatch(Row(row)));
    });
}

struct Row<'a>(&'a [f32]);

impl Kernel for Row<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> f32 {
        let (mut best, mut block_of_best) = (0, 0);
        for (i, block) in self.0.chunks(BLOCK).enumerate() {
            let greatest = block.iter().fold(0, |greatest, x| rank(*x).max(greatest));
            if greatest > best {
                (best, block_of_best) = (greatest, i);
            }
        }
        let from = block_of_best * BLOCK;
        let within = self.0[from..].iter().position(|x| rank(*x) == best);
        let place = (from + within.unwrap_or_default()) as f32;
        if best == u32::MAX { -1.0 - place } else { place }
    }
}

/// A number in the order of the floats: above 0, the same for 0 and -0, and the greatest of all for what is
/// not finite.
#[inline(always)]
fn rank(x: f32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= f32::INFINITY.to_bits() {
        u32::MAX
    } else if magnitude == 0 {
        1 << 31
    } else if bits == magnitude {
        bits | 1 << 31
    } else {
        !bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_in_the_order_of_the_floats() {
        let ascending =
            [f32::MIN, -1.0, -f32::MIN_POSITIVE, -1e-45, 0.0, 1e-45, f32::MIN_POSITIVE, 1.0, f32::MAX];
        assert!(ascending.is_sorted_by(|a, b| rank(*a) < rank(*b)));
        assert!(rank(f32::MIN) > 0);
        assert_eq!(rank(0.0), rank(-0.0));
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(rank(odd), u32::MAX);
        }
    }
}
