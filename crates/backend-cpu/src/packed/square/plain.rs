//! In plain Rust.

/// Four rows of four words.
#[inline(always)]
pub(in crate::packed) fn words(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    std::array::from_fn(|j| rows.map(|row| row[j]))
}

/// Eight rows of eight halves of a word.
#[inline(always)]
pub(in crate::packed) fn halves(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    std::array::from_fn(|j| rows.map(|row| row[j]))
}
