//! A device whose kernels report a fault in one chunk of a prompt.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use exo_backend::{
    Activations, AllocError, Buffer, CancelToken, Device, Element, Exchange, KvCache, KvShape, MemoryReport,
    OpKind, Program, Recording, RunError, RunShape, Stream, Support, Weight, WeightError,
};
use exo_types::{DType, DeviceFacts, Monitor, TensorView};

/// `inner`, but for one of the steps of which nothing is read back.
pub struct Faulty {
    inner: Arc<dyn Device>,
    /// How many of them come before.
    good: i32,
    weights_read: AtomicU64,
}

impl Faulty {
    /// The step behind `good` others is the bad one.
    pub fn new(inner: Arc<dyn Device>, good: i32) -> Self {
        Self { inner, good, weights_read: AtomicU64::new(0) }
    }

    /// Bytes of weights that it was given to take in so far.
    pub fn weights_read_bytes(&self) -> u64 {
        self.weights_read.load(Ordering::Relaxed)
    }
}

impl Device for Faulty {
    fn facts(&self) -> DeviceFacts {
        self.inner.facts()
    }

    fn memory(&self) -> MemoryReport {
        self.inner.memory()
    }

    fn monitor(&self) -> Monitor {
        self.inner.monitor()
    }

    fn supports_op(&self, op: OpKind, dtype: Option<DType>) -> Support {
        self.inner.supports_op(op, dtype)
    }

    fn activations(&self, dtype: DType) -> Activations {
        self.inner.activations(dtype)
    }

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        self.inner.buffer(element, len)
    }

    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError> {
        self.weights_read.fetch_add(tensor.bytes().len() as u64, Ordering::Relaxed);
        self.inner.weight(tensor)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError> {
        self.inner.kv_cache(shape)
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        self.inner.compile(recording)
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        let good = AtomicI32::new(self.good);
        Ok(Box::new(FaultyStream { inner: self.inner.stream()?, good }))
    }
}

struct FaultyStream {
    inner: Box<dyn Stream>,
    good: AtomicI32,
}

impl Stream for FaultyStream {
    fn upload_f32(&mut self, to: &Buffer, at: usize, data: &[f32]) -> Result<(), RunError> {
        self.inner.upload_f32(to, at, data)
    }

    fn upload_u32(&mut self, to: &Buffer, at: usize, data: &[u32]) -> Result<(), RunError> {
        self.inner.upload_u32(to, at, data)
    }

    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        exchange: &dyn Exchange,
        cancel: &CancelToken,
    ) -> Result<(), RunError> {
        self.inner.run(program, shape, exchange, cancel)
    }

    fn copy(&mut self, from: &Buffer, to: &Buffer, len: usize) -> Result<(), RunError> {
        self.inner.copy(from, to, len)
    }

    fn download_f32(
        &mut self,
        from: &Buffer,
        at: usize,
        into: &mut [f32],
        deadline: Duration,
    ) -> Result<(), RunError> {
        self.inner.download_f32(from, at, into, deadline)
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<(), RunError> {
        self.inner.synchronize(deadline)?;
        match self.good.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(RunError::OutOfRange { op: OpKind::Attention, what: "page", value: 9, limit: 4 }),
            _ => Ok(()),
        }
    }

    fn export_kv(&mut self, kv: &KvCache, layer: usize, page: usize) -> Result<Vec<f32>, RunError> {
        self.inner.export_kv(kv, layer, page)
    }

    fn import_kv(&mut self, kv: &KvCache, layer: usize, page: usize, data: &[f32]) -> Result<(), RunError> {
        self.inner.import_kv(kv, layer, page, data)
    }

    fn clear_kv(&mut self, kv: &KvCache, page: usize) -> Result<(), RunError> {
        self.inner.clear_kv(kv, page)
    }
}
