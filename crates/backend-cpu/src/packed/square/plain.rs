//! In plain Rust.

/// Four rows of four words.
#[inline(always)]
pub(in crate::packed) fn words(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    std::array::from_fn(|j| rows.map(|row| row[j]))
}

/// Eight rows of eight halves of a word, as four squares of four by four.
#[inline(always)]
pub(in crate::packed) fn halves(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    let mut columns = [[0; 8]; 8];
    for (r, c) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
        let word = |i: usize| (0..4).fold(0, |word, j| word | u64::from(rows[r + i][c + j]) << (16 * j));
        for (j, column) in four([word(0), word(1), word(2), word(3)]).into_iter().enumerate() {
            for i in 0..4 {
                columns[c + j][r + i] = (column >> (16 * i)) as u16;
            }
        }
    }
    columns
}

/// Four words of four 16-bit elements, as a square, to its columns.
#[inline(always)]
fn four([a, b, c, d]: [u64; 4]) -> [u64; 4] {
    const EVEN: u64 = 0x0000_ffff_0000_ffff;
    const LOW: u64 = 0xffff_ffff;
    // Elements 0 and 2 of two words, and elements 1 and 3.
    let even = |a: u64, b: u64| a & EVEN | (b & EVEN) << 16;
    let odd = |a: u64, b: u64| a >> 16 & EVEN | b & !EVEN;
    let (ab, cd, ab_odd, cd_odd) = (even(a, b), even(c, d), odd(a, b), odd(c, d));
    let low = |x: u64, y: u64| x & LOW | y << 32;
    let high = |x: u64, y: u64| x >> 32 | y & !LOW;
    [low(ab, cd), low(ab_odd, cd_odd), high(ab, cd), high(ab_odd, cd_odd)]
}
