//! From an op to the dispatches that compute it.

use exo_backend::{
    AttentionBatch, KvCache, Op, OpKind, RopeStyle, Rows, RunError, RunShape, Weight, same_buffer,
};
use exo_types::KvDType;

use crate::device::Shop;
use crate::shader::{HEAD_DIM_MAX, Kernel, Variant};
use crate::storage::{self, Piece};
use crate::{kv_rows, layout};

/// Threads of a workgroup along a row, for kernels of one thread per element.
const THREADS: usize = 64;
/// Rows of x that the kernel for few rows takes at once, and up to how many it is used.
const TOKENS_EACH: usize = 4;
const FEW_TOKENS_MAX: usize = 8;
/// Rows of w that a thread of that kernel keeps.
const ROWS_EACH: usize = 2;
/// Threads that share a row of w.
const SLICES: usize = 8;
/// Rows and columns of a tile of the kernel for many rows.
const TILE: usize = 64;

/// How many workgroups, from the rows of a run.
#[derive(Clone, Copy, Debug)]
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
    fn each(x: usize, rows: Rows) -> Self {
        Self { x, rows, rows_each: 1, from: 1, up_to: usize::MAX }
    }

    fn elements(width: usize, rows: Rows) -> Self {
        Self::each(width.div_ceil(THREADS), rows)
    }

    /// Workgroups for a run; `None` if there is nothing to do for this kernel.
    pub(crate) fn size(&self, shape: RunShape) -> Option<(u32, u32)> {
        let rows = match self.rows {
            Rows::Tokens => shape.tokens,
            Rows::Selected => shape.selected,
        };
        let is_used = (self.from..=self.up_to).contains(&rows) && self.x > 0;
        is_used.then(|| (self.x as u32, rows.div_ceil(self.rows_each) as u32))
    }
}

/// A dispatch before its bindings are made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) variant: Variant,
    /// The fields of the kernel's `Op`.
    pub(crate) numbers: Vec<u32>,
    /// From binding 3 on.
    pub(crate) operands: Vec<wgpu::Buffer>,
    pub(crate) grid: Grid,
}

/// Adds the dispatches of one op. Its operands were checked.
pub(crate) fn plan(shop: &Shop, op: &Op, out: &mut Vec<Plan>) -> Result<(), RunError> {
    let buffer = |handle: &exo_backend::Buffer| storage::buffer(handle, shop.owner).data.buffer.clone();
    match op {
        Op::Embed { table, ids, out: result } => {
            for piece in &storage::weight(table, shop.owner).pieces {
                let (cols, blocks) = (table.cols, layout::blocks(table.cols));
                out.push(Plan {
                    variant: Variant::of(Kernel::Embed, table.dtype),
                    numbers: numbers([cols, blocks, piece.rows, piece.first, table.rows]),
                    operands: vec![buffer(ids), buffer(result), piece.buffer.clone()],
                    grid: Grid::elements(table.cols.div_ceil(4), Rows::Tokens),
                });
            }
        }
        Op::RmsNorm { x, weight, out: result, eps, groups, rows } => {
            let in_place = same_buffer(x, result);
            let mut operands = vec![vector(shop, weight, op.kind())?, buffer(result)];
            operands.extend((!in_place).then(|| buffer(x)));
            let mut numbers = numbers([weight.cols, *groups]);
            numbers.push(eps.to_bits());
            let variant = Variant::plain(Kernel::RmsNorm).flag("IN_PLACE", in_place);
            out.push(Plan { variant, numbers, operands, grid: Grid::each(*groups, *rows) });
        }
        Op::MatMul { weight, bias, x, out: result, rows } => {
            let bias_vector = bias.as_ref().map(|bias| vector(shop, bias, op.kind())).transpose()?;
            let bias = bias_vector.clone().unwrap_or_else(|| shop.nothing.clone());
            for piece in &storage::weight(weight, shop.owner).pieces {
                let operands = vec![piece.buffer.clone(), bias.clone(), buffer(result), buffer(x)];
                out.extend(products(shop, weight, piece, bias_vector.is_some(), *rows, &operands));
            }
        }
        Op::Rope { x, positions, frequencies, heads, head_dim, style } => {
            let interleaved = *style == RopeStyle::Interleaved;
            out.push(Plan {
                variant: Variant::plain(Kernel::Rope).flag("INTERLEAVED", interleaved),
                numbers: numbers([*heads, *head_dim, frequencies.cols]),
                operands: vec![buffer(x), buffer(positions), vector(shop, frequencies, op.kind())?],
                grid: Grid::elements(heads * frequencies.cols, Rows::Tokens),
            });
        }
        Op::KvWrite { kv, layer, k, v, batch } => {
            let parts = kv_rows::parts(kv.shape.dtype, kv.shape.head_dim);
            let (mut numbers, mut operands) = paged(shop, kv, batch);
            numbers.push(parts as u32);
            operands.extend([buffer(k), buffer(v)]);
            let stored = &storage::kv(kv, shop.owner).layers[*layer];
            operands.extend([stored.keys.clone(), stored.values.clone()]);
            let grid = Grid::elements(kv.shape.kv_heads * parts, Rows::Tokens);
            out.push(Plan { variant: of_kv(Kernel::KvWrite, kv.shape.dtype), numbers, operands, grid });
        }
        Op::Attention { q, kv, layer, batch, out: result, heads, scale, window } => {
            if kv.shape.head_dim > HEAD_DIM_MAX as usize {
                return Err(RunError::UnsupportedOp { op: op.kind(), dtype: None });
            }
            let (mut numbers, mut operands) = paged(shop, kv, batch);
            numbers.extend([*heads as u32, scale.to_bits(), window.unwrap_or(0)]);
            let stored = &storage::kv(kv, shop.owner).layers[*layer];
            operands.extend([buffer(q), stored.keys.clone(), stored.values.clone(), buffer(result)]);
            let variant = of_kv(Kernel::Attention, kv.shape.dtype).number("HEAD_DIM_MAX", HEAD_DIM_MAX);
            out.push(Plan { variant, numbers, operands, grid: Grid::each(*heads, Rows::Tokens) });
        }
        Op::SwiGlu { gate, up, out: result, width } => {
            let in_place = same_buffer(gate, result);
            let mut operands = vec![buffer(up), buffer(result)];
            operands.extend((!in_place).then(|| buffer(gate)));
            let variant = Variant::plain(Kernel::SwiGlu).flag("IN_PLACE", in_place);
            out.push(Plan {
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
            out.push(Plan {
                variant,
                numbers: numbers([*width]),
                operands,
                grid: Grid::elements(*width, Rows::Tokens),
            });
        }
        Op::SelectRows { x, rows, out: result, width } => out.push(Plan {
            variant: Variant::plain(Kernel::SelectRows),
            numbers: numbers([*width]),
            operands: vec![buffer(x), buffer(rows), buffer(result)],
            grid: Grid::elements(*width, Rows::Selected),
        }),
        Op::Exchange { .. } | Op::LayerBoundary { .. } => {}
    }
    Ok(())
}

fn numbers<const N: usize>(values: [usize; N]) -> Vec<u32> {
    values.into_iter().map(|value| value as u32).collect()
}

fn vector(shop: &Shop, weight: &Weight, op: OpKind) -> Result<wgpu::Buffer, RunError> {
    let vector = storage::weight(weight, shop.owner).vector.clone();
    vector.ok_or(RunError::UnsupportedOp { op, dtype: Some(weight.dtype) })
}

fn of_kv(kernel: Kernel, dtype: KvDType) -> Variant {
    let variant = Variant::plain(kernel);
    variant.flag("F16", dtype == KvDType::F16).flag("Q8", dtype == KvDType::Q8)
}

/// The numbers and operands that every kernel on pages begins with.
fn paged(shop: &Shop, kv: &KvCache, batch: &AttentionBatch) -> (Vec<u32>, Vec<wgpu::Buffer>) {
    let shape = &kv.shape;
    let sequences = batch.page_table.len / batch.pages_per_sequence;
    let words = storage::kv(kv, shop.owner).words;
    let (pages, tokens) = (shape.pages, shape.page_tokens);
    let numbers =
        numbers([sequences, batch.pages_per_sequence, tokens, pages, shape.kv_heads, shape.head_dim, words]);
    let tables = [&batch.positions, &batch.sequences, &batch.page_table];
    (numbers, tables.map(|handle| storage::buffer(handle, shop.owner).data.buffer.clone()).to_vec())
}

/// The product with one piece of a weight: a kernel for one row, one for a few, one for many. All give the same bits.
fn products<'a>(
    shop: &'a Shop,
    weight: &'a Weight,
    piece: &'a Piece,
    has_bias: bool,
    rows: Rows,
    operands: &'a [wgpu::Buffer],
) -> impl Iterator<Item = Plan> + 'a {
    let blocks = layout::blocks(weight.cols);
    let numbers = numbers([piece.rows, piece.first, weight.rows, weight.cols, blocks, usize::from(has_bias)]);
    let variant = move |kernel| {
        Variant::of(kernel, weight.dtype)
            .flag("SELECTED", rows == Rows::Selected)
            .flag("RAGGED", !weight.cols.is_multiple_of(layout::BLOCK))
    };
    let few = move |tokens_each: usize| {
        let variant = variant(Kernel::MatMulVec).flag("SUBGROUPS", shop.has_subgroups);
        variant.number("ROWS_EACH", ROWS_EACH as u32).number("TOKENS_EACH", tokens_each as u32)
    };
    let x = piece.rows.div_ceil(THREADS / SLICES * ROWS_EACH);
    let choices = [
        (few(1), Grid { x, rows, rows_each: 1, from: 1, up_to: 1 }),
        (few(TOKENS_EACH), Grid { x, rows, rows_each: TOKENS_EACH, from: 2, up_to: FEW_TOKENS_MAX }),
        (
            variant(Kernel::MatMulTile),
            Grid {
                x: piece.rows.div_ceil(TILE),
                rows,
                rows_each: TILE,
                from: FEW_TOKENS_MAX + 1,
                up_to: usize::MAX,
            },
        ),
    ];
    choices.into_iter().map(move |(variant, grid)| Plan {
        variant,
        numbers: numbers.clone(),
        operands: operands.to_vec(),
        grid,
    })
}
