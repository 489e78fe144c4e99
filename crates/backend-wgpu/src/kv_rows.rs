//! Rows of a key-value cache as u32, on the host: the way out of and into a page. `kv_write.wgsl` writes the
//! same.

use std::ops::Range;

use exo_types::KvDType;
use half::f16;

/// u32 of a group of [`KvDType::GROUP`] elements of Q8: its scale, then its bytes.
const GROUP_WORDS: usize = 9;

/// u32 of a row of `head_dim` elements.
pub(crate) fn words(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 => head_dim,
        KvDType::F16 => head_dim.div_ceil(2),
        KvDType::Q8 => GROUP_WORDS * head_dim.div_ceil(KvDType::GROUP),
    }
}

/// Runs of heads whose keys fit a binding of `bytes_max`. A single head always makes one.
pub(crate) fn runs(heads: usize, head_bytes: u64, bytes_max: u64) -> Vec<Range<usize>> {
    let each = usize::try_from(bytes_max / head_bytes.max(1)).unwrap_or(usize::MAX).clamp(1, heads.max(1));
    (0..heads).step_by(each).map(|first| first..(first + each).min(heads)).collect()
}

/// Threads that write a row.
pub(crate) fn parts(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 | KvDType::F16 => words(dtype, head_dim),
        KvDType::Q8 => head_dim.div_ceil(KvDType::GROUP),
    }
}

/// A row's elements to its u32.
pub(crate) fn encode(dtype: KvDType, row: &[f32], into: &mut Vec<u32>) {
    match dtype {
        KvDType::F32 => into.extend(row.iter().map(|value| value.to_bits())),
        KvDType::F16 => into.extend(row.chunks(2).map(|pair| {
            let bits = |i: usize| u32::from(f16::from_f32(pair.get(i).copied().unwrap_or(0.0)).to_bits());
            bits(0) | bits(1) << 16
        })),
        KvDType::Q8 => row.chunks(KvDType::GROUP).for_each(|group| encode_group(group, into)),
    }
}

fn encode_group(group: &[f32], into: &mut Vec<u32>) {
    let is_finite = group.iter().all(|value| value.is_finite());
    let largest = group.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let scale = if is_finite { f16::from_f32(largest / 127.0) } else { f16::NAN };
    into.push(u32::from(scale.to_bits()));
    let step = scale.to_f32();
    let quant = |value: &f32| match step > 0.0 {
        true => (value / step).round().clamp(-127.0, 127.0) as i8,
        false => 0,
    };
    let mut bytes = [0u8; KvDType::GROUP];
    bytes.iter_mut().zip(group).for_each(|(byte, value)| *byte = quant(value) as u8);
    into.extend(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
}

/// A row's u32 to its elements.
pub(crate) fn decode(dtype: KvDType, words: &[u32], row: &mut [f32]) {
    let half_at = |i: usize| f16::from_bits((words[i / 2] >> (16 * (i % 2))) as u16).to_f32();
    match dtype {
        KvDType::F32 => row.iter_mut().zip(words).for_each(|(value, bits)| *value = f32::from_bits(*bits)),
        KvDType::F16 => row.iter_mut().enumerate().for_each(|(i, value)| *value = half_at(i)),
        KvDType::Q8 => {
            for (group, words) in row.chunks_mut(KvDType::GROUP).zip(words.chunks(GROUP_WORDS)) {
                let scale = f16::from_bits(words[0] as u16).to_f32();
                for (i, value) in group.iter_mut().enumerate() {
                    *value = scale * f32::from(words[1 + i / 4].to_le_bytes()[i % 4] as i8);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_go_together_as_far_as_a_binding_holds_them() {
        assert_eq!(runs(8, 100, 800).len(), 1);
        assert_eq!(runs(8, 100, 399), [0..3, 3..6, 6..8]);
        assert_eq!(runs(2, 100, 99), [0..1, 1..2], "the device refuses it, with the bytes of one");
        assert_eq!(runs(3, 0, 0), [0..1, 1..2, 2..3]);
    }
}
