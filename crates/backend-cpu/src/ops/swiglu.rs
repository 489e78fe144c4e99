//! The gated activation of the feed-forward block.

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::{Kernel, Level};
use crate::math::exp;
use crate::pool::Turn;
use crate::simd::Simd;

/// Gates `up` by SiLU of `gate`, in place of `gate`.
///
/// `gate[i] = gate[i] / (1 + exp(-gate[i])) · up[i]`, elementwise; both contiguous and of one length.
///
/// [`exp`] is our own, so the result does not hang on the system's library. A very negative gate gives -0.
/// Source: Shazeer 2020, arXiv:2002.05202.
pub(super) fn swiglu(turn: &Turn<'_>, level: Level, gate: &mut [f32], up: &[f32]) {
    turn.chunks_mut(gate, PARALLEL_ELEMENTS_MIN, |i, gate| {
        let first = i * PARALLEL_ELEMENTS_MIN;
        let up = &up[first..first + gate.len()];
        level.dispatch(Piece { gate, up });
    });
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
