//! Products of BF16 weights by activations of sixteen bits: integers, in blocks of 32 columns.
//!
//! **The formula.** For row n of the weights and row t of the activations, over the blocks b of 32 columns in
//! ascending order, starting from 0:
//!
//! | value                                                       | rounded                      |
//! |-------------------------------------------------------------|------------------------------|
//! | `w = weight / u`, with the unit u of row and block          | to the nearest, halves up    |
//! | `I = Σ w · x`, exact in i32: `Σ |w| < 2^16`, `|x| < 2^15`   |                              |
//! | `sum = fma(float(I), u · d, sum)`                           | conversion, product and fma  |
//!
//! `u` is a power of two ([`exo_backend::Activations::Rounded16`] says which), x are the rounded activations
//! and d their scale. Every operation whose result is rounded is in the table, so results depend on nothing
//! else: not on the instruction set, on the number of rows on either side, or on threads. Where u or d is not
//! a number, the result is none.
//!
//! **Error.** A BF16 has eight significant bits: from 128 units on it is a whole number of them, and below it
//! is off by at most half a unit. A unit is at most 2/65504 of the block's sum of magnitudes, or 2^-13 of its
//! largest where that sets it. An activation is off by at most 2^-16 of its block's largest. Of normally
//! distributed numbers the normalised mean square error of a product of 4096 columns is 1.8e-9, where
//! activations of eight bits cost 2.9e-5 and those of eight significant bits, which `vdpbf16ps` takes, 2.7e-6
//! (docs/decisions/0021-bf16-in-whole-numbers.md has more).
//!
//! What each variant measured is in docs/benchmarks.md.

use crate::packed::{BLOCK, GROUP_ROWS, Group, LINE, Line};
use crate::products::{Sums, check};
use crate::rounded::{RoundedRows, WideBlock};
use crate::simd::{Kernel, Simd, fetch, fetch_weights};

/// Words of a row of a block, and lines of them in a group.
const WORDS: usize = BLOCK / 2;
/// Blocks that are brought to whole numbers together: those of two groups fill a third of a first-level cache
/// of 48 KiB.
const RUN: usize = 8;
/// Lines of a block of a group as whole numbers: words and units.
const SLAB: usize = WORDS + 1;
/// Up to this many rows of activations, weights are brought to whole numbers while they are multiplied;
/// beyond it, once before.
const DIRECT_ROWS_MAX: usize = 4;
/// Bytes ahead of the multiplier at which AVX2 fetches lines for a single row: in two steps they came a tenth
/// slower.
const AHEAD: usize = 2048;

pub(crate) struct Round<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [WideBlock],
}

impl Kernel for Round<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { x, out } = self;
        assert!(x.len().div_ceil(BLOCK) == out.len(), "{} blocks for {} columns", out.len(), x.len());
        let (whole, rest) = x.as_chunks();
        out.iter_mut().zip(whole).for_each(|(out, x)| *out = WideBlock::of(x));
        if let (Some(out), false) = (out.last_mut(), rest.is_empty()) {
            let mut last = [0.0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            *out = WideBlock::of(&last);
        }
    }
}

/// Multiplies the rows of one or two groups by each row of `x`. Panics unless the operands fit each other.
pub(crate) struct Multiply<'a, const G: usize> {
    pub(crate) weights: [&'a Group<'a>; G],
    pub(crate) x: RoundedRows<'a, WideBlock>,
    pub(crate) sums: [&'a mut [Sums]; G],
}

impl<const G: usize> Kernel for Multiply<'_, G> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { weights, x, mut sums } = self;
        for (weights, sums) in weights.iter().zip(&mut sums) {
            check(weights, x, sums);
            assert!(weights.lines.len() == weights.layout.group(weights.blocks), "a group lacks lines");
            sums.fill(Sums([0.0; GROUP_ROWS]));
        }
        // A tile is two vectors of rows: of two groups, or the halves of one.
        match S::LANES {
            GROUP_ROWS if G == 2 => {
                let sums = sums.each_mut().map(|sums| sums.as_mut_ptr());
                Rows { groups: [weights[0], weights[G - 1]], first: [0; 2], x, sums: [sums[0], sums[G - 1]] }
                    .multiply(simd);
            }
            GROUP_ROWS => {
                for (weights, sums) in weights.into_iter().zip(sums) {
                    Rows { groups: [weights], first: [0], x, sums: [sums.as_mut_ptr()] }.multiply(simd);
                }
            }
            lanes => {
                for (weights, sums) in weights.into_iter().zip(sums) {
                    let sums = sums.as_mut_ptr();
                    Rows { groups: [weights; 2], first: [0, lanes], x, sums: [sums; 2] }.multiply(simd);
                }
            }
        }
    }
}

/// R vectors of weight rows by all rows of activations.
struct Rows<'a, const R: usize> {
    /// The group of each vector, and the row of it that the vector begins with.
    groups: [&'a Group<'a>; R],
    first: [usize; R],
    x: RoundedRows<'a, WideBlock>,
    /// As many as `x` has rows, for each vector.
    sums: [*mut Sums; R],
}

impl<const R: usize> Rows<'_, R> {
    #[inline(always)]
    fn multiply<S: Simd>(self, simd: S) {
        match self.x.rows() {
            1 => self.direct::<S, 1>(simd),
            2 => self.direct::<S, 2>(simd),
            3 => self.direct::<S, 3>(simd),
            DIRECT_ROWS_MAX => self.direct::<S, DIRECT_ROWS_MAX>(simd),
            _ => self.by_runs(simd),
        }
    }

    /// M rows of activations.
    #[inline(always)]
    fn direct<S: Simd, const M: usize>(&self, simd: S) {
        let x = self.rows::<M>(0);
        let mut totals = [[simd.splat(0.0); M]; R];
        for at in 0..self.x.blocks {
            let stored = self.stored(simd, at);
            if M == 1 {
                if S::LANES == GROUP_ROWS {
                    // Each vector of a tile is of its own group.
                    stored.lines.into_iter().flatten().for_each(|line| fetch_weights(line.0.as_ptr()));
                } else {
                    stored.lines[0].iter().for_each(|line| fetch(line.0.as_ptr().wrapping_add(AHEAD)));
                }
            }
            // SAFETY: `at` is one of the blocks of a row.
            totals = unsafe { block(simd, stored, x, at, totals) };
        }
        self.store(simd, totals, 0);
    }

    /// Any number of rows.
    #[inline(always)]
    fn by_runs<S: Simd>(&self, simd: S) {
        let mut slabs = [Line([0; LINE]); 2 * RUN * SLAB];
        let slabs: &mut [u8] = bytemuck::cast_slice_mut(&mut slabs);
        let size = SLAB * R * 4 * S::LANES;
        for start in (0..self.x.blocks).step_by(RUN) {
            let run = start..(start + RUN).min(self.x.blocks);
            for (at, slab) in run.clone().zip(slabs.chunks_exact_mut(size)) {
                self.stored(simd, at).bring(simd, slab);
            }
            let mut t = 0;
            while t < self.x.rows() {
                // Sums of 16 or 12 vectors, beside two of weights and one of `x`: what AVX-512 and AVX2 have
                // registers for.
                let most = if S::LANES == GROUP_ROWS { 8 } else { 6 };
                let count = match (self.x.rows() - t).min(most) {
                    8 => 8,
                    6.. => 6,
                    4.. => 4,
                    left => left.min(2),
                };
                match count {
                    8 => self.tile::<S, 8>(simd, slabs, &run, t),
                    6 => self.tile::<S, 6>(simd, slabs, &run, t),
                    4 => self.tile::<S, 4>(simd, slabs, &run, t),
                    2 => self.tile::<S, 2>(simd, slabs, &run, t),
                    _ => self.tile::<S, 1>(simd, slabs, &run, t),
                }
                t += count;
            }
        }
    }

    /// A run of blocks by M rows of `x` from `t` on.
    #[inline(always)]
    fn tile<S: Simd, const M: usize>(&self, simd: S, slabs: &[u8], run: &std::ops::Range<usize>, t: usize) {
        let x = self.rows::<M>(t);
        let mut totals = self.load(simd, t);
        for (at, slab) in run.clone().zip(slabs.chunks_exact(SLAB * R * 4 * S::LANES)) {
            for row in x {
                // Those of the next tile: other lines of memory than the ones that the processor would
                // foresee.
                fetch(row.wrapping_add(M * self.x.blocks + at).wrapping_byte_add(LINE / 2).cast());
            }
            // SAFETY: as above.
            totals = unsafe { block(simd, Slab::<R>(slab), x, at, totals) };
        }
        self.store(simd, totals, t);
    }

    /// Rows of activations from `t` on. Loops and no closures: calls would empty the registers.
    #[inline(always)]
    fn rows<const M: usize>(&self, t: usize) -> [*const WideBlock; M] {
        let mut rows = [std::ptr::null(); M];
        for (m, row) in rows.iter_mut().enumerate() {
            // The compiler would make one pointer of them and add up distances for each load, on the ports of
            // the products.
            *row = std::hint::black_box(self.x.row(t + m).as_ptr());
        }
        rows
    }

    /// Block `at` of the weights as it is stored.
    #[inline(always)]
    fn stored<S: Simd>(&self, simd: S, at: usize) -> StoredVectors<'_, S, R> {
        const NOTHING: [Line; WORDS] = [Line([0; LINE]); WORDS];
        let (layout, none) = (self.groups[0].layout, simd.splat_word(0));
        let mut stored =
            StoredVectors { units: [&[]; R], exponents: [none; R], lines: [&NOTHING; R], first: self.first };
        for v in 0..R {
            let lines = self.groups[v].lines;
            let units = &lines[layout.scales_of(at)].0;
            stored.units[v] = &units[2 * (GROUP_ROWS * (at % 2) + self.first[v])..][..2 * S::LANES];
            stored.exponents[v] = simd.exponents(stored.units[v]);
            stored.lines[v] = &lines[layout.quants_of(at)..].as_chunks().0[0];
        }
        stored
    }

    /// The sums of M rows of activations from `t` on.
    #[inline(always)]
    fn load<S: Simd, const M: usize>(&self, simd: S, t: usize) -> [[S::V; M]; R] {
        let mut totals = [[simd.splat(0.0); M]; R];
        for (v, totals) in totals.iter_mut().enumerate() {
            for (m, total) in totals.iter_mut().enumerate() {
                *total = simd.load(self.sums::<S>(v, t + m));
            }
        }
        totals
    }

    #[inline(always)]
    fn store<S: Simd, const M: usize>(&self, simd: S, totals: [[S::V; M]; R], t: usize) {
        for (v, totals) in totals.iter().enumerate() {
            for (m, total) in totals.iter().enumerate() {
                simd.store(*total, self.sums::<S>(v, t + m));
            }
        }
    }

    /// Those of vector `v` for row `t` of activations.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the pointers are this value's own")]
    fn sums<S: Simd>(&self, v: usize, t: usize) -> &mut [f32] {
        assert!(t < self.x.rows() && self.first[v] + S::LANES <= GROUP_ROWS);
        // SAFETY: there are as many sums as `x` has rows, and these are within one of them. What is borrowed
        // here is given back before the next call.
        unsafe {
            let sums = (&raw mut (*self.sums[v].add(t)).0).cast::<f32>();
            std::slice::from_raw_parts_mut(sums.add(self.first[v]), S::LANES)
        }
    }
}

/// Adds the products of block `at` by M rows of activations to the totals.
///
/// By index and not by iterators, and with nothing else that uses the sums: they would not stay in registers.
///
/// # Safety
/// `x` point to rows that have this block.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "v and m are row and column of a tile of registers")]
unsafe fn block<S: Simd, W: Source<S, R>, const R: usize, const M: usize>(
    simd: S,
    w: W,
    x: [*const WideBlock; M],
    at: usize,
    mut totals: [[S::V; M]; R],
) -> [[S::V; M]; R] {
    let mut integers = [[simd.no_sums(); M]; R];
    for j in 0..WORDS {
        let mut words = [simd.splat_word(0); R];
        for v in 0..R {
            words[v] = w.words(simd, j, v);
        }
        for m in 0..M {
            // SAFETY: the caller's promise.
            let x = simd.splat_word(unsafe { (*x[m].add(at)).words[j] });
            for v in 0..R {
                integers[v][m] = simd.add_products(integers[v][m], words[v], x);
            }
        }
    }
    for m in 0..M {
        // SAFETY: as above.
        let scale = simd.splat(unsafe { (*x[m].add(at)).scale });
        for v in 0..R {
            let factor = simd.mul(w.units(simd, v), scale);
            totals[v][m] = simd.add_scaled(integers[v][m], factor, totals[v][m]);
        }
    }
    totals
}

/// A block of R vectors of weight rows.
trait Source<S: Simd, const R: usize>: Copy {
    /// Word `j` of vector `v`, in whole numbers of the units.
    fn words(self, simd: S, j: usize, v: usize) -> S::W;
    /// The units of vector `v`.
    fn units(self, simd: S, v: usize) -> S::V;
}

/// As it is stored.
struct StoredVectors<'a, S: Simd, const R: usize> {
    units: [&'a [u8]; R],
    exponents: [S::W; R],
    lines: [&'a [Line; WORDS]; R],
    /// The row of its group that a vector begins with.
    first: [usize; R],
}

impl<S: Simd, const R: usize> Clone for StoredVectors<'_, S, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd, const R: usize> Copy for StoredVectors<'_, S, R> {}

impl<S: Simd, const R: usize> StoredVectors<'_, S, R> {
    /// Writes the block to `slab` as whole numbers: words `[WORDS, R · LANES]`, then units.
    #[inline(always)]
    fn bring(self, simd: S, slab: &mut [u8]) {
        let (words, units) = slab.split_at_mut(4 * WORDS * R * S::LANES);
        for (j, words) in words.chunks_exact_mut(4 * R * S::LANES).enumerate() {
            for (v, words) in words.chunks_exact_mut(4 * S::LANES).enumerate() {
                simd.store_words(self.words(simd, j, v), words);
            }
        }
        for (v, units) in units.chunks_exact_mut(4 * S::LANES).enumerate() {
            simd.store(self.units(simd, v), bytemuck::cast_slice_mut(units));
        }
    }
}

impl<S: Simd, const R: usize> Source<S, R> for StoredVectors<'_, S, R> {
    #[inline(always)]
    fn words(self, simd: S, j: usize, v: usize) -> S::W {
        let words = simd.load_words(&self.lines[v][j].0[4 * self.first[v]..]);
        simd.in_units(words, self.exponents[v])
    }

    #[inline(always)]
    fn units(self, simd: S, v: usize) -> S::V {
        simd.load_bf16(self.units[v])
    }
}

/// As whole numbers, see [`StoredVectors::bring`].
#[derive(Clone, Copy)]
struct Slab<'a, const R: usize>(&'a [u8]);

impl<S: Simd, const R: usize> Source<S, R> for Slab<'_, R> {
    #[inline(always)]
    fn words(self, simd: S, j: usize, v: usize) -> S::W {
        simd.load_words(&self.0[4 * S::LANES * (j * R + v)..])
    }

    #[inline(always)]
    fn units(self, simd: S, v: usize) -> S::V {
        simd.load_f32_bytes(&self.0[4 * S::LANES * (WORDS * R + v)..])
    }
}
