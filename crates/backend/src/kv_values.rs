//! What a cache of each element type gives back: written apart from every backend's own code.

use exo_types::KvDType;

/// `values`, rows of `head_dim` elements, after they were stored as `dtype`.
pub(crate) fn as_stored(dtype: KvDType, head_dim: usize, values: &[f32]) -> Vec<f32> {
    match dtype {
        KvDType::F32 => values.to_vec(),
        KvDType::F16 => values.iter().map(|value| half::f16::from_f32(*value).to_f32()).collect(),
        KvDType::Q8 => {
            let groups = values.chunks(head_dim).flat_map(|row| row.chunks(KvDType::GROUP));
            groups.flat_map(group_of_q8).collect()
        }
    }
}

fn group_of_q8(group: &[f32]) -> Vec<f32> {
    if group.iter().any(|value| !value.is_finite()) {
        return vec![f32::NAN; group.len()];
    }
    let largest = group.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let scale = half::f16::from_f32(largest / 127.0).to_f32();
    let quant =
        |value: f32| if scale == 0.0 { 0.0 } else { (value / scale).round_ties_even().clamp(-127.0, 127.0) };
    group.iter().map(|value| quant(*value) * scale).collect()
}

/// The most normalised mean square error of random rows stored as `dtype`, against the rows.
pub(crate) fn rounding_nmse_max(dtype: KvDType) -> f64 {
    match dtype {
        KvDType::F32 => 0.0,
        KvDType::F16 => 1e-7,
        // A normal group's largest magnitude is about twice its deviation: steps of 2/127, a twelfth of their
        // square.
        KvDType::Q8 => 4e-5,
    }
}
