//! Matrix products: which kernel for how many rows, and several products of one x together. All give the same
//! bits.

use exo_backend::{Buffer, OpKind, Rows, RunError, Weight};

use super::{Grid, PlannedDispatch, numbers, vector};
use crate::inner::DeviceInner;
use crate::layout;
use crate::shader::{Kernel, Variant, WeightFormat};
use crate::storage::{self, WeightBuffer};

/// Rows of x that the kernel for few rows takes at once, and up to how many it is used.
const TOKENS_EACH: usize = 4;
pub(crate) const FEW_TOKENS_MAX: usize = 8;
/// Rows of w that a thread of that kernel keeps.
const ROWS_EACH: usize = 2;
/// Rows of w of one of its workgroups: 64 threads, eight to a row.
const ROWS_OF_GROUP: usize = 8 * ROWS_EACH;
/// Rows and columns of a tile of the kernel for many rows.
const TILE: usize = 64;
/// Weights of a fused product.
pub(crate) const FACTORS_MAX: usize = 3;

/// A weight of a product, with its bias and the buffer its results go to.
pub(crate) struct Factor<'a> {
    device: &'a DeviceInner,
    weight: &'a Weight,
    bias: Option<wgpu::Buffer>,
    out: wgpu::Buffer,
}

impl<'a> Factor<'a> {
    pub(crate) fn new(
        device: &'a DeviceInner,
        weight: &'a Weight,
        bias: Option<&Weight>,
        out: &Buffer,
    ) -> Result<Self, RunError> {
        let bias = bias.map(|bias| vector(device, bias, OpKind::MatMul)).transpose()?;
        let out = storage::buffer(out, device.owner).data.buffer.clone();
        Ok(Self { device, weight, bias, out })
    }

    /// The product by itself, for `from` and more rows.
    pub(crate) fn plans(&self, x: wgpu::Buffer, rows: Rows, from: usize) -> Vec<PlannedDispatch> {
        let mut plans = Vec::new();
        for piece in self.pieces() {
            let part = [(self, piece)];
            plans.extend(few(&part, &x, rows, Kernel::MatMulVec));
            let x_groups = piece.rows.div_ceil(TILE);
            let grid = Grid { rows_each: TILE, from: FEW_TOKENS_MAX + 1, ..Grid::each(x_groups, rows) };
            plans.push(plan(&part, &x, variant(&part, rows, Kernel::MatMulTile), grid));
        }
        plans.retain(|plan| plan.grid.up_to >= from);
        plans
    }

    fn pieces(&self) -> &'a [WeightBuffer] {
        &storage::weight(self.weight, self.device.owner).pieces
    }

    /// Bindings that its weight, bias and result take.
    fn bindings(&self) -> usize {
        2 + usize::from(self.bias.is_some())
    }

    fn stored(&self) -> WeightFormat {
        WeightFormat { dtype: self.weight.dtype, has_bias: self.bias.is_some() }
    }
}

/// Several products of one x in one dispatch, for up to [`FEW_TOKENS_MAX`] rows; `None` if they do not fit
/// one. With [`Kernel::MatMulGated`], two products and the SwiGLU that joins them in place of the first.
pub(crate) fn together(
    factors: &[Factor],
    x: &wgpu::Buffer,
    rows: Rows,
    kernel: Kernel,
) -> Option<Vec<PlannedDispatch>> {
    let first = factors.first()?;
    let bindings = 2 + factors.iter().map(Factor::bindings).sum::<usize>();
    if factors.len() > FACTORS_MAX || bindings > first.device.storage_buffers_max {
        return None;
    }
    let parts: Option<Vec<_>> = factors
        .iter()
        .map(|factor| match factor.pieces() {
            [piece] => Some((factor, piece)),
            _ => None,
        })
        .collect();
    let plans = few(&parts?, x, rows, kernel);
    plans.iter().all(PlannedDispatch::fits).then_some(plans)
}

type Part<'a> = (&'a Factor<'a>, &'a WeightBuffer);

/// The kernels for few rows: one for a single row, one for up to eight.
fn few(parts: &[Part<'_>], x: &wgpu::Buffer, rows: Rows, kernel: Kernel) -> Vec<PlannedDispatch> {
    let is_gated = kernel == Kernel::MatMulGated;
    let counted = if is_gated { &parts[..1] } else { parts };
    let groups = counted.iter().map(|(_, piece)| piece.rows.div_ceil(ROWS_OF_GROUP)).sum();
    let each = |tokens_each: usize, from: usize, up_to: usize| {
        let variant = variant(parts, rows, kernel)
            .flag("SUBGROUPS", parts[0].0.device.has_subgroups)
            .flag("SECOND", parts.len() > 1)
            .flag("THIRD", parts.len() > 2)
            .number("ROWS_EACH", ROWS_EACH as u32)
            .number("TOKENS_EACH", tokens_each as u32)
            .number("SHARED", if is_gated { 2 } else { 1 });
        plan(parts, x, variant, Grid { rows_each: tokens_each, from, up_to, ..Grid::each(groups, rows) })
    };
    vec![each(1, 1, 1), each(TOKENS_EACH, 2, FEW_TOKENS_MAX)]
}

fn variant(parts: &[Part<'_>], rows: Rows, kernel: Kernel) -> Variant {
    let is_ragged = !parts[0].0.weight.cols.is_multiple_of(layout::BLOCK);
    Variant::of(kernel, parts.iter().map(|(factor, _)| factor.stored()))
        .flag("SELECTED", rows == Rows::Selected)
        .flag("RAGGED", is_ragged)
}

fn plan(parts: &[Part<'_>], x: &wgpu::Buffer, variant: Variant, grid: Grid) -> PlannedDispatch {
    let cols = parts[0].0.weight.cols;
    // The list of weights begins at a multiple of 16 bytes, as uniform memory asks.
    let mut numbers = numbers([cols, layout::blocks(cols), 0, 0]);
    let mut operands = vec![x.clone()];
    for (factor, piece) in parts {
        numbers.extend([piece.rows, piece.first, factor.weight.rows, 0].map(|number| number as u32));
        operands.push(piece.buffer.clone());
        operands.extend(factor.bias.clone());
        operands.push(factor.out.clone());
    }
    PlannedDispatch { variant, numbers, operands, grid }
}
