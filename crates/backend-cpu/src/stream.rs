//! A stream of the processor: every call does its work before it returns.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    Buffer, CancelToken, Element, Exchange, KvCache, KvShape, Program, RunError, RunShape, Stream,
    same_buffer,
};

use crate::inner::DeviceInner;
use crate::kv::{self, BLOCK, Half, WriteRow, read_row};
use crate::program::CpuProgram;
use crate::storage::{self, BufferData};

/// Work on the processor. Nothing is queued, so a deadline has nothing to wait for and cannot pass.
#[derive(Debug)]
pub struct CpuStream {
    inner: Arc<DeviceInner>,
}

impl CpuStream {
    pub(crate) fn new(inner: &Arc<DeviceInner>) -> Self {
        Self { inner: Arc::clone(inner) }
    }

    /// The bytes of a page of a layer.
    fn page(&self, kv: &KvCache, layer: usize, page: usize) -> Result<Range<usize>, RunError> {
        kv.check_page(layer, page)?;
        let layout = &kv::of(kv, self.inner.owner).layout;
        let start = layout.page(layer, page);
        Ok(start..start + layout.page_bytes())
    }
}

impl Stream for CpuStream {
    fn upload_f32(&mut self, to: &Buffer, at: usize, data: &[f32]) -> Result<(), RunError> {
        to.assert_fits(Element::F32, at, data.len());
        storage::buffer(to, self.inner.owner).f32().write()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn upload_u32(&mut self, to: &Buffer, at: usize, data: &[u32]) -> Result<(), RunError> {
        to.assert_fits(Element::U32, at, data.len());
        storage::buffer(to, self.inner.owner).u32().write()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        let program: &CpuProgram = self.inner.owner.behind(program, &"the program");
        program.run(&self.inner, shape, exchange, cancel)
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let owner = self.inner.owner;
        let (source, target) = (storage::buffer(from, owner), storage::buffer(to, owner));
        if same_buffer(from, to) {
            return Ok(());
        }
        let _turn = self.inner.pool.turn();
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
        from.assert_fits(Element::F32, at, into.len());
        into.copy_from_slice(&storage::buffer(from, self.inner.owner).f32().read()[at..at + into.len()]);
        Ok(())
    }

    fn show_f32(
        &mut self,
        from: &Buffer,
        elements: Range<usize>,
        _room: &mut Vec<f32>,
        _deadline: Duration,
        see: &mut dyn FnMut(&[f32]),
    ) -> Result<(), RunError> {
        from.assert_fits(Element::F32, elements.start, elements.len());
        see(&storage::buffer(from, self.inner.owner).f32().read()[elements]);
        Ok(())
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), RunError> {
        Ok(())
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        kv.check_page(layer, page)?;
        let KvShape { kv_heads, page_tokens, head_dim, .. } = kv.shape;
        let mut data = vec![0.0; kv.shape.page_elements()];
        let kv = kv::of(kv, self.inner.owner);
        let (layout, bytes) = (&kv.layout, kv.read());
        let rows = [Half::Keys, Half::Values].into_iter().flat_map(|half| {
            (0..kv_heads).flat_map(move |head| (0..page_tokens).map(move |slot| (half, head, slot)))
        });
        for (row, (half, head, slot)) in data.chunks_exact_mut(head_dim).zip(rows) {
            let block = layout.block(layer, page, head, slot);
            read_row(layout, &bytes[block..block + layout.block_bytes()], half, slot % BLOCK, row);
        }
        Ok(data)
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        kv.check_page(layer, page)?;
        let KvShape { page_tokens, head_dim, .. } = kv.shape;
        let len = kv.shape.page_elements();
        kv.shape.assert_page(data);
        let kv = kv::of(kv, self.inner.owner);
        let (layout, mut bytes) = (&kv.layout, kv.write());
        let (keys, values) = data.split_at(len / 2);
        let rows = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (i, (key, value)) in rows.enumerate() {
            let (head, slot) = (i / page_tokens, i % page_tokens);
            let start = layout.block(layer, page, head, slot);
            let block = &mut bytes[start..start + layout.block_bytes()];
            self.inner.level.dispatch(WriteRow { layout, block, slot: slot % BLOCK, key, value });
        }
        Ok(())
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        for layer in 0..kv.shape.layers {
            let range = self.page(kv, layer, page)?;
            kv::of(kv, self.inner.owner).write()[range].fill(0);
        }
        Ok(())
    }
}
