//! The residual sum.

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::Level;
use crate::pool::PoolGuard;
use crate::simd::{Kernel, Simd};

/// `x[i] += y[i]`, elementwise; both contiguous and of one length.
pub(super) fn add(turn: &PoolGuard<'_>, level: Level, x: &mut [f32], y: &[f32]) {
    turn.chunks_mut(x, PARALLEL_ELEMENTS_MIN, |i, x| {
        let first = i * PARALLEL_ELEMENTS_MIN;
        let y = &y[first..first + x.len()];
        level.dispatch(AddChunk { x, y });
    });
}

struct AddChunk<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for AddChunk<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}
