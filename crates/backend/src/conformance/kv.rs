//! Pages of keys and values, out and in and cleared.

use super::{Check, expect, must_panic};
use crate::kv_values::as_stored;
use crate::report::CaseError;
use crate::rig::Rig;
use crate::{KvDType, KvShape, RunError};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("an f32 page goes out and in unchanged", |rig| round_trip(rig, KvDType::F32)),
    ("an f16 page rounds once", |rig| round_trip(rig, KvDType::F16)),
    ("a q8 page rounds once", |rig| round_trip(rig, KvDType::Q8)),
    ("what is not finite stays so and spoils nothing but its group", not_finite),
    ("a cleared page is zero in every layer and no other page is", cleared),
    ("a page that is not there is an error", out_of_range),
];

/// Heads of a group of 32 elements and one of five.
const SHAPE: KvShape =
    KvShape { layers: 2, kv_heads: 3, head_dim: 37, page_tokens: 4, pages: 3, dtype: KvDType::F32 };

/// Every element of a page, none like another, many that no half can hold.
fn page(layer: usize, number: usize) -> Vec<f32> {
    let len = 2 * SHAPE.kv_heads * SHAPE.head_dim * SHAPE.page_tokens;
    (0..len).map(|i| (1000 * layer + 300 * number + i) as f32 / 7.0 - 50.0).collect()
}

fn each_page() -> impl Iterator<Item = (usize, usize)> {
    (0..SHAPE.layers).flat_map(|layer| (0..SHAPE.pages).map(move |number| (layer, number)))
}

fn round_trip(rig: &mut Rig<'_>, dtype: KvDType) -> Result<(), CaseError> {
    let kv = rig.device.kv_cache(KvShape { dtype, ..SHAPE })?;
    for (layer, number) in each_page() {
        rig.stream.import_kv(&kv, layer, number, &page(layer, number))?;
    }
    for (layer, number) in each_page() {
        let expected = as_stored(dtype, SHAPE.head_dim, &page(layer, number));
        let got = rig.stream.export_kv(&kv, layer, number)?;
        expect(&format!("page {number} of layer {layer}"), &got, &expected)?;
        rig.stream.import_kv(&kv, layer, number, &got)?;
        expect("the page once more", &rig.stream.export_kv(&kv, layer, number)?, &expected)?;
    }
    must_panic("a page of another length", || drop(rig.stream.import_kv(&kv, 0, 0, &[0.0; 3])))
}

/// One element of the second head's second key: 33 is in the group of five.
fn not_finite(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let at = (SHAPE.page_tokens + 1) * SHAPE.head_dim + 33;
    for (dtype, value) in KvDType::ALL.into_iter().flat_map(|d| [(d, f32::NAN), (d, f32::NEG_INFINITY)]) {
        let kv = rig.device.kv_cache(KvShape { dtype, ..SHAPE })?;
        let mut data = page(0, 0);
        data[at] = value;
        rig.stream.import_kv(&kv, 0, 0, &data)?;
        let got = rig.stream.export_kv(&kv, 0, 0)?;
        let spoilt = if dtype == KvDType::Q8 { at - 1..at + 4 } else { at..at + 1 };
        let wrong = (0..got.len()).find(|i| got[*i].is_finite() == spoilt.contains(i));
        expect(&format!("an element of {dtype} that should not be {value} or should"), &wrong, &None)?;
    }
    Ok(())
}

fn cleared(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let kv = rig.device.kv_cache(SHAPE)?;
    for (layer, number) in each_page() {
        rig.stream.import_kv(&kv, layer, number, &page(layer, number))?;
    }
    rig.stream.clear_kv(&kv, 1)?;
    for (layer, number) in each_page() {
        let expected = if number == 1 { vec![0.0; page(0, 0).len()] } else { page(layer, number) };
        let got = rig.stream.export_kv(&kv, layer, number)?;
        expect(&format!("page {number} of layer {layer}"), &got, &expected)?;
    }
    Ok(())
}

fn out_of_range(rig: &mut Rig<'_>) -> Result<(), CaseError> {
    let kv = rig.device.kv_cache(SHAPE)?;
    let refused = |what: &str, result: Result<(), RunError>| match result {
        Err(RunError::OutOfRange { .. }) => Ok(()),
        other => Err(CaseError::Wrong(format!("{what}: {other:?}"))),
    };
    refused("export of page 3 of 3", rig.stream.export_kv(&kv, 0, 3).map(drop))?;
    refused("export of layer 2 of 2", rig.stream.export_kv(&kv, 2, 0).map(drop))?;
    refused(
        "export of the last number there is",
        rig.stream.export_kv(&kv, usize::MAX, usize::MAX).map(drop),
    )?;
    refused("import to page 3 of 3", rig.stream.import_kv(&kv, 0, 3, &page(0, 0)))?;
    refused("clearing page 3 of 3", rig.stream.clear_kv(&kv, 3))
}
