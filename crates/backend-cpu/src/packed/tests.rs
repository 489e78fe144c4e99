use super::*;
use crate::quant::dequantise_row;

const PACKED: [DType; 9] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::BF16,
];

/// Bytes of every value; halves that are not finite are as good as others here.
fn stored(dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let len = rows * dtype.bytes_of(cols as u64).unwrap() as usize;
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn packed(dtype: DType, cols: usize, rows: &[u8]) -> Vec<Line> {
    let mut lines = vec![Line([0xff; LINE]); group_lines(dtype, cols).unwrap()];
    pack_group(dtype, cols, rows, &mut lines);
    lines
}

#[test]
fn rows_come_back_as_they_were_stored() {
    for dtype in PACKED {
        let widths: &[usize] = match dtype.block_elements() {
            32 if cfg!(miri) => &[96],
            32 => &[32, 64, 96, 256, 352],
            // Of the packing's own blocks the last may be a part.
            1 if cfg!(miri) => &[33],
            1 => &[1, 31, 32, 33, 70, 256],
            _ if cfg!(miri) => &[256],
            _ => &[256, 768],
        };
        let counts: &[usize] = if cfg!(miri) { &[5, 16] } else { &[1, 5, 16] };
        for (cols, count) in widths.iter().flat_map(|cols| counts.iter().map(|count| (*cols, *count))) {
            let bytes = stored(dtype, count, cols);
            let lines = packed(dtype, cols, &bytes);
            let group = Group::new(dtype, cols, &lines);
            for (row, stored) in bytes.chunks_exact(bytes.len() / count).enumerate() {
                let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
                dequantise_row(dtype, stored, &mut want);
                unpack_row(&group, row, &mut got);
                // NaN has many bit patterns, and a sum may choose any of them.
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(want.iter().zip(&got).all(same), "{dtype} row {row} of {count}, {cols} columns");
            }
            let mut rest = vec![1.0; cols];
            (count..GROUP_ROWS).for_each(|row| {
                unpack_row(&group, row, &mut rest);
                assert!(rest.iter().all(|value| *value == 0.0), "{dtype} row {row} of {count} is not zero");
            });
        }
    }
}

#[test]
fn packed_weights_are_at_most_four_percent_larger_than_stored_ones() {
    for dtype in PACKED {
        let stored = 64 * dtype.bytes_of(1024).unwrap() as usize;
        let packed = packed_bytes(dtype, 64, 1024).unwrap();
        assert!(packed >= stored && 100 * packed < 104 * stored, "{dtype}: {packed} for {stored}");
        assert_eq!(packed_bytes(dtype, 65, 1024), Some(packed / 64 * 80), "{dtype}: whole groups");
    }
    assert_eq!(packed_bytes(DType::Q2_K, 16, 256), None);
    assert_eq!(packed_bytes(DType::F16, 17, 33), Some(2 * 16 * 33 * 2));
    // Two blocks, the second of one column.
    assert_eq!(packed_bytes(DType::BF16, 17, 33), Some(2 * 33 * LINE));
    // 3 blocks: a whole step and half of one.
    assert_eq!(packed_bytes(DType::Q8_0, 16, 96), Some((17 + 9) * LINE));
}

#[test]
#[should_panic(expected = "are no whole number of blocks of Q4_K")]
fn columns_that_end_within_a_block_are_refused() {
    packed_bytes(DType::Q4_K, 1, 128);
}

#[test]
#[should_panic(expected = "bytes are not 1 to 16 rows")]
fn half_a_row_is_refused() {
    packed(DType::Q4_0, 64, &[0; 18]);
}
