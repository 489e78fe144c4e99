//! Attention over paged keys and values.

use exo_backend::RunError;

use super::paging::Paging;
use crate::isa::{Kernel, Level};
use crate::math::exp;
use crate::pool::Turn;
use crate::simd::{F16Bytes, F32Row, Q8Row, Row, Simd, axpy, dot};
use crate::storage::{CpuKv, KvData, kv_groups};

/// Weighs the cached values of each row's sequence by how well their keys match the row's query.
///
/// `out[t, h] = softmax_p(q[t, h] · key[p] · scale) · value[p]` over the positions of [`Paging::span`]
///
/// | operand    | shape       | layout                                  | type       |
/// |------------|-------------|-----------------------------------------|------------|
/// | `q`, `out` | `[T, H, D]` | rows contiguous                         | f32        |
/// | keys       | `[K, P, D]` | first half of a page                    | stored     |
/// | values     | `[K, P, D]` | second half of a page                   | stored     |
///
/// One query head of one row goes through its pages in order, keeping the largest score
/// so far and rescaling what it has when a page holds a larger one (online softmax), so its result depends on its own
/// positions and on P alone. Cost: reads each page once for every query head; decode is bound by that.
/// Sources: Vaswani et al. 2017, arXiv:1706.03762; Milakov & Gimelshein 2018, arXiv:1805.02867.
pub(super) fn attention(
    turn: &Turn<'_>,
    level: Level,
    out: &mut [f32],
    q: &[f32],
    kv: &CpuKv,
    paging: &Paging<'_>,
    heads: usize,
    scale: f32,
    window: Option<u32>,
) -> Result<(), RunError> {
    paging.check(|t| paging.span(t, window))?;
    let shape = Shape { heads, scale, window };
    match &kv.data {
        KvData::F32(data) => {
            let data = data.read();
            each_head(turn, level, out, q, paging, &shape, |range| F32Row(&data[range]));
        }
        KvData::F16(data) => {
            let data = data.read();
            each_head(turn, level, out, q, paging, &shape, |range| {
                F16Bytes(bytemuck::cast_slice(&data[range]))
            });
        }
        KvData::Q8 { quants, scales } => {
            let (quants, scales) = (quants.read(), scales.read());
            let (d, groups) = (paging.shape.head_dim, kv_groups(paging.shape.head_dim));
            let row = |range: Elements| Q8Row {
                scales: &scales[range.start / d * groups..][..groups],
                quants: &quants[range],
            };
            each_head(turn, level, out, q, paging, &shape, row);
        }
    }
    Ok(())
}

struct Shape {
    heads: usize,
    scale: f32,
    window: Option<u32>,
}

type Elements = std::ops::Range<usize>;

fn each_head<E: Row>(
    turn: &Turn<'_>,
    level: Level,
    out: &mut [f32],
    q: &[f32],
    paging: &Paging<'_>,
    shape: &Shape,
    elements: impl Fn(Elements) -> E + Sync,
) {
    let d = paging.shape.head_dim;
    // The heads that read the same keys are one piece.
    let group = shape.heads / paging.shape.kv_heads;
    turn.chunks_mut(out, group * d, |i, out| {
        let mut scores = vec![0.0; paging.shape.page_tokens];
        let first = i * group;
        let q = &q[first * d..][..out.len()];
        for (i, (out, q)) in (first..).zip(out.chunks_exact_mut(d).zip(q.chunks_exact(d))) {
            let (t, head, scores) = (i / shape.heads, i % shape.heads, &mut scores[..]);
            level.dispatch(Head { out, q, paging, shape, t, head, scores, elements: &elements });
        }
    });
}

struct Head<'a, F> {
    out: &'a mut [f32],
    q: &'a [f32],
    paging: &'a Paging<'a>,
    shape: &'a Shape,
    t: usize,
    head: usize,
    /// Room for one page.
    scores: &'a mut [f32],
    elements: &'a F,
}

impl<E: Row, F: Fn(Elements) -> E> Kernel for Head<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let kv = &self.paging.shape;
        let (p, d) = (kv.page_tokens, kv.head_dim);
        let kv_head = self.head * kv.kv_heads / self.shape.heads;
        let span = self.paging.span(self.t, self.shape.window);
        self.out.fill(0.0);
        let (mut largest, mut total) = (f32::NEG_INFINITY, 0.0f32);
        for page in span.start() / p..=span.end() / p {
            let slots = span.start().saturating_sub(page * p)..(span.end() + 1 - page * p).min(p);
            let keys = self.paging.page(self.t, page * p) + kv_head * p * d;
            let values = keys + kv.kv_heads * p * d;
            let scores = &mut self.scores[slots.clone()];
            for (score, slot) in scores.iter_mut().zip(slots.clone()) {
                let key = (self.elements)(keys + slot * d..keys + (slot + 1) * d);
                *score = dot(simd, F32Row(self.q), key, d) * self.shape.scale;
            }
            let before = largest;
            largest = scores.iter().fold(largest, |a, b| a.max(*b));
            let shrink = exp(before - largest);
            for out in self.out.iter_mut() {
                *out *= shrink;
            }
            for score in scores.iter_mut() {
                *score = exp(*score - largest);
            }
            total = total * shrink + scores.iter().sum::<f32>();
            for (weight, slot) in scores.iter().zip(slots) {
                let value = (self.elements)(values + slot * d..values + (slot + 1) * d);
                axpy(simd, *weight, value, self.out);
            }
        }
        for out in self.out.iter_mut() {
            *out /= total;
        }
    }
}
