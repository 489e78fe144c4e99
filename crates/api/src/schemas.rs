//! How `openapi.json` describes types of `exo-types` that are serialised as they are: their crate knows no
//! API. A test holds each against its type.

#![allow(dead_code, reason = "described, never made")]

#[allow(unused_imports, reason = "docs name them")]
use exo_types::{Correction, Corrections, KvRates, LayerRates};
use utoipa::ToSchema;

/// Measured rates of a device for the rest of a layer; see [`LayerRates`].
#[derive(ToSchema)]
pub(crate) struct LayerRatesView {
    /// Bytes of weights per second that a prompt waits for, beside computing with them.
    prefill_read_bytes_per_s: f64,
    /// Operations of a prompt's attention per second.
    attention_flops_per_s: f64,
    /// Activations of a prompt that norms, rotations, the KV write, the activation function and sums pass,
    /// per second.
    activations_per_s: f64,
    /// Seconds that all these take in a layer for one token.
    layer_s: f64,
    /// Bytes of keys and values per second that attention of one token reads; `null` where it was not
    /// measured.
    kv_read_bytes_per_s: Option<KvRatesView>,
    /// Bytes of Q8_0 weights per second that a step of 16 tokens of as many streams reads and computes with;
    /// `null` where it was not measured.
    read_16_rows_bytes_per_s: Option<f64>,
}

/// A rate for each type of keys and values; see [`KvRates`].
#[derive(ToSchema)]
pub(crate) struct KvRatesView {
    /// With 32-bit floats.
    f32: f64,
    /// With 16-bit floats.
    f16: f64,
    /// With 8-bit integers.
    q8: f64,
}

/// What a device's own steps have taught about its rates; see [`Corrections`].
#[derive(ToSchema)]
pub(crate) struct CorrectionsView {
    /// Correction of reading weights, keys and values; `null` until enough was learned.
    decode: Option<CorrectionView>,
    /// Correction of arithmetic; `null` until enough was learned.
    prefill: Option<CorrectionView>,
}

/// Factor of a measured rate; see [`Correction`].
#[derive(ToSchema)]
pub(crate) struct CorrectionView {
    /// The corrected rate in per cent of the measured one, 50 to 200.
    percent: u16,
    /// Measurements that it is the median of.
    samples: u16,
}

/// How keys and values are stored: exact, in half the memory, or in a little over a quarter.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KvType {
    /// Stored as 32-bit floats.
    F32,
    /// Stored as 16-bit floats.
    F16,
    /// 8-bit integers with a scale per 32.
    Q8,
}

/// A half-open range of layers.
#[derive(ToSchema)]
pub(crate) struct LayersView {
    /// Index of the first layer held.
    start: u32,
    /// First layer not held.
    end: u32,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use exo_types::{KvDType, LayerRange};
    use serde::Serialize;
    use serde_json::{Value, json};

    use super::*;

    fn schema_of<T: ToSchema>() -> Value {
        serde_json::to_value(T::schema()).unwrap()
    }

    /// Every field of `value` is described, and nothing else.
    fn check<T: ToSchema>(value: impl Serialize) {
        let (schema, value) = (schema_of::<T>(), serde_json::to_value(value).unwrap());
        let keys =
            |object: &Value| -> BTreeSet<String> { object.as_object().unwrap().keys().cloned().collect() };
        assert_eq!(keys(&schema["properties"]), keys(&value), "{}", T::name());
    }

    #[test]
    fn what_is_described_is_what_is_serialised() {
        let kv = KvRates { f32: 1.0, f16: 2.0, q8: 3.0 };
        check::<KvRatesView>(kv);
        check::<LayerRatesView>(LayerRates {
            prefill_read_bytes_per_s: 1.0,
            attention_flops_per_s: 2.0,
            activations_per_s: 3.0,
            layer_s: 4.0,
            kv_read_bytes_per_s: Some(kv),
            read_16_rows_bytes_per_s: Some(5.0),
        });
        check::<CorrectionsView>(Corrections::default());
        check::<CorrectionView>(Correction { percent: 100, samples: 1 });
        check::<LayersView>(LayerRange::new(0, 1));
        assert_eq!(schema_of::<KvType>()["enum"], json!(KvDType::ALL));
    }
}
