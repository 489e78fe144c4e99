//! Rows of a key-value cache as graphics processors store them, on the host: the way out of and into a page.
//! `kv_write.wgsl` and `kernels/kv_write.cu` write the same.

use exo_types::KvDType;
use half::f16;

use crate::KvShape;

/// Bytes of a group of [`KvDType::GROUP`] elements of Q8: its scale, two unused, then its bytes.
const GROUP_BYTES: usize = 36;

/// Bytes of a row of `head_dim` elements: whole u32.
pub fn row_bytes(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 => 4 * head_dim,
        KvDType::F16 => (2 * head_dim).next_multiple_of(4),
        KvDType::Q8 => GROUP_BYTES * head_dim.div_ceil(KvDType::GROUP),
    }
}

/// A page of one layer as it is stored, keys before values. Panics unless `data` is one.
pub fn store_page(shape: &KvShape, data: &[f32]) -> Vec<u8> {
    shape.assert_page(data);
    let mut stored = Vec::new();
    data.chunks(shape.head_dim).for_each(|row| encode(shape.dtype, row, &mut stored));
    stored
}

/// The elements of a stored page of one layer.
pub fn load_page(shape: &KvShape, stored: &[u8]) -> Vec<f32> {
    let mut data = vec![0.0; shape.page_elements()];
    let stored = stored.chunks(row_bytes(shape.dtype, shape.head_dim));
    data.chunks_mut(shape.head_dim).zip(stored).for_each(|(row, bytes)| decode(shape.dtype, bytes, row));
    data
}

fn encode(dtype: KvDType, row: &[f32], into: &mut Vec<u8>) {
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

fn decode(dtype: KvDType, bytes: &[u8], row: &mut [f32]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_values::as_stored;

    #[test]
    fn a_page_comes_back_as_its_element_type_holds_it() {
        for (dtype, head_dim) in KvDType::ALL.into_iter().flat_map(|dtype| [(dtype, 32), (dtype, 33)]) {
            let shape = KvShape { layers: 1, kv_heads: 1, head_dim, page_tokens: 1, pages: 1, dtype };
            // With a scale of 1 the halves are ties, of which the even neighbour is taken.
            let data: Vec<f32> = (0..2 * head_dim).map(|i| [127.0, 0.5, -1.5, 0.3][i % 4]).collect();
            let stored = store_page(&shape, &data);
            assert_eq!(stored.len(), 2 * row_bytes(dtype, head_dim));
            assert_eq!(load_page(&shape, &stored), as_stored(dtype, head_dim, &data), "{dtype} {head_dim}");
        }
    }
}
