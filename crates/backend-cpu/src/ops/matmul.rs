//! The matrix product, on stored blocks.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

use exo_types::DType;

use crate::isa::{Kernel, Level};
use crate::pool::Turn;
use crate::quant;
use crate::simd::{Bf16Bytes, F16Bytes, F32Bytes, F32Row, Q8Bytes, Row, Simd, load_tail};
use crate::storage::CpuWeight;

/// Up to this many rows of `x`, floats and Q8_0 are converted while they are multiplied; beyond it, once before.
const DIRECT_TOKENS_MAX: usize = 4;
/// Bytes of weights that one piece of work reads: enough to be worth sharing out, few enough to share out evenly.
const TASK_BYTES: usize = 64 << 10;
/// Weight rows that are converted together when `x` has many rows: `x` is then read once for this many.
const BLOCK_ROWS: usize = 16;
/// Multiply-adds below which one thread does it all.
const PARALLEL_PRODUCTS_MIN: usize = 1 << 15;

/// Multiplies each row of `x` by a stored matrix.
///
/// `out[t, n] = Σ_k x[t, k] · w[n, k] + bias[n]`
///
/// | operand | shape    | layout                          | type   |
/// |---------|----------|---------------------------------|--------|
/// | `x`     | `[T, K]` | rows contiguous                 | f32    |
/// | `w`     | `[N, K]` | rows of blocks, at any address  | stored |
/// | `bias`  | `[N]`    | contiguous                      | f32    |
/// | `out`   | `[T, N]` | rows contiguous, not `x`        | f32    |
///
/// Every product is a sum in the lanes of [`crate::simd::dot`]: lane l adds the elements l, l + LANES, … in order, then the lanes
/// are halved. Which products share a tile does not show in any of them. Blocks are converted to f32 a few rows at a time
/// in a scratch of the thread; `x` stays f32. Cost: decode reads the weights once and is bound by that;
/// prefill by multiply-adds. Threads take runs of weight rows.
pub(super) fn matmul(
    turn: &Turn<'_>,
    level: Level,
    out: &mut [f32],
    x: &[f32],
    w: &CpuWeight,
    bias: Option<&[f32]>,
) {
    let (n, k) = (w.rows, w.cols);
    let tokens = x.len() / k;
    if tokens == 0 {
        return;
    }
    let out = Columns::new(out, n);
    // A whole number of blocks, so that only the last piece has a remainder.
    let piece = (TASK_BYTES / w.row_bytes.max(1)).clamp(1, n).next_multiple_of(BLOCK_ROWS);
    let work = |i: usize| {
        let rows = i * piece..((i + 1) * piece).min(n);
        let piece = Piece { w, k, x, tokens, bias, rows, out: &out };
        // Taken here and not in the kernel: `with_borrow_mut` is a call, and its closure would not be vectorised.
        SCRATCH.with_borrow_mut(|scratch| level.dispatch(Multiply { piece, scratch }));
    };
    let pieces = n.div_ceil(piece);
    if n * k * tokens < PARALLEL_PRODUCTS_MIN {
        (0..pieces).for_each(work);
    } else {
        turn.run(pieces, &work);
    }
}

/// A `[rows, width]` matrix that several threads fill, each its own columns.
struct Columns<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    _borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `Columns::put`, whose caller keeps threads to columns of their own.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    fn new(matrix: &'a mut [f32], width: usize) -> Self {
        Self { start: matrix.as_mut_ptr(), len: matrix.len(), width, _borrow: PhantomData }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// No other thread may write column `col` while the matrix is borrowed.
    #[inline(always)]
    unsafe fn put(&self, row: usize, col: usize, value: f32) {
        let at = row * self.width + col;
        assert!(col < self.width && at < self.len);
        // SAFETY: in bounds by the assertion, borrowed mutably by `new`, this thread's own by the caller's promise.
        unsafe { self.start.add(at).write(value) }
    }
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
            DType::Q8_0 if direct => piece.products(simd, rows, |n| Q8Bytes(piece.w.row(n).as_chunks().0)),
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
                unsafe { self.out.put(t, n, simd.sum(sum) + bias) }
            }
        }
    }
}
