//! Rows of a table.

use exo_backend::{OpKind, RunError};

use super::in_range;
use crate::isa::Level;
use crate::packed::unpack_row;
use crate::quant;
use crate::storage::WeightGuard;

/// Looks up each token's row, in f32.
///
/// `out[t, c] = table[ids[t], c]`
///
/// | operand | shape    | layout          | type   |
/// |---------|----------|-----------------|--------|
/// | `table` | `[V, C]` | rows contiguous | stored |
/// | `ids`   | `[T]`    | contiguous      | u32    |
/// | `out`   | `[T, C]` | rows contiguous | f32    |
///
/// Exact for float types, otherwise the value of the block. Fails before it writes if an id is not below V.
pub(super) fn embed(
    level: Level,
    out: &mut [f32],
    table: &WeightGuard<'_>,
    ids: &[u32],
) -> Result<(), RunError> {
    let rows = table.rows;
    for id in ids {
        in_range(OpKind::Embed, "a token id", *id, rows)?;
    }
    let (groups, floats) = (table.groups(), table.interleaved());
    for (out, id) in out.chunks_exact_mut(table.cols).zip(ids) {
        let id = *id as usize;
        if let Some((group, row)) = groups.and_then(|groups| groups.row(id)) {
            unpack_row(&group, row, out);
        } else if let Some(floats) = floats.and_then(|floats| floats.row(id)) {
            floats.row(id, out);
        } else {
            level.dispatch(quant::Dequantise { dtype: table.dtype, row: table.row(id), out });
        }
    }
    Ok(())
}
