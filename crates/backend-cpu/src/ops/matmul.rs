//! The matrix product: several of the same rows at a time, each in the way its weights are stored.

mod float;
mod quantised;

use std::marker::PhantomData;

use exo_backend::Activations;

use crate::isa::Level;
use crate::packed::{GROUP_ROWS, activations};
use crate::pool::PoolGuard;
use crate::rounded::{RoundedBlock, RoundedRows, WideBlock};
use crate::storage::{CpuWeight, WeightGuard};

/// Bytes of weights that one piece of work reads: enough to be worth sharing out, few enough to share out
/// evenly.
const TASK_BYTES: usize = 64 << 10;
/// Multiply-adds below which one thread does it all.
const PARALLEL_PRODUCTS_MIN: usize = 1 << 15;

/// Rows rounded for the product at hand; as many as the largest one so far had.
#[derive(Debug, Default)]
pub(crate) struct Rounded {
    eight: Vec<RoundedBlock>,
    sixteen: Vec<WideBlock>,
}

/// One of the matrices that the rows are multiplied by.
pub(super) struct Product<'a> {
    pub(super) w: WeightGuard<'a>,
    pub(super) bias: Option<&'a [f32]>,
    /// `[T, N]`
    pub(super) out: Columns<'a>,
}

/// Multiplies each row of `x` by stored matrices of one width.
///
/// `out[t, n] = Σ_k x[t, k] · w[n, k] + bias[n]`, for each of `products`
///
/// | operand | shape    | layout                                          | type   |
/// |---------|----------|-------------------------------------------------|--------|
/// | `x`     | `[T, K]` | rows contiguous                                 | f32    |
/// | `w`     | `[N, K]` | packed groups, or rows of blocks at any address | stored |
/// | `bias`  | `[N]`    | contiguous                                      | f32    |
/// | `out`   | `[T, N]` | rows contiguous, not `x`                        | f32    |
///
/// Quantised types that have a packing ([`crate::packed`]) are multiplied by rows rounded to eight bits and
/// BF16 by rows rounded to sixteen, once for all of `products`, with the formulas of [`crate::products`];
/// F32, F16 and the others by `x` as it is ([`float`]). Cost: decode reads the weights once and is bound by
/// that; prefill by multiply-adds. Threads take runs of weight rows.
pub(super) fn matmul(
    turn: &PoolGuard<'_>,
    level: Level,
    rounded: &mut Rounded,
    x: &[f32],
    products: &[Product<'_>],
) {
    let Some(k) = products.first().map(|product| product.w.cols) else { return };
    let tokens = x.len() / k;
    if tokens == 0 {
        return;
    }
    let needs = |how| products.iter().any(|product| activations(product.w.dtype) == how);
    let mut eight = RoundedRows::new(1, &[]);
    if needs(Activations::Rounded8) {
        eight = quantised::round(turn, level, &mut rounded.eight, x, k);
    }
    let mut sixteen = RoundedRows::new(1, &[]);
    if needs(Activations::Rounded16) {
        sixteen = quantised::round(turn, level, &mut rounded.sixteen, x, k);
    }
    let shares: Vec<Share> = products.iter().map(|product| Share::of(&product.w)).collect();
    let work = |mut i: usize| {
        for (product, share) in products.iter().zip(&shares) {
            if i < share.pieces {
                let range = i * share.rows..((i + 1) * share.rows).min(product.w.rows);
                return match activations(product.w.dtype) {
                    Activations::Rounded8 => quantised::piece(level, product, eight, range),
                    Activations::Rounded16 => quantised::piece(level, product, sixteen, range),
                    // No kernel of ours rounds to halves.
                    Activations::Exact | Activations::RoundedHalf => float::piece(level, product, x, range),
                };
            }
            i -= share.pieces;
        }
    };
    let pieces = shares.iter().map(|share| share.pieces).sum();
    let multiply_adds: usize = products.iter().map(|product| product.w.rows * k * tokens).sum();
    if multiply_adds < PARALLEL_PRODUCTS_MIN {
        (0..pieces).for_each(work);
    } else {
        turn.run(pieces, &work);
    }
}

/// How one matrix is cut.
struct Share {
    /// Weight rows of a piece: whole panels, of two groups each.
    rows: usize,
    pieces: usize,
}

impl Share {
    fn of(w: &CpuWeight) -> Self {
        let rows = (TASK_BYTES / w.row_bytes.max(1)).clamp(1, w.rows).next_multiple_of(float::PANEL_ROWS);
        Self { rows, pieces: w.rows.div_ceil(rows) }
    }
}

/// A `[rows, width]` matrix that several threads fill, each its own columns.
pub(super) struct Columns<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `Columns::put`, whose caller keeps threads to columns of their own.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    pub(super) fn new(matrix: &'a mut [f32], width: usize) -> Self {
        Self { start: matrix.as_mut_ptr(), len: matrix.len(), width, _borrow: PhantomData }
    }

    /// Writes neighbouring elements of a row.
    ///
    /// # Safety
    /// No other thread may write these columns while the matrix is borrowed.
    #[inline(always)]
    unsafe fn put(&self, row: usize, col: usize, values: &[f32]) {
        let at = row * self.width + col;
        assert!(col + values.len() <= self.width && at + values.len() <= self.len);
        let (groups, rest) = values.as_chunks::<GROUP_ROWS>();
        // SAFETY: in bounds by the assertion, borrowed mutably by `new`, this thread's own by the caller's
        // promise.
        unsafe {
            let start = self.start.add(at);
            // Of a length that is known: stores, and no call.
            for (g, group) in groups.iter().enumerate() {
                start.add(g * GROUP_ROWS).cast::<[f32; GROUP_ROWS]>().write_unaligned(*group);
            }
            if !rest.is_empty() {
                let start = start.add(values.len() - rest.len());
                start.copy_from_nonoverlapping(rest.as_ptr(), rest.len());
            }
        }
    }
}
