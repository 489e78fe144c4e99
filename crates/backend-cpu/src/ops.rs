//! One operation per file. Here: locking the operands of an op and calling it.

mod add;
mod arg_max;
mod attention;
mod embed;
mod kv_write;
mod matmul;
mod paging;
mod rms_norm;
mod rope;
mod select_rows;
mod swiglu;

use std::sync::{Mutex, PoisonError};

use exo_backend::{Buffer, Op, OpKind, Rows, RunError, RunShape, same_buffer};

use crate::isa::Level;
use crate::kv;
use crate::pool::PoolGuard;
use crate::storage::{self, CpuBuffer, CpuWeight, Owner};
pub(crate) use matmul::Rounded;
use paging::Paging;
pub(crate) use rope::Angles;

/// Elementwise work below this many elements is done by one thread: sharing it out takes as long.
const PARALLEL_ELEMENTS_MIN: usize = 1 << 15;

/// What every op of a run needs besides its own operands.
pub(crate) struct Operands<'a> {
    pub(crate) owner: Owner,
    pub(crate) level: Level,
    pub(crate) shape: RunShape,
    pub(crate) turn: PoolGuard<'a>,
    /// See [`crate::inner::DeviceInner`].
    pub(crate) rounded: &'a Mutex<Rounded>,
    pub(crate) angles: &'a Mutex<Angles>,
}

impl Operands<'_> {
    fn buffer<'h>(&self, handle: &'h Buffer) -> &'h CpuBuffer {
        storage::buffer(handle, self.owner)
    }

    fn weight<'h>(&self, handle: &'h exo_backend::Weight) -> &'h CpuWeight {
        storage::weight(handle, self.owner)
    }

    fn count(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.shape.tokens,
            Rows::Selected => self.shape.selected,
        }
    }

    /// Copies the first `len` elements of `x` to `out` unless they are one buffer: an op may then work in
    /// place.
    fn bring(&self, x: &Buffer, out: &Buffer, len: usize) {
        if !same_buffer(x, out) {
            self.buffer(out).f32().write()[..len].copy_from_slice(&self.buffer(x).f32().read()[..len]);
        }
    }
}

/// Runs one op. Operands were checked when the program was compiled; only what lies in buffers is checked
/// here.
pub(crate) fn run(op: &Op, on: &Operands<'_>) -> Result<(), RunError> {
    let (turn, level, tokens) = (&on.turn, on.level, on.shape.tokens);
    match op {
        Op::Embed { table, ids, out } => {
            let (ids, mut out) = (on.buffer(ids).u32().read(), on.buffer(out).f32().write());
            embed::embed(level, &mut out[..tokens * table.cols], &on.weight(table).read(), &ids[..tokens])
        }
        Op::RmsNorm { x, weight, out, eps, groups, rows } => {
            let len = on.count(*rows) * groups * weight.cols;
            on.bring(x, out, len);
            let mut out = on.buffer(out).f32().write();
            rms_norm::rms_norm(turn, level, &mut out[..len], on.weight(weight).vector(), *eps);
            Ok(())
        }
        Op::MatMul { .. } => {
            products(std::slice::from_ref(op), on);
            Ok(())
        }
        Op::Rope { x, positions, frequencies, heads, head_dim, style } => {
            let (positions, mut x) = (on.buffer(positions).u32().read(), on.buffer(x).f32().write());
            let x = &mut x[..tokens * heads * head_dim];
            let mut angles = on.angles.lock().unwrap_or_else(PoisonError::into_inner);
            angles.fill(turn, &positions[..tokens], on.weight(frequencies).vector());
            rope::rope(turn, level, x, &angles, *heads, *head_dim, *style);
            Ok(())
        }
        Op::KvWrite { kv, layer, k, v, batch } => {
            let (k, v) = (on.buffer(k).f32().read(), on.buffer(v).f32().read());
            let paging = Paging::new(OpKind::KvWrite, kv, *layer, batch, on);
            kv_write::kv_write(turn, level, kv::of(kv, on.owner), &k, &v, &paging)
        }
        Op::Attention { q, kv, layer, batch, out, heads, scale, window } => {
            let (q, mut out) = (on.buffer(q).f32().read(), on.buffer(out).f32().write());
            let paging = Paging::new(OpKind::Attention, kv, *layer, batch, on);
            let len = tokens * heads * kv.shape.head_dim;
            let kv = kv::of(kv, on.owner);
            let asked =
                attention::AttentionQuery { q: &q[..len], heads: *heads, scale: *scale, window: *window };
            attention::attention(turn, level, &mut out[..len], &asked, kv, &paging)
        }
        Op::SwiGlu { gate, up, out, width } => {
            let len = tokens * width;
            on.bring(gate, out, len);
            let (up, mut out) = (on.buffer(up).f32().read(), on.buffer(out).f32().write());
            swiglu::swiglu(turn, level, &mut out[..len], &up[..len]);
            Ok(())
        }
        Op::Add { x, y, width } => {
            let len = tokens * width;
            if same_buffer(x, y) {
                on.buffer(x).f32().write()[..len].iter_mut().for_each(|x| *x += *x);
            } else {
                let (y, mut x) = (on.buffer(y).f32().read(), on.buffer(x).f32().write());
                add::add(turn, level, &mut x[..len], &y[..len]);
            }
            Ok(())
        }
        Op::SelectRows { x, rows, out, width } => {
            let selected = on.shape.selected;
            let (x, rows) = (on.buffer(x).f32().read(), on.buffer(rows).u32().read());
            let mut out = on.buffer(out).f32().write();
            select_rows::select_rows(
                &mut out[..selected * width],
                &x[..tokens * width],
                &rows[..selected],
                *width,
            )
        }
        Op::ArgMax { x, out, width } => {
            let selected = on.shape.selected;
            let (x, mut out) = (on.buffer(x).f32().read(), on.buffer(out).f32().write());
            arg_max::arg_max(turn, level, &mut out[..selected], &x[..selected * width], *width);
            Ok(())
        }
        Op::Exchange { .. } | Op::LayerBoundary { .. } => Ok(()), // the program's own business
    }
}

/// Whether `next` may be computed together with `op`: two products of the same rows, read at the same width.
pub(crate) fn go_together(op: &Op, next: &Op) -> bool {
    let (
        Op::MatMul { weight, x, rows, out, .. },
        Op::MatMul { weight: w, x: same_x, rows: same_rows, out: other, .. },
    ) = (op, next)
    else {
        return false;
    };
    let same = same_buffer(x, same_x) && rows == same_rows && weight.cols == w.cols;
    same && !same_buffer(out, other) && !same_buffer(out, x) && !same_buffer(other, x)
}

/// Runs products of the same rows, into buffers that differ, as one piece of parallel work.
pub(crate) fn products(ops: &[Op], on: &Operands<'_>) {
    let Some(Op::MatMul { x, rows, weight, .. }) = ops.first() else { return };
    let (x, count) = (on.buffer(x).f32().read(), on.count(*rows));
    let x = &x[..count * weight.cols];
    let mut outs: Vec<_> = ops
        .iter()
        .filter_map(|op| match op {
            Op::MatMul { weight, bias, out, .. } => Some((weight, bias, on.buffer(out).f32().write())),
            _ => None,
        })
        .collect();
    let products: Vec<_> = outs
        .iter_mut()
        .map(|(weight, bias, out)| matmul::Product {
            w: on.weight(weight).read(),
            bias: bias.as_ref().map(|bias| on.weight(bias).vector()),
            out: matmul::Columns::new(&mut out[..count * weight.rows], weight.rows),
        })
        .collect();
    let mut rounded = on.rounded.lock().unwrap_or_else(PoisonError::into_inner);
    matmul::matmul(&on.turn, on.level, &mut rounded, x, &products);
}

/// Fails unless `value < limit`.
fn in_range(op: OpKind, what: &'static str, value: u32, limit: usize) -> Result<usize, RunError> {
    match (value as usize) < limit {
        true => Ok(value as usize),
        false => Err(RunError::OutOfRange { op, what, value: u64::from(value), limit: limit as u64 }),
    }
}
