//! The eight 6-bit scales and eight 6-bit minima that Q4_K and Q5_K pack into twelve bytes.

/// Scales and minima. The first four of each are the low six bits of bytes 0..4 and 4..8; the last four have
/// their low four bits in the nibbles of bytes 8..12 and their high two on top of the first four.
#[inline(always)]
pub(crate) fn unpack(bytes: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = bytes[i] & 0x3f;
        mins[i] = bytes[i + 4] & 0x3f;
        scales[i + 4] = (bytes[i + 8] & 0x0f) | (bytes[i] >> 2 & 0x30);
        mins[i + 4] = (bytes[i + 8] >> 4) | (bytes[i + 4] >> 2 & 0x30);
    }
    (scales, mins)
}
