//! Quantised weights and BF16 ones in the order in which the kernels of [`crate::products`] read them.
//!
//! Sixteen output rows make a *group*; a matrix is its groups one after the other, the last one filled up
//! with rows of zeros. A group is one sequential stream of 64-byte lines. A *word* is four consecutive
//! columns of one row in 32 bits, column 4j of a block in the lowest byte of word j: what one lane of
//! `vpdpbusd` or `vpmaddubsw` multiplies by four broadcast activations. A line of words holds the same word
//! of the sixteen rows, row r in bytes 4r..4r + 4.
//!
//! | part of a group                | holds                                                                       |
//! |--------------------------------|-----------------------------------------------------------------------------|
//! | superblock of 256 columns      | the head (K-quants: one line), then four steps                              |
//! | step of 64 columns             | one or two lines of scales, then two blocks; no head: one step after another |
//! | block of 32 columns            | 4, 5, 6 or 8 lines of quants, or 16 of pairs                                |
//!
//! A width of an odd number of blocks ends in a step whose second block is missing and whose scales for it
//! are zero.
//!
//! | type       | head                      | scales of a step (16 rows each)            | lines of a block    | c   |
//! |------------|---------------------------|--------------------------------------------|---------------------|-----|
//! | Q8_0       |                           | f16 d of block 0, of block 1               | 8 of bytes          | 128 |
//! | Q4_0, Q5_0 |                           | f16 d of block 0, of block 1               | 4 of nibbles, + 1   | 8, 16 |
//! | Q4_1, Q5_1 |                           | as before; second line: f16 m of both      | 4 of nibbles, + 1   | 0   |
//! | Q4_K, Q5_K | f16 d, f16 dmin           | u8 scale, u8 min of block 0; of block 1    | 4 of nibbles, + 1   | 0   |
//! | Q6_K       | f16 d, 32 bytes of zeros  | i8 scales of both halves of block 0; of block 1 | 4 of nibbles, + 2 | 32  |
//! | BF16       |                           | bf16 unit of block 0, of block 1           | 16 of pairs         |     |
//!
//! *Bytes:* line j is word j, each quant stored as q + 128. *Nibbles:* line j has word j in the low nibbles
//! and word j + 4 in the high ones. *Fifth bits* (Q5, one line): byte b of a row has column 4j + b's in bit
//! j. *Fifth and sixth bits* (Q6_K, two lines): byte b of line h has those of column 16h + 4i + b in bits 2i
//! and 2i + 1. All stored quants are unsigned; the value of an element is `scale · (stored - c)` plus the
//! minimum where there is one. The two scales of Q6_K lie beside each other, row by row, and belong to 16
//! columns each.
//!
//! *Pairs:* line j has columns 2j and 2j + 1 of each row as the file has them: such a word is two elements.
//! Products round them to whole numbers of their block's unit ([`mod@unit`]); columns that a width lacks to
//! whole blocks are zeros.
//!
//! Size: that of the file's blocks for types of 32 columns; BF16 + 3.1 %, Q4_K + 2.8 %, Q5_K + 2.3 %, Q6_K +
//! 1 %.
//!
//! F32 and F16 have a simpler order of their own: [`interleaved`].

mod interleaved;
mod pack;
mod square;
mod unit;
mod unpack;

use exo_backend::Activations;
use exo_types::DType;

pub(crate) use interleaved::{Interleaved, interleave_group, is_interleaved};
pub(crate) use pack::pack_group;
pub(crate) use unit::EXPONENT_LESS_UNIT;
pub(crate) use unpack::{RowBlock, centre, unpack_row};

/// Rows of a group: lanes of the widest instruction set.
pub(crate) const GROUP_ROWS: usize = 16;
/// Columns of a block.
pub(crate) const BLOCK: usize = Activations::BLOCK;
pub(crate) const LINE: usize = 64;

/// A cache line: packed weights are slices of these, so every line of a group is aligned.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; LINE]);

/// Lines of the parts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    /// Of the head of a superblock; 0 where there is none.
    pub(crate) head: usize,
    /// Of the scales of a step.
    pub(crate) scales: usize,
    /// Of one block.
    pub(crate) block: usize,
}

impl Layout {
    /// The layout of a stored type; `None` for those that are multiplied as they are stored.
    pub(crate) const fn of(dtype: DType) -> Option<Self> {
        let (head, scales, block) = match dtype {
            DType::Q8_0 => (0, 1, 8),
            DType::Q4_0 => (0, 1, 4),
            DType::Q4_1 => (0, 2, 4),
            DType::Q5_0 => (0, 1, 5),
            DType::Q5_1 => (0, 2, 5),
            DType::Q4_K => (1, 1, 4),
            DType::Q5_K => (1, 1, 5),
            DType::Q6_K => (1, 1, 6),
            DType::BF16 => (0, 1, 16),
            DType::F32 | DType::F16 | DType::Q2_K | DType::Q3_K | DType::Q8_K => return None,
        };
        Some(Self { head, scales, block })
    }

    /// Lines of a step of two blocks.
    pub(crate) const fn step(self) -> usize {
        self.scales + 2 * self.block
    }

    /// Lines of a superblock of eight blocks.
    pub(crate) const fn superblock(self) -> usize {
        self.head + 4 * self.step()
    }

    /// Lines of a group of `blocks` blocks.
    pub(crate) const fn group(self, blocks: usize) -> usize {
        let last = if blocks % 2 == 1 { self.scales + self.block } else { 0 };
        (blocks / 8) * self.superblock() + (blocks % 8 / 2) * self.step() + last
    }

    /// Line of the head over `block`.
    pub(crate) const fn head_of(self, block: usize) -> usize {
        (block / 8) * self.superblock()
    }

    /// First line of the scales of `block`'s step.
    pub(crate) const fn scales_of(self, block: usize) -> usize {
        self.head_of(block) + self.head + (block % 8 / 2) * self.step()
    }

    /// First line of the quants of `block`.
    pub(crate) const fn quants_of(self, block: usize) -> usize {
        self.scales_of(block) + self.scales + (block % 2) * self.block
    }
}

/// How rows are rounded for products with weights of a type.
pub(crate) fn activations(dtype: DType) -> Activations {
    match Layout::of(dtype) {
        Some(_) if dtype == DType::BF16 => Activations::Rounded16,
        Some(_) => Activations::Rounded8,
        None => Activations::Exact,
    }
}

/// Bytes of a packed or interleaved matrix, its last group filled up; `None` for types that are kept as they
/// are stored.
///
/// Panics unless `cols` is a whole number of blocks of `dtype`.
pub(crate) fn packed_bytes(dtype: DType, rows: usize, cols: usize) -> Option<usize> {
    let group = if is_interleaved(dtype) {
        GROUP_ROWS * cols * dtype.block_bytes() as usize
    } else {
        LINE * group_lines(dtype, cols)?
    };
    Some(group * rows.div_ceil(GROUP_ROWS))
}

/// Lines of one group; `None` for types that are not packed. Panics as [`packed_bytes`].
pub(crate) fn group_lines(dtype: DType, cols: usize) -> Option<usize> {
    let whole = (cols as u64).is_multiple_of(dtype.block_elements());
    assert!(whole, "{cols} columns are no whole number of blocks of {dtype}");
    Some(Layout::of(dtype)?.group(cols.div_ceil(BLOCK)))
}

/// One group: sixteen rows of packed weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    /// Blocks of 32 columns of each row.
    pub(crate) blocks: usize,
    pub(crate) lines: &'a [Line],
}

impl<'a> Group<'a> {
    /// Panics unless `lines` are those of one group of `cols` columns: the kernels' loads rely on it.
    pub(crate) fn new(dtype: DType, cols: usize, lines: &'a [Line]) -> Self {
        let groups = Groups::new(dtype, cols, lines);
        assert!(lines.len() == groups.each, "a group of {} lines has {}", groups.each, lines.len());
        groups.get(0)
    }
}

/// The groups of a matrix: what they have in common is looked up once, not for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups<'a> {
    dtype: DType,
    layout: Layout,
    blocks: usize,
    /// Lines of one.
    each: usize,
    lines: &'a [Line],
}

impl<'a> Groups<'a> {
    /// Groups of `cols` columns, one after another. Panics for types that are not packed.
    pub(crate) fn new(dtype: DType, cols: usize, lines: &'a [Line]) -> Self {
        let (layout, each) = Layout::of(dtype)
            .zip(group_lines(dtype, cols))
            .unwrap_or_else(|| panic!("{dtype} is not packed"));
        Self { dtype, layout, blocks: cols.div_ceil(BLOCK), each, lines }
    }

    /// Group `g`. Panics unless it is there.
    #[inline(always)]
    pub(crate) fn get(self, g: usize) -> Group<'a> {
        let Self { dtype, layout, blocks, each, lines } = self;
        Group { dtype, layout, blocks, lines: &lines[g * each..][..each] }
    }
}

/// Brings bytes to this core in the order in which memory gives them fastest: sixteen rows read side by side
/// are more streams than processors foresee.
fn read_ahead(bytes: &[u8]) {
    std::hint::black_box(bytes.iter().step_by(LINE).fold(0, |all, byte| all ^ byte));
}

#[cfg(test)]
mod tests;
