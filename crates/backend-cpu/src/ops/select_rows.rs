//! Keeps the rows whose logits are wanted.

use exo_backend::{OpKind, RunError};

use super::in_range;

/// `out[r, c] = x[rows[r], c]`. Fails before it writes if a row is not below T.
pub(super) fn select_rows(out: &mut [f32], x: &[f32], rows: &[u32], width: usize) -> Result<(), RunError> {
    let tokens = x.len() / width;
    for row in rows {
        in_range(OpKind::SelectRows, "a row", *row, tokens)?;
    }
    for (out, row) in out.chunks_exact_mut(width).zip(rows) {
        let start = *row as usize * width;
        out.copy_from_slice(&x[start..start + width]);
    }
    Ok(())
}
