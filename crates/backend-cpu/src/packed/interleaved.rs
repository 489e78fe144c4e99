//! F32 and F16 with sixteen rows side by side: what one vector multiplies by an element of `x`.
//!
//! Groups of sixteen rows one after the other, the last filled up with rows of zeros. Within a group the
//! sixteen elements of a column lie together, row by row: element `[n, k]` of K columns is number
//! `(n / 16 · K + k) · 16 + n mod 16`. Decode reads a group as one stream, and no sum of a product crosses
//! lanes.

use bytemuck::Pod;
use exo_types::DType;

use super::{GROUP_ROWS, square};
use crate::math::{f16_at, f32_at};

/// Columns that are moved together: the lines they go to stay in the first-level cache.
const MOVED_COLS: usize = 32;

/// Whether matrices of a type are kept so.
pub(crate) const fn is_interleaved(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16)
}

/// Interleaves 1 to 16 rows as they are stored, one after another in `rows`; `out` is a group. Rows that are
/// not there become zeros.
///
/// Panics unless the type is [`is_interleaved`] and the lengths fit.
pub(crate) fn interleave_group(dtype: DType, cols: usize, rows: &[u8], out: &mut [u8]) {
    let whole = |bytes: usize| rows.len() == GROUP_ROWS * bytes * cols && out.len() == rows.len();
    match dtype {
        DType::F32 if whole(4) && cols.is_multiple_of(4) => {
            interleave_squares::<u32, 4>(rows, out, square::words)
        }
        DType::F32 => interleave::<4>(cols, rows, out),
        DType::F16 if whole(2) && cols.is_multiple_of(8) => {
            interleave_squares::<u16, 8>(rows, out, square::halves)
        }
        DType::F16 => interleave::<2>(cols, rows, out),
        _ => panic!("{dtype} is not interleaved"),
    }
}

/// Sixteen rows, as squares of N by N.
#[inline(always)]
fn interleave_squares<T: Pod, const N: usize>(
    rows: &[u8],
    out: &mut [u8],
    turn: impl Fn([[T; N]; N]) -> [[T; N]; N],
) where
    [T; N]: Pod,
{
    super::read_ahead(rows);
    let row_bytes = rows.len() / GROUP_ROWS;
    for (at, columns) in out.chunks_exact_mut(GROUP_ROWS * size_of::<[T; N]>()).enumerate() {
        for first in (0..GROUP_ROWS).step_by(N) {
            let row = |r: usize| {
                let start = (first + r) * row_bytes + at * size_of::<[T; N]>();
                bytemuck::pod_read_unaligned(&rows[start..start + size_of::<[T; N]>()])
            };
            for (c, column) in turn(std::array::from_fn(row)).into_iter().enumerate() {
                let start = (c * GROUP_ROWS + first) * size_of::<T>();
                columns[start..start + size_of::<[T; N]>()].copy_from_slice(bytemuck::bytes_of(&column));
            }
        }
    }
}

fn interleave<const BYTES: usize>(cols: usize, rows: &[u8], out: &mut [u8]) {
    let (rows, out) = (rows.as_chunks::<BYTES>().0, out.as_chunks_mut::<BYTES>().0);
    let count = rows.len() / cols.max(1);
    let fits = rows.len() == count * cols && out.len() == GROUP_ROWS * cols;
    assert!(fits && (1..=GROUP_ROWS).contains(&count), "{} elements in rows of {cols}", rows.len());
    if count < GROUP_ROWS {
        out.fill([0; BYTES]);
    }
    for at in (0..cols).step_by(MOVED_COLS) {
        let end = (at + MOVED_COLS).min(cols);
        for (r, row) in rows.chunks_exact(cols).enumerate() {
            for (column, element) in out[at * GROUP_ROWS..].chunks_exact_mut(GROUP_ROWS).zip(&row[at..end]) {
                column[r] = *element;
            }
        }
    }
}

/// A matrix of interleaved floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaved<'a> {
    dtype: DType,
    group_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> Interleaved<'a> {
    /// Panics unless the type is [`is_interleaved`].
    #[inline(always)]
    pub(crate) fn new(dtype: DType, cols: usize, bytes: &'a [u8]) -> Self {
        assert!(is_interleaved(dtype), "{dtype} is not interleaved");
        Self { dtype, group_bytes: GROUP_ROWS * cols * dtype.block_bytes() as usize, bytes }
    }

    /// Sixteen rows.
    #[inline(always)]
    pub(crate) fn group(self, g: usize) -> &'a [u8] {
        &self.bytes[g * self.group_bytes..(g + 1) * self.group_bytes]
    }

    /// Row `n` in f32. Panics unless `out` is one row.
    pub(crate) fn row(self, n: usize, out: &mut [f32]) {
        let (group, r) = (self.group(n / GROUP_ROWS), n % GROUP_ROWS);
        let size = self.dtype.block_bytes() as usize;
        assert!(group.len() == GROUP_ROWS * out.len() * size, "{} columns of row {n}", out.len());
        for (k, out) in out.iter_mut().enumerate() {
            *out = match self.dtype {
                DType::F32 => f32_at(group, k * GROUP_ROWS + r),
                _ => f16_at(group, k * GROUP_ROWS + r),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::dequantise_row;

    #[test]
    fn rows_come_back_as_they_were_stored() {
        for (dtype, cols, rows) in [
            (DType::F32, 7, 16),
            (DType::F16, 33, 5),
            (DType::F16, 64, 1),
            (DType::F16, 36, 16),
            (DType::F16, 35, 16),
            (DType::F16, 40, 16),
            (DType::F16, 8, 15),
            (DType::F32, 12, 16),
        ] {
            let row_bytes = cols * dtype.block_bytes() as usize;
            let stored: Vec<u8> = (0..rows * row_bytes).map(|i| (i * 37 % 251) as u8 & 0x3f).collect();
            let mut group = vec![0xff; GROUP_ROWS * row_bytes];
            interleave_group(dtype, cols, &stored, &mut group);
            let weights = Interleaved::new(dtype, cols, &group);
            for n in 0..GROUP_ROWS {
                let (mut want, mut got) = (vec![0.0; cols], vec![1.0; cols]);
                if let Some(row) = stored.chunks_exact(row_bytes).nth(n) {
                    dequantise_row(dtype, row, &mut want);
                }
                weights.row(n, &mut got);
                assert_eq!(got, want, "{dtype} row {n} of {rows}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "9 elements in rows of 4")]
    fn half_a_row_is_refused() {
        interleave_group(DType::F16, 4, &[0; 18], &mut [0; 128]);
    }
}
