//! A stream: a queue of the driver, and what is read back from it.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use exo_backend::{
    AllocError, Buffer, CancelToken, Element, Exchange, FAULT_WORDS, KvCache, Program, RunError, RunShape,
    Stream, complaint, same_buffer,
};

use crate::api::CallError;
use crate::device::Shop;
use crate::driver::{Context, DeviceMemory, Pinned, Queue};
use crate::kv_rows;
use crate::program::{CudaProgram, FAULT_BYTES, Inner, Step, start};
use crate::storage::{self, CudaBuffer};

/// Longest wait for what a caller gives no deadline for.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Waits until everything queued now is done.
pub(crate) fn wait(context: &Context, queue: &Queue, deadline: Duration) -> Result<(), RunError> {
    match queue.drain(deadline).map_err(|error| context.lost_run(&error))? {
        true => Ok(()),
        false => Err(RunError::Deadline { waited_ms: deadline.as_millis() as u64 }),
    }
}

/// Work on a card, in order.
#[derive(Debug)]
pub struct CudaStream {
    pub(crate) shop: Arc<Shop>,
    pub(crate) queue: Queue,
    /// Programs whose kernels may have complained since the last look.
    pending: Vec<Arc<Inner>>,
    /// What the card copies results to, grown as needed.
    staging: Option<Pinned>,
    /// What results were on their way to when a deadline passed: the card may still write to it.
    late: Vec<Pinned>,
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Nobody waits any more, so nobody will know when it is safe to give it back.
        std::mem::forget(std::mem::take(&mut self.late));
    }
}

impl CudaStream {
    pub(crate) fn new(shop: &Arc<Shop>) -> Result<Self, AllocError> {
        let queue = shop.context.queue().map_err(|error| shop.context.lost(&error))?;
        Ok(Self { shop: Arc::clone(shop), queue, pending: Vec::new(), staging: None, late: Vec::new() })
    }

    fn queued(&self, result: Result<(), CallError>) -> Result<(), RunError> {
        result.map_err(|error| self.shop.context.lost_run(&error))
    }

    /// Waits for everything queued, brings `parts` (memory, byte, bytes) to the host, and looks for complaints.
    fn read(&mut self, parts: &[(&DeviceMemory, u64, u64)], deadline: Duration) -> Result<Vec<u8>, RunError> {
        self.shop.context.check()?;
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let total = wanted + FAULT_BYTES * self.pending.len() as u64;
        let mut staging = self.staging(total as usize)?;
        let copied = self.copy_out(parts, &mut staging);
        let done = copied.and_then(|()| wait(&self.shop.context, &self.queue, deadline));
        if done.is_err() {
            self.late.push(staging);
            return done.map(|()| Vec::new());
        }
        // Everything queued is done, the late copies too.
        self.late.clear();
        let mut bytes = vec![0; total as usize];
        staging.read(&mut bytes, 0);
        self.staging = Some(staging);
        let complaints = bytes.split_off(wanted as usize);
        let complaints: Vec<u32> =
            complaints.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        for program in std::mem::take(&mut self.pending) {
            self.queued(self.queue.clear(&program.fault, 0, FAULT_BYTES))?;
        }
        complaints.chunks(FAULT_WORDS).try_for_each(complaint)?;
        Ok(bytes)
    }

    fn copy_out(&self, parts: &[(&DeviceMemory, u64, u64)], staging: &mut Pinned) -> Result<(), RunError> {
        let faults = self.pending.iter().map(|program| (&program.fault, 0, FAULT_BYTES));
        let mut to = 0;
        for (from, at, bytes) in parts.iter().copied().chain(faults) {
            self.queued(self.queue.download(from, at, staging, to, bytes))?;
            to += bytes as usize;
        }
        Ok(())
    }

    fn staging(&mut self, bytes: usize) -> Result<Pinned, RunError> {
        match self.staging.take() {
            Some(staging) if staging.bytes >= bytes => Ok(staging),
            _ => {
                let context = &self.shop.context;
                context.pinned(bytes.next_power_of_two()).map_err(|error| context.lost_run(&error))
            }
        }
    }

    /// Byte and bytes of a page in each of a layer's two halves.
    fn page(&self, kv: &KvCache, layer: usize, page: usize) -> Result<(u64, u64), RunError> {
        kv.check_page(layer, page)?;
        let row_bytes = storage::kv(kv, self.shop.owner).row_bytes;
        let bytes = (kv.shape.kv_heads * kv.shape.page_tokens * row_bytes) as u64;
        Ok((page as u64 * bytes, bytes))
    }

    fn upload(&mut self, to: &Buffer, element: Element, at: usize, data: &[u8]) -> Result<(), RunError> {
        to.assert_fits(element, at, data.len() / 4);
        self.shop.context.check()?;
        let buffer = storage::buffer(to, self.shop.owner);
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

    fn watch(&mut self, program: &Arc<Inner>) {
        if !self.pending.iter().any(|known| Arc::ptr_eq(known, program)) {
            self.pending.push(Arc::clone(program));
        }
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
        let program: &CudaProgram = self.shop.owner.behind(program, &"the program");
        let inner = Arc::clone(&program.inner);
        inner.assert_fits(shape);
        self.shop.context.check()?;
        self.watch(&inner);
        if inner.is_whole(exchange, cancel) {
            return inner.run_whole(&self.shop, &self.queue, shape);
        }
        let ran = self.run_in_pieces(&inner, shape, exchange, cancel);
        // A look in the middle has forgotten it.
        self.watch(&inner);
        ran
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let owner = self.shop.owner;
        let (source, target) = (storage::buffer(from, owner), storage::buffer(to, owner));
        self.shop.context.check()?;
        match same_buffer(from, to) {
            true => Ok(()),
            false => self.queued(self.queue.copy(&source.memory, &target.memory, 4 * len as u64)),
        }
    }

    fn copy_to_peer(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<bool, RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let source = storage::buffer(from, self.shop.owner);
        let target: &dyn Any = &*to.storage;
        let Some(target) = target.downcast_ref::<CudaBuffer>() else { return Ok(false) };
        self.shop.context.check()?;
        // A pair of cards that cannot say whether it may is one that may not: the host's memory is always a way.
        if !self.shop.context.reach(&target.memory).unwrap_or(false) {
            return Ok(false);
        }
        self.queued(self.queue.copy_peer(&source.memory, &target.memory, 4 * len as u64))?;
        // The other card's queues know nothing of this one.
        wait(&self.shop.context, &self.queue, WAIT_MAX)?;
        Ok(true)
    }

    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        deadline: Duration,
    ) -> Result<(), RunError> {
        from.assert_fits(Element::F32, at, into.len());
        let memory = &storage::buffer(from, self.shop.owner).memory;
        let bytes = self.read(&[(memory, 4 * at as u64, 4 * into.len() as u64)], deadline)?;
        bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
        Ok(())
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<(), RunError> {
        self.read(&[], deadline).map(drop)
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let cache = storage::kv(kv, self.shop.owner);
        let stored = &cache.layers[layer];
        let data = self.read(&[(&stored.keys, at, bytes), (&stored.values, at, bytes)], WAIT_MAX)?;
        let mut rows = vec![0.0; kv.shape.page_elements()];
        for (row, bytes) in rows.chunks_mut(kv.shape.head_dim).zip(data.chunks(cache.row_bytes)) {
            kv_rows::decode(kv.shape.dtype, bytes, row);
        }
        Ok(rows)
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let shape = &kv.shape;
        shape.assert_page(data);
        let mut stored = Vec::new();
        data.chunks(shape.head_dim).for_each(|row| kv_rows::encode(shape.dtype, row, &mut stored));
        let (keys, values) = stored.split_at(bytes as usize);
        let target = &storage::kv(kv, self.shop.owner).layers[layer];
        self.shop.context.check()?;
        self.queued(self.queue.upload(&target.keys, at, keys))?;
        self.queued(self.queue.upload(&target.values, at, values))
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        self.shop.context.check()?;
        for (layer, stored) in storage::kv(kv, self.shop.owner).layers.iter().enumerate() {
            let (at, bytes) = self.page(kv, layer, page)?;
            self.queued(self.queue.clear(&stored.keys, at, bytes))?;
            self.queued(self.queue.clear(&stored.values, at, bytes))?;
        }
        Ok(())
    }
}
