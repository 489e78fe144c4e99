//! Rows of a key-value cache as bytes, on the host: the way out of and into a page. `kernels/kv_write.cu`
//! writes the same.

use exo_types::KvDType;
use half::f16;

/// Bytes of a group of [`KvDType::GROUP`] elements of Q8: its scale, two unused, then its bytes.
const GROUP_BYTES: usize = 36;

/// Bytes of a row of `head_dim` elements.
pub(crate) fn row_bytes(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 => 4 * head_dim,
        KvDType::F16 => (2 * head_dim).next_multiple_of(4),
        KvDType::Q8 => GROUP_BYTES * head_dim.div_ceil(KvDType::GROUP),
    }
}

/// Threads that write a row.
pub(crate) fn parts(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 | KvDType::F16 => head_dim,
        KvDType::Q8 => head_dim.div_ceil(KvDType::GROUP),
    }
}

/// A row's elements to its bytes.
pub(crate) fn encode(dtype: KvDType, row: &[f32], into: &mut Vec<u8>) {
    let end = into.len() + row_bytes(dtype, row.len());
    match dtype {
        KvDType::F32 => into.extend(row.iter().flat_map(|value| value.to_le_bytes())),
        KvDType::F16 => into.extend(row.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes())),
        KvDType::Q8 => row.chunks(KvDType::GROUP).for_each(|group| encode_group(group, into)),
    }
    into.resize(end, 0);
}

fn encode_group(group: &[f32], into: &mut Vec<u8>) {
    let end = into.len() + GROUP_BYTES;
    let is_finite = group.iter().all(|value| value.is_finite());
    let largest = group.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let scale = if is_finite { f16::from_f32(largest / 127.0) } else { f16::NAN };
    let step = scale.to_f32();
    let quant = |value: &f32| match step > 0.0 {
        true => (value / step).round_ties_even().clamp(-127.0, 127.0) as i8,
        false => 0,
    };
    into.extend(scale.to_le_bytes());
    into.extend([0, 0]);
    into.extend(group.iter().map(|value| quant(value) as u8));
    into.resize(end, 0);
}

/// A row's bytes to its elements.
pub(crate) fn decode(dtype: KvDType, bytes: &[u8], row: &mut [f32]) {
    let half_at = |bytes: &[u8], i: usize| f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32();
    match dtype {
        KvDType::F32 => row
            .iter_mut()
            .zip(bytes.as_chunks::<4>().0)
            .for_each(|(value, b)| *value = f32::from_le_bytes(*b)),
        KvDType::F16 => row.iter_mut().enumerate().for_each(|(i, value)| *value = half_at(bytes, i)),
        KvDType::Q8 => {
            for (group, bytes) in row.chunks_mut(KvDType::GROUP).zip(bytes.chunks(GROUP_BYTES)) {
                let scale = half_at(bytes, 0);
                group.iter_mut().zip(&bytes[4..]).for_each(|(value, q)| *value = scale * f32::from(*q as i8));
            }
        }
    }
}
