//! From an op to the kernels that compute it.
//!
//! Every kernel takes one structure: addresses first, then the rows and tokens of the run, then its own
//! numbers.

use std::sync::Arc;

use exo_backend::{
    AttentionBatch, Buffer, KvCache, Op, OpKind, RopeStyle, Rows, RunError, RunShape, Weight, same_buffer,
};
use exo_types::{DType, KvDType};

use crate::driver::{DeviceMemory, Function};
use crate::inner::DeviceInner;
use crate::kernels::File;
use crate::{layout, storage};

/// Threads of kernels of one thread per element.
const THREADS: u32 = 256;
const ATTENTION_THREADS: u32 = 128;
/// Where a row has one thread block, and its reads are waited for: as many at once as there can be.
const ROW_THREADS: u32 = 1024;
/// Up to how many elements a row to normalise is a head's, and has so many threads.
const SHORT_ROW_MAX: usize = 512;
const SHORT_ROW_THREADS: u32 = 128;
/// Heads that attention has kernels for: of up to so many elements, and how many queries share a thread block
/// of `few` and `many`.
const HEADS: [(usize, usize, usize); 2] = [(128, 4, 16), (256, 4, 8)];
/// Up to how many rows a thread block of attention takes a span of one row, not several rows.
const SPANNED_ROWS_MAX: usize = 32;
/// Spans of a row's positions.
const SPANS: usize = 32;
/// Up to how many rows the kernels for few rows are used; for quants where there are tensor cores: an H100
/// took 16 ms for a step of 32 rows by these and 21 ms by the others (docs/benchmarks.md), and their time
/// goes with the rows.
const FEW_ROWS_MAX: usize = 8;
const FEW_ROWS_MAX_MMA: usize = 32;
/// Rows of w that a thread block of `matmul_vec` takes; of one row of x with quants in super-blocks.
const VEC_OUTPUTS: usize = 32;
const VEC_OUTPUTS_SUPER: usize = 16;
/// Rows of w and of x to a tile; of x to the large tiles of `matmul_mma`.
const TILE: usize = 64;
const LARGE_TILE: usize = 128;
/// From how many tiles on large ones keep a large card busy.
pub(crate) const LARGE_TILES_MIN: usize = 128;
/// Rows of w and of x to a warp of the kernels for halves and few rows; up to how many rows they are used,
/// which kernels/halves.cuh knows as FEW_ROWS_MAX; rows to a tile of many.
const HALF_OUTPUTS: usize = 16;
const HALF_ROWS: usize = 8;
const HALF_FEW_ROWS_MAX: usize = 32;
const HALF_TILE: usize = 128;
/// Products that share a launch: of queries, keys and values.
const PRODUCTS_MAX: usize = 3;
const WARP: u32 = 32;

/// How many thread blocks, from the rows of a run.
#[derive(Clone, Copy, Debug)]
enum Grid {
    /// Threads along all elements of all rows.
    Elements { width: usize },
    /// So many thread blocks to a row.
    Blocks { each: usize },
    /// Thread blocks along the rows by `rows_each`, which are the fastest: they read the same weights, or
    /// keys; and `y` of these. For runs of `from` to `up_to` rows.
    Tiles { y: usize, rows_each: usize, from: usize, up_to: usize },
}

/// A kernel with its operands.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) threads: u32,
    grid: Grid,
    rows: Rows,
    /// The kernel's structure, but for the rows and tokens.
    args: Vec<u64>,
    /// Which of `args` holds them.
    rows_at: usize,
}

impl Launch {
    fn rows(&self, shape: RunShape) -> usize {
        match self.rows {
            Rows::Tokens => shape.tokens,
            Rows::Selected => shape.selected,
        }
    }

    /// Thread blocks of a run; `None` if there is nothing to do for this kernel.
    pub(crate) fn size(&self, shape: RunShape) -> Option<(u32, u32)> {
        let rows = self.rows(shape);
        let (x, y) = match self.grid {
            Grid::Elements { width } => ((rows * width).div_ceil(THREADS as usize), 1),
            Grid::Blocks { each } => (rows * each, 1),
            Grid::Tiles { from, up_to, .. } if !(from..=up_to).contains(&rows) => return None,
            Grid::Tiles { y, rows_each, .. } => (rows.div_ceil(rows_each), y),
        };
        (x > 0 && y > 0).then_some((x as u32, y as u32))
    }

    /// The kernel's structure for a run.
    pub(crate) fn args(&self, shape: RunShape) -> Vec<u64> {
        let mut args = self.args.clone();
        args[self.rows_at] = self.rows(shape) as u64 | (shape.tokens as u64) << 32;
        args
    }
}

/// Makes the launches of a program's ops.
pub(crate) struct Planner<'a> {
    pub(crate) device: &'a DeviceInner,
    pub(crate) fault: &'a DeviceMemory,
    pub(crate) scratch: &'a Scratch,
    /// The rows that lie there now: of which buffer, how wide, and as what.
    pub(crate) rounded: Option<(u64, usize, Rows, Form)>,
}

/// What a product reads its activations as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Float,
    /// As `round8.cu` leaves them.
    Eight,
    /// As `halves.cu` leaves them, for F16 and for BF16.
    Half,
    ThreeHalves,
}

impl Form {
    fn of(weight: DType, has_tensor_cores: bool) -> Self {
        match weight {
            DType::F16 if has_tensor_cores => Self::Half,
            DType::BF16 if has_tensor_cores => Self::ThreeHalves,
            quantised if quantised.is_quantised() => Self::Eight,
            _ => Self::Float,
        }
    }

    /// Bytes that `rows` of so many blocks take, and their scales.
    fn bytes(self, rows: usize, blocks: usize) -> (u64, u64) {
        let (rows, blocks) = (rows as u64, (rows * blocks) as u64);
        match self {
            Self::Float => (0, 0),
            Self::Eight => (32 * blocks, 8 * blocks),
            Self::Half => (64 * blocks, 4 * rows),
            Self::ThreeHalves => (192 * blocks, 0),
        }
    }
}

/// Where a program keeps what its kernels leave for each other.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Activations as a product reads them and their scales, for one product at a time.
    pub(crate) rounded: DeviceMemory,
    pub(crate) scales: DeviceMemory,
    /// What the spans of attention came to, and how many of a row are done.
    pub(crate) spans: DeviceMemory,
    pub(crate) spans_done: DeviceMemory,
}

/// Bytes that an op needs for its activations in another form, and for their scales.
pub(crate) fn rounded_bytes(op: &Op, has_tensor_cores: bool) -> (u64, u64) {
    match op {
        Op::MatMul { weight, x, .. } => Form::of(weight.dtype, has_tensor_cores)
            .bytes(x.len / weight.cols.max(1), layout::blocks(weight.cols)),
        _ => (0, 0),
    }
}

/// Bytes that an op needs for what its spans come to, and for counting them.
pub(crate) fn spans_bytes(op: &Op) -> (u64, u64) {
    match op {
        Op::Attention { q, kv, heads, .. } => {
            let head_dim = kv.shape.head_dim;
            let rows = (q.len / (heads * head_dim).max(1)).min(SPANNED_ROWS_MAX);
            (4 * (rows * heads * SPANS * (2 + head_dim)) as u64, 4 * (rows * heads) as u64)
        }
        _ => (0, 0),
    }
}

/// What a launch is made of.
struct Draft<'a> {
    file: File,
    name: &'a str,
    threads: u32,
    grid: Grid,
    rows: Rows,
    addresses: Vec<u64>,
    numbers: Vec<u32>,
}

impl Planner<'_> {
    /// Adds the launches of the first of `ops`, and of those behind it that share them; says how many these
    /// are. Their operands were checked.
    pub(crate) fn plan(&mut self, ops: &[Op], out: &mut Vec<Launch>) -> Result<usize, RunError> {
        let Some((op, behind)) = ops.split_first() else { return Ok(0) };
        if op.kind() != OpKind::MatMul {
            self.rounded = None;
        }
        match op {
            Op::MatMul { .. } => return self.products(ops, out),
            Op::Rope { x, positions, frequencies, heads, head_dim, style } => {
                let second = second_rope(op, behind);
                let (second_at, second_heads) = second.map_or((0, 0), |(x, heads)| (self.at(x), heads));
                let mut numbers = numbers([*heads, second_heads, *head_dim, frequencies.cols]);
                numbers.push(u32::from(*style == RopeStyle::Interleaved));
                let addresses =
                    vec![self.at(x), second_at, self.at(positions), self.vector(frequencies, op.kind())?];
                let width = (heads + second_heads) * frequencies.cols;
                out.push(self.elements(File::Rope, "rope", width, Rows::Tokens, addresses, numbers)?);
                return Ok(1 + usize::from(second.is_some()));
            }
            Op::RmsNorm { .. } => self.norm(op, behind, out)?,
            Op::SwiGlu { .. } => self.swiglu(op, behind, out)?,
            _ => self.plan_alone(op, out)?,
        }
        Ok(1)
    }

    fn at(&self, handle: &Buffer) -> u64 {
        storage::buffer(handle, self.device.owner).memory.at
    }

    /// An op that shares its launch with no other.
    fn plan_alone(&self, op: &Op, out: &mut Vec<Launch>) -> Result<(), RunError> {
        let at = |handle: &Buffer| self.at(handle);
        let fault = self.fault.at;
        match op {
            Op::Embed { table, ids, out: result } => {
                let mut addresses = vec![fault];
                addresses.extend(self.planes(table));
                addresses.extend([at(ids), at(result)]);
                let name = format!("embed_{}", layout::name(table.dtype));
                let numbers = numbers([table.cols, layout::blocks(table.cols), table.rows]);
                let width = table.cols.div_ceil(4);
                out.push(self.elements(File::Embed, &name, width, Rows::Tokens, addresses, numbers)?);
            }
            Op::KvWrite { .. } | Op::Attention { .. } => self.on_pages(op, out)?,
            Op::Add { x, y, width } => {
                let addresses = vec![at(x), at(y)];
                let numbers = numbers([*width]);
                out.push(self.elements(File::Add, "add", *width, Rows::Tokens, addresses, numbers)?);
            }
            Op::SelectRows { x, rows, out: result, width } => {
                let addresses = vec![fault, at(x), at(rows), at(result)];
                let numbers = numbers([*width]);
                let (file, rows) = (File::SelectRows, Rows::Selected);
                out.push(self.elements(file, "select_rows", *width, rows, addresses, numbers)?);
            }
            Op::ArgMax { x, out: result, width } => out.push(self.launch(Draft {
                file: File::ArgMax,
                name: "arg_max",
                threads: ROW_THREADS,
                grid: Grid::Blocks { each: 1 },
                rows: Rows::Selected,
                addresses: vec![at(x), at(result)],
                numbers: numbers([*width]),
            })?),
            // What `plan` has launches for, and what is none.
            Op::MatMul { .. } | Op::Rope { .. } | Op::RmsNorm { .. } | Op::SwiGlu { .. } => {}
            Op::Exchange { .. } | Op::LayerBoundary { .. } => {}
        }
        Ok(())
    }

    fn norm(&mut self, op: &Op, behind: &[Op], out: &mut Vec<Launch>) -> Result<(), RunError> {
        let Op::RmsNorm { x, weight, out: result, eps, groups, rows } = op else {
            unreachable!("{:?} is no norm", op.kind())
        };
        let mut addresses = vec![self.at(x), self.vector(weight, op.kind())?, self.at(result)];
        let mut numbers = numbers([weight.cols]);
        numbers.push(eps.to_bits());
        // Short rows have fewer threads, and so another order of sums.
        let is_long = *groups == 1 && weight.cols > SHORT_ROW_MAX;
        let form = is_long.then(|| self.form_behind(behind, result, weight.cols, *rows)).flatten();
        let (name, threads) = match (form, weight.cols) {
            (Some(Form::Eight), _) => ("rms_norm_round8", ROW_THREADS),
            (Some(_), _) => ("rms_norm_halves", ROW_THREADS),
            (None, ..=SHORT_ROW_MAX) => ("rms_norm_short", SHORT_ROW_THREADS),
            (None, _) => ("rms_norm", ROW_THREADS),
        };
        if let Some(form) = form {
            addresses.extend(self.rounds(result, weight.cols, *rows, form));
        }
        let (file, grid, rows) = (File::RmsNorm, Grid::Blocks { each: *groups }, *rows);
        out.push(self.launch(Draft { file, name, threads, grid, rows, addresses, numbers })?);
        Ok(())
    }

    fn swiglu(&mut self, op: &Op, behind: &[Op], out: &mut Vec<Launch>) -> Result<(), RunError> {
        let Op::SwiGlu { gate, up, out: result, width } = op else {
            unreachable!("{:?} is no SwiGLU", op.kind())
        };
        let mut addresses = vec![self.at(gate), self.at(up), self.at(result)];
        let (file, rows, numbers) = (File::SwiGlu, Rows::Tokens, numbers([*width]));
        let form = self.form_behind(behind, result, *width, rows);
        if let Some(form) = form {
            addresses.extend(self.rounds(result, *width, rows, form));
        }
        out.push(match form {
            None => self.elements(file, "swiglu", *width, rows, addresses, numbers)?,
            Some(Form::Eight) => self.elements(file, "swiglu_round8", width / 4, rows, addresses, numbers)?,
            Some(_) => {
                let (name, threads, grid) = ("swiglu_halves", ROW_THREADS, Grid::Blocks { each: 1 });
                self.launch(Draft { file, name, threads, grid, rows, addresses, numbers })?
            }
        });
        Ok(())
    }

    /// As what the product behind an op reads its result, if the op's own kernel can leave it so.
    fn form_behind(&self, behind: &[Op], result: &Buffer, width: usize, rows: Rows) -> Option<Form> {
        let Some(Op::MatMul { weight, x, rows: of, .. }) = behind.first() else { return None };
        let form = Form::of(weight.dtype, self.device.has_tensor_cores);
        let is_one = matches!(form, Form::Eight | Form::Half) && width.is_multiple_of(layout::BLOCK);
        (is_one && same_buffer(x, result) && *of == rows && weight.cols == width).then_some(form)
    }

    /// Where a kernel leaves `x` as products read it.
    fn rounds(&mut self, x: &Buffer, cols: usize, rows: Rows, form: Form) -> [u64; 2] {
        self.rounded = Some((self.at(x), cols, rows, form));
        [self.scratch.rounded.at, self.scratch.scales.at]
    }

    /// An op on the cache.
    fn on_pages(&self, op: &Op, out: &mut Vec<Launch>) -> Result<(), RunError> {
        let at = |handle: &Buffer| self.at(handle);
        let rows = Rows::Tokens;
        match op {
            Op::KvWrite { kv, layer, k, v, batch } => {
                let parts = kv_row_threads(kv.shape.dtype, kv.shape.head_dim);
                let (mut addresses, mut numbers) = self.paged(kv, *layer, batch);
                addresses.extend([at(k), at(v)]);
                numbers.push(parts as u32);
                let name = format!("kv_write_{}", kv.shape.dtype.name());
                let width = kv.shape.kv_heads * parts;
                out.push(self.elements(File::KvWrite, &name, width, rows, addresses, numbers)?);
                Ok(())
            }
            Op::Attention { q, kv, layer, batch, out: result, heads, scale, window } => {
                let (mut addresses, mut numbers) = self.paged(kv, *layer, batch);
                addresses.extend([at(q), at(result), self.scratch.spans.at, self.scratch.spans_done.at]);
                numbers.extend([*heads as u32, scale.to_bits(), window.unwrap_or(0)]);
                for (name, grid) in attention_choices(kv, *heads)? {
                    let name = format!("{name}_{}", kv.shape.dtype.name());
                    let (addresses, numbers) = (addresses.clone(), numbers.clone());
                    let (file, threads) = (File::Attention, ATTENTION_THREADS);
                    out.push(self.launch(Draft {
                        file,
                        name: &name,
                        threads,
                        grid,
                        rows,
                        addresses,
                        numbers,
                    })?);
                }
                Ok(())
            }
            _ => Err(RunError::UnsupportedOp { op: op.kind(), dtype: None }),
        }
    }

    fn launch(&self, draft: Draft<'_>) -> Result<Launch, RunError> {
        let Draft { file, name, threads, grid, rows, addresses, numbers } = draft;
        let rows_at = addresses.len();
        let mut args = addresses;
        args.push(0);
        args.extend(
            numbers
                .chunks(2)
                .map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32),
        );
        let function = self.device.kernels.get(&self.device.context, file, name)?;
        Ok(Launch { function, threads, grid, rows, args, rows_at })
    }

    fn elements(
        &self,
        file: File,
        name: &str,
        width: usize,
        rows: Rows,
        addresses: Vec<u64>,
        numbers: Vec<u32>,
    ) -> Result<Launch, RunError> {
        let (threads, grid) = (THREADS, Grid::Elements { width });
        self.launch(Draft { file, name, threads, grid, rows, addresses, numbers })
    }

    fn planes(&self, weight: &Weight) -> [u64; 3] {
        let stored = storage::weight(weight, self.device.owner);
        [0, stored.high_at, stored.scales_at].map(|offset| stored.memory.at + offset)
    }

    fn vector(&self, weight: &Weight, op: OpKind) -> Result<u64, RunError> {
        let vector = storage::weight(weight, self.device.owner).vector.as_ref().map(|memory| memory.at);
        vector.ok_or(RunError::UnsupportedOp { op, dtype: Some(weight.dtype) })
    }

    /// What every kernel on pages begins with.
    fn paged(&self, kv: &KvCache, layer: usize, batch: &AttentionBatch) -> (Vec<u64>, Vec<u32>) {
        let (shape, stored) = (&kv.shape, storage::kv(kv, self.device.owner));
        let tables = [&batch.positions, &batch.sequences, &batch.page_table];
        let mut addresses = vec![self.fault.at];
        addresses.extend(tables.map(|handle| storage::buffer(handle, self.device.owner).memory.at));
        addresses.extend([stored.layers[layer].keys.at, stored.layers[layer].values.at]);
        let numbers = numbers([
            batch.page_table.len / batch.pages_per_sequence,
            batch.pages_per_sequence,
            shape.page_tokens,
            shape.pages,
            shape.kv_heads,
            shape.head_dim,
            stored.row_bytes,
        ]);
        (addresses, numbers)
    }

    /// The products of one x: kernels for one row, for a few and for many, of which a run starts one. All
    /// give the same bits, also where the result is added to something by the same kernel.
    fn products(&mut self, ops: &[Op], out: &mut Vec<Launch>) -> Result<usize, RunError> {
        let together = products_together(ops);
        let Some(Op::MatMul { weight, x, rows, .. }) = together.first() else {
            unreachable!("no product among {} ops", ops.len())
        };
        let (cols, rows) = (weight.cols, *rows);
        let sum = match together.len() {
            1 => sum_behind(&ops[0], &ops[1..]),
            _ => None,
        };
        let (mut planes, mut biases, mut results, mut outputs) = ([0; 9], [0; 3], [0; 3], [0; 3]);
        for (i, op) in together.iter().enumerate() {
            let Op::MatMul { weight, bias, out: result, .. } = op else { continue };
            planes[3 * i..3 * i + 3].copy_from_slice(&self.planes(weight));
            biases[i] = bias.as_ref().map(|bias| self.vector(bias, op.kind())).transpose()?.unwrap_or(0);
            (results[i], outputs[i]) = (self.at(result), weight.rows);
        }
        let x_at = self.at(x);
        let form = Form::of(weight.dtype, self.device.has_tensor_cores);
        let (x_from, x_scales) = match form {
            Form::Float => (x_at, 0),
            _ => {
                if self.rounded != Some((x_at, cols, rows, form)) {
                    out.push(self.round(x_at, cols, rows, form)?);
                    self.rounded = Some((x_at, cols, rows, form));
                }
                (self.scratch.rounded.at, self.scratch.scales.at)
            }
        };
        let sum_at = sum.map_or(0, |sum| self.at(sum));
        let addresses = [&planes[..], &biases, &results, &[sum_at, x_from, x_scales]].concat();
        for (file, name, threads, tiles) in choices(weight.dtype, outputs, self.device) {
            let [first, second, third] = outputs.map(|outputs| outputs.div_ceil(tiles.outputs));
            let numbers =
                [outputs[0], outputs[1], outputs[2], cols, layout::blocks(cols), first, first + second];
            let Tiles { rows_each, from, up_to, .. } = tiles;
            let (name, y) = (format!("{name}_{}", layout::name(weight.dtype)), first + second + third);
            let (grid, numbers) = (Grid::Tiles { y, rows_each, from, up_to }, self::numbers(numbers));
            let addresses = addresses.clone();
            out.push(self.launch(Draft { file, name: &name, threads, grid, rows, addresses, numbers })?);
        }
        let written = results.into_iter().chain([sum_at]);
        if self.rounded.is_some_and(|(of, ..)| written.into_iter().any(|at| at == of)) {
            self.rounded = None;
        }
        Ok(together.len() + usize::from(sum.is_some()))
    }

    fn round(&self, x: u64, cols: usize, rows: Rows, form: Form) -> Result<Launch, RunError> {
        let addresses = vec![x, self.scratch.rounded.at, self.scratch.scales.at];
        let blocks = layout::blocks(cols);
        let name = match form {
            Form::Half => "halves_f16",
            Form::ThreeHalves => "halves_bf16",
            Form::Float | Form::Eight => {
                let (file, width) = (File::Round8, 8 * blocks);
                return self.elements(file, "round8", width, rows, addresses, numbers([blocks]));
            }
        };
        let (file, threads, grid) = (File::Halves, ROW_THREADS, Grid::Blocks { each: 1 });
        self.launch(Draft { file, name, threads, grid, rows, addresses, numbers: numbers([cols, blocks]) })
    }
}

/// The kernels of attention, and for how many rows each is used.
fn attention_choices(kv: &KvCache, heads: usize) -> Result<[(String, Grid); 2], RunError> {
    let head_dim = kv.shape.head_dim;
    let fitting = HEADS.into_iter().find(|(dim, _, _)| head_dim <= *dim);
    let Some((dim, few, many)) = fitting else {
        return Err(RunError::UnsupportedOp { op: OpKind::Attention, dtype: None });
    };
    let group = heads / kv.shape.kv_heads;
    let each = |slots: usize| kv.shape.kv_heads * group.div_ceil(slots);
    let spanned = Grid::Tiles { y: each(few) * SPANS, rows_each: 1, from: 1, up_to: SPANNED_ROWS_MAX };
    let whole = Grid::Tiles {
        y: each(many),
        rows_each: (many / group).max(1),
        from: SPANNED_ROWS_MAX + 1,
        up_to: usize::MAX,
    };
    Ok([(format!("attention_few_{dim}"), spanned), (format!("attention_many_{dim}"), whole)])
}

/// The products at the beginning of `ops` that one launch does: of the same x, type, width and rows, and none
/// of them writes what another does.
fn products_together(ops: &[Op]) -> &[Op] {
    let shares = |first: &Op, other: &Op| match (first, other) {
        (
            Op::MatMul { weight, x, rows, .. },
            Op::MatMul { weight: other_weight, x: other_x, rows: other_rows, .. },
        ) => {
            let is_alike = weight.dtype == other_weight.dtype && weight.cols == other_weight.cols;
            is_alike && same_buffer(x, other_x) && rows == other_rows
        }
        _ => false,
    };
    let result = |op: &Op| match op {
        Op::MatMul { out, .. } => Some(out.clone()),
        _ => None,
    };
    let is_other = |op: &Op, before: &[Op]| {
        result(op).is_some_and(|out| before.iter().filter_map(result).all(|other| !same_buffer(&out, &other)))
    };
    let count = (1..ops.len().min(PRODUCTS_MAX))
        .take_while(|i| shares(&ops[0], &ops[*i]) && is_other(&ops[*i], &ops[..*i]))
        .count();
    &ops[..1 + count]
}

/// What the op behind a product adds its result to, if its kernel can do that as well.
fn sum_behind<'a>(product: &Op, behind: &'a [Op]) -> Option<&'a Buffer> {
    let (Op::MatMul { weight, x: from, out, rows: Rows::Tokens, .. }, Some(Op::Add { x, y, width })) =
        (product, behind.first())
    else {
        return None;
    };
    let fits = same_buffer(out, y) && !same_buffer(x, y) && !same_buffer(x, from) && *width == weight.rows;
    fits.then_some(x)
}

/// What is rotated behind `rope` in the same way.
fn second_rope<'a>(rope: &Op, behind: &'a [Op]) -> Option<(&'a Buffer, usize)> {
    let (
        Op::Rope { x, positions, frequencies, heads: _, head_dim, style },
        Some(Op::Rope {
            x: second,
            positions: second_positions,
            frequencies: second_frequencies,
            heads,
            head_dim: second_dim,
            style: second_style,
        }),
    ) = (rope, behind.first())
    else {
        return None;
    };
    let is_alike = same_buffer(positions, second_positions)
        && Arc::ptr_eq(&frequencies.storage, &second_frequencies.storage)
        && (head_dim, style) == (second_dim, second_style);
    (is_alike && !same_buffer(x, second)).then_some((second, *heads))
}

/// What a thread block of a kernel takes, and for how many rows the kernel is used.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    outputs: usize,
    rows_each: usize,
    from: usize,
    up_to: usize,
}

/// The kernels that multiply with weights of so many rows each.
fn choices(dtype: DType, outputs: [usize; 3], device: &DeviceInner) -> Vec<(File, &'static str, u32, Tiles)> {
    let has_tensor_cores = device.has_tensor_cores;
    let tiles = |outputs, rows_each, from, up_to| Tiles { outputs, rows_each, from, up_to };
    if has_tensor_cores && matches!(dtype, DType::F16 | DType::BF16) {
        let few = tiles(HALF_OUTPUTS, HALF_ROWS, 1, HALF_FEW_ROWS_MAX);
        let many = tiles(HALF_TILE, HALF_TILE, HALF_FEW_ROWS_MAX + 1, usize::MAX);
        return vec![
            (File::MatMulHalfMma, "matmul_half_few", WARP, few),
            (File::MatMulHalfMma, "matmul_half_many", 8 * WARP, many),
        ];
    }
    let has_super = matches!(dtype, DType::Q4_K | DType::Q5_K | DType::Q6_K);
    let vec1_outputs = if has_super { VEC_OUTPUTS_SUPER } else { VEC_OUTPUTS };
    let is_mma = has_tensor_cores && dtype.is_quantised();
    let few_max = if is_mma { FEW_ROWS_MAX_MMA } else { FEW_ROWS_MAX };
    let mut choices = vec![
        (File::MatMulVec, "matmul_vec1", 128, tiles(vec1_outputs, 1, 1, 1)),
        (File::MatMulVec, "matmul_vec4", 128, tiles(VEC_OUTPUTS, 4, 2, few_max)),
    ];
    let many_from = few_max + 1;
    if is_mma {
        // Rows of x that fill a small tile and are too few for as many large ones as a card has room for.
        let tiles_along: usize = outputs.iter().map(|outputs| outputs.div_ceil(TILE)).sum();
        let columns_min = device.large_tiles_min.div_ceil(tiles_along.max(1));
        let some_max = TILE.max((columns_min - 1) * LARGE_TILE);
        choices.push((File::MatMulMma, "matmul_mma_some", 256, tiles(TILE, TILE, many_from, some_max)));
        let many = tiles(TILE, LARGE_TILE, some_max + 1, usize::MAX);
        choices.push((File::MatMulMma, "matmul_mma_many", 256, many));
    } else {
        choices.push((File::MatMulTile, "matmul_tile", 256, tiles(TILE, TILE, many_from, usize::MAX)));
    }
    choices
}

fn numbers<const N: usize>(values: [usize; N]) -> Vec<u32> {
    values.into_iter().map(|value| value as u32).collect()
}

/// Threads that write a row of the cache.
fn kv_row_threads(dtype: KvDType, head_dim: usize) -> usize {
    match dtype {
        KvDType::F32 | KvDType::F16 => head_dim,
        KvDType::Q8 => head_dim.div_ceil(KvDType::GROUP),
    }
}
