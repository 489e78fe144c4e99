//! Products with `x` as it is, on rows as they are stored.

use std::cell::RefCell;
use std::ops::Range;

use exo_types::DType;

use super::{Columns, Product};
use crate::isa::{Kernel, Level};
use crate::quant;
use crate::simd::{Bf16Bytes, F16Bytes, F32Bytes, F32Row, Row, Simd, load_tail};
use crate::storage::CpuWeight;

/// Up to this many rows of `x`, floats are converted while they are multiplied; beyond it, once before.
const DIRECT_TOKENS_MAX: usize = 4;
/// Weight rows that are converted together when `x` has many rows: `x` is then read once for this many.
const BLOCK_ROWS: usize = 16;

/// Multiplies the rows `range` of the weights by every row of `x`.
///
/// Every product is a sum in the lanes of [`crate::simd::dot`]: lane l adds the elements l, l + LANES, … in order,
/// then the lanes are halved. Which products share a tile does not show in any of them. Blocks are converted to f32 a
/// few rows at a time in a scratch of the thread.
pub(super) fn piece(level: Level, product: &Product<'_>, x: &[f32], range: Range<usize>) {
    let Product { w, bias, out } = product;
    let piece = Piece { w, k: w.cols, x, tokens: x.len() / w.cols, bias: *bias, rows: range, out };
    // Taken here and not in the kernel: `with_borrow_mut` is a call, and its closure would not be vectorised.
    SCRATCH.with_borrow_mut(|scratch| level.dispatch(Multiply { piece, scratch }));
}

/// A run of weight rows against every row of `x`.
struct Piece<'a> {
    w: &'a CpuWeight,
    k: usize,
    x: &'a [f32],
    tokens: usize,
    bias: Option<&'a [f32]>,
    rows: Range<usize>,
    out: &'a Columns<'a>,
}

thread_local! {
    /// Converted rows. Kept between steps; as long as the longest block of rows this thread has met.
    static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// A [`Piece`] and the scratch of the thread it runs on.
struct Multiply<'a> {
    piece: Piece<'a>,
    scratch: &'a mut Vec<f32>,
}

impl Kernel for Multiply<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let piece = &self.piece;
        let direct = piece.tokens <= DIRECT_TOKENS_MAX;
        let rows = piece.rows.clone();
        match piece.w.dtype {
            DType::F32 if direct => piece.products(simd, rows, |n| F32Bytes(piece.w.row(n))),
            DType::F16 if direct => piece.products(simd, rows, |n| F16Bytes(piece.w.row(n))),
            DType::BF16 if direct => piece.products(simd, rows, |n| Bf16Bytes(piece.w.row(n))),
            _ => piece.converted(simd, self.scratch),
        }
    }
}

impl Piece<'_> {
    /// Converts a few rows, multiplies them, and goes on.
    #[inline(always)]
    fn converted<S: Simd>(&self, simd: S, scratch: &mut Vec<f32>) {
        let block = if self.tokens <= DIRECT_TOKENS_MAX { 4 } else { BLOCK_ROWS };
        if scratch.len() < block * self.k {
            scratch.resize(block * self.k, 0.0);
        }
        let mut first = self.rows.start;
        while first < self.rows.end {
            let rows = first..(first + block).min(self.rows.end);
            for (n, row) in rows.clone().zip(scratch.chunks_exact_mut(self.k)) {
                quant::dequantise_inline(simd, self.w.dtype, self.w.row(n), row);
            }
            let converted = &scratch[..];
            self.products(simd, rows, |n| F32Row(&converted[(n - first) * self.k..(n - first + 1) * self.k]));
            first += block;
        }
    }

    /// All products of `rows`, in tiles of four by as many rows of `x` as there are registers for.
    #[inline(always)]
    fn products<S: Simd, W: Row>(&self, simd: S, rows: Range<usize>, row: impl Fn(usize) -> W) {
        let mut t = 0;
        while t < self.tokens {
            let wide = S::LANES == 16 && t + 4 <= self.tokens;
            let pair = !wide && t + 2 <= self.tokens;
            let mut n = rows.start;
            while n < rows.end {
                let four = n + 4 <= rows.end;
                match (four, wide, pair) {
                    (true, true, _) => {
                        self.tile(simd, n, [row(n), row(n + 1), row(n + 2), row(n + 3)], t, [(); 4])
                    }
                    (true, _, true) => {
                        self.tile(simd, n, [row(n), row(n + 1), row(n + 2), row(n + 3)], t, [(); 2])
                    }
                    (true, _, _) => {
                        self.tile(simd, n, [row(n), row(n + 1), row(n + 2), row(n + 3)], t, [(); 1])
                    }
                    (false, true, _) => self.tile(simd, n, [row(n)], t, [(); 4]),
                    (false, _, true) => self.tile(simd, n, [row(n)], t, [(); 2]),
                    (false, _, _) => self.tile(simd, n, [row(n)], t, [(); 1]),
                }
                n += if four { 4 } else { 1 };
            }
            t += if wide {
                4
            } else if pair {
                2
            } else {
                1
            };
        }
    }

    /// R weight rows from `n` on by M rows of `x` from `t` on.
    #[inline(always)]
    fn tile<S: Simd, W: Row, const R: usize, const M: usize>(
        &self,
        simd: S,
        n: usize,
        w: [W; R],
        t: usize,
        _m: [(); M],
    ) {
        let k = self.k;
        let mut x = [F32Row(&[]); M];
        for (m, x) in x.iter_mut().enumerate() {
            *x = F32Row(&self.x[(t + m) * k..(t + m + 1) * k]);
        }
        let mut sums = [[simd.splat(0.0); M]; R];
        let mut at = 0;
        while at + S::LANES <= k {
            let mut xs = [simd.splat(0.0); M];
            for (lanes, x) in xs.iter_mut().zip(x) {
                *lanes = x.load(simd, at);
            }
            for (w, sums) in w.into_iter().zip(&mut sums) {
                let lanes = w.load(simd, at);
                for (sum, x) in sums.iter_mut().zip(xs) {
                    *sum = simd.mul_add(lanes, x, *sum);
                }
            }
            at += S::LANES;
        }
        if at < k {
            for (w, sums) in w.into_iter().zip(&mut sums) {
                for (x, sum) in x.into_iter().zip(sums) {
                    *sum = simd.mul_add(load_tail(simd, w, at, k), load_tail(simd, x, at, k), *sum);
                }
            }
        }
        for (n, sums) in (n..).zip(sums) {
            let bias = self.bias.map_or(0.0, |bias| bias[n]);
            for (t, sum) in (t..).zip(sums) {
                // SAFETY: row `n` is in this piece's `rows`, and pieces are disjoint.
                unsafe { self.out.put(t, n, &[simd.sum(sum) + bias]) }
            }
        }
    }
}
