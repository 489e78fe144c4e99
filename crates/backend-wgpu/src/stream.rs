//! A stream: the device's queue, and what is read back from it.

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    Buffer, CancelToken, Download, Element, Exchange, KvCache, Program, RunError, RunShape, Stream, kv_rows,
    same_buffer,
};

use crate::inner::DeviceInner;
use crate::program::{GpuProgram, SumOver, raw};
use crate::readback::{Readback, ReadbackQueue};
use crate::storage::{self, KvPart};

/// Longest wait for what a caller gives no deadline for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A part of a layer's cache, with byte and bytes of a page in it.
type InPart<'a> = (&'a KvPart, u64, u64);

/// Work on a graphics processor, in order.
#[derive(Debug)]
pub struct GpuStream {
    device: Arc<DeviceInner>,
    readbacks: Arc<ReadbackQueue>,
}

impl Drop for GpuStream {
    /// What was queued is done, whoever asks for it.
    fn drop(&mut self) {
        self.device.queue.flush();
    }
}

impl GpuStream {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Self {
        Self { device: Arc::clone(device), readbacks: Arc::default() }
    }

    /// Queues the way of `parts` (buffer, byte, bytes) to the host, and of faults.
    fn queue(&self, parts: &[(&wgpu::Buffer, u64, u64)]) -> Result<Readback, RunError> {
        Readback::queue(&self.device, &self.readbacks, parts)
    }

    /// Each part of a layer, and byte and bytes of a page in its two buffers.
    fn page<'a>(&self, kv: &'a KvCache, layer: usize, page: usize) -> Result<Vec<InPart<'a>>, RunError> {
        kv.check_page(layer, page)?;
        let cache = storage::kv(kv, self.device.owner);
        let of = |part: &'a KvPart| {
            let bytes = (part.heads * kv.shape.page_tokens * cache.row_bytes) as u64;
            (part, page as u64 * bytes, bytes)
        };
        Ok(cache.layers[layer].iter().map(of).collect())
    }

    fn upload(&mut self, to: &Buffer, element: Element, at: usize, data: &[u8]) -> Result<(), RunError> {
        to.assert_fits(element, at, data.len() / 4);
        let buffer = raw(to, self.device.owner);
        if !data.is_empty() {
            self.device.queue.write(&self.device.memory, buffer, 4 * at as u64, data)?;
        }
        self.device.memory.health.check_run()
    }
}

/// Sums through the host.
struct Through<'a> {
    stream: &'a mut GpuStream,
    exchange: &'a dyn Exchange,
}

impl SumOver for Through<'_> {
    fn sum(&mut self, x: &Buffer, len: usize) -> Result<(), RunError> {
        let mut partial = vec![0.0; len];
        self.stream.download_f32(x, 0, &mut partial, WAIT_MAX)?;
        self.exchange.sum(&mut partial)?;
        self.stream.upload_f32(x, 0, &partial)
    }
}

impl Stream for GpuStream {
    fn upload_f32(&mut self, to: &Buffer, at: usize, data: &[f32]) -> Result<(), RunError> {
        self.upload(to, Element::F32, at, bytemuck::cast_slice(data))
    }

    fn upload_u32(&mut self, to: &Buffer, at: usize, data: &[u32]) -> Result<(), RunError> {
        self.upload(to, Element::U32, at, bytemuck::cast_slice(data))
    }

    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        let program: &GpuProgram = self.device.owner.behind(program, &"the program");
        let inner = Arc::clone(&program.inner);
        self.readbacks.look_at(&inner);
        let device = Arc::clone(&self.device);
        let ran = inner.run(&device, shape, exchange, &mut Through { stream: self, exchange }, cancel);
        // A look in the middle, at an exchange, has forgotten it.
        self.readbacks.look_at(&inner);
        ran
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let (source, target) = (raw(from, self.device.owner), raw(to, self.device.owner));
        if !same_buffer(from, to) && len > 0 {
            let bytes = 4 * len as u64;
            self.device.queue.record(|encoder| encoder.copy_buffer_to_buffer(source, 0, target, 0, bytes));
        }
        self.device.memory.health.check_run()
    }

    fn download_later(
        &mut self,
        from: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<Box<dyn Download>, RunError> {
        from.assert_fits(Element::F32, at, len);
        let device = Arc::clone(&self.device);
        Ok(Box::new(self.queue(&[(raw(from, device.owner), 4 * at as u64, 4 * len as u64)])?))
    }

    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        deadline: Duration,
    ) -> Result<(), RunError> {
        self.download_later(from, at, into.len())?.finish(into, deadline)
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<(), RunError> {
        self.queue(&[])?.wait(deadline).map(drop)
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        let parts = self.page(kv, layer, page)?;
        // The keys of every head, then their values.
        let keys = parts.iter().map(|(part, at, bytes)| (&part.keys, *at, *bytes));
        let values = parts.iter().map(|(part, at, bytes)| (&part.values, *at, *bytes));
        let data = self.queue(&keys.chain(values).collect::<Vec<_>>())?.wait(WAIT_MAX)?;
        Ok(kv_rows::load_page(&kv.shape, &data))
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        let parts = self.page(kv, layer, page)?;
        let stored = kv_rows::store_page(&kv.shape, data);
        let (mut keys, mut values) = stored.split_at(stored.len() / 2);
        for (part, at, bytes) in parts {
            for (left, buffer) in [(&mut keys, &part.keys), (&mut values, &part.values)] {
                let (own, rest) = left.split_at(bytes as usize);
                self.device.queue.write(&self.device.memory, buffer, at, own)?;
                *left = rest;
            }
        }
        self.device.memory.health.check_run()
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        let parts = (0..kv.shape.layers).map(|layer| self.page(kv, layer, page));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        self.device.queue.record(|encoder| {
            for (part, at, bytes) in parts.into_iter().flatten() {
                encoder.clear_buffer(&part.keys, at, Some(bytes));
                encoder.clear_buffer(&part.values, at, Some(bytes));
            }
        });
        self.device.memory.health.check_run()
    }
}
