//! Rows of a Q8 cache: what [`exo_types::KvDType::Q8`] says, and back.

use exo_types::KvDType;

use crate::math::{f16, to_f16};

/// Rounds a row of D elements to D quants and a scale, as the bits of a half, for each group of 32.
pub(crate) fn quantise(row: &[f32], quants: &mut [i8], scales: &mut [u16]) {
    let groups = row.chunks(KvDType::GROUP).zip(quants.chunks_mut(KvDType::GROUP));
    for ((values, quants), scale) in groups.zip(scales) {
        *scale = scale_of(values);
        let step = f16(*scale);
        for (quant, value) in quants.iter_mut().zip(values) {
            // A float that is not a number becomes 0, and one too large the largest quant.
            *quant = if step == 0.0 { 0 } else { (value / step).round().clamp(-127.0, 127.0) as i8 };
        }
    }
}

/// The largest magnitude over 127; NaN if anything is not finite.
fn scale_of(values: &[f32]) -> u16 {
    let finite = values.iter().all(|value| value.is_finite());
    let largest = values.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    to_f16(if finite { largest / 127.0 } else { f32::NAN })
}

/// The row that [`quantise`] stored.
pub(crate) fn dequantise<'a>(quants: &'a [i8], scales: &'a [u16]) -> impl Iterator<Item = f32> + 'a {
    let groups = quants.chunks(KvDType::GROUP).zip(scales);
    groups.flat_map(|(quants, scale)| quants.iter().map(|quant| f32::from(*quant) * f16(*scale)))
}
