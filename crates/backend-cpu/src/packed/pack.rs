//! From the file's blocks to groups.
//!
//! A block's quants are moved as words of four, all four bytes at once; only the bits above the nibbles need more
//! than a shift and a mask.

use exo_types::DType;

use super::{GROUP_ROWS, LINE, Layout, Line, group_lines};
use crate::math::u32_at;

/// Packs up to sixteen rows of `cols` columns as they are stored, one after another in `rows`. Rows that are not
/// there become zeros: their products are finite and nobody reads them.
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
    out.fill(Line([0; LINE]));
    let size = dtype.block_bytes() as usize;
    for block in 0..row_bytes / size {
        for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
            Target { layout, row, out: &mut *out }.put(dtype, block, &bytes[block * size..][..size]);
        }
    }
}

/// One row of a group that is being filled.
struct Target<'a> {
    layout: Layout,
    row: usize,
    out: &'a mut [Line],
}

impl Target<'_> {
    /// Stores block number `at` of the file's row.
    #[inline(always)]
    fn put(&mut self, dtype: DType, at: usize, from: &[u8]) {
        match dtype {
            DType::Q8_0 => {
                self.put_halves(at, &[0], from);
                self.put_words(at, 0, words::<8>(&from[2..]).map(|word| word ^ 0x8080_8080));
            }
            DType::Q4_0 => {
                self.put_halves(at, &[0], from);
                self.put_words(at, 0, words::<4>(&from[2..]));
            }
            DType::Q4_1 => {
                self.put_halves(at, &[0, 2], from);
                self.put_words(at, 0, words::<4>(&from[4..]));
            }
            DType::Q5_0 => {
                self.put_halves(at, &[0], from);
                self.put_words(at, 0, words::<4>(&from[6..]));
                self.put_words(at, 4, [spread_fifth_bits(words::<1>(&from[2..])[0])]);
            }
            DType::Q5_1 => {
                self.put_halves(at, &[0, 2], from);
                self.put_words(at, 0, words::<4>(&from[8..]));
                self.put_words(at, 4, [spread_fifth_bits(words::<1>(&from[4..])[0])]);
            }
            DType::Q4_K | DType::Q5_K => self.put_k4_or_k5(dtype, at, from),
            _ => self.put_q6_k(at, from),
        }
    }

    /// 8 blocks: d, dmin, twelve bytes of scales and minima, fifth bits (Q5_K), nibbles.
    #[inline(always)]
    fn put_k4_or_k5(&mut self, dtype: DType, at: usize, from: &[u8]) {
        let head = self.layout.head_of(8 * at);
        self.put_bytes(head, 2 * self.row, &from[0..2]);
        self.put_bytes(head, 32 + 2 * self.row, &from[2..4]);
        let (scales, mins) = crate::quant::unpack_scales_6_bit(&from[4..16]);
        let nibbles = if dtype == DType::Q5_K { &from[48..] } else { &from[16..] };
        for g in 0..8 {
            let (block, line) = (8 * at + g, self.layout.scales_of(8 * at + g));
            self.put_bytes(line, 32 * (g % 2) + self.row, &scales[g..=g]);
            self.put_bytes(line, 32 * (g % 2) + 16 + self.row, &mins[g..=g]);
            self.put_nibbles(block, words::<8>(&nibbles[32 * (g / 2)..]), 4 * (g % 2));
            if dtype == DType::Q5_K {
                let fifths = words::<8>(&from[16..48]).map(|word| word >> g & 0x0101_0101);
                self.put_words(block, 4, [(0..8).fold(0, |all, j| all | fifths[j] << j)]);
            }
        }
    }

    /// 8 blocks: low nibbles, pairs of high bits, a scale for every 16 columns, d.
    #[inline(always)]
    fn put_q6_k(&mut self, at: usize, from: &[u8]) {
        self.put_bytes(self.layout.head_of(8 * at), 2 * self.row, &from[208..210]);
        for g in 0..8 {
            let (block, half, quarter) = (8 * at + g, g / 4, g % 4);
            let scales = &from[192 + 2 * g..][..2];
            self.put_bytes(self.layout.scales_of(block), 32 * (g % 2) + 2 * self.row, scales);
            let low = words::<8>(&from[64 * half + 32 * (quarter % 2)..]);
            self.put_nibbles(block, low, 4 * (quarter / 2));
            let high = words::<8>(&from[128 + 32 * half..]).map(|word| word >> (2 * quarter) & 0x0303_0303);
            let pairs = |h: usize| (0..4).fold(0, |all, i| all | high[4 * h + i] << (2 * i));
            self.put_words(block, 4, [pairs(0), pairs(1)]);
        }
    }

    /// The nibbles at bit `shift` of each byte of eight words.
    #[inline(always)]
    fn put_nibbles(&mut self, block: usize, words: [u32; 8], shift: usize) {
        let nibbles = words.map(|word| word >> shift & 0x0f0f_0f0f);
        self.put_words(block, 0, std::array::from_fn::<_, 4, _>(|j| nibbles[j] | nibbles[j + 4] << 4));
    }

    /// This row's words in the lines of a block, from line `first` of the block on.
    #[inline(always)]
    fn put_words<const N: usize>(&mut self, block: usize, first: usize, words: [u32; N]) {
        let start = self.layout.quants_of(block) + first;
        for (line, word) in self.out[start..start + N].iter_mut().zip(words) {
            line.0[4 * self.row..4 * self.row + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The halves at these bytes of `from`, one for each line of scales.
    #[inline(always)]
    fn put_halves(&mut self, block: usize, at: &[usize], from: &[u8]) {
        for (line, at) in (self.layout.scales_of(block)..).zip(at) {
            self.put_bytes(line, 32 * (block % 2) + 2 * self.row, &from[*at..at + 2]);
        }
    }

    #[inline(always)]
    fn put_bytes(&mut self, line: usize, at: usize, bytes: &[u8]) {
        self.out[line].0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| u32_at(&bytes[..4 * N], i))
}

/// Bit 4j + b to bit j of byte b.
#[inline(always)]
fn spread_fifth_bits(bits: u32) -> u32 {
    // The multiplication puts bit b of four also at b + 7, b + 14 and b + 21; the mask keeps the one in byte b.
    let spread = |j: u32| ((bits >> (4 * j) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101) << j;
    (0..8).fold(0, |all, j| all | spread(j))
}
