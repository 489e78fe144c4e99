//! With what every x86-64 processor has. Left to itself the compiler moves the words one by one through
//! memory.

use std::arch::x86_64::*;

use bytemuck::cast;

/// Four rows of four words.
#[inline(always)]
pub(in crate::packed) fn words(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    let [a, b, c, d]: [__m128i; 4] = rows.map(cast);
    // SAFETY: every x86-64 processor has SSE2, and these touch no memory.
    let columns = unsafe {
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        [
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_high, cd_high),
            _mm_unpackhi_epi64(ab_high, cd_high),
        ]
    };
    columns.map(cast)
}

/// Eight rows of eight halves of a word.
#[inline(always)]
pub(in crate::packed) fn halves(rows: [[u16; 8]; 8]) -> [[u16; 8]; 8] {
    let rows: [__m128i; 8] = rows.map(cast);
    // Rows r and r + 4, two of these, then all: each time the elements of one column come to lie twice as
    // close. SAFETY: every x86-64 processor has SSE2, and these touch no memory.
    unsafe {
        let pair =
            |r: usize| (_mm_unpacklo_epi16(rows[r], rows[r + 4]), _mm_unpackhi_epi16(rows[r], rows[r + 4]));
        let [p0, p1, p2, p3] = [pair(0), pair(1), pair(2), pair(3)];
        let four = |a, b| (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
        let even = [four(p0.0, p2.0), four(p0.1, p2.1)];
        let odd = [four(p1.0, p3.0), four(p1.1, p3.1)];
        let columns = [
            four(even[0].0, odd[0].0),
            four(even[0].1, odd[0].1),
            four(even[1].0, odd[1].0),
            four(even[1].1, odd[1].1),
        ];
        std::array::from_fn(|c| cast(if c % 2 == 0 { columns[c / 2].0 } else { columns[c / 2].1 }))
    }
}
