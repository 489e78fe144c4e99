//! How weights of each type lie in device memory, and the way there from ggml's blocks. `kernels/weights.cuh`
//! describes the planes and reads them.

use exo_backend::scales_and_minima;
use exo_types::DType;

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;

/// Whether there is a layout, and so kernels, for the type.
pub(crate) fn is_supported(dtype: DType) -> bool {
    !matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q8_K)
}

/// The type's part of a kernel's name. Panics for a type without layout.
pub(crate) fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Q8_0 => "q8_0",
        DType::Q4_0 => "q4_0",
        DType::Q4_1 => "q4_1",
        DType::Q5_0 => "q5_0",
        DType::Q5_1 => "q5_1",
        DType::Q4_K => "q4_k",
        DType::Q5_K => "q5_k",
        DType::Q6_K => "q6_k",
        DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
    }
}

/// Blocks of a row of `cols` columns.
pub(crate) fn blocks(cols: usize) -> usize {
    cols.div_ceil(BLOCK)
}

/// Bytes of one row in each plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RowBytes {
    pub(crate) low: usize,
    pub(crate) high: usize,
    pub(crate) scales: usize,
}

pub(crate) fn row_bytes(dtype: DType, cols: usize) -> RowBytes {
    let blocks = blocks(cols);
    let (low, high, scales) = match dtype {
        DType::F32 => (128 * blocks, 0, 0),
        DType::F16 | DType::BF16 => (64 * blocks, 0, 0),
        DType::Q8_0 => (32 * blocks, 0, 2 * blocks),
        DType::Q4_0 => (16 * blocks, 0, 2 * blocks),
        DType::Q5_0 => (16 * blocks, 4 * blocks, 2 * blocks),
        DType::Q4_1 => (16 * blocks, 0, 4 * blocks),
        DType::Q5_1 => (16 * blocks, 4 * blocks, 4 * blocks),
        DType::Q4_K => (16 * blocks, 0, 20 * blocks / 8),
        DType::Q5_K => (16 * blocks, 4 * blocks, 20 * blocks / 8),
        DType::Q6_K => (16 * blocks, 8 * blocks, 20 * blocks / 8),
        DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
    };
    RowBytes { low, high, scales }
}

/// Some rows, plane by plane.
#[derive(Default, Debug)]
pub(crate) struct Planes {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Vec<u8>,
    pub(crate) scales: Vec<u8>,
}

impl Planes {
    pub(crate) fn push(&mut self, dtype: DType, row: &[u8], cols: usize) {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                let end = self.low.len() + row_bytes(dtype, cols).low;
                self.low.extend(row);
                self.low.resize(end, 0);
            }
            DType::Q8_0 => row.as_chunks::<34>().0.iter().for_each(|block| {
                self.scales.extend(&block[..2]);
                self.low.extend(&block[2..]);
            }),
            DType::Q4_0 => row.as_chunks::<18>().0.iter().for_each(|b| self.legacy(b, 2, None)),
            DType::Q4_1 => row.as_chunks::<20>().0.iter().for_each(|b| self.legacy(b, 4, None)),
            DType::Q5_0 => row.as_chunks::<22>().0.iter().for_each(|b| self.legacy(b, 2, Some(2))),
            DType::Q5_1 => row.as_chunks::<24>().0.iter().for_each(|b| self.legacy(b, 4, Some(4))),
            DType::Q4_K => row.as_chunks::<144>().0.iter().for_each(|b| self.nibbles_k(b, &b[16..], None)),
            DType::Q5_K => {
                row.as_chunks::<176>().0.iter().for_each(|b| self.nibbles_k(b, &b[48..], Some(&b[16..48])));
            }
            DType::Q6_K => row.as_chunks::<210>().0.iter().for_each(|b| self.q6_k(b)),
            DType::Q2_K | DType::Q3_K | DType::Q8_K => panic!("there is no layout for {dtype}"),
        }
    }

    /// Quants of one block, four columns to a word: four bits of each, and `high_bits` above them.
    fn block(&mut self, high_bits: usize, word: impl Fn(usize) -> u32) {
        let words: [u32; 8] = std::array::from_fn(word);
        for pair in words.as_chunks::<2>().0 {
            self.low.extend((pair[0] & LOW_BITS | (pair[1] & LOW_BITS) << 4).to_le_bytes());
        }
        let mut above = [0u32; 2];
        for (v, word) in words.into_iter().enumerate().filter(|_| high_bits > 0) {
            let per_plane = 8 / high_bits;
            let mask = ((1 << high_bits) - 1) * ONES;
            above[v / per_plane] |= (word >> 4 & mask) << (v % per_plane * high_bits);
        }
        self.high.extend(&above.map(u32::to_le_bytes).as_flattened()[..4 * high_bits]);
    }

    /// Q4_0 to Q5_1: `scale_bytes` of scales, a bit plane if there is a fifth bit, sixteen bytes of columns i
    /// and i + 16.
    fn legacy(&mut self, block: &[u8], scale_bytes: usize, fifth_at: Option<usize>) {
        self.scales.extend(&block[..scale_bytes]);
        let nibbles = &block[block.len() - 16..];
        self.block(fifth_at.map_or(0, |_| 1), |v| {
            let nibble = nibbles_of(word_at(nibbles, v % 4), v >= 4);
            let fifth = |at: usize| u32::from(block[at + v / 2] >> (v % 2 * 4) & 15);
            // Each of four bits to a byte of its own.
            nibble | fifth_at.map_or(0, |at| (fifth(at) * 0x0020_4081) & ONES) << 4
        });
    }

    /// Eight blocks of Q4_K or Q5_K: 32 bytes hold block 2i in their low and 2i + 1 in their high nibbles;
    /// bit b of the 32 bytes of `fifth` belongs to block b. Scale and minimum of each, six bits, become
    /// bytes.
    fn nibbles_k(&mut self, block: &[u8], nibbles: &[u8], fifth: Option<&[u8]>) {
        for b in 0..8 {
            self.block(fifth.map_or(0, |_| 1), |v| {
                let nibble = nibbles_of(word_at(nibbles, b / 2 * 8 + v), b % 2 == 1);
                nibble | fifth.map_or(0, |plane| word_at(plane, v) >> b & ONES) << 4
            });
        }
        self.scales.extend(&block[..4]);
        self.scales.extend(scales_and_minima(block));
    }

    /// Eight blocks of Q6_K and their sixteen scales.
    fn q6_k(&mut self, block: &[u8]) {
        let (low, high) = (&block[..128], &block[128..192]);
        for b in 0..8 {
            // Of each 128 columns: blocks 0 and 1 in the low, 2 and 3 in the high nibbles of 64 bytes.
            let (side, quarter) = (b / 4, b % 4);
            self.block(2, |v| {
                let nibble = nibbles_of(word_at(low, 16 * side + 8 * (quarter % 2) + v), quarter >= 2);
                nibble | ((word_at(high, 8 * side + v) >> (2 * quarter)) & (3 * ONES)) << 4
            });
        }
        self.scales.extend(&block[208..210]);
        self.scales.extend([0, 0]);
        self.scales.extend(&block[192..208]);
    }
}

/// A bit of each byte, and its low half.
const ONES: u32 = 0x0101_0101;
const LOW_BITS: u32 = 15 * ONES;

fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes.as_chunks::<4>().0[at])
}

/// The low or the high half of each byte.
fn nibbles_of(word: u32, are_high: bool) -> u32 {
    word >> if are_high { 4 } else { 0 } & LOW_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_fills_the_bytes_it_was_given() {
        for dtype in DType::ALL.into_iter().filter(|dtype| is_supported(*dtype)) {
            for cols in [1, 31, 33, 256, 512] {
                let Some(bytes) = dtype.bytes_of(cols as u64) else { continue };
                let mut planes = Planes::default();
                planes.push(dtype, &vec![0x5a; bytes as usize], cols);
                let expected = row_bytes(dtype, cols);
                let got =
                    RowBytes { low: planes.low.len(), high: planes.high.len(), scales: planes.scales.len() };
                assert_eq!(got, expected, "{dtype} {cols}");
            }
        }
    }

    #[test]
    fn columns_lie_where_the_kernels_look() {
        let values: [u8; 32] = std::array::from_fn(|c| (c * 37 % 64) as u8);
        for bits in [1, 2] {
            let mut planes = Planes::default();
            planes.block(bits, |v| word_at(&values, v));
            let word =
                |bytes: &[u8], i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
            for (c, value) in values.into_iter().enumerate() {
                let (v, b) = (c / 4, c % 4);
                let nibble = word(&planes.low, v / 2) >> (8 * b + 4 * (v % 2)) & 15;
                let high = match bits {
                    1 => word(&planes.high, 0) >> (8 * b + v) & 1,
                    _ => word(&planes.high, v / 4) >> (8 * b + 2 * (v % 4)) & 3,
                };
                let kept = u32::from(value) & ((16 << bits) - 1);
                assert_eq!(nibble | high << 4, kept, "column {c}, {bits} bits");
            }
        }
    }
}
