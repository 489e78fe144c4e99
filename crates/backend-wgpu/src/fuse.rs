//! Ops that become one dispatch together. Each fused kernel writes what its ops write, bit for bit, so that
//! no one has to know whether a buffer is read again.
//!
//! | ops                                                        | kernel            | rows         |
//! |------------------------------------------------------------|-------------------|--------------|
//! | Add, RmsNorm of the sum                                     | rms_norm.wgsl     | any          |
//! | MatMul two or three times, of one x                         | matmul_vec.wgsl   | up to eight  |
//! | MatMul twice, of one x, and SwiGlu of the results           | matmul_gated.wgsl | up to eight  |
//! | RmsNorm of q and k or not, Rope of q and k, KvWrite         | heads.wgsl        | any          |
//!
//! With more rows, products are bound by arithmetic and are dispatched one by one. A device with few bindings
//! to a kernel gets its ops one by one too.

use exo_backend::{Buffer, Op, RopeStyle, Rows, RunError, Weight, same_buffer};

use crate::dispatch::products::{self, FACTORS_MAX, FEW_TOKENS_MAX, Factor};
use crate::dispatch::{Grid, PlannedDispatch, numbers, of_kv, of_rows, paged, plan, vector};
use crate::inner::DeviceInner;
use crate::shader::{HEAD_DIM_MAX, Kernel};
use crate::storage;

/// How many of the first ops go together, and their dispatches; `None` if the first stays alone.
pub(crate) fn first_together(
    device: &DeviceInner,
    ops: &[Op],
) -> Result<Option<(usize, Vec<PlannedDispatch>)>, RunError> {
    if !device.is_fusing {
        return Ok(None);
    }
    let found = match ops {
        [Op::Add { .. }, Op::RmsNorm { .. }, ..] => {
            sum_and_norm(device, &ops[..2])?.map(|plan| (2, vec![plan]))
        }
        [Op::MatMul { .. }, ..] => match gated(device, ops)? {
            Some(plans) => Some((3, plans)),
            None => several(device, ops)?,
        },
        [Op::RmsNorm { .. } | Op::Rope { .. }, ..] => {
            heads(device, ops)?.map(|(taken, plan)| (taken, vec![plan]))
        }
        _ => None,
    };
    // One binding is taken by the place for faults.
    let fits = |plan: &PlannedDispatch| plan.operands.len() < device.storage_buffers_max && plan.fits();
    Ok(found.filter(|(_, plans)| plans.iter().all(fits)))
}

fn raw(device: &DeviceInner, handle: &Buffer) -> wgpu::Buffer {
    storage::buffer(handle, device.owner).data.buffer.clone()
}

fn sum_and_norm(device: &DeviceInner, ops: &[Op]) -> Result<Option<PlannedDispatch>, RunError> {
    let [Op::Add { x, y, width }, norm @ Op::RmsNorm { x: of, weight, out, eps, groups, rows }] = ops else {
        return Ok(None);
    };
    let distinct = !same_buffer(x, y) && !same_buffer(x, out) && !same_buffer(y, out);
    let fits = *groups == 1 && weight.cols == *width && *rows == Rows::Tokens;
    if !(distinct && fits && same_buffer(x, of)) {
        return Ok(None);
    }
    let mut numbers = numbers([*width, 1]);
    numbers.push(eps.to_bits());
    let operands =
        vec![vector(device, weight, norm.kind())?, raw(device, out), raw(device, x), raw(device, y)];
    let variant = of_rows(Kernel::RmsNorm, *rows).flag("SUM", true);
    Ok(Some(PlannedDispatch { variant, numbers, operands, grid: Grid::each(1, *rows) }))
}

/// Operands of a product.
type Product<'a> = (&'a Weight, Option<&'a Weight>, &'a Buffer, &'a Buffer, Rows);

fn product(op: &Op) -> Option<Product<'_>> {
    match op {
        Op::MatMul { weight, bias, x, out, rows } => Some((weight, bias.as_ref(), x, out, *rows)),
        _ => None,
    }
}

/// The products at the start of `ops` that share x and write to different buffers, at most `count_max`.
fn of_one_x(ops: &[Op], count_max: usize) -> Vec<Product<'_>> {
    let mut found: Vec<Product<'_>> = Vec::new();
    for op in ops.iter().take(count_max).map_while(product) {
        let goes = found.iter().all(|(weight, _, x, out, rows)| {
            weight.cols == op.0.cols && same_buffer(x, op.2) && !same_buffer(out, op.3) && *rows == op.4
        });
        if !goes {
            break;
        }
        found.push(op);
    }
    found
}

fn factors<'a>(device: &'a DeviceInner, products: &[Product<'a>]) -> Result<Vec<Factor<'a>>, RunError> {
    products.iter().map(|(weight, bias, _, out, _)| Factor::new(device, weight, *bias, out)).collect()
}

/// For few rows together, for more one by one.
fn several(device: &DeviceInner, ops: &[Op]) -> Result<Option<(usize, Vec<PlannedDispatch>)>, RunError> {
    let found = of_one_x(ops, FACTORS_MAX);
    let [(_, _, x, _, rows), _, ..] = found[..] else { return Ok(None) };
    let (factors, x) = (factors(device, &found)?, raw(device, x));
    let plans = products::together(&factors, &x, rows, Kernel::MatMulVec).map(|mut plans| {
        let many = factors.iter().flat_map(|factor| factor.plans(x.clone(), rows, FEW_TOKENS_MAX + 1));
        plans.extend(many);
        plans
    });
    Ok(plans.map(|plans| (factors.len(), plans)))
}

fn gated(device: &DeviceInner, ops: &[Op]) -> Result<Option<Vec<PlannedDispatch>>, RunError> {
    let [_, _, swiglu @ Op::SwiGlu { gate, up, out, width }, ..] = ops else { return Ok(None) };
    let found = of_one_x(ops, 2);
    let [(w0, _, x, gates, rows), (w1, _, _, ups, _)] = found[..] else { return Ok(None) };
    let joined = same_buffer(gates, gate) && same_buffer(ups, up) && same_buffer(gate, out);
    if !joined || rows != Rows::Tokens || w0.rows != *width || w1.rows != *width {
        return Ok(None);
    }
    let (factors, x) = (factors(device, &found)?, raw(device, x));
    let Some(mut plans) = products::together(&factors, &x, rows, Kernel::MatMulGated) else {
        return Ok(None);
    };
    plans.extend(factors.iter().flat_map(|factor| factor.plans(x.clone(), rows, FEW_TOKENS_MAX + 1)));
    let first = plans.len();
    plan(device, swiglu, &mut plans)?;
    plans[first..].iter_mut().for_each(|plan| plan.grid.from = FEW_TOKENS_MAX + 1);
    Ok(Some(plans))
}

/// A norm of heads in place: the heads, their weight, its eps and how many there are to a row.
fn norm_of_heads(op: &Op) -> Option<(&Buffer, &Weight, f32, usize)> {
    match op {
        Op::RmsNorm { x, weight, out, eps, groups, rows: Rows::Tokens } if same_buffer(x, out) => {
            Some((x, weight, *eps, *groups))
        }
        _ => None,
    }
}

/// The ops from the products to attention, and how many they are.
fn heads(device: &DeviceInner, ops: &[Op]) -> Result<Option<(usize, PlannedDispatch)>, RunError> {
    let (norms, rest) = match ops {
        [first, second, rest @ ..] => match (norm_of_heads(first), norm_of_heads(second)) {
            (Some(q), Some(k)) => (Some((q, k)), rest),
            _ => (None, ops),
        },
        _ => return Ok(None),
    };
    let [rope @ Op::Rope { x: q, heads, .. }, rope_k @ Op::Rope { x: k, .. }, write, ..] = rest else {
        return Ok(None);
    };
    let Op::KvWrite { kv, layer, k: key, v, batch } = write else { return Ok(None) };
    let Op::Rope { positions, frequencies, head_dim, style, .. } = rope else { return Ok(None) };
    let distinct = !same_buffer(q, k) && !same_buffer(q, v) && !same_buffer(k, v);
    let joined = distinct && same_buffer(k, key) && same_buffer(positions, &batch.positions);
    let normed = norms.is_none_or(|(of_q, of_k)| {
        let fits = |norm: (&Buffer, &Weight, f32, usize), x, count| {
            same_buffer(norm.0, x) && norm.1.cols == *head_dim && norm.3 == count
        };
        fits(of_q, q, *heads) && fits(of_k, k, kv.shape.kv_heads) && of_q.2 == of_k.2
    });
    let fits = kv.shape.head_dim == *head_dim && *head_dim <= HEAD_DIM_MAX as usize;
    if !(joined && normed && fits && is_same_turn(rope, rope_k, kv.shape.kv_heads)) {
        return Ok(None);
    }
    // In parts it is written by dispatches of their own.
    let [stored] = &storage::kv(kv, device.owner).layers[*layer][..] else { return Ok(None) };
    let (mut numbers, mut operands) = paged(device, kv, stored, batch);
    let eps = norms.map_or(0.0, |(of_q, _)| of_q.2);
    numbers.extend([*heads as u32, frequencies.cols as u32, eps.to_bits()]);
    operands.extend([q, k, v].map(|handle| raw(device, handle)));
    operands.push(vector(device, frequencies, rope.kind())?);
    if let Some((of_q, of_k)) = norms {
        operands.extend([vector(device, of_q.1, ops[0].kind())?, vector(device, of_k.1, ops[1].kind())?]);
    }
    operands.extend([stored.keys.clone(), stored.values.clone()]);
    let variant = of_kv(Kernel::Heads, kv.shape.dtype)
        .flag("NORM", norms.is_some())
        .flag("INTERLEAVED", *style == RopeStyle::Interleaved)
        .number("HEAD_DIM_MAX", HEAD_DIM_MAX);
    let grid = Grid::each(heads + kv.shape.kv_heads, Rows::Tokens);
    let taken = if norms.is_some() { 5 } else { 3 };
    Ok(Some((taken, PlannedDispatch { variant, numbers, operands, grid })))
}

/// Whether two rotations differ in their heads alone, of which the second has `heads`.
fn is_same_turn(a: &Op, b: &Op, heads: usize) -> bool {
    match (a, b) {
        (
            Op::Rope { positions, frequencies, head_dim, style, .. },
            Op::Rope { positions: p, frequencies: f, heads: h, head_dim: d, style: s, .. },
        ) => {
            let same_weight = std::ptr::addr_eq(
                std::sync::Arc::as_ptr(&frequencies.storage),
                std::sync::Arc::as_ptr(&f.storage),
            );
            same_weight && same_buffer(positions, p) && head_dim == d && style == s && *h == heads
        }
        _ => false,
    }
}
