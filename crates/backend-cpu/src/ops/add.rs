//! The residual sum.

use rayon::prelude::*;

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::{Kernel, Level};
use crate::simd::Simd;

/// `x[i] += y[i]`, elementwise; both contiguous and of one length.
pub(super) fn add(level: Level, x: &mut [f32], y: &[f32]) {
    if x.len() < PARALLEL_ELEMENTS_MIN {
        return level.dispatch(Piece { x, y });
    }
    let (x, y) = (x.par_chunks_mut(PARALLEL_ELEMENTS_MIN), y.par_chunks(PARALLEL_ELEMENTS_MIN));
    x.zip(y).for_each(|(x, y)| level.dispatch(Piece { x, y }));
}

struct Piece<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for Piece<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}
