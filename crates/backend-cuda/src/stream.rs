//! A stream: a queue of the driver, and what is read back from it.

use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    AllocError, Buffer, CancelToken, Download, Element, Exchange, KvCache, Program, RunError, RunShape,
    Stream, kv_rows, same_buffer,
};

use crate::api::CallError;
use crate::driver::DeviceMemory;
use crate::inner::DeviceInner;
use crate::program::{CudaProgram, Inner, Step, start};
use crate::queue::Queue;
use crate::readback::{Readback, ReadbackQueue};
use crate::storage;

/// Longest wait for what a caller gives no deadline for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Work on a card, in order.
#[derive(Debug)]
pub struct CudaStream {
    pub(crate) device: Arc<DeviceInner>,
    pub(crate) queue: Queue,
    readbacks: Arc<ReadbackQueue>,
}

impl CudaStream {
    pub(crate) fn new(device: &Arc<DeviceInner>) -> Result<Self, AllocError> {
        let queue = Queue::open(&device.context).map_err(|error| device.context.lost(&error))?;
        Ok(Self { device: Arc::clone(device), queue, readbacks: Arc::default() })
    }

    fn queued(&self, result: Result<(), CallError>) -> Result<(), RunError> {
        result.map_err(|error| self.device.context.lost_run(&error))
    }

    /// Queues the way of `parts` (memory, byte, bytes) to the host, and of faults.
    fn read_back(&self, parts: &[(&DeviceMemory, u64, u64)]) -> Result<Readback, RunError> {
        Readback::queue(&self.device, &self.readbacks, &self.queue, parts)
    }

    /// Byte and bytes of a page in each of a layer's two halves.
    fn page(&self, kv: &KvCache, layer: usize, page: usize) -> Result<(u64, u64), RunError> {
        kv.check_page(layer, page)?;
        let row_bytes = storage::kv(kv, self.device.owner).row_bytes;
        let bytes = (kv.shape.kv_heads * kv.shape.page_tokens * row_bytes) as u64;
        Ok((page as u64 * bytes, bytes))
    }

    fn upload(&mut self, to: &Buffer, element: Element, at: usize, data: &[u8]) -> Result<(), RunError> {
        to.assert_fits(element, at, data.len() / 4);
        self.device.context.check()?;
        let buffer = storage::buffer(to, self.device.owner);
        self.queued(self.queue.upload(&buffer.memory, 4 * at as u64, data))
    }

    /// A run that is interrupted: by sums to exchange, or by whoever cancels it between layers.
    fn run_in_pieces(
        &mut self,
        program: &Inner,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        for step in &program.steps {
            match step {
                Step::Launch(kernel) => self.queued(start(&self.queue, kernel, shape))?,
                Step::Exchange { .. } if exchange.is_alone() => {}
                Step::Exchange { x, width } => {
                    let mut partial = vec![0.0; shape.tokens * width];
                    self.download_f32(x, 0, &mut partial, WAIT_MAX)?;
                    exchange.sum(&mut partial)?;
                    self.upload_f32(x, 0, &partial)?;
                }
                Step::LayerBoundary { layer } if cancel.is_cancelled() => {
                    return Err(RunError::Cancelled { layer: *layer });
                }
                Step::LayerBoundary { .. } => {}
            }
        }
        Ok(())
    }
}

impl Stream for CudaStream {
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
        let program: &CudaProgram = self.device.owner.behind(program, &"the program");
        let inner = Arc::clone(&program.inner);
        inner.assert_fits(shape);
        self.device.context.check()?;
        self.readbacks.look_at(&inner);
        if inner.is_whole(exchange, cancel) {
            return inner.run_whole(&self.device, &self.queue, shape);
        }
        let ran = self.run_in_pieces(&inner, shape, exchange, cancel);
        // A look in the middle has forgotten it.
        self.readbacks.look_at(&inner);
        ran
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let owner = self.device.owner;
        let (source, target) = (storage::buffer(from, owner), storage::buffer(to, owner));
        self.device.context.check()?;
        match same_buffer(from, to) {
            true => Ok(()),
            false => self.queued(self.queue.copy(&source.memory, &target.memory, 4 * len as u64)),
        }
    }

    fn download_later(
        &mut self,
        from: &Buffer,
        at: usize,
        len: usize,
    ) -> Result<Box<dyn Download>, RunError> {
        from.assert_fits(Element::F32, at, len);
        let memory = &storage::buffer(from, self.device.owner).memory;
        Ok(Box::new(self.read_back(&[(memory, 4 * at as u64, 4 * len as u64)])?))
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
        self.read_back(&[])?.wait(deadline).map(drop)
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let stored = &storage::kv(kv, self.device.owner).layers[layer];
        let data =
            self.read_back(&[(&stored.keys, at, bytes), (&stored.values, at, bytes)])?.wait(WAIT_MAX)?;
        Ok(kv_rows::load_page(&kv.shape, &data))
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let stored = kv_rows::store_page(&kv.shape, data);
        let (keys, values) = stored.split_at(bytes as usize);
        let target = &storage::kv(kv, self.device.owner).layers[layer];
        self.device.context.check()?;
        self.queued(self.queue.upload(&target.keys, at, keys))?;
        self.queued(self.queue.upload(&target.values, at, values))
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        self.device.context.check()?;
        for (layer, stored) in storage::kv(kv, self.device.owner).layers.iter().enumerate() {
            let (at, bytes) = self.page(kv, layer, page)?;
            self.queued(self.queue.clear(&stored.keys, at, bytes))?;
            self.queued(self.queue.clear(&stored.values, at, bytes))?;
        }
        Ok(())
    }
}
