//! A stream: the device's queue, and what is read back from it.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use exo_backend::{
    Buffer, CancelToken, Element, Exchange, KvCache, Program, RunError, RunShape, Stream, same_buffer,
};

use crate::device::Shop;
use crate::kv_rows;
use crate::program::{self, FAULT_WORDS, GpuProgram, Inner, SumOver, raw};
use crate::storage;

/// Longest wait for what a caller gives no deadline for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Work on a graphics processor, in order.
#[derive(Debug)]
pub struct GpuStream {
    shop: Arc<Shop>,
    /// Programs whose kernels may have complained since the last look.
    pending: Vec<Arc<Inner>>,
    /// What the device copies results to, grown as needed; `None` after a wait that was given up.
    staging: Option<wgpu::Buffer>,
}

impl GpuStream {
    pub(crate) fn new(shop: &Arc<Shop>) -> Self {
        Self { shop: Arc::clone(shop), pending: Vec::new(), staging: None }
    }

    /// Waits for everything queued, brings `parts` (buffer, byte, bytes) to the host, and looks for complaints.
    fn read(&mut self, parts: &[(&wgpu::Buffer, u64, u64)], deadline: Duration) -> Result<Vec<u8>, RunError> {
        self.shop.memory.health.check_run()?;
        let wanted: u64 = parts.iter().map(|(_, _, bytes)| bytes).sum();
        let fault_bytes = 4 * FAULT_WORDS as u64;
        let total = wanted + fault_bytes * self.pending.len() as u64;
        let staging = self.staging(total)?;
        let mut encoder = self.shop.memory.device.create_command_encoder(&Default::default());
        let faults = self.pending.iter().map(|program| (&program.fault, 0, fault_bytes));
        let mut to = 0;
        for (from, at, bytes) in parts.iter().copied().chain(faults) {
            if bytes > 0 {
                encoder.copy_buffer_to_buffer(from, at, &staging, to, bytes);
            }
            to += bytes;
        }
        let submitted = self.shop.queue.submit([encoder.finish()]);
        let mut bytes = self.map(&staging, total, submitted, deadline)?;
        self.staging = Some(staging);
        let complaints: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes.split_off(wanted as usize));
        for program in self.pending.drain(..) {
            self.shop.queue.write_buffer(&program.fault, 0, &[0; 4 * FAULT_WORDS]);
        }
        complaints.chunks(FAULT_WORDS).try_for_each(program::fault)?;
        Ok(bytes)
    }

    fn staging(&mut self, bytes: u64) -> Result<wgpu::Buffer, RunError> {
        match self.staging.take() {
            Some(staging) if staging.size() >= bytes => Ok(staging),
            _ => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                Ok(self.shop.memory.raw("results on their way", bytes.next_power_of_two(), usage)?)
            }
        }
    }

    fn map(
        &self,
        staging: &wgpu::Buffer,
        bytes: u64,
        submitted: wgpu::SubmissionIndex,
        deadline: Duration,
    ) -> Result<Vec<u8>, RunError> {
        let started = Instant::now();
        let (tell, told) = mpsc::channel();
        let length = bytes.next_multiple_of(8).min(staging.size());
        let slice = staging.slice(..length);
        slice.map_async(wgpu::MapMode::Read, move |result| {
            let _ = tell.send(result); // nobody listens after a deadline
        });
        let wait = wgpu::PollType::Wait { submission_index: Some(submitted), timeout: Some(deadline) };
        let waited = self.shop.memory.device.poll(wait);
        let late = || RunError::Deadline { waited_ms: started.elapsed().as_millis() as u64 };
        if let Err(wgpu::PollError::Timeout) = waited {
            return Err(late());
        }
        let left = deadline.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let mapped = told.recv_timeout(left);
        self.shop.memory.health.check_run()?;
        match mapped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                self.shop.memory.health.lost(&error.to_string());
                return self.shop.memory.health.check_run().map(|()| Vec::new());
            }
            Err(_) => return Err(late()),
        }
        let data = match slice.get_mapped_range() {
            Ok(range) => range[..bytes as usize].to_vec(),
            Err(error) => {
                self.shop.memory.health.lost(&error.to_string());
                return self.shop.memory.health.check_run().map(|()| Vec::new());
            }
        };
        staging.unmap();
        Ok(data)
    }

    /// Byte and bytes of a page in each of a layer's two buffers.
    fn page(&self, kv: &KvCache, layer: usize, page: usize) -> Result<(u64, u64), RunError> {
        kv.check_page(layer, page)?;
        let words = storage::kv(kv, self.shop.owner).words;
        let bytes = (4 * kv.shape.kv_heads * kv.shape.page_tokens * words) as u64;
        Ok((page as u64 * bytes, bytes))
    }

    fn upload(&mut self, to: &Buffer, element: Element, at: usize, data: &[u8]) -> Result<(), RunError> {
        to.assert_fits(element, at, data.len() / 4);
        let buffer = raw(to, self.shop.owner);
        if !data.is_empty() {
            self.shop.queue.write_buffer(buffer, 4 * at as u64, data);
        }
        self.shop.memory.health.check_run()
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
        let program: &GpuProgram = self.shop.owner.behind(program, &"the program");
        let inner = Arc::clone(&program.inner);
        if !self.pending.iter().any(|known| Arc::ptr_eq(known, &inner)) {
            self.pending.push(Arc::clone(&inner));
        }
        let shop = Arc::clone(&self.shop);
        inner.run(&shop, shape, exchange, &mut Through { stream: self, exchange }, cancel)
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        from.assert_fits(to.element, 0, len);
        to.assert_fits(from.element, 0, len);
        let (source, target) = (raw(from, self.shop.owner), raw(to, self.shop.owner));
        if !same_buffer(from, to) && len > 0 {
            let mut encoder = self.shop.memory.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(source, 0, target, 0, 4 * len as u64);
            self.shop.queue.submit([encoder.finish()]);
        }
        self.shop.memory.health.check_run()
    }

    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        deadline: Duration,
    ) -> Result<(), RunError> {
        from.assert_fits(Element::F32, at, into.len());
        let shop = Arc::clone(&self.shop);
        let buffer = raw(from, shop.owner);
        let bytes = self.read(&[(buffer, 4 * at as u64, 4 * into.len() as u64)], deadline)?;
        bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
        Ok(())
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<(), RunError> {
        self.read(&[], deadline).map(drop)
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let shop = Arc::clone(&self.shop);
        let cache = storage::kv(kv, shop.owner);
        let stored = &cache.layers[layer];
        let data = self.read(&[(&stored.keys, at, bytes), (&stored.values, at, bytes)], WAIT_MAX)?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&data);
        let mut rows = vec![0.0; kv.shape.page_elements()];
        for (row, words) in rows.chunks_mut(kv.shape.head_dim).zip(words.chunks(cache.words)) {
            kv_rows::decode(kv.shape.dtype, words, row);
        }
        Ok(rows)
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        let (at, bytes) = self.page(kv, layer, page)?;
        let shape = &kv.shape;
        let elements = shape.page_elements();
        assert!(data.len() == elements, "a page has {elements} elements, not {}", data.len());
        let mut words = Vec::new();
        data.chunks(shape.head_dim).for_each(|row| kv_rows::encode(shape.dtype, row, &mut words));
        let (keys, values) = words.split_at(bytes as usize / 4);
        let stored = &storage::kv(kv, self.shop.owner).layers[layer];
        self.shop.queue.write_buffer(&stored.keys, at, bytemuck::cast_slice(keys));
        self.shop.queue.write_buffer(&stored.values, at, bytemuck::cast_slice(values));
        self.shop.memory.health.check_run()
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        let mut encoder = self.shop.memory.device.create_command_encoder(&Default::default());
        for (layer, stored) in storage::kv(kv, self.shop.owner).layers.iter().enumerate() {
            let (at, bytes) = self.page(kv, layer, page)?;
            for buffer in [&stored.keys, &stored.values] {
                encoder.clear_buffer(buffer, at, Some(bytes));
            }
        }
        self.shop.queue.submit([encoder.finish()]);
        self.shop.memory.health.check_run()
    }
}
