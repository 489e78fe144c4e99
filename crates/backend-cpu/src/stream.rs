//! A stream of the processor: every call does its work before it returns.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    Buffer, CancelToken, Element, Exchange, KvCache, OpKind, Program, RunError, RunShape, Stream, same_buffer,
};

use crate::device::Shop;
use crate::kv_q8;
use crate::math;
use crate::program::CpuProgram;
use crate::storage::{self, BufferData, KvData, kv_groups, page_elements, page_start};

/// Work on the processor. Nothing is queued, so a deadline has nothing to wait for and cannot pass.
#[derive(Debug)]
pub struct CpuStream {
    shop: Arc<Shop>,
}

impl CpuStream {
    pub(crate) fn new(shop: &Arc<Shop>) -> Self {
        Self { shop: Arc::clone(shop) }
    }

    fn page(&self, kv: &KvCache, layer: usize, page: usize) -> Result<Range<usize>, RunError> {
        let op = OpKind::KvWrite;
        let check = |what, value: usize, limit: usize| match value < limit {
            true => Ok(()),
            false => Err(RunError::OutOfRange { op, what, value: value as u64, limit: limit as u64 }),
        };
        check("layer", layer, kv.shape.layers)?;
        check("page", page, kv.shape.pages)?;
        let start = page_start(&kv.shape, layer, page);
        Ok(start..start + page_elements(&kv.shape))
    }
}

/// The rows of a page of a Q8 cache: where their quants are, and their scales.
fn rows_of_q8(kv: &KvCache, page: Range<usize>) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let (d, groups) = (kv.shape.head_dim, kv_groups(kv.shape.head_dim));
    page.step_by(d).map(move |at| (at..at + d, at / d * groups..(at / d + 1) * groups))
}

/// Panics unless `len` elements from `at` on are within `buffer`.
fn assert_fits(buffer: &Buffer, element: Element, at: usize, len: usize) {
    assert!(buffer.element == element, "{buffer:?} does not hold {}", storage::element_name(element));
    let fits = at.checked_add(len).is_some_and(|end| end <= buffer.len);
    assert!(fits, "{len} elements from {at} on do not fit {buffer:?}");
}

impl Stream for CpuStream {
    fn upload_f32(&mut self, to: &Buffer, at: usize, data: &[f32]) -> Result<(), RunError> {
        assert_fits(to, Element::F32, at, data.len());
        storage::buffer(to, self.shop.owner).f32().write()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn upload_u32(&mut self, to: &Buffer, at: usize, data: &[u32]) -> Result<(), RunError> {
        assert_fits(to, Element::U32, at, data.len());
        storage::buffer(to, self.shop.owner).u32().write()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        let program = program.as_any().downcast_ref::<CpuProgram>();
        let program = program.unwrap_or_else(|| panic!("the program was compiled by another backend"));
        program.run(&self.shop, shape, exchange, cancel)
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        assert_fits(from, to.element, 0, len);
        assert_fits(to, from.element, 0, len);
        let owner = self.shop.owner;
        let (source, target) = (storage::buffer(from, owner), storage::buffer(to, owner));
        if same_buffer(from, to) {
            return Ok(());
        }
        let _turn = self.shop.pool.turn();
        match &source.data {
            BufferData::F32(data) => target.f32().write()[..len].copy_from_slice(&data.read()[..len]),
            BufferData::U32(data) => target.u32().write()[..len].copy_from_slice(&data.read()[..len]),
        }
        Ok(())
    }

    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        _deadline: Duration,
    ) -> Result<(), RunError> {
        assert_fits(from, Element::F32, at, into.len());
        into.copy_from_slice(&storage::buffer(from, self.shop.owner).f32().read()[at..at + into.len()]);
        Ok(())
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), RunError> {
        Ok(())
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        let range = self.page(kv, layer, page)?;
        Ok(match &storage::kv(kv, self.shop.owner).data {
            KvData::F32(data) => data.read()[range].to_vec(),
            KvData::F16(data) => data.read()[range].iter().map(|bits| math::f16(*bits)).collect(),
            KvData::Q8 { quants, scales } => {
                let (quants, scales) = (quants.read(), scales.read());
                let rows = rows_of_q8(kv, range);
                rows.flat_map(|(row, groups)| kv_q8::dequantise(&quants[row], &scales[groups])).collect()
            }
        })
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        let range = self.page(kv, layer, page)?;
        assert!(data.len() == range.len(), "a page has {} elements, not {}", range.len(), data.len());
        match &storage::kv(kv, self.shop.owner).data {
            KvData::F32(to) => to.write()[range].copy_from_slice(data),
            KvData::F16(to) => {
                for (slot, value) in to.write()[range].iter_mut().zip(data) {
                    *slot = math::to_f16(*value);
                }
            }
            KvData::Q8 { quants, scales } => {
                let (mut quants, mut scales) = (quants.write(), scales.write());
                let rows = data.chunks_exact(kv.shape.head_dim).zip(rows_of_q8(kv, range));
                for (values, (row, groups)) in rows {
                    kv_q8::quantise(values, &mut quants[row], &mut scales[groups]);
                }
            }
        }
        Ok(())
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        for layer in 0..kv.shape.layers {
            let range = self.page(kv, layer, page)?;
            match &storage::kv(kv, self.shop.owner).data {
                KvData::F32(data) => data.write()[range].fill(0.0),
                KvData::F16(data) => data.write()[range].fill(0),
                KvData::Q8 { quants, scales } => {
                    for (_, groups) in rows_of_q8(kv, range.clone()) {
                        scales.write()[groups].fill(0);
                    }
                    quants.write()[range].fill(0);
                }
            }
        }
        Ok(())
    }
}
