//! One card as a [`Device`]: opening it, and giving out memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use exo_backend::{
    Activations, AllocError, Buffer, Device, Element, KvCache, KvShape, Ledger, MemoryReport, Monitor,
    OpKind, Owner, Program, Recording, RunError, Stream, Support, Weight, WeightError, kv_rows,
};
use exo_device::CardSensors;
use exo_types::{DType, DeviceFacts, DeviceId, DeviceKind, TensorView};

use crate::api::{Api, CallError};
use crate::card::Card;
use crate::driver::{Context, Ordinal};
use crate::inner::DeviceInner;
use crate::kernels::Kernels;
use crate::launch::LARGE_TILES_MIN;
use crate::program::CudaProgram;
use crate::queue::Queue;
use crate::storage::{CudaBuffer, CudaKv, KvLayer};
use crate::stream::CudaStream;
use crate::{layout, weight};

/// Left on the card for the driver itself: modules, graphs, the screen.
const RESERVE_BYTES: u64 = 256 << 20;
/// From this compute capability on, halves are multiplied by tensor cores.
const TENSOR_CORES_FROM: (i32, i32) = (8, 0);

/// How to open a card.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Bytes of buffers, weights and caches together; `None` for what is free, less 256 MiB.
    pub memory_limit_bytes: Option<u64>,
    /// Multiplies F16 and BF16 by plain kernels even where the card has tensor cores.
    pub without_tensor_cores: bool,
    /// Multiplies by large tiles however few there are: for tests, whose matrices are small.
    pub large_tiles: bool,
    /// Starts every kernel by itself instead of repeating captured steps.
    pub without_graphs: bool,
}

/// A card could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum OpenError {
    #[error("{name} cannot be used: {trouble}")]
    Unfit { name: String, trouble: String },
    #[error("{name} could not be opened")]
    Refused {
        name: String,
        #[source]
        error: CallError,
    },
}

/// An NVIDIA card, or one of AMD's.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) inner: Arc<DeviceInner>,
    facts: DeviceFacts,
    sensors: CardSensors,
}

impl CudaDevice {
    /// Opens a card. `id` is its name within the node.
    pub fn open(card: &Card, id: DeviceId, options: &CudaOptions) -> Result<Arc<Self>, OpenError> {
        if let Some(trouble) = card.trouble() {
            return Err(OpenError::Unfit { name: card.name.clone(), trouble });
        }
        let refused = |error| OpenError::Refused { name: card.name.clone(), error };
        let context = Context::open(Ordinal { api: card.api, device: card.index as i32 }).map_err(refused)?;
        let (free_bytes, _) = context.memory().map_err(refused)?;
        let limit_bytes =
            options.memory_limit_bytes.unwrap_or_else(|| free_bytes.saturating_sub(RESERVE_BYTES));
        let loading = Mutex::new(Queue::open(&context).map_err(refused)?);
        // AMD's matrix instructions are others.
        let has_tensor_cores = card.api == Api::Cuda && card.capability >= TENSOR_CORES_FROM;
        let has_tensor_cores = has_tensor_cores && !options.without_tensor_cores;
        let inner = Arc::new(DeviceInner {
            owner: Owner::next(),
            context,
            ledger: Ledger::new(limit_bytes),
            kernels: Kernels::default(),
            has_tensor_cores,
            large_tiles_min: if options.large_tiles { 1 } else { LARGE_TILES_MIN },
            has_graphs: !options.without_graphs,
            replays: AtomicU64::new(0),
            loading,
        });
        let sensors = CardSensors::new(card.api.vendor(), Some(&card.pci_address));
        Ok(Arc::new(Self { facts: facts(card, id, limit_bytes), inner, sensors }))
    }

    /// Runs of programs that were launched as graphs so far.
    pub fn replays(&self) -> u64 {
        self.inner.replays.load(Ordering::Relaxed)
    }

    /// Bytes of the card that no one holds, other programs and we; `None` if the driver does not say.
    pub fn card_free_bytes(&self) -> Option<u64> {
        self.inner.context.memory().ok().map(|(free, _)| free)
    }

    /// Whether F16 and BF16 go through tensor cores.
    pub fn has_tensor_cores(&self) -> bool {
        self.inner.has_tensor_cores
    }
}

fn facts(card: &Card, id: DeviceId, limit_bytes: u64) -> DeviceFacts {
    let (support, why) = exo_device::graphics_support(false, card.api.name(), card.architecture());
    let kind = if card.is_integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu };
    DeviceFacts {
        compute_units: card.multiprocessors,
        unsupported_types: DType::ALL.into_iter().filter(|dtype| !layout::is_supported(*dtype)).collect(),
        support,
        support_reason: why.to_owned(),
        ..DeviceFacts::unmeasured(id, kind, &card.name, card.api.name(), limit_bytes)
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { memory_free_bytes: self.memory().free_bytes, ..self.facts.clone() }
    }

    fn memory(&self) -> MemoryReport {
        self.inner.ledger.report(self.inner.context.memory().ok().map(|(free, _)| free))
    }

    /// From the kernel's driver, or from another library of the vendor's, which comes with its driver.
    fn monitor(&self) -> Monitor {
        self.sensors.read()
    }

    fn supports_op(&self, op: OpKind, dtype: Option<DType>) -> Support {
        match (op, dtype) {
            (OpKind::MatMul | OpKind::Embed, Some(dtype)) if !layout::is_supported(dtype) => {
                Support::Unsupported
            }
            _ => Support::Native,
        }
    }

    fn activations(&self, dtype: DType) -> Activations {
        match dtype {
            DType::F16 if self.inner.has_tensor_cores => Activations::RoundedHalf,
            quantised if quantised.is_quantised() => Activations::Rounded8,
            _ => Activations::Exact,
        }
    }

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        let what = format!("a buffer of {len} {}", element.name());
        let bytes = (len as u64).saturating_mul(4);
        let ticket = self.inner.ledger.take(&what, bytes)?;
        let memory = self.inner.zeroed(&what, bytes)?;
        self.inner.settle()?;
        let storage = Arc::new(CudaBuffer { owner: self.inner.owner, memory, _ticket: ticket });
        Ok(Buffer { element, len, storage })
    }

    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError> {
        weight::load(&self.inner, tensor)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError> {
        let row_bytes = kv_rows::row_bytes(shape.dtype, shape.head_dim);
        let what = format!("a key-value cache of {} layers and {} pages", shape.layers, shape.pages);
        let factors = [shape.pages, shape.kv_heads, shape.page_tokens, row_bytes];
        let half = factors.into_iter().try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX) as u64;
        let total = half.saturating_mul(2).saturating_mul(shape.layers as u64);
        let ticket = self.inner.ledger.take(&what, total)?;
        let half = || self.inner.zeroed(&what, half);
        let layers = (0..shape.layers).map(|_| Ok(KvLayer { keys: half()?, values: half()? }));
        let layers = layers.collect::<Result<_, AllocError>>()?;
        self.inner.settle()?;
        let storage = Arc::new(CudaKv { owner: self.inner.owner, layers, row_bytes, _ticket: ticket });
        Ok(KvCache { shape, storage })
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        Ok(Box::new(CudaProgram::new(&self.inner, recording)?))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        self.inner.context.check()?;
        Ok(Box::new(CudaStream::new(&self.inner)?))
    }
}
