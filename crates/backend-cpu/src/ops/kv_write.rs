//! Stores keys and values in their pages.

use exo_backend::RunError;

use super::paging::Paging;
use crate::kv_q8;
use crate::math::to_f16;
use crate::storage::{CpuKv, KvData, kv_groups};

/// Stores each row's key and value at its sequence's and position's slot.
///
/// | operand  | shape                                        | layout                | type       |
/// |----------|----------------------------------------------|-----------------------|------------|
/// | `k`, `v` | `[T, K, D]`                                  | rows contiguous       | f32        |
/// | `kv`     | `[layers, pages, key or value, K, P, D]`     | contiguous            | stored     |
///
/// Halves are rounded to nearest, ties to even; Q8 as [`exo_types::KvDType::Q8`] says. Fails before it writes if a
/// page is not in the table or the cache.
pub(super) fn kv_write(kv: &CpuKv, k: &[f32], v: &[f32], paging: &Paging<'_>) -> Result<(), RunError> {
    paging.check(|t| paging.position(t)..=paging.position(t))?;
    let d = paging.shape.head_dim;
    match &kv.data {
        KvData::F32(data) => {
            let mut data = data.write();
            each_row(k, v, paging, |at, row| data[at..at + d].copy_from_slice(row));
        }
        KvData::F16(data) => {
            let mut data = data.write();
            each_row(k, v, paging, |at, row| {
                for (to, value) in data[at..at + d].iter_mut().zip(row) {
                    *to = to_f16(*value);
                }
            });
        }
        KvData::Q8 { quants, scales } => {
            let (mut quants, mut scales, groups) = (quants.write(), scales.write(), kv_groups(d));
            each_row(k, v, paging, |at, row| {
                kv_q8::quantise(row, &mut quants[at..at + d], &mut scales[at / d * groups..][..groups]);
            });
        }
    }
    Ok(())
}

/// Calls `store` with the key and the value of each head of each row and the element of the cache where it goes.
fn each_row(k: &[f32], v: &[f32], paging: &Paging<'_>, mut store: impl FnMut(usize, &[f32])) {
    let shape = &paging.shape;
    let (d, row) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    for t in 0..paging.tokens() {
        let position = paging.position(t);
        let keys = paging.page(t, position);
        let values = keys + row * shape.page_tokens;
        for h in 0..shape.kv_heads {
            let slot = (h * shape.page_tokens + position % shape.page_tokens) * d;
            let from = t * row + h * d..t * row + (h + 1) * d;
            store(keys + slot, &k[from.clone()]);
            store(values + slot, &v[from]);
        }
    }
}
