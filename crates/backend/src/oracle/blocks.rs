//! The value of one element of a block in f64: slow, plain, and written apart from every backend's decoder.

use exo_types::DType;

use crate::random::Random;

/// Random rows of `dtype`: `elements` of them, every quant possible, scales of ordinary size.
pub(super) fn random(random: &mut Random, dtype: DType, elements: usize) -> Vec<u8> {
    let deviation = 0.5;
    match dtype {
        DType::F32 => {
            return random.normals(elements, deviation).iter().flat_map(|v| v.to_le_bytes()).collect();
        }
        DType::F16 => return sixteen_bits(random, elements, |v| half::f16::from_f32(v).to_bits()),
        DType::BF16 => return sixteen_bits(random, elements, |v| half::bf16::from_f32(v).to_bits()),
        _ => {}
    }
    let size = dtype.block_bytes() as usize;
    let blocks = elements / dtype.block_elements() as usize;
    let mut bytes = random.bytes(blocks * size);
    for block in bytes.chunks_exact_mut(size) {
        for at in scale_offsets(dtype) {
            let scale = random.normal(0.02);
            match dtype {
                DType::Q8_K => block[..4].copy_from_slice(&scale.to_le_bytes()),
                _ => block[*at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes()),
            }
        }
    }
    bytes
}

fn sixteen_bits(random: &mut Random, elements: usize, convert: impl Fn(f32) -> u16) -> Vec<u8> {
    random.normals(elements, 0.5).into_iter().flat_map(|v| convert(v).to_le_bytes()).collect()
}

/// Where the float scales of a block are.
fn scale_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::Q8_K => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::F32 | DType::F16 | DType::BF16 => &[],
    }
}

/// Every element of stored rows.
pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let n = dtype.block_elements() as usize;
    let blocks = bytes.chunks_exact(dtype.block_bytes() as usize);
    blocks.flat_map(|block| (0..n).map(|i| element(dtype, block, i))).collect()
}

/// Element `i` of a block.
fn element(dtype: DType, b: &[u8], i: usize) -> f64 {
    let nibble = |start: usize| f64::from(if i < 16 { b[start + i] & 15 } else { b[start + i - 16] >> 4 });
    let bit = |start: usize, n: usize| f64::from(b[start + n / 8] >> (n % 8) & 1);
    match dtype {
        DType::F32 => float(b, 0),
        DType::F16 => half(b, 0),
        DType::BF16 => f64::from(half::bf16::from_le_bytes([b[0], b[1]])),
        DType::Q8_0 => half(b, 0) * signed(b[2 + i]),
        DType::Q4_0 => half(b, 0) * (nibble(2) - 8.0),
        DType::Q4_1 => half(b, 0) * nibble(4) + half(b, 2),
        DType::Q5_0 => half(b, 0) * (nibble(6) + 16.0 * bit(2, i) - 16.0),
        DType::Q5_1 => half(b, 0) * (nibble(8) + 16.0 * bit(4, i)) + half(b, 2),
        DType::Q2_K => {
            let group = b[i / 16];
            half(b, 80) * f64::from(group & 15) * two_bits(b, 16, i) - half(b, 82) * f64::from(group >> 4)
        }
        DType::Q3_K => {
            let third = f64::from(b[i % 32] >> (i / 32) & 1);
            half(b, 108) * (q3_scale(b, i / 16) - 32.0) * (two_bits(b, 32, i) - 4.0 * (1.0 - third))
        }
        DType::Q4_K => {
            let (scale, min) = k4_scale(b, i / 32);
            half(b, 0) * scale * k4_nibble(b, 16, i) - half(b, 2) * min
        }
        DType::Q5_K => {
            let (scale, min) = k4_scale(b, i / 32);
            let fifth = f64::from(b[16 + i % 32] >> (i / 32) & 1);
            half(b, 0) * scale * (k4_nibble(b, 48, i) + 16.0 * fifth) - half(b, 2) * min
        }
        DType::Q6_K => {
            // Within a half: 0..32 low nibbles of bytes 0..32, 32..64 of bytes 32..64, then the same bytes'
            // high ones.
            let (h, j) = (i / 128, i % 128);
            let byte = b[64 * h + j % 64];
            let low = f64::from(if j < 64 { byte & 15 } else { byte >> 4 });
            let high = f64::from(b[128 + 32 * h + j % 32] >> (2 * (j / 32)) & 3);
            half(b, 208) * signed(b[192 + i / 16]) * (low + 16.0 * high - 32.0)
        }
        DType::Q8_K => float(b, 0) * signed(b[4 + i]),
    }
}

fn float(b: &[u8], at: usize) -> f64 {
    f64::from(f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]))
}

fn half(b: &[u8], at: usize) -> f64 {
    f64::from(half::f16::from_le_bytes([b[at], b[at + 1]]))
}

fn signed(byte: u8) -> f64 {
    f64::from(byte as i8)
}

/// The two-bit quant of Q2_K and Q3_K: 32 bytes per half, a bit pair per 32 elements.
fn two_bits(b: &[u8], start: usize, i: usize) -> f64 {
    f64::from(b[start + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3)
}

/// Low four bits: nibbles of bytes 96..104, low ones first. High two: bit pairs of bytes 104..108, by four
/// groups.
fn q3_scale(b: &[u8], group: usize) -> f64 {
    let low = if group < 8 { b[96 + group] & 15 } else { b[88 + group] >> 4 };
    let high = b[104 + group % 4] >> (2 * (group / 4)) & 3;
    f64::from(low) + 16.0 * f64::from(high)
}

/// Scale and minimum of a group of Q4_K and Q5_K.
fn k4_scale(b: &[u8], group: usize) -> (f64, f64) {
    let s = &b[4..16];
    if group < 4 {
        (f64::from(s[group] & 63), f64::from(s[group + 4] & 63))
    } else {
        let scale = (s[group + 4] & 15) + 16 * (s[group - 4] >> 6);
        let min = (s[group + 4] >> 4) + 16 * (s[group] >> 6);
        (f64::from(scale), f64::from(min))
    }
}

/// 64 elements share 32 bytes: the first 32 have the low nibbles.
fn k4_nibble(b: &[u8], start: usize, i: usize) -> f64 {
    let byte = b[start + 32 * (i / 64) + i % 32];
    f64::from(if i % 64 < 32 { byte & 15 } else { byte >> 4 })
}
