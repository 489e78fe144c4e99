//! A device: what it is, what it can do, and what it gives out.

use exo_types::{DType, DeviceFacts, Monitor, TensorView};

use crate::{
    Activations, AllocError, Buffer, Element, KvCache, KvShape, OpKind, Program, Recording, RunError, Stream,
    Weight, WeightError,
};

/// Whether and how an op runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Support {
    /// By a kernel of this device.
    Native,
    /// Not at all: the planner must not place it here.
    Unsupported,
}

/// What the device holds right now. Live counts return to zero when every handle is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// Memory it may use in all.
    pub total_bytes: u64,
    /// Free now, as far as the system says.
    pub free_bytes: u64,
    /// Given out by this device handle and not yet returned.
    pub allocated_bytes: u64,
    /// Number of live buffers, weights and caches.
    pub live_allocations: u64,
}

/// Where the bytes lie that a device has given out. Reads are fastest from large pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Residence {
    /// Weights copied to the device's memory, in whatever layout.
    pub copied_bytes: u64,
    /// Weights used straight from a mapped file, for ever.
    pub mapped_bytes: u64,
    /// Weights that are copied while they are used from there.
    pub repacking_bytes: u64,
    /// Of the copied weights, those in pages of 2 MiB or more; `None` where the system does not tell.
    pub huge_page_bytes: Option<u64>,
    /// Why the last weight that should have been copied stayed in its file.
    pub mapped_because: Option<String>,
}

/// One accelerator or processor. Opening it is the backend crate's constructor; dropping it shuts it down.
pub trait Device: Send + Sync {
    /// What it is.
    fn facts(&self) -> DeviceFacts;

    /// What it holds and what is free.
    fn memory(&self) -> MemoryReport;

    /// Where what it holds lies. Asks the system, which may take some milliseconds: not for every step.
    fn residence(&self) -> Residence {
        Residence::default()
    }

    /// Its sensors now, as far as the system or its vendor's library tells. Reads files, which may take a
    /// millisecond.
    fn monitor(&self) -> Monitor;

    /// Whether `op` runs here, on weights stored as `dtype` where it has a weight.
    fn supports_op(&self, op: OpKind, dtype: Option<DType>) -> Support;

    /// What [`crate::Op::MatMul`] computes with where the weight is stored as `dtype`. The op oracle holds
    /// the device to it.
    fn activations(&self, _dtype: DType) -> Activations {
        Activations::Exact
    }

    /// `len` elements of working memory, zeroed.
    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError>;

    /// Takes a tensor in, in whatever layout the device likes.
    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError>;

    /// Has the caches give up what they hold of the weight, so that the next step reads it from memory.
    /// `false` where the device has no means to.
    fn evict(&self, _weight: &Weight) -> bool {
        false
    }

    /// The same of all keys and values.
    fn evict_kv(&self, _kv: &KvCache) -> bool {
        false
    }

    /// A key-value cache; pages hold anything until written.
    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError>;

    /// Prepares a recording for running. Panics on operands whose shapes contradict each other: a recording
    /// is made by `models` from checked configurations.
    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError>;

    /// A queue of work on this device.
    fn stream(&self) -> Result<Box<dyn Stream>, AllocError>;
}
