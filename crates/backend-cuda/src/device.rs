//! One card as a [`Device`]: opening it, and giving out memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exo_backend::{
    Activations, AllocError, Buffer, Device, Element, KvCache, KvShape, Ledger, MemoryReport, Monitor,
    OpKind, Owner, Program, Recording, RunError, Stream, Support, Weight, WeightError,
};
use exo_device::CardSensors;
use exo_types::{Corrections, DType, DeviceFacts, DeviceId, DeviceKind, TensorView};

use crate::api::{Api, CallError};
use crate::card::Card;
use crate::driver::{Context, DeviceMemory, Ordinal};
use crate::kernels::Kernels;
use crate::launch::LARGE_TILES_MIN;
use crate::program::CudaProgram;
use crate::queue::Queue;
use crate::storage::{CudaBuffer, CudaKv, KvLayer};
use crate::stream::{CudaStream, wait};
use crate::{kv_rows, layout, weight};

/// Longest wait for work that only prepares something: an upload at load, a cleared buffer.
const SETTLE_MAX: Duration = Duration::from_secs(60);
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
pub enum OpenError {
    /// It has not what the kernels need.
    #[error("{name} cannot be used: {trouble}")]
    Unfit {
        /// The card.
        name: String,
        /// What it lacks.
        trouble: String,
    },
    /// The driver gave no context.
    #[error("{name} could not be opened")]
    Refused {
        /// The card.
        name: String,
        /// What the driver said.
        #[source]
        error: CallError,
    },
}

/// What the device, its programs and its streams share.
#[derive(Debug)]
pub(crate) struct Shop {
    pub(crate) owner: Owner,
    pub(crate) context: Arc<Context>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) kernels: Kernels,
    pub(crate) has_tensor_cores: bool,
    /// From how many large tiles on a product takes them.
    pub(crate) large_tiles_min: usize,
    pub(crate) has_graphs: bool,
    /// Runs that were launched as graphs.
    pub(crate) replays: AtomicU64,
    /// What fills memory that is given out.
    loading: Mutex<Queue>,
}

impl Shop {
    /// Memory that counts in no book of ours; anything is in it.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Result<DeviceMemory, AllocError> {
        self.context.check()?;
        self.context.allocate(bytes).map_err(|error| match error.is_out_of_memory() {
            true => {
                let free_bytes = self.context.memory().map_or(0, |(free, _)| free);
                AllocError::OutOfMemory { what: what.to_owned(), needed_bytes: bytes, free_bytes }
            }
            false => self.context.lost(&error),
        })
    }

    /// Memory of zeros. The caller settles.
    pub(crate) fn zeroed(&self, what: &str, bytes: u64) -> Result<DeviceMemory, AllocError> {
        let memory = self.allocate(what, bytes)?;
        self.with_loading(|queue| queue.clear(&memory, 0, bytes))?;
        Ok(memory)
    }

    /// Copies to the card. The caller settles.
    pub(crate) fn fill(&self, memory: &DeviceMemory, at: u64, data: &[u8]) -> Result<(), AllocError> {
        self.with_loading(|queue| queue.upload(memory, at, data))
    }

    /// Waits until what was filled is there for every stream.
    pub(crate) fn settle(&self) -> Result<(), AllocError> {
        let queue = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        match wait(&self.context, &queue, SETTLE_MAX) {
            Ok(()) => Ok(()),
            Err(RunError::Alloc(error)) => Err(error),
            Err(late) => Err(AllocError::DeviceLost { reason: late.to_string() }),
        }
    }

    fn with_loading(&self, work: impl FnOnce(&Queue) -> Result<(), CallError>) -> Result<(), AllocError> {
        let queue = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        work(&queue).map_err(|error| self.context.lost(&error))
    }
}

/// An NVIDIA card, or one of AMD's.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) shop: Arc<Shop>,
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
        let shop = Arc::new(Shop {
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
        Ok(Arc::new(Self { facts: facts(card, id, limit_bytes), shop, sensors }))
    }

    /// Runs of programs that were launched as graphs so far.
    pub fn replays(&self) -> u64 {
        self.shop.replays.load(Ordering::Relaxed)
    }

    /// Bytes of the card that nobody holds, other programs and we; `None` if the driver does not say.
    pub fn card_free_bytes(&self) -> Option<u64> {
        self.shop.context.memory().ok().map(|(free, _)| free)
    }

    /// Whether F16 and BF16 go through tensor cores.
    pub fn has_tensor_cores(&self) -> bool {
        self.shop.has_tensor_cores
    }
}

fn facts(card: &Card, id: DeviceId, limit_bytes: u64) -> DeviceFacts {
    let (support, why) = exo_device::graphics_support(false, card.api.name(), card.architecture());
    DeviceFacts {
        id,
        kind: if card.is_integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu },
        name: card.name.clone(),
        backend: card.api.name().to_owned(),
        memory_total_bytes: limit_bytes,
        memory_free_bytes: limit_bytes,
        compute_units: card.multiprocessors,
        read_bytes_per_s: None,
        flops_per_s: None,
        corrections: Corrections::default(),
        support,
        support_reason: why.to_owned(),
    }
}

impl Device for CudaDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { memory_free_bytes: self.memory().free_bytes, ..self.facts.clone() }
    }

    fn memory(&self) -> MemoryReport {
        let ledger = &self.shop.ledger;
        let own = ledger.limit_bytes().saturating_sub(ledger.allocated_bytes());
        MemoryReport {
            total_bytes: ledger.limit_bytes(),
            // Other programs may have taken some since the card was opened.
            free_bytes: self.shop.context.memory().map_or(own, |(free, _)| free.min(own)),
            allocated_bytes: ledger.allocated_bytes(),
            live_allocations: ledger.live(),
        }
    }

    /// From the kernel's driver, or from another library of the maker's, which comes with its driver.
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
            DType::F16 if self.shop.has_tensor_cores => Activations::RoundedHalf,
            quantised if quantised.is_quantised() => Activations::Rounded8,
            _ => Activations::Exact,
        }
    }

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        let what = format!("a buffer of {len} {}", element.name());
        let bytes = (len as u64).saturating_mul(4);
        let ticket = self.shop.ledger.take(&what, bytes)?;
        let memory = self.shop.zeroed(&what, bytes)?;
        self.shop.settle()?;
        let storage = Arc::new(CudaBuffer { owner: self.shop.owner, memory, _ticket: ticket });
        Ok(Buffer { element, len, storage })
    }

    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError> {
        weight::load(&self.shop, tensor)
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError> {
        let row_bytes = kv_rows::row_bytes(shape.dtype, shape.head_dim);
        let what = format!("a key-value cache of {} layers and {} pages", shape.layers, shape.pages);
        let factors = [shape.pages, shape.kv_heads, shape.page_tokens, row_bytes];
        let half = factors.into_iter().try_fold(1usize, usize::checked_mul).unwrap_or(usize::MAX) as u64;
        let total = half.saturating_mul(2).saturating_mul(shape.layers as u64);
        let ticket = self.shop.ledger.take(&what, total)?;
        let half = || self.shop.zeroed(&what, half);
        let layers = (0..shape.layers).map(|_| Ok(KvLayer { keys: half()?, values: half()? }));
        let layers = layers.collect::<Result<_, AllocError>>()?;
        self.shop.settle()?;
        let storage = Arc::new(CudaKv { owner: self.shop.owner, layers, row_bytes, _ticket: ticket });
        Ok(KvCache { shape, storage })
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        Ok(Box::new(CudaProgram::new(&self.shop, recording)?))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        self.shop.context.check()?;
        Ok(Box::new(CudaStream::new(&self.shop)?))
    }
}
