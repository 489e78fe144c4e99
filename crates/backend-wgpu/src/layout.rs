//! How weights of each type lie in device memory, and the way there from ggml's blocks.
//!
//! Rows are cut into blocks of 32 columns. The quants of all blocks come first, row by row, then the scales
//! of all blocks: both are whole u32, because shaders have no smaller type. The decoders that read this are
//! in `weights/`.

use exo_backend::scales_and_minima;
use exo_types::DType;

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;

/// What a decoder's text needs to know of its type.
pub(crate) struct Traits {
    pub(crate) flags: &'static [&'static str],
    pub(crate) numbers: &'static [(&'static str, u32)],
}

/// Whether there is a layout, and so kernels, for the type.
pub(crate) fn is_supported(dtype: DType) -> bool {
    !matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q8_K)
}

/// The WGSL that reads blocks of `dtype`. Panics for a type without layout.
pub(crate) fn decoder(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => include_str!("weights/f32.wgsl"),
        DType::F16 => include_str!("weights/f16.wgsl"),
        DType::BF16 => include_str!("weights/bf16.wgsl"),
        DType::Q8_0 => include_str!("weights/bytes.wgsl"),
        DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q4_K | DType::Q5_K | DType::Q6_K => {
            include_str!("weights/nibbles.wgsl")
        }
        DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
    }
}

pub(crate) fn traits(dtype: DType) -> Traits {
    let (flags, numbers): (&[_], &[_]) = match dtype {
        DType::Q4_0 => (&["SCALE_PER_BLOCK"], &[("HIGH_WORDS", 0), ("OFFSET", 8), ("PARTS", 1)]),
        DType::Q5_0 => (&["HIGH_1", "SCALE_PER_BLOCK"], &[("HIGH_WORDS", 1), ("OFFSET", 16), ("PARTS", 1)]),
        DType::Q4_1 => (&["SCALE_AND_MINIMUM", "MINIMUM"], &[("HIGH_WORDS", 0), ("OFFSET", 0), ("PARTS", 1)]),
        DType::Q5_1 => {
            (&["HIGH_1", "SCALE_AND_MINIMUM", "MINIMUM"], &[("HIGH_WORDS", 1), ("OFFSET", 0), ("PARTS", 1)])
        }
        DType::Q4_K => (&["SUPER_MINIMUM", "MINIMUM"], &[("HIGH_WORDS", 0), ("OFFSET", 0), ("PARTS", 1)]),
        DType::Q5_K => {
            (&["HIGH_1", "SUPER_MINIMUM", "MINIMUM"], &[("HIGH_WORDS", 1), ("OFFSET", 0), ("PARTS", 1)])
        }
        DType::Q6_K => (&["HIGH_2", "SUPER_HALVES"], &[("HIGH_WORDS", 2), ("OFFSET", 32), ("PARTS", 2)]),
        _ => (&[], &[("PARTS", 1)]),
    };
    Traits { flags, numbers }
}

/// The memory of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowWords {
    /// u32 of the quants of one row.
    pub(crate) quants: usize,
    /// Half-words (16 bit) of the scales of one row.
    pub(crate) scale_halves: usize,
}

/// Blocks of a row of `cols` columns.
pub(crate) fn blocks(cols: usize) -> usize {
    cols.div_ceil(BLOCK)
}

pub(crate) fn words(dtype: DType, cols: usize) -> RowWords {
    let blocks = blocks(cols);
    let (quants, scale_halves) = match dtype {
        DType::F32 => (32 * blocks, 0),
        DType::F16 | DType::BF16 => (16 * blocks, 0),
        DType::Q8_0 => (8 * blocks, blocks),
        DType::Q4_0 => (4 * blocks, blocks),
        DType::Q5_0 => (5 * blocks, blocks),
        DType::Q4_1 => (4 * blocks, 2 * blocks),
        DType::Q5_1 => (5 * blocks, 2 * blocks),
        DType::Q4_K => (4 * blocks, 10 * blocks / 8),
        DType::Q5_K => (5 * blocks, 10 * blocks / 8),
        DType::Q6_K => (6 * blocks, 10 * blocks / 8),
        DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
    };
    RowWords { quants, scale_halves }
}

/// u32 of `rows` rows, quants and scales.
pub(crate) fn total_words(dtype: DType, rows: usize, cols: usize) -> usize {
    let words = words(dtype, cols);
    rows * words.quants + (rows * words.scale_halves).div_ceil(2)
}

/// Adds one stored row to the quants and scales.
pub(crate) fn pack_row(dtype: DType, row: &[u8], cols: usize, quants: &mut Vec<u32>, scales: &mut Vec<u16>) {
    match dtype {
        DType::F32 => {
            quants.extend(padded(row.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)), cols, 1))
        }
        DType::F16 | DType::BF16 => {
            let halves: Vec<u16> = row.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
            let pairs = halves.chunks(2).map(|pair| join(pair[0], pair.get(1).copied().unwrap_or(0)));
            quants.extend(padded(pairs, cols, 2));
        }
        DType::Q8_0 => {
            for block in row.as_chunks::<34>().0 {
                scales.push(half(block, 0));
                quants.extend(block[2..].as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)));
            }
        }
        DType::Q4_0 => row.as_chunks::<18>().0.iter().for_each(|b| legacy(b, 2, 1, false, quants, scales)),
        DType::Q4_1 => row.as_chunks::<20>().0.iter().for_each(|b| legacy(b, 4, 2, false, quants, scales)),
        DType::Q5_0 => row.as_chunks::<22>().0.iter().for_each(|b| legacy(b, 6, 1, true, quants, scales)),
        DType::Q5_1 => row.as_chunks::<24>().0.iter().for_each(|b| legacy(b, 8, 2, true, quants, scales)),
        DType::Q4_K => row.as_chunks::<144>().0.iter().for_each(|b| {
            q4_k(&b[16..], None, quants);
            super_minimum(b, scales);
        }),
        DType::Q5_K => row.as_chunks::<176>().0.iter().for_each(|b| {
            q4_k(&b[48..], Some(&b[16..48]), quants);
            super_minimum(b, scales);
        }),
        DType::Q6_K => row.as_chunks::<210>().0.iter().for_each(|b| q6_k(b, quants, scales)),
        DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
    }
}

/// `values`, each of `per_word` columns, with zeros up to whole blocks.
fn padded(values: impl Iterator<Item = u32>, cols: usize, per_word: usize) -> impl Iterator<Item = u32> {
    values.chain(std::iter::repeat(0)).take(blocks(cols) * BLOCK / per_word)
}

fn join(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Quants of one block as planes: four bits of each, then what is above.
fn planes(values: &[u8; BLOCK], high_bits: u32, quants: &mut Vec<u32>) {
    let nibble = |word: &[u8]| word.iter().rev().fold(0, |bits, v| bits << 4 | u32::from(v & 15));
    quants.extend(values.chunks(8).map(nibble));
    let mask = (1 << high_bits) - 1;
    let above =
        |word: &[u8]| word.iter().rev().fold(0, |bits, v| bits << high_bits | u32::from(v >> 4 & mask));
    if high_bits > 0 {
        quants.extend(values.chunks(BLOCK / high_bits as usize).map(above));
    }
}

/// Q4_0 to Q5_1: `scale_count` halves, a bit plane if `fifth`, and from `nibbles_at` on bytes of column i and
/// i + 16.
fn legacy(
    block: &[u8],
    nibbles_at: usize,
    scale_count: usize,
    fifth: bool,
    quants: &mut Vec<u32>,
    scales: &mut Vec<u16>,
) {
    scales.extend((0..scale_count).map(|i| half(block, 2 * i)));
    let plane = if fifth { &block[nibbles_at - 4..nibbles_at] } else { &[0; 4][..] };
    let value = |c: usize| {
        let byte = block[nibbles_at + c % 16];
        let nibble = if c < 16 { byte & 15 } else { byte >> 4 };
        nibble | (plane[c / 8] >> (c % 8) & 1) << 4
    };
    planes(&std::array::from_fn(value), u32::from(fifth), quants);
}

/// Eight blocks of Q4_K or Q5_K: 32 bytes hold block 2i in their low and 2i + 1 in their high nibbles; bit b
/// of the 32 bytes of `fifth` belongs to block b.
fn q4_k(nibbles: &[u8], fifth: Option<&[u8]>, quants: &mut Vec<u32>) {
    for block in 0..8 {
        let value = |c: usize| {
            let byte = nibbles[block / 2 * 32 + c];
            let nibble = if block % 2 == 0 { byte & 15 } else { byte >> 4 };
            nibble | fifth.map_or(0, |plane| plane[c] >> block & 1) << 4
        };
        planes(&std::array::from_fn(value), u32::from(fifth.is_some()), quants);
    }
}

/// Scale and minimum of eight blocks, six bits each, from twelve bytes to one byte each.
fn super_minimum(block: &[u8], scales: &mut Vec<u16>) {
    scales.extend([half(block, 0), half(block, 2)]);
    scales.extend(scales_and_minima(block).as_chunks().0.iter().map(|pair| u16::from_le_bytes(*pair)));
}

/// Eight blocks of Q6_K and their sixteen scales.
fn q6_k(block: &[u8], quants: &mut Vec<u32>, scales: &mut Vec<u16>) {
    let (low, high) = (&block[..128], &block[128..192]);
    for b in 0..8 {
        // Of each 128 columns: blocks 0 and 1 in the low, 2 and 3 in the high nibbles of 64 bytes.
        let (side, quarter) = (b / 4, b % 4);
        let value = |c: usize| {
            let byte = low[64 * side + 32 * (quarter % 2) + c];
            let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
            nibble | (high[32 * side + c] >> (2 * quarter) & 3) << 4
        };
        planes(&std::array::from_fn(value), 2, quants);
    }
    scales.extend([half(block, 208), 0]);
    scales.extend((0..8).map(|i| half(block, 192 + 2 * i)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_fills_the_words_it_was_given() {
        for dtype in DType::ALL.into_iter().filter(|dtype| is_supported(*dtype)) {
            for cols in [1, 31, 33, 256, 512] {
                let Some(bytes) = dtype.bytes_of(cols as u64) else { continue };
                let (mut quants, mut scales) = (Vec::new(), Vec::new());
                pack_row(dtype, &vec![0x5a; bytes as usize], cols, &mut quants, &mut scales);
                let expected = words(dtype, cols);
                assert_eq!(
                    (quants.len(), scales.len()),
                    (expected.quants, expected.scale_halves),
                    "{dtype} {cols}"
                );
            }
        }
    }

    #[test]
    fn columns_lie_where_the_decoder_looks() {
        let values: [u8; 32] = std::array::from_fn(|c| (c * 37 % 64) as u8);
        let mut quants = Vec::new();
        planes(&values, 2, &mut quants);
        for (c, value) in values.into_iter().enumerate() {
            let nibble = quants[c / 8] >> (4 * (c % 8)) & 15;
            let high = quants[4 + c / 16] >> (2 * (c % 16)) & 3;
            assert_eq!(u32::from(value), nibble | high << 4, "column {c}");
        }
    }
}
