//! A device that computes nothing and remembers what it was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use exo_backend::{
    AllocError, Buffer, CancelToken, Device, DeviceOwned, Element, Exchange, KvCache, KvShape, MemoryReport,
    Op, OpKind, Owner, Program, Recording, RunError, RunShape, Stream, Support, Weight, WeightError,
};
use exo_types::{DType, DeviceFacts, DeviceId, DeviceKind, KvDType, Monitor, TensorView};

/// What a device was asked, by numbers of weights.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Event {
    Evicted {
        weight: u64,
    },
    EvictedKv {
        dtype: KvDType,
    },
    /// `kv`: of the caches that its attention reads.
    Ran {
        weights: Vec<u64>,
        bytes: u64,
        kv: Vec<KvDType>,
        tokens: usize,
    },
}

type Events = Arc<Mutex<Vec<Event>>>;

pub(crate) struct FakeDevice {
    owner: Owner,
    kind: DeviceKind,
    evict_takes: Duration,
    is_broken: bool,
    weights: Mutex<u64>,
    events: Events,
}

impl FakeDevice {
    pub(crate) fn new(evict_takes: Duration) -> Self {
        let (weights, events) = (Mutex::default(), Events::default());
        let kind = DeviceKind::DiscreteGpu;
        Self { owner: Owner::next(), kind, evict_takes, is_broken: false, weights, events }
    }

    /// One that evicts at once.
    pub(crate) fn processor() -> Self {
        Self { kind: DeviceKind::Cpu, ..Self::new(Duration::ZERO) }
    }

    /// One that cannot be measured.
    pub(crate) fn broken() -> Self {
        Self { is_broken: true, ..Self::new(Duration::ZERO) }
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    fn stored(&self, weights: Vec<u64>) -> Arc<FakeStored> {
        Arc::new(FakeStored { owner: self.owner, weights, bytes: 0, kv: Vec::new() })
    }

    fn number(&self, weight: &Weight) -> u64 {
        self.owner.behind::<FakeStored>(&*weight.storage, weight).weights[0]
    }
}

/// Behind every handle: a weight's own number, those of a program's products and their bytes, and what its
/// attention reads.
struct FakeStored {
    owner: Owner,
    weights: Vec<u64>,
    bytes: u64,
    kv: Vec<KvDType>,
}

impl DeviceOwned for FakeStored {
    fn owner(&self) -> Owner {
        self.owner
    }
}

impl Program for FakeStored {}

#[allow(clippy::disallowed_methods, reason = "a device that takes its time, on a thread of the test")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

impl Device for FakeDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts::unmeasured(DeviceId("fake".to_owned()), self.kind, "fake", "fake", 512 << 20)
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport { total_bytes: 512 << 20, free_bytes: 512 << 20, ..MemoryReport::default() }
    }

    fn monitor(&self) -> Monitor {
        Monitor::default()
    }

    fn supports_op(&self, _: OpKind, _: Option<DType>) -> Support {
        Support::Native
    }

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        if self.is_broken {
            let what = "a buffer of a broken device".to_owned();
            return Err(AllocError::OutOfMemory { what, needed_bytes: len as u64, free_bytes: 0 });
        }
        Ok(Buffer { element, len, storage: self.stored(Vec::new()) })
    }

    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError> {
        let mut weights = self.weights.lock().unwrap();
        *weights += 1;
        Ok(Weight {
            name: tensor.name.as_str().into(),
            dtype: tensor.dtype,
            rows: tensor.rows as usize,
            cols: tensor.cols as usize,
            footprint_bytes: tensor.range.len() as u64,
            storage: self.stored(vec![*weights]),
        })
    }

    fn evict(&self, weight: &Weight) -> bool {
        wait(self.evict_takes);
        self.events.lock().unwrap().push(Event::Evicted { weight: self.number(weight) });
        true
    }

    fn evict_kv(&self, kv: &KvCache) -> bool {
        self.events.lock().unwrap().push(Event::EvictedKv { dtype: kv.shape.dtype });
        true
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError> {
        Ok(KvCache { shape, storage: self.stored(Vec::new()) })
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        let products = recording.ops.iter().filter_map(|op| match op {
            Op::MatMul { weight, .. } => Some((self.number(weight), weight.footprint_bytes)),
            _ => None,
        });
        let (weights, bytes): (Vec<u64>, Vec<u64>) = products.unzip();
        let attention = recording.ops.iter().filter_map(|op| match op {
            Op::Attention { kv, .. } => Some(kv.shape.dtype),
            _ => None,
        });
        let (bytes, kv) = (bytes.iter().sum(), attention.collect());
        Ok(Box::new(FakeStored { owner: self.owner, weights, bytes, kv }))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        Ok(Box::new(FakeStream { owner: self.owner, events: self.events.clone() }))
    }
}

struct FakeStream {
    owner: Owner,
    events: Events,
}

impl Stream for FakeStream {
    fn upload_f32(&mut self, _: &Buffer, _: usize, _: &[f32]) -> Result<(), RunError> {
        Ok(())
    }

    fn upload_u32(&mut self, _: &Buffer, _: usize, _: &[u32]) -> Result<(), RunError> {
        Ok(())
    }

    fn run(
        &mut self,
        program: &dyn Program,
        shape: RunShape,
        _: &dyn Exchange,
        _: &CancelToken,
    ) -> Result<(), RunError> {
        let FakeStored { weights, bytes, kv, .. } = self.owner.behind(program, &"a program");
        let (weights, kv, tokens) = (weights.clone(), kv.clone(), shape.tokens);
        self.events.lock().unwrap().push(Event::Ran { weights, bytes: *bytes, kv, tokens });
        wait(Duration::from_micros(100));
        Ok(())
    }

    fn copy(&mut self, _: &Buffer, _: &Buffer, _: usize) -> Result<(), RunError> {
        Ok(())
    }

    fn download_f32(&mut self, _: &Buffer, _: usize, _: &mut [f32], _: Duration) -> Result<(), RunError> {
        Ok(())
    }

    fn synchronize(&mut self, _: Duration) -> Result<(), RunError> {
        Ok(())
    }

    fn export_kv(&mut self, kv: &KvCache, _: usize, _: usize) -> Result<Vec<f32>, RunError> {
        Ok(vec![0.0; kv.shape.page_elements()])
    }

    fn import_kv(&mut self, _: &KvCache, _: usize, _: usize, _: &[f32]) -> Result<(), RunError> {
        Ok(())
    }

    fn clear_kv(&mut self, _: &KvCache, _: usize) -> Result<(), RunError> {
        Ok(())
    }
}
