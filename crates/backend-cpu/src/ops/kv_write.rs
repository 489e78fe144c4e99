//! Stores keys and values in their pages.

use exo_backend::RunError;

use super::paging::Paging;
use crate::math::to_f16;
use crate::storage::{CpuKv, KvData};

/// Stores each row's key and value at its sequence's and position's slot.
///
/// | operand  | shape                                        | layout                | type       |
/// |----------|----------------------------------------------|-----------------------|------------|
/// | `k`, `v` | `[T, K, D]`                                  | rows contiguous       | f32        |
/// | `kv`     | `[layers, pages, key or value, K, P, D]`     | contiguous            | f32 or f16 |
///
/// Halves are rounded to nearest, ties to even. Fails before it writes if a page is not in the table or the cache.
pub(super) fn kv_write(kv: &CpuKv, k: &[f32], v: &[f32], paging: &Paging<'_>) -> Result<(), RunError> {
    paging.check(|t| paging.position(t)..=paging.position(t))?;
    match &kv.data {
        KvData::F32(data) => scatter(&mut data.write(), k, v, paging, |value| value),
        KvData::F16(data) => scatter(&mut data.write(), k, v, paging, to_f16),
    }
    Ok(())
}

fn scatter<E>(data: &mut [E], k: &[f32], v: &[f32], paging: &Paging<'_>, convert: impl Fn(f32) -> E) {
    let shape = &paging.shape;
    let (d, row) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    for t in 0..paging.tokens() {
        let position = paging.position(t);
        let keys = paging.page(t, position);
        let values = keys + row * shape.page_tokens;
        for h in 0..shape.kv_heads {
            let slot = (h * shape.page_tokens + position % shape.page_tokens) * d;
            let from = t * row + h * d..t * row + (h + 1) * d;
            for (start, source) in [(keys, k), (values, v)] {
                for (to, value) in data[start + slot..start + slot + d].iter_mut().zip(&source[from.clone()])
                {
                    *to = convert(*value);
                }
            }
        }
    }
}
