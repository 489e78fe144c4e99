//! Products of packed weights, by rows rounded to eight or sixteen bits.

use std::cell::RefCell;
use std::ops::Range;

use super::super::PARALLEL_ELEMENTS_MIN;
use super::Product;
use crate::activation_block::Block;
use crate::isa::Level;
use crate::packed::{BLOCK, GROUP_ROWS, Group, Groups, LINE, Line, group_lines, pack_group};
use crate::pool::PoolGuard;
use crate::products::{Sums, two_rows_min};
use crate::rounded::RoundedRows;
use crate::storage::{InMemory, WeightGuard};

/// Bytes of rounded rows that are multiplied by one piece of weights before the next ones are. Of these the
/// part under the columns at hand, at most half, stays in a core's second-level cache.
const CHUNK_BYTES: usize = 1 << 20;

/// Rounds the rows of `x`, each `k` wide, into `rounded`.
pub(super) fn round<'a, B: Block>(
    turn: &PoolGuard<'_>,
    level: Level,
    rounded: &'a mut Vec<B>,
    x: &[f32],
    k: usize,
) -> RoundedRows<'a, B> {
    let each = k.div_ceil(BLOCK);
    let blocks = x.len() / k * each;
    if rounded.len() < blocks {
        rounded.resize(blocks, bytemuck::Zeroable::zeroed());
    }
    // Rows of whole blocks are one long row, which is cut anywhere.
    let whole = k.is_multiple_of(BLOCK);
    let (width, row) = if whole { (BLOCK, 1) } else { (k, each) };
    let part = (PARALLEL_ELEMENTS_MIN / width).max(1);
    turn.chunks_mut(&mut rounded[..blocks], part * row, |i, out| {
        let x = &x[i * part * width..][..out.len() / row * width];
        if whole {
            B::round(level, x, out);
        } else {
            x.chunks_exact(k).zip(out.chunks_exact_mut(row)).for_each(|(x, out)| B::round(level, x, out));
        }
    });
    RoundedRows::new(each, &rounded[..blocks])
}

/// What a thread keeps between pieces.
#[derive(Default)]
struct Scratch {
    sums: [Vec<Sums>; 2],
    /// Two groups of weights that are read from their file.
    lines: [Vec<Line>; 2],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Multiplies the rows `range` of the weights, whole groups but for the last, by every row of `x`.
pub(super) fn piece<B: Block>(
    level: Level,
    product: &Product<'_>,
    x: RoundedRows<'_, B>,
    range: Range<usize>,
) {
    // Chunks of nearly one size: a short last one would be slower than the others.
    let chunks = size_of_val(x.all).div_ceil(CHUNK_BYTES).max(1);
    let chunk = x.rows().div_ceil(chunks).next_multiple_of(8);
    let (w, packed) = (&product.w, product.w.groups());
    let two_min = two_rows_min(w.dtype);
    SCRATCH.with_borrow_mut(|Scratch { sums, lines }| {
        for first in (0..x.rows()).step_by(chunk) {
            let count = chunk.min(x.rows() - first);
            for sums in &mut *sums {
                if sums.len() < count {
                    sums.resize(count, Sums([0.0; GROUP_ROWS]));
                }
            }
            let [sums, more] = sums.each_mut().map(|sums| &mut sums[..count]);
            let [lines, more_lines] = lines.each_mut();
            let rows = x.part(first, count);
            let mut n = range.start;
            while n < range.end {
                let (weights, next) = (group(w, packed, n / GROUP_ROWS, lines), n + GROUP_ROWS);
                if count >= two_min && next < range.end {
                    let others = group(w, packed, next / GROUP_ROWS, more_lines);
                    B::multiply_two(level, [&weights, &others], rows, [&mut *sums, &mut *more]);
                    // Neighbours in a row of `out`, whose lines are fetched in pairs.
                    for (t, (sums, more)) in (first..).zip(sums.iter_mut().zip(&mut *more)) {
                        put(product, n..next, t, sums);
                        put(product, next..range.end.min(next + GROUP_ROWS), t, more);
                    }
                    n = next + GROUP_ROWS;
                } else {
                    B::multiply(level, &weights, rows, sums);
                    for (t, sums) in (first..).zip(&mut *sums) {
                        put(product, n..range.end.min(next), t, sums);
                    }
                    n = next;
                }
            }
        }
    });
}

/// Writes the sums of these rows of weights, of one group, for row `t` of `x`.
#[inline(always)]
fn put(product: &Product<'_>, rows: Range<usize>, t: usize, sums: &mut Sums) {
    let sums = &mut sums.0[..rows.len()];
    if let Some(bias) = product.bias {
        sums.iter_mut().zip(&bias[rows.clone()]).for_each(|(sum, bias)| *sum += bias);
    }
    // SAFETY: `rows` are of the caller's piece, and pieces are disjoint.
    unsafe { product.out.put(t, rows.start, sums) }
}

/// Group `g` of the weights, packed now if they lie as they are stored. `packed` is what was in memory when
/// the piece began: what has come since is read from there, too, as reading it from the file would bring its
/// pages back.
#[inline(always)]
fn group<'a>(
    w: &'a WeightGuard<'a>,
    packed: Option<InMemory<Groups<'a>>>,
    g: usize,
    scratch: &'a mut Vec<Line>,
) -> Group<'a> {
    match packed.and_then(|groups| groups.get(g)) {
        Some(group) => group,
        None => come_or_pack(w, g, scratch),
    }
}

#[inline(never)]
fn come_or_pack<'a>(w: &'a WeightGuard<'a>, g: usize, scratch: &'a mut Vec<Line>) -> Group<'a> {
    if let Some(group) = w.groups().and_then(|groups| groups.get(g)) {
        return group;
    }
    let len = group_lines(w.dtype, w.cols).unwrap_or_else(|| panic!("{} is not packed", w.dtype));
    let rows = g * GROUP_ROWS..((g + 1) * GROUP_ROWS).min(w.rows);
    scratch.resize(len, Line([0; LINE]));
    pack_group(w.dtype, w.cols, w.rows_stored(rows), scratch);
    Group::new(w.dtype, w.cols, scratch)
}
