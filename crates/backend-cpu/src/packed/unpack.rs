//! Back from groups to numbers: for the plain kernel, and for rows that are looked up.

use exo_types::DType;

use super::{BLOCK, GROUP_ROWS, Group};
use crate::math::{bf16_at, f16_at};

/// One row of a block. An element is `scale · half_scale · quant + minimum`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowBlock {
    /// Less the centre: -128 to 127.
    pub(crate) quants: [i16; BLOCK],
    /// For K-quants the product of the superblock's half and the block's integer: 17 bits at most, so exact.
    pub(crate) scale: f32,
    /// Exact as well; `None` where the type has none.
    pub(crate) minimum: Option<f32>,
    /// Of columns 0..16 and 16..32; ones where the type has none.
    pub(crate) half_scales: [i32; 2],
}

impl RowBlock {
    /// Row `row` of block `at`.
    #[inline(always)]
    pub(crate) fn of(group: &Group<'_>, at: usize, row: usize) -> Self {
        let layout = group.layout;
        let line = |i: usize| &group.lines[i].0;
        let (head, scales) = (layout.head_of(at), layout.scales_of(at));
        // Two blocks share a line of scales.
        let side = &line(scales)[32 * (at % 2)..][..32];
        let (scale, minimum, half_scales) = match group.dtype {
            DType::Q4_K | DType::Q5_K => {
                let (d, dmin) = (f16_at(line(head), row), f16_at(&line(head)[32..], row));
                (d * f32::from(side[row]), Some(-(dmin * f32::from(side[16 + row]))), [1, 1])
            }
            DType::Q6_K => {
                let half_scale = |h: usize| i32::from(side[2 * row + h] as i8);
                (f16_at(line(head), row), None, [half_scale(0), half_scale(1)])
            }
            DType::Q4_1 | DType::Q5_1 => {
                let minima = &line(scales + 1)[32 * (at % 2)..];
                (f16_at(side, row), Some(f16_at(minima, row)), [1, 1])
            }
            _ => (f16_at(side, row), None, [1, 1]),
        };
        let centre = centre(group.dtype);
        let mut quants = [0; BLOCK];
        for (four, word) in quants.as_chunks_mut::<4>().0.iter_mut().zip(stored_words(group, at, row)) {
            *four = word.to_le_bytes().map(|byte| i16::from(byte) - centre);
        }
        Self { quants, scale, minimum, half_scales }
    }
}

/// What is subtracted from a stored quant: c in the table of [`super`].
pub(crate) const fn centre(dtype: DType) -> i16 {
    match dtype {
        DType::Q8_0 => 128,
        DType::Q4_0 => 8,
        DType::Q5_0 => 16,
        DType::Q6_K => 32,
        _ => 0,
    }
}

/// The eight words of a row of a block, a quant in each byte.
#[inline(always)]
fn stored_words(group: &Group<'_>, block: usize, row: usize) -> [u32; 8] {
    let lines = &group.lines[group.layout.quants_of(block)..][..group.layout.block];
    let word = |line: usize| crate::math::u32_at(&lines[line].0, row);
    let nibbles = |j: usize| word(j % 4) >> (4 * (j / 4)) & 0x0f0f_0f0f;
    std::array::from_fn(|j| match lines.len() {
        8 => word(j),
        4 => nibbles(j),
        5 => nibbles(j) | (word(4) >> j & 0x0101_0101) << 4,
        _ => nibbles(j) | (word(4 + j / 4) >> (2 * (j % 4)) & 0x0303_0303) << 4,
    })
}

/// Row `row` of a group in f32: the values that [`crate::quant::dequantise_row`] gives for the stored row,
/// bit by bit.
///
/// Panics unless `out` is one row.
pub(crate) fn unpack_row(group: &Group<'_>, row: usize, out: &mut [f32]) {
    let blocks = out.len().div_ceil(BLOCK);
    assert!(blocks == group.blocks && row < GROUP_ROWS, "{} columns of row {row}", out.len());
    if group.dtype == DType::BF16 {
        return unpack_pairs(group, row, out);
    }
    for (at, out) in out.chunks_exact_mut(BLOCK).enumerate() {
        let block = RowBlock::of(group, at, row);
        for (c, out) in out.iter_mut().enumerate() {
            *out = block.scale * block.half_scales[c / 16] as f32 * f32::from(block.quants[c]);
        }
        // Only where there is one: adding a zero would turn -0 into 0.
        if let Some(minimum) = block.minimum {
            out.iter_mut().for_each(|out| *out += minimum);
        }
    }
}

/// Of a row of pairs.
fn unpack_pairs(group: &Group<'_>, row: usize, out: &mut [f32]) {
    for (at, out) in out.chunks_mut(BLOCK).enumerate() {
        let lines = &group.lines[group.layout.quants_of(at)..][..group.layout.block];
        for (pair, line) in out.chunks_mut(2).zip(lines) {
            pair.iter_mut().enumerate().for_each(|(c, out)| *out = bf16_at(&line.0, 2 * row + c));
        }
    }
}
