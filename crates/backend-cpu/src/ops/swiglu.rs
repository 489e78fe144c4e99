//! The gated activation of the feed-forward block.

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::Level;
use crate::pool::PoolGuard;
use crate::simd::{F32Row, Kernel, LANES_MAX, Simd, exp, load_tail};

/// Gates `up` by SiLU of `gate`, in place of `gate`.
///
/// `gate[i] = gate[i] / (1 + exp(-gate[i])) · up[i]`, elementwise; both contiguous and of one length.
///
/// [`exp`] is our own, so the result does not hang on the system's library. A very negative gate gives
/// nearly 0. Source: Shazeer 2020, arXiv:2002.05202.
pub(super) fn swiglu(turn: &PoolGuard<'_>, level: Level, gate: &mut [f32], up: &[f32]) {
    turn.chunks_mut(gate, PARALLEL_ELEMENTS_MIN, |i, gate| {
        let first = i * PARALLEL_ELEMENTS_MIN;
        let up = &up[first..first + gate.len()];
        level.dispatch(SwigluChunk { gate, up });
    });
}

struct SwigluChunk<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SwigluChunk<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gates, gates_left) = split_lanes_mut(self.gate, S::LANES);
        let (ups, ups_left) = self.up.split_at(gates.len());
        for (gate, up) in gates.chunks_exact_mut(S::LANES).zip(ups.chunks_exact(S::LANES)) {
            simd.store(gated(simd, simd.load(gate), simd.load(up)), gate);
        }
        let (len, mut lanes) = (gates_left.len(), [0.0; LANES_MAX]);
        if len > 0 {
            let tail = |row| load_tail(simd, F32Row(row), 0, len);
            simd.store(gated(simd, tail(gates_left), tail(ups_left)), &mut lanes);
            gates_left.copy_from_slice(&lanes[..len]);
        }
    }
}

/// `gate / (1 + exp(-gate)) · up`
#[inline(always)]
fn gated<S: Simd>(simd: S, gate: S::V, up: S::V) -> S::V {
    let one = simd.splat(1.0);
    let grown = simd.add(one, exp(simd, simd.sub(simd.splat(0.0), gate)));
    simd.mul(simd.div(gate, grown), up)
}

/// As many whole vectors as there are, and the rest.
#[inline(always)]
fn split_lanes_mut(row: &mut [f32], lanes: usize) -> (&mut [f32], &mut [f32]) {
    row.split_at_mut(row.len() - row.len() % lanes)
}
