//! From the file's blocks to groups.
//!
//! Four rows at a time: their words of one number are neighbours in a line and are stored together, so that
//! what remains is turning squares of four words around, which compilers do in registers. A block's quants
//! are moved as words of four, all four bytes at once; only the bits above the nibbles need more than a shift
//! and a mask.

use exo_types::DType;

use super::unit::unit;
use super::{GROUP_ROWS, LINE, Layout, Line, group_lines, read_ahead, square};
use crate::math::u32_at;
use crate::scales_6_bit;

/// Rows that are packed together.
const ROWS: usize = 4;

/// Packs up to sixteen rows of `cols` columns as they are stored, one after another in `rows`. Rows that are
/// not there become zeros: their products are finite and no one reads them.
///
/// Panics unless `rows` are 1 to 16 whole rows and `out` is one group.
pub(crate) fn pack_group(dtype: DType, cols: usize, rows: &[u8], out: &mut [Line]) {
    let layout = Layout::of(dtype).unwrap_or_else(|| panic!("{dtype} is not packed"));
    let row_bytes = dtype.bytes_of(cols as u64).unwrap_or(0) as usize;
    let count = rows.len() / row_bytes.max(1);
    let whole = rows.len() == count * row_bytes && (1..=GROUP_ROWS).contains(&count);
    assert!(whole, "{} bytes are not 1 to 16 rows of {row_bytes}", rows.len());
    assert!(
        group_lines(dtype, cols) == Some(out.len()),
        "{} lines are no group of {cols} columns",
        out.len()
    );
    read_ahead(rows);
    out.fill(Line([0; LINE]));
    let from = Rows { bytes: rows, row_bytes, layout };
    match dtype {
        DType::Q8_0 => from.pack(out, |four, at, from| four.put_q8_0(at, from)),
        DType::Q4_0 => from.pack(out, |four, at, from| four.put_q4_0(at, from)),
        DType::Q4_1 => from.pack(out, |four, at, from| four.put_q4_1(at, from)),
        DType::Q5_0 => from.pack(out, |four, at, from| four.put_q5_0(at, from)),
        DType::Q5_1 => from.pack(out, |four, at, from| four.put_q5_1(at, from)),
        DType::Q4_K => from.pack(out, |four, at, from| four.put_q4_k(at, from)),
        DType::Q5_K => from.pack(out, |four, at, from| four.put_q5_k(at, from)),
        DType::BF16 => from.pack(out, |four, at, from| four.put_bf16(at, from)),
        _ => from.pack(out, |four, at, from| four.put_q6_k(at, from)),
    }
}

struct Rows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    layout: Layout,
}

impl Rows<'_> {
    /// Calls `put` with block after block of the file, of SIZE bytes, of every four rows. The last may be a
    /// part of one, and is filled up with zeros.
    #[inline(always)]
    fn pack<const SIZE: usize>(
        &self,
        out: &mut [Line],
        put: impl Fn(&mut Four<'_>, usize, [&[u8; SIZE]; ROWS]),
    ) {
        let row = |r: usize| match self.bytes.get(r * self.row_bytes..(r + 1) * self.row_bytes) {
            Some(row) => row.as_chunks().0,
            None => &[],
        };
        let rows: [&[[u8; SIZE]]; GROUP_ROWS] = std::array::from_fn(row);
        for block in 0..self.row_bytes / SIZE {
            for (four, rows) in rows.as_chunks::<ROWS>().0.iter().enumerate() {
                if !rows[0].is_empty() {
                    let from = rows.map(|row| row.get(block).unwrap_or(&[0; SIZE]));
                    put(&mut Four { layout: self.layout, number: four, out: &mut *out }, block, from);
                }
            }
        }
        let (whole, part) = (self.row_bytes / SIZE, self.row_bytes % SIZE);
        if part > 0 {
            let last: [[u8; SIZE]; GROUP_ROWS] = std::array::from_fn(|r| self.part(r, whole * SIZE));
            for (number, four) in last.as_chunks::<ROWS>().0.iter().enumerate() {
                put(&mut Four { layout: self.layout, number, out: &mut *out }, whole, four.each_ref());
            }
        }
    }

    /// What row `r` has from byte `at` on, and zeros.
    fn part<const SIZE: usize>(&self, r: usize, at: usize) -> [u8; SIZE] {
        let mut block = [0; SIZE];
        if let Some(bytes) = self.bytes.get(r * self.row_bytes + at..(r + 1) * self.row_bytes) {
            block[..bytes.len()].copy_from_slice(bytes);
        }
        block
    }
}

/// Four rows of a group that is being filled. Each `put` stores block number `at` of the file's rows.
struct Four<'a> {
    layout: Layout,
    /// Which of the group's fours.
    number: usize,
    out: &'a mut [Line],
}

impl Four<'_> {
    #[inline(always)]
    fn put_q8_0(&mut self, at: usize, from: [&[u8; 34]; ROWS]) {
        self.put_halves(at, 0, from.map(|from| pair(from, 0)));
        self.put_words(at, 0, from.map(|from| words::<8>(&from[2..]).map(|word| word ^ 0x8080_8080)));
    }

    #[inline(always)]
    fn put_q4_0(&mut self, at: usize, from: [&[u8; 18]; ROWS]) {
        self.put_halves(at, 0, from.map(|from| pair(from, 0)));
        self.put_words(at, 0, from.map(|from| words::<4>(&from[2..])));
    }

    #[inline(always)]
    fn put_q4_1(&mut self, at: usize, from: [&[u8; 20]; ROWS]) {
        self.put_halves(at, 0, from.map(|from| pair(from, 0)));
        self.put_halves(at, 1, from.map(|from| pair(from, 2)));
        self.put_words(at, 0, from.map(|from| words::<4>(&from[4..])));
    }

    #[inline(always)]
    fn put_q5_0(&mut self, at: usize, from: [&[u8; 22]; ROWS]) {
        self.put_halves(at, 0, from.map(|from| pair(from, 0)));
        self.put_words(at, 0, from.map(|from| words::<4>(&from[6..])));
        self.put_words(at, 4, from.map(|from| words::<1>(&from[2..]).map(spread_fifth_bits)));
    }

    #[inline(always)]
    fn put_q5_1(&mut self, at: usize, from: [&[u8; 24]; ROWS]) {
        self.put_halves(at, 0, from.map(|from| pair(from, 0)));
        self.put_halves(at, 1, from.map(|from| pair(from, 2)));
        self.put_words(at, 0, from.map(|from| words::<4>(&from[8..])));
        self.put_words(at, 4, from.map(|from| words::<1>(&from[4..]).map(spread_fifth_bits)));
    }

    /// 32 columns.
    #[inline(always)]
    fn put_bf16(&mut self, at: usize, from: [&[u8; 64]; ROWS]) {
        self.put_halves(at, 0, from.map(unit));
        self.put_words(at, 0, from.map(|from| words::<16>(from)));
    }

    /// 8 blocks: d, dmin, twelve bytes of scales and minima, nibbles.
    #[inline(always)]
    fn put_q4_k(&mut self, at: usize, from: [&[u8; 144]; ROWS]) {
        self.put_k4_or_k5(at, from.map(|from| &from[..16]), from.map(|from| &from[16..]));
    }

    /// The same with fifth bits before the nibbles.
    #[inline(always)]
    fn put_q5_k(&mut self, at: usize, from: [&[u8; 176]; ROWS]) {
        self.put_k4_or_k5(at, from.map(|from| &from[..16]), from.map(|from| &from[48..]));
        let fifths = from.map(|from| words::<8>(&from[16..48]));
        for g in 0..8 {
            // Column 4j + b of the block: bit g of byte b of word j in the file.
            let bits = |words: [u32; 8]| (0..8).fold(0, |all, j| all | (words[j] >> g & 0x0101_0101) << j);
            self.put_words(8 * at + g, 4, fifths.map(|words| [bits(words)]));
        }
    }

    #[inline(always)]
    fn put_k4_or_k5(&mut self, at: usize, heads: [&[u8]; ROWS], nibbles: [&[u8]; ROWS]) {
        let head = self.layout.head_of(8 * at);
        self.put_pairs(head, 0, heads.map(|head| pair(head, 0)));
        self.put_pairs(head, 32, heads.map(|head| pair(head, 2)));
        let scales = heads.map(|head| scales_6_bit::unpack(&head[4..16]));
        for g in 0..8 {
            let (block, line) = (8 * at + g, self.layout.scales_of(8 * at + g));
            self.put_bytes(line, 32 * (g % 2), scales.map(|(scales, _)| scales[g]));
            self.put_bytes(line, 32 * (g % 2) + 16, scales.map(|(_, minima)| minima[g]));
            let quants = nibbles.map(|nibbles| words::<8>(&nibbles[32 * (g / 2)..]));
            self.put_nibbles(block, quants, 4 * (g % 2));
        }
    }

    /// 8 blocks: low nibbles, pairs of high bits, a scale for every 16 columns, d.
    #[inline(always)]
    fn put_q6_k(&mut self, at: usize, from: [&[u8; 210]; ROWS]) {
        self.put_pairs(self.layout.head_of(8 * at), 0, from.map(|from| pair(from, 208)));
        for g in 0..8 {
            let (block, half, quarter) = (8 * at + g, g / 4, g % 4);
            let scales = from.map(|from| pair(from, 192 + 2 * g));
            self.put_pairs(self.layout.scales_of(block), 32 * (g % 2), scales);
            let low = from.map(|from| words::<8>(&from[64 * half + 32 * (quarter % 2)..]));
            self.put_nibbles(block, low, 4 * (quarter / 2));
            let pairs = |from: &[u8; 210]| {
                let high = words::<8>(&from[128 + 32 * half..]);
                let high = high.map(|word| word >> (2 * quarter) & 0x0303_0303);
                [0, 4].map(|first| (0..4).fold(0, |all, i| all | high[first + i] << (2 * i)))
            };
            self.put_words(block, 4, from.map(pairs));
        }
    }

    /// The nibbles at bit `shift` of each byte of eight words.
    #[inline(always)]
    fn put_nibbles(&mut self, block: usize, words: [[u32; 8]; ROWS], shift: usize) {
        let lines = |words: [u32; 8]| {
            let nibbles = words.map(|word| word >> shift & 0x0f0f_0f0f);
            std::array::from_fn::<_, 4, _>(|j| nibbles[j] | nibbles[j + 4] << 4)
        };
        self.put_words(block, 0, words.map(lines));
    }

    /// Words of each row, in the lines of a block from line `first` of the block on.
    #[inline(always)]
    fn put_words<const N: usize>(&mut self, block: usize, first: usize, words: [[u32; N]; ROWS]) {
        let start = self.layout.quants_of(block) + first;
        for (j, lines) in self.out[start..start + N].chunks_mut(4).enumerate() {
            let word = |row: [u32; N], c: usize| if 4 * j + c < N { row[4 * j + c].to_le() } else { 0 };
            let columns = square::words(words.map(|row| std::array::from_fn(|c| word(row, c))));
            for (line, column) in lines.iter_mut().zip(columns) {
                line.0[16 * self.number..][..16].copy_from_slice(bytemuck::bytes_of(&column));
            }
        }
    }

    /// Halves of a block in its line of scales number `line`.
    #[inline(always)]
    fn put_halves(&mut self, block: usize, line: usize, halves: [[u8; 2]; ROWS]) {
        self.put_pairs(self.layout.scales_of(block) + line, 32 * (block % 2), halves);
    }

    /// Two bytes of each row, the group's from byte `at` of the line on.
    #[inline(always)]
    fn put_pairs(&mut self, line: usize, at: usize, pairs: [[u8; 2]; ROWS]) {
        self.out[line].0[at + 8 * self.number..][..8].copy_from_slice(pairs.as_flattened());
    }

    /// One byte of each row, likewise.
    #[inline(always)]
    fn put_bytes(&mut self, line: usize, at: usize, bytes: [u8; ROWS]) {
        self.out[line].0[at + 4 * self.number..][..4].copy_from_slice(&bytes);
    }
}

#[inline(always)]
fn pair(bytes: &[u8], at: usize) -> [u8; 2] {
    [bytes[at], bytes[at + 1]]
}

#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| u32_at(&bytes[..4 * N], i))
}

/// Bit 4j + b to bit j of byte b.
#[inline(always)]
fn spread_fifth_bits(bits: u32) -> u32 {
    // The multiplication puts bit b of four also at b + 7, b + 14 and b + 21; the mask keeps the one in byte
    // b.
    let spread = |j: u32| ((bits >> (4 * j) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101) << j;
    (0..8).fold(0, |all, j| all | spread(j))
}
