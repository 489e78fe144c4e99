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
/// Weight rows that are converted together when `x` has many rows.
const BLOCK_ROWS: usize = 16;
/// Columns that are converted together: a tile's weights and rows of `x` then stay in the first-level cache.
const BLOCK_COLS: usize = 512;
/// Rows of `x` whose sums are kept between blocks of columns.
const BLOCK_TOKENS: usize = 96;

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
    /// Converted weights and sums. Kept between steps; as long as this thread has needed so far.
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
            // A row that ends within a vector would need its end padded on both sides.
            _ if direct || !piece.k.is_multiple_of(S::LANES) => piece.converted(simd, self.scratch),
            _ => piece.blocked(simd, self.scratch),
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

    /// Converts a block of rows and columns, multiplies it by some rows of `x`, and keeps the lanes of the sums for the
    /// next block of columns. Measured with F16, 64 rows of `x`, one thread, GFLOP/s: whole rows 52, so 58, with tiles by
    /// index ([`Block::tile`]) 99.
    #[inline(always)]
    fn blocked<S: Simd>(&self, simd: S, scratch: &mut Vec<f32>) {
        let tokens = BLOCK_TOKENS.min(self.tokens);
        let len = BLOCK_ROWS * BLOCK_COLS + BLOCK_ROWS * tokens * S::LANES;
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        let (converted, sums) = scratch[..len].split_at_mut(BLOCK_ROWS * BLOCK_COLS);
        for first in self.rows.clone().step_by(BLOCK_ROWS) {
            let rows = first..(first + BLOCK_ROWS).min(self.rows.end);
            for start in (0..self.tokens).step_by(tokens) {
                let chunk = start..(start + tokens).min(self.tokens);
                sums.fill(0.0);
                for at in (0..self.k).step_by(BLOCK_COLS) {
                    let cols = at..(at + BLOCK_COLS).min(self.k);
                    self.convert(simd, rows.clone(), cols.clone(), converted);
                    self.add_block(simd, rows.len(), cols, chunk.clone(), converted, sums);
                }
                self.finish(simd, rows.clone(), chunk, sums);
            }
        }
    }

    /// These rows and columns of the weights in f32, rows [`BLOCK_COLS`] apart.
    #[inline(always)]
    fn convert<S: Simd>(&self, simd: S, rows: Range<usize>, cols: Range<usize>, out: &mut [f32]) {
        let elements = self.w.dtype.block_elements() as usize;
        let bytes = self.w.dtype.block_bytes() as usize;
        for (n, out) in rows.zip(out.chunks_exact_mut(BLOCK_COLS)) {
            let row = &self.w.row(n)[cols.start / elements * bytes..cols.end / elements * bytes];
            quant::dequantise_inline(simd, self.w.dtype, row, &mut out[..cols.len()]);
        }
    }

    /// Adds the products of a converted block to `sums`, `[rows, tokens, LANES]`.
    #[inline(always)]
    fn add_block<S: Simd>(
        &self,
        simd: S,
        rows: usize,
        cols: Range<usize>,
        tokens: Range<usize>,
        converted: &[f32],
        sums: &mut [f32],
    ) {
        let block =
            Block { converted, x: &self.x[tokens.start * self.k..], k: self.k, cols, tokens: tokens.len() };
        let mut n = 0;
        while n < rows {
            let mut t = 0;
            // Sums of 24 or 8 vectors: what AVX-512 and AVX2 have registers for.
            let (tall, wide) = if S::LANES == 16 { (8, 3) } else { (4, 2) };
            let height = if n + tall <= rows { tall } else { 1 };
            while t < block.tokens {
                let width = if t + wide <= block.tokens { wide } else { 1 };
                match (height, width) {
                    (8, 3) => block.tile::<S, 8, 3>(simd, n, t, sums),
                    (8, _) => block.tile::<S, 8, 1>(simd, n, t, sums),
                    (4, 2) => block.tile::<S, 4, 2>(simd, n, t, sums),
                    (4, _) => block.tile::<S, 4, 1>(simd, n, t, sums),
                    (_, 3) => block.tile::<S, 1, 3>(simd, n, t, sums),
                    (_, 2) => block.tile::<S, 1, 2>(simd, n, t, sums),
                    _ => block.tile::<S, 1, 1>(simd, n, t, sums),
                }
                t += width;
            }
            n += height;
        }
    }

    /// Halves the lanes and writes the results.
    #[inline(always)]
    fn finish<S: Simd>(&self, simd: S, rows: Range<usize>, tokens: Range<usize>, sums: &[f32]) {
        for (n, sums) in rows.zip(sums.chunks_exact(tokens.len() * S::LANES)) {
            let bias = self.bias.map_or(0.0, |bias| bias[n]);
            for (t, lanes) in tokens.clone().zip(sums.chunks_exact(S::LANES)) {
                // SAFETY: row `n` is in this piece's `rows`, and pieces are disjoint.
                unsafe { self.out.put(t, n, &[simd.sum(simd.load(lanes)) + bias]) }
            }
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

/// A block of converted weights and the rows of `x` it is multiplied by.
struct Block<'a> {
    /// Rows [`BLOCK_COLS`] apart.
    converted: &'a [f32],
    /// From the first of the rows on, `k` apart.
    x: &'a [f32],
    k: usize,
    /// Of `x`; a whole number of vectors.
    cols: Range<usize>,
    tokens: usize,
}

impl Block<'_> {
    /// R rows of weights from `n` on by M rows of `x` from `t` on, added to `sums`, `[rows, tokens, LANES]`.
    ///
    /// By index and not by iterators: sums that an iterator of arrays goes through do not stay in registers.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "r and m are row and column of a tile of registers")]
    fn tile<S: Simd, const R: usize, const M: usize>(&self, simd: S, n: usize, t: usize, sums: &mut [f32]) {
        let (len, k) = (self.cols.len(), self.k);
        let (first, start) = (n * BLOCK_COLS, t * k + self.cols.start);
        assert!(first + (R - 1) * BLOCK_COLS + len <= self.converted.len() && len.is_multiple_of(S::LANES));
        assert!(start + (M - 1) * k + len <= self.x.len());
        let place = |r: usize, m: usize| ((n + r) * self.tokens + t + m) * S::LANES;
        let mut acc = [[simd.splat(0.0); M]; R];
        for r in 0..R {
            for m in 0..M {
                acc[r][m] = simd.load(&sums[place(r, m)..]);
            }
        }
        for at in (0..len).step_by(S::LANES) {
            let vector = |from: &[f32], at: usize| {
                // SAFETY: a whole vector of the `len` elements of a row, in bounds by the assertions.
                simd.load(unsafe { std::slice::from_raw_parts(from.as_ptr().add(at), S::LANES) })
            };
            let mut x = [simd.splat(0.0); M];
            for m in 0..M {
                x[m] = vector(self.x, start + m * k + at);
            }
            for r in 0..R {
                let w = vector(self.converted, first + r * BLOCK_COLS + at);
                for m in 0..M {
                    acc[r][m] = simd.mul_add(w, x[m], acc[r][m]);
                }
            }
        }
        for r in 0..R {
            for m in 0..M {
                simd.store(acc[r][m], &mut sums[place(r, m)..]);
            }
        }
    }
}
