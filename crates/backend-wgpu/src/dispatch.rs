//! From an op to the dispatches that compute it.

pub(crate) mod products;

use exo_backend::{
    AttentionBatch, KvCache, Op, OpKind, RopeStyle, Rows, RunError, RunShape, Weight, same_buffer,
};
use exo_types::KvDType;

use crate::inner::DeviceInner;
use crate::shader::{HEAD_DIM_MAX, Kernel, ROWS_MAX, Variant, WeightFormat};
use crate::storage::KvPart;
use crate::{layout, storage};

/// Threads of a workgroup along a row, for kernels of one thread per element.
const THREADS: usize = 64;
/// Workgroups that every driver takes along one dimension.
const GROUPS_MAX: usize = 65_535;

/// How many workgroups, from the rows of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grid {
    pub(crate) x: usize,
    pub(crate) rows: Rows,
    /// Rows that one workgroup takes.
    pub(crate) rows_each: usize,
    /// The least and the most rows it is used for.
    pub(crate) from: usize,
    pub(crate) up_to: usize,
}

impl Grid {
    pub(crate) fn each(x: usize, rows: Rows) -> Self {
        Self { x, rows, rows_each: 1, from: 1, up_to: usize::MAX }
    }

    fn elements(width: usize, rows: Rows) -> Self {
        Self::each(width.div_ceil(THREADS), rows)
    }

    /// Workgroups for a run; `None` if there is nothing to do for this kernel.
    pub(crate) fn size(&self, shape: RunShape) -> Option<[u32; 3]> {
        let rows = match self.rows {
            Rows::Tokens => shape.tokens,
            Rows::Selected => shape.selected,
        };
        let is_used = (self.from..=self.up_to).contains(&rows) && self.x > 0;
        let groups = u32::try_from(rows.div_ceil(self.rows_each)).expect("positions and row numbers are u32");
        is_used.then(|| [self.x as u32, groups.min(ROWS_MAX), groups.div_ceil(ROWS_MAX)])
    }
}

/// A dispatch before its bindings are made.
#[derive(Clone, Debug)]
pub(crate) struct PlannedDispatch {
    pub(crate) variant: Variant,
    /// The fields of the kernel's `Op`.
    pub(crate) numbers: Vec<u32>,
    /// From binding 3 on.
    pub(crate) operands: Vec<wgpu::Buffer>,
    pub(crate) grid: Grid,
}

impl PlannedDispatch {
    /// Whether a driver takes so many workgroups. Rows are seen to by [`Grid::size`].
    pub(crate) fn fits(&self) -> bool {
        self.grid.x <= GROUPS_MAX
    }
}

/// Adds the dispatches of one op. Its operands were checked.
pub(crate) fn plan(device: &DeviceInner, op: &Op, out: &mut Vec<PlannedDispatch>) -> Result<(), RunError> {
    let buffer = |handle: &exo_backend::Buffer| storage::buffer(handle, device.owner).data.buffer.clone();
    match op {
        Op::Embed { table, ids, out: result } => {
            for piece in &storage::weight(table, device.owner).pieces {
                let (cols, blocks) = (table.cols, layout::blocks(table.cols));
                out.push(PlannedDispatch {
                    variant: Variant::of(
                        Kernel::Embed,
                        [WeightFormat { dtype: table.dtype, has_bias: false }],
                    ),
                    numbers: numbers([cols, blocks, piece.rows, piece.first, table.rows]),
                    operands: vec![buffer(ids), buffer(result), piece.buffer.clone()],
                    grid: Grid::elements(table.cols.div_ceil(4), Rows::Tokens),
                });
            }
        }
        Op::RmsNorm { x, weight, out: result, eps, groups, rows } => {
            let in_place = same_buffer(x, result);
            let mut operands = vec![vector(device, weight, op.kind())?, buffer(result)];
            operands.extend((!in_place).then(|| buffer(x)));
            let mut numbers = numbers([weight.cols, *groups]);
            numbers.push(eps.to_bits());
            let variant = of_rows(Kernel::RmsNorm, *rows).flag("IN_PLACE", in_place);
            out.push(PlannedDispatch { variant, numbers, operands, grid: Grid::each(*groups, *rows) });
        }
        Op::MatMul { weight, bias, x, out: result, rows } => {
            let factor = products::Factor::new(device, weight, bias.as_ref(), result)?;
            out.extend(factor.plans(buffer(x), *rows, 1));
        }
        Op::Rope { x, positions, frequencies, heads, head_dim, style } => {
            let interleaved = *style == RopeStyle::Interleaved;
            out.push(PlannedDispatch {
                variant: Variant::plain(Kernel::Rope).flag("INTERLEAVED", interleaved),
                numbers: numbers([*heads, *head_dim, frequencies.cols]),
                operands: vec![buffer(x), buffer(positions), vector(device, frequencies, op.kind())?],
                grid: Grid::elements(heads * frequencies.cols, Rows::Tokens),
            });
        }
        Op::KvWrite { kv, layer, k, v, batch } => {
            let parts = kv_row_threads(kv.shape.dtype, kv.shape.head_dim);
            for part in &storage::kv(kv, device.owner).layers[*layer] {
                let (numbers, mut operands) = paged(device, kv, part, batch);
                operands.extend([buffer(k), buffer(v), part.keys.clone(), part.values.clone()]);
                let grid = Grid::elements(part.heads * parts, Rows::Tokens);
                out.push(PlannedDispatch {
                    variant: of_kv(Kernel::KvWrite, kv.shape.dtype),
                    numbers,
                    operands,
                    grid,
                });
            }
        }
        Op::Attention { q, kv, layer, batch, out: result, heads, scale, window } => {
            if kv.shape.head_dim > HEAD_DIM_MAX as usize {
                return Err(RunError::UnsupportedOp { op: op.kind(), dtype: None });
            }
            for part in &storage::kv(kv, device.owner).layers[*layer] {
                let (mut numbers, mut operands) = paged(device, kv, part, batch);
                numbers.extend([*heads as u32, scale.to_bits(), window.unwrap_or(0)]);
                operands.extend([buffer(q), part.keys.clone(), part.values.clone(), buffer(result)]);
                let variant = of_kv(Kernel::Attention, kv.shape.dtype).number("HEAD_DIM_MAX", HEAD_DIM_MAX);
                let grid = Grid::each(part.heads * heads / kv.shape.kv_heads, Rows::Tokens);
                out.push(PlannedDispatch { variant, numbers, operands, grid });
            }
        }
        Op::SwiGlu { gate, up, out: result, width } => {
            let in_place = same_buffer(gate, result);
            let mut operands = vec![buffer(up), buffer(result)];
            operands.extend((!in_place).then(|| buffer(gate)));
            let variant = Variant::plain(Kernel::SwiGlu).flag("IN_PLACE", in_place);
            out.push(PlannedDispatch {
                variant,
                numbers: numbers([*width]),
                operands,
                grid: Grid::elements(*width, Rows::Tokens),
            });
        }
        Op::Add { x, y, width } => {
            let is_self = same_buffer(x, y);
            let mut operands = vec![buffer(x)];
            operands.extend((!is_self).then(|| buffer(y)));
            let variant = Variant::plain(Kernel::Add).flag("SELF", is_self);
            out.push(PlannedDispatch {
                variant,
                numbers: numbers([*width]),
                operands,
                grid: Grid::elements(*width, Rows::Tokens),
            });
        }
        Op::SelectRows { x, rows, out: result, width } => out.push(PlannedDispatch {
            variant: of_rows(Kernel::SelectRows, Rows::Selected),
            numbers: numbers([*width]),
            operands: vec![buffer(x), buffer(rows), buffer(result)],
            grid: Grid::elements(*width, Rows::Selected),
        }),
        Op::ArgMax { x, out: result, width } => out.push(PlannedDispatch {
            variant: of_rows(Kernel::ArgMax, Rows::Selected),
            numbers: numbers([*width]),
            operands: vec![buffer(x), buffer(result)],
            grid: Grid::each(1, Rows::Selected),
        }),
        Op::Exchange { .. } | Op::LayerBoundary { .. } => {}
    }
    Ok(())
}

pub(crate) fn numbers<const N: usize>(values: [usize; N]) -> Vec<u32> {
    values.into_iter().map(|value| value as u32).collect()
}

/// The only row of a weight as f32.
pub(crate) fn vector(device: &DeviceInner, weight: &Weight, op: OpKind) -> Result<wgpu::Buffer, RunError> {
    let vector = storage::weight(weight, device.owner).vector.clone();
    vector.ok_or(RunError::UnsupportedOp { op, dtype: Some(weight.dtype) })
}

pub(crate) fn of_rows(kernel: Kernel, rows: Rows) -> Variant {
    Variant::plain(kernel).flag("SELECTED", rows == Rows::Selected)
}

/// Threads that write a row of the cache.
fn kv_row_threads(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 => head_dim,
        KvDType::F16 => head_dim.div_ceil(2),
        KvDType::Q8 => head_dim.div_ceil(KvDType::GROUP),
    }
}

pub(crate) fn of_kv(kernel: Kernel, dtype: KvDType) -> Variant {
    let variant = Variant::plain(kernel);
    variant.flag("F16", dtype == KvDType::F16).flag("Q8", dtype == KvDType::Q8)
}

/// The numbers and operands that every kernel on pages of a part of the cache begins with.
pub(crate) fn paged(
    device: &DeviceInner,
    kv: &KvCache,
    part: &KvPart,
    batch: &AttentionBatch,
) -> (Vec<u32>, Vec<wgpu::Buffer>) {
    let shape = &kv.shape;
    let sequences = batch.page_table.len / batch.pages_per_sequence;
    let words = storage::kv(kv, device.owner).row_bytes / 4;
    let parts = kv_row_threads(shape.dtype, shape.head_dim);
    let columns = batch.pages_per_sequence;
    let numbers = numbers([
        sequences,
        columns,
        shape.page_tokens,
        shape.pages,
        part.heads,
        part.first_head,
        shape.kv_heads,
        shape.head_dim,
        words,
        parts,
        0,
        0,
    ]);
    let tables = [&batch.positions, &batch.sequences, &batch.page_table];
    (numbers, tables.map(|handle| storage::buffer(handle, device.owner).data.buffer.clone()).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_beyond_a_dimension_go_along_the_next_and_none_is_left_out() {
        let size = |tokens, rows_each| {
            let grid = Grid { rows_each, ..Grid::elements(100, Rows::Tokens) };
            grid.size(RunShape { tokens, selected: 0 })
        };
        assert_eq!(size(0, 1), None);
        assert_eq!(size(1, 1), Some([2, 1, 1]));
        assert_eq!(size(65_536, 1), Some([2, 32_768, 2]));
        assert_eq!(size(65_537, 1), Some([2, 32_768, 3]));
        assert_eq!(size(65_537, 64), Some([2, 1025, 1]));
    }
}
