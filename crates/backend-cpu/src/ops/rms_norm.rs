//! RMSNorm.

use super::PARALLEL_ELEMENTS_MIN;
use crate::isa::Level;
use crate::pool::PoolGuard;
use crate::simd::{F32Row, Kernel, Simd, dot};

/// Divides each row by its root mean square, then scales it, in place.
///
/// `x[r, c] = x[r, c] * w[c] / sqrt(mean_c(x[r, c]²) + eps)`
///
/// | operand | shape    | layout          | type |
/// |---------|----------|-----------------|------|
/// | `x`     | `[R, C]` | rows contiguous | f32  |
/// | `w`     | `[C]`    | contiguous      | f32  |
///
/// R counts heads too where heads are normalised one by one. Squares are summed in the lanes of [`dot`].
/// Cost: reads a row twice, from cache the second time. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
pub(super) fn rms_norm(turn: &PoolGuard<'_>, level: Level, x: &mut [f32], w: &[f32], eps: f32) {
    let rows = (PARALLEL_ELEMENTS_MIN / w.len()).max(1);
    turn.chunks_mut(x, rows * w.len(), |_, x| {
        x.chunks_exact_mut(w.len()).for_each(|row| level.dispatch(Row { row, w, eps }));
    });
}

struct Row<'a> {
    row: &'a mut [f32],
    w: &'a [f32],
    eps: f32,
}

impl Kernel for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let x = F32Row(self.row);
        let mean = dot(simd, x, x, self.row.len()) / self.row.len() as f32;
        let scale = 1.0 / (mean + self.eps).sqrt();
        for (x, w) in self.row.iter_mut().zip(self.w) {
            *x = *x * scale * w;
        }
    }
}
