//! The gated activation of the feed-forward block.

use rayon::prelude::*;

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::{Kernel, Level};
use crate::math::exp;
use crate::simd::Simd;

/// Gates `up` by SiLU of `gate`, in place of `gate`.
///
/// `gate[i] = gate[i] / (1 + exp(-gate[i])) · up[i]`, elementwise; both contiguous and of one length.
///
/// [`exp`] is our own, so the result does not hang on the system's library. A very negative gate gives -0.
/// Source: Shazeer 2020, arXiv:2002.05202.
pub(super) fn swiglu(level: Level, gate: &mut [f32], up: &[f32]) {
    if gate.len() < PARALLEL_ELEMENTS_MIN {
        return level.dispatch(Piece { gate, up });
    }
    let (gate, up) = (gate.par_chunks_mut(PARALLEL_ELEMENTS_MIN), up.par_chunks(PARALLEL_ELEMENTS_MIN));
    gate.zip(up).for_each(|(gate, up)| level.dispatch(Piece { gate, up }));
}

struct Piece<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Piece<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        for (gate, up) in self.gate.iter_mut().zip(self.up) {
            *gate = *gate / (1.0 + exp(-*gate)) * up;
        }
    }
}
