//! Products with `x` as it is.

use std::cell::RefCell;
use std::ops::Range;

use exo_types::DType;

use super::{Columns, Product};
use crate::isa::Level;
use crate::packed::{GROUP_ROWS, LINE, Line, interleave_group, is_interleaved};
use crate::quant;
use crate::simd::{Element, F16, F32, Kernel, Simd, fetch_weights};
use crate::storage::WeightGuard;

/// Columns whose products are added up by themselves: their panel stays in the first-level cache. Whole
/// blocks of every type.
const BLOCK_COLS: usize = 256;
/// Up to this many rows of `x`, interleaved weights are converted while they are multiplied; beyond it, once
/// before, as rows of types without an order of their own always are.
const DIRECT_TOKENS_MAX: usize = 4;
/// Weight rows of a panel at most: two groups.
pub(super) const PANEL_ROWS: usize = 2 * GROUP_ROWS;

/// Multiplies the rows `range` of the weights, whole panels but for the last, by every row of `x`.
///
/// The sum of a product goes over blocks of 256 columns, and over the columns of a block, each in ascending
/// order:
///
/// `block = Σ_k fma(w[n, k], x[t, k], ·)` from 0, `out = Σ block + bias` from 0
///
/// (`fma` is rounded once where the instruction set can). Lanes are weight rows, so no sum crosses lanes, and
/// which products share a tile does not show in any of them.
///
/// What each variant measured is in docs/benchmarks.md.
pub(super) fn piece(level: Level, product: &Product<'_>, x: &[f32], range: Range<usize>) {
    let Product { w, bias, out } = product;
    let piece = RowRun { w, x, k: w.cols, tokens: x.len() / w.cols, bias: *bias, rows: range, out };
    // Taken here and not in the kernel: `with_borrow_mut` is a call, and its closure would not be vectorised.
    SCRATCH.with_borrow_mut(|scratch| level.dispatch(Multiply { piece, scratch }));
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// What a thread keeps between steps; as long as it has needed so far.
#[derive(Default)]
struct Scratch {
    /// A panel, a row of it, and the sums.
    panel: Vec<Line>,
    /// Weights that are read from their file, interleaved.
    groups: [Vec<Line>; 2],
}

/// A run of weight rows against every row of `x`.
struct RowRun<'a> {
    w: &'a WeightGuard<'a>,
    x: &'a [f32],
    k: usize,
    tokens: usize,
    bias: Option<&'a [f32]>,
    rows: Range<usize>,
    out: &'a Columns<'a>,
}

/// A [`RowRun`] and the scratch of the thread it runs on.
struct Multiply<'a> {
    piece: RowRun<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Multiply<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { piece, scratch: Scratch { panel, groups } } = self;
        for start in piece.rows.clone().step_by(PANEL_ROWS) {
            let rows = start..(start + PANEL_ROWS).min(piece.rows.end);
            let groups = piece.groups(&rows, groups);
            let mut first = start;
            while first < rows.end {
                // Two vectors of rows, or one where a single group is left for sixteen lanes.
                let width = (rows.end.next_multiple_of(GROUP_ROWS) - first).min(2 * S::LANES);
                let these = first..(first + width).min(rows.end);
                let weights = groups.map(|pair| (pair, first - start));
                if width == 2 * S::LANES {
                    piece.panel::<S, 2>(simd, weights, these, panel);
                } else {
                    piece.panel::<S, 1>(simd, weights, these, panel);
                }
                first += width;
            }
        }
    }
}

/// Two groups of interleaved weights, of which the second may be missing.
type Pair<'a> = [&'a [u8]; 2];

impl RowRun<'_> {
    /// The weights `rows`, of at most two groups; `None` for types that have no order of their own.
    fn groups<'a>(&'a self, rows: &Range<usize>, scratch: &'a mut [Vec<Line>; 2]) -> Option<Pair<'a>> {
        let Self { w, k, .. } = self;
        if !is_interleaved(w.dtype) {
            return None;
        }
        let first = rows.start / GROUP_ROWS;
        let mut groups: Pair<'_> = [&[]; 2];
        let held = w.interleaved();
        for (g, (group, scratch)) in groups.iter_mut().zip(scratch).enumerate() {
            let rows = (first + g) * GROUP_ROWS..((first + g + 1) * GROUP_ROWS).min(rows.end);
            *group = match held.and_then(|held| held.get(first + g)) {
                _ if rows.is_empty() => continue,
                Some(group) => group,
                None => {
                    let len = GROUP_ROWS * w.row_bytes;
                    let lines = &mut lines(scratch, len)[..len];
                    interleave_group(w.dtype, *k, w.rows_stored(rows), lines);
                    lines
                }
            };
        }
        Some(groups)
    }

    /// R vectors of rows, the last perhaps beyond the matrix; `weights` are their groups, and where in these
    /// they begin.
    #[inline(always)]
    fn panel<S: Simd, const R: usize>(
        &self,
        simd: S,
        weights: Option<(Pair<'_>, usize)>,
        rows: Range<usize>,
        scratch: &mut Vec<Line>,
    ) {
        let width = R * S::LANES;
        let len = (BLOCK_COLS + self.tokens) * width + BLOCK_COLS;
        let scratch = bytemuck::cast_slice_mut(lines(scratch, size_of::<f32>() * len));
        let (panel, rest) = scratch[..len].split_at_mut(BLOCK_COLS * width);
        let (sums, row) = rest.split_at_mut(self.tokens * width);
        sums.fill(0.0);
        for at in (0..self.k).step_by(BLOCK_COLS) {
            let cols = at..(at + BLOCK_COLS).min(self.k);
            match (weights, self.w.dtype) {
                (Some(w), DType::F32) => self.block::<S, F32, R>(simd, w, cols, panel, sums),
                (Some(w), _) => self.block::<S, F16, R>(simd, w, cols, panel, sums),
                (None, _) => {
                    self.convert::<S, R>(simd, &rows, cols.clone(), row, panel);
                    self.tiles(simd, Converted::<R>(panel), cols, sums);
                }
            }
        }
        for (t, sums) in sums.chunks_exact_mut(width).enumerate() {
            let sums = &mut sums[..rows.len()];
            if let Some(bias) = self.bias {
                sums.iter_mut().zip(&bias[rows.clone()]).for_each(|(sum, bias)| *sum += bias);
            }
            // SAFETY: `rows` are of this piece's, and pieces are disjoint.
            unsafe { self.out.put(t, rows.start, sums) }
        }
    }

    /// A block of columns of interleaved weights.
    #[inline(always)]
    fn block<S: Simd, E: Element, const R: usize>(
        &self,
        simd: S,
        (groups, first): (Pair<'_>, usize),
        cols: Range<usize>,
        panel: &mut [f32],
        sums: &mut [f32],
    ) {
        let stored = StoredVectors::<E, R>::new(groups, first, &cols, S::LANES);
        if self.tokens <= DIRECT_TOKENS_MAX {
            return self.tiles(simd, stored, cols, sums);
        }
        for (k, vectors) in panel.chunks_exact_mut(R * S::LANES).take(cols.len()).enumerate() {
            for (v, out) in vectors.chunks_exact_mut(S::LANES).enumerate() {
                // SAFETY: `k` is one of the `cols` and `v` of the R vectors that `stored` was made for.
                simd.store(unsafe { stored.load(simd, k, v) }, out);
            }
        }
        self.tiles(simd, Converted::<R>(panel), cols, sums);
    }

    /// A block of columns of rows of a type without an order of its own.
    #[inline(always)]
    fn convert<S: Simd, const R: usize>(
        &self,
        simd: S,
        rows: &Range<usize>,
        cols: Range<usize>,
        row: &mut [f32],
        panel: &mut [f32],
    ) {
        let elements = self.w.dtype.block_elements() as usize;
        let bytes = self.w.dtype.block_bytes() as usize;
        let row = &mut row[..cols.len()];
        for r in 0..R * S::LANES {
            if r < rows.len() {
                let stored = self.w.row(rows.start + r);
                let stored = &stored[cols.start / elements * bytes..cols.end / elements * bytes];
                quant::dequantise_inline(simd, self.w.dtype, stored, row);
            } else {
                row.fill(0.0);
            }
            for (vectors, value) in panel.chunks_exact_mut(R * S::LANES).zip(&*row) {
                vectors[r] = *value;
            }
        }
    }

    /// Adds the products of a block of columns to `sums`, `[tokens, R · LANES]`.
    #[inline(always)]
    fn tiles<S: Simd, W: Source<R>, const R: usize>(
        &self,
        simd: S,
        w: W,
        cols: Range<usize>,
        sums: &mut [f32],
    ) {
        let mut t = 0;
        while t < self.tokens {
            // Sums of 16 or 12 vectors, beside the vectors of weights and those of `x`: what AVX-512 and AVX2
            // have registers for.
            let most = match S::LANES {
                _ if W::DIRECT => DIRECT_TOKENS_MAX,
                16 => 8,
                _ => 6,
            };
            let tokens = match (self.tokens - t).min(most) {
                8 => 8,
                6.. => 6,
                4.. => 4,
                left => left.min(2),
            };
            let cols = cols.clone();
            match tokens {
                8 => self.tile::<S, W, R, 8>(simd, w, t, cols, sums),
                6 => self.tile::<S, W, R, 6>(simd, w, t, cols, sums),
                4 => self.tile::<S, W, R, 4>(simd, w, t, cols, sums),
                2 => self.tile::<S, W, R, 2>(simd, w, t, cols, sums),
                _ => self.tile::<S, W, R, 1>(simd, w, t, cols, sums),
            }
            t += tokens;
        }
    }

    /// R vectors of weight rows by M rows of `x` from `t` on.
    ///
    /// By index and not by iterators, and with nothing else that uses the sums: they would not stay in
    /// registers.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "v and m are row and column of a tile of registers")]
    fn tile<S: Simd, W: Source<R>, const R: usize, const M: usize>(
        &self,
        simd: S,
        w: W,
        t: usize,
        cols: Range<usize>,
        sums: &mut [f32],
    ) {
        let x = &self.x[t * self.k + cols.start..(t + M - 1) * self.k + cols.end];
        assert!(w.cols(S::LANES) >= cols.len() && x.len() == (M - 1) * self.k + cols.len());
        let mut acc = [[simd.splat(0.0); M]; R];
        for k in 0..cols.len() {
            let mut rows = [simd.splat(0.0); R];
            for v in 0..R {
                // SAFETY: a column and a vector of the source, by the assertion.
                rows[v] = unsafe { w.load(simd, k, v) };
            }
            if M == 1 {
                w.fetch(k);
            }
            for m in 0..M {
                // SAFETY: column `k` of row `m` of `x`, which has M rows `self.k` apart by the assertion.
                let x = simd.splat(unsafe { *x.get_unchecked(m * self.k + k) });
                for v in 0..R {
                    acc[v][m] = simd.mul_add(rows[v], x, acc[v][m]);
                }
            }
        }
        let sums = &mut sums[t * R * S::LANES..(t + M) * R * S::LANES];
        for m in 0..M {
            for v in 0..R {
                let sum = &mut sums[(m * R + v) * S::LANES..];
                simd.store(simd.add(simd.load(sum), acc[v][m]), sum);
            }
        }
    }
}

/// A block of columns of R vectors of weight rows.
trait Source<const R: usize>: Copy {
    /// Whether a load is a conversion.
    const DIRECT: bool;
    /// Columns it has, with vectors of `lanes`.
    fn cols(self, lanes: usize) -> usize;
    /// Vector `v` of column `k`.
    ///
    /// # Safety
    /// `k` is below [`Source::cols`], `v` below R.
    unsafe fn load<S: Simd>(self, simd: S, k: usize, v: usize) -> S::V;
    /// Asks for what comes some columns after `k`, where it comes from memory.
    fn fetch(self, k: usize);
}

/// In f32, `[columns, R · LANES]`.
#[derive(Clone, Copy)]
struct Converted<'a, const R: usize>(&'a [f32]);

impl<const R: usize> Source<R> for Converted<'_, R> {
    const DIRECT: bool = false;

    #[inline(always)]
    fn cols(self, lanes: usize) -> usize {
        self.0.len() / (R * lanes)
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, k: usize, v: usize) -> S::V {
        // SAFETY: within the columns, by the caller's promise.
        simd.load(unsafe { self.0.get_unchecked((k * R + v) * S::LANES..(k * R + v + 1) * S::LANES) })
    }

    #[inline(always)]
    fn fetch(self, _k: usize) {}
}

/// As they are stored, sixteen rows side by side.
struct StoredVectors<'a, E, const R: usize> {
    /// From the first column and the first row of each vector on.
    vectors: [&'a [u8]; R],
    cols: usize,
    _element: std::marker::PhantomData<E>,
}

impl<E, const R: usize> Clone for StoredVectors<'_, E, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, const R: usize> Copy for StoredVectors<'_, E, R> {}

impl<'a, E: Element, const R: usize> StoredVectors<'a, E, R> {
    /// Columns `cols` of the R · `lanes` rows of `groups` from number `first` on. Panics unless they are
    /// there.
    #[inline(always)]
    fn new(groups: Pair<'a>, first: usize, cols: &Range<usize>, lanes: usize) -> Self {
        let vectors = std::array::from_fn(|v| {
            let row = first + v * lanes;
            let from = &groups[row / GROUP_ROWS][(cols.start * GROUP_ROWS + row % GROUP_ROWS) * E::BYTES..];
            &from[..((cols.len() - 1) * GROUP_ROWS + lanes) * E::BYTES]
        });
        Self { vectors, cols: cols.len(), _element: std::marker::PhantomData }
    }
}

impl<E: Element, const R: usize> Source<R> for StoredVectors<'_, E, R> {
    const DIRECT: bool = true;

    #[inline(always)]
    fn cols(self, _lanes: usize) -> usize {
        self.cols
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, simd: S, k: usize, v: usize) -> S::V {
        // SAFETY: `new` saw that this column's lanes are within the slice; `v` and `k` are by the caller's
        // promise.
        unsafe { E::load(simd, self.vectors.get_unchecked(v).as_ptr().add(k * GROUP_ROWS * E::BYTES)) }
    }

    #[inline(always)]
    fn fetch(self, k: usize) {
        for vector in self.vectors {
            fetch_weights(vector.as_ptr().wrapping_add(k * GROUP_ROWS * E::BYTES));
        }
    }
}

/// At least `len` bytes of a scratch, from the start of a cache line: a vector that lies in two lines is
/// loaded twice.
fn lines(scratch: &mut Vec<Line>, len: usize) -> &mut [u8] {
    let lines = len.div_ceil(LINE);
    if scratch.len() < lines {
        scratch.resize(lines, Line([0; LINE]));
    }
    bytemuck::cast_slice_mut(scratch)
}
