//! One adapter as a [`Device`]: opening it, and giving out memory.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use exo_backend::{
    AllocError, Buffer, Device, Element, KvCache, KvShape, Ledger, MemoryReport, Monitor, OpKind, Owner,
    Program, Recording, RunError, RunShape, Stream, Support, Weight, WeightError, kv_rows,
};
use exo_device::CardSensors;
use exo_types::{DType, DeviceFacts, DeviceId, DeviceKind, TensorView};

use crate::adapter::Adapter;
use crate::disk_cache::DiskCache;
use crate::health::Health;
use crate::inner::DeviceInner;
use crate::memory::Memory;
use crate::pipelines::Pipelines;
use crate::program::GpuProgram;
use crate::queue::Queue;
use crate::storage::{GpuBuffer, GpuKv, KvPart};
use crate::stream::GpuStream;
use crate::work_counters::WorkDone;
use crate::{layout, split, weight};

/// How to open an adapter.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Bytes of buffers, weights and caches together; `None` for the memory that the adapter tells of.
    pub memory_limit_bytes: Option<u64>,
    /// Bytes of a weight, or of a layer's keys, in one binding; `None` for the adapter's limit. Larger ones
    /// are split, by rows or by heads.
    pub split_bytes_max: Option<u64>,
    /// Sums over eight threads through workgroup memory even where the adapter has subgroups.
    pub without_subgroups: bool,
    /// One dispatch or more for every op, where several ops could go together: for comparison.
    pub without_fusion: bool,
    /// Where compiled kernels are kept from run to run, as far as the interface allows (Vulkan); `None` for
    /// nowhere.
    pub cache_dir: Option<PathBuf>,
}

/// An adapter could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum OpenError {
    #[error("{name} could not be opened through {api}: {reason}")]
    Refused { name: String, api: crate::Api, reason: String },
    #[error("{name} does not say how much memory it has: set a limit")]
    UnknownMemory { name: String },
    #[error("{name} has {what} of {has}, the kernels need {needs}")]
    TooSmall { name: String, what: &'static str, has: u64, needs: u64 },
    /// No memory even for the first few bytes.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

/// A graphics processor.
#[derive(Debug)]
pub struct WgpuDevice {
    inner: Arc<DeviceInner>,
    facts: DeviceFacts,
    sensors: CardSensors,
}

impl WgpuDevice {
    /// Opens an adapter. `id` is its name within the node.
    pub fn open(adapter: &Adapter, id: DeviceId, options: &WgpuOptions) -> Result<Arc<Self>, OpenError> {
        let name = || adapter.name.clone();
        let limits = adapter.inner.limits();
        let storage = u64::from(limits.max_storage_buffers_per_shader_stage);
        let threads = u64::from(limits.max_compute_invocations_per_workgroup);
        let shared = u64::from(limits.max_compute_workgroup_storage_size);
        for (what, has, needs) in [
            ("storage buffers in a kernel", storage, 8),
            ("threads in a workgroup", threads, 256),
            ("bytes of workgroup memory", shared, 18 << 10),
        ] {
            if has < needs {
                return Err(OpenError::TooSmall { name: name(), what, has, needs });
            }
        }
        let limit_bytes = options.memory_limit_bytes.or(adapter.memory_bytes);
        let limit_bytes = limit_bytes.ok_or_else(|| OpenError::UnknownMemory { name: name() })?;
        let features = adapter.inner.features();
        let has_subgroups = features.contains(wgpu::Features::SUBGROUP)
            && adapter.inner.get_info().subgroup_min_size >= 8
            && !options.without_subgroups;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("exo"),
            required_features: features & (wgpu::Features::SUBGROUP | wgpu::Features::PIPELINE_CACHE),
            required_limits: limits.clone(),
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.inner.request_device(&descriptor));
        let refused = |reason: String| OpenError::Refused { name: name(), api: adapter.api, reason };
        let (device, queue) = opened.map_err(|error| refused(error.to_string()))?;
        let health = Health::watch(&device);
        let binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let ledger = Ledger::new(limit_bytes);
        let memory = Memory { device, health, ledger, binding_bytes_max: binding };
        let info = adapter.inner.get_info();
        let disk = options.cache_dir.as_deref().and_then(|dir| DiskCache::open(&memory.device, &info, dir));
        let inner = Arc::new(DeviceInner {
            owner: Owner::next(),
            queue: Queue::new(&memory, queue)?,
            memory,
            pipelines: Pipelines::new(disk),
            split_bytes_max: options.split_bytes_max.unwrap_or(binding).min(binding),
            has_subgroups,
            is_fusing: !options.without_fusion,
            storage_buffers_max: limits.max_storage_buffers_per_shader_stage as usize,
        });
        let sensors = CardSensors::new(adapter.vendor, adapter.pci_address.as_deref());
        let mut facts = facts(adapter, id, limit_bytes);
        // The interface does not tell.
        facts.compute_units = sensors.card().and_then(|card| card.compute_units).unwrap_or(0);
        Ok(Arc::new(Self { facts, inner, sensors }))
    }

    /// Bytes of the card's own memory that no one holds, other programs and we; `None` where nothing tells,
    /// and for what shares the machine's memory: what its driver counts as its own is a part of that.
    pub fn card_free_bytes(&self) -> Option<u64> {
        let has_own = self.facts.kind == DeviceKind::DiscreteGpu;
        if has_own { self.sensors.memory_free_bytes() } else { None }
    }

    /// Whether sums go through subgroup operations.
    pub fn has_subgroups(&self) -> bool {
        self.inner.has_subgroups
    }

    /// Dispatches of one run of a program of this device. Panics if another device compiled it.
    pub fn dispatches(&self, program: &dyn Program, shape: RunShape) -> usize {
        let program: &GpuProgram = self.inner.owner.behind(program, &"the program");
        program.inner.dispatches(shape)
    }

    /// What runs have cost the processor so far.
    pub fn work(&self) -> WorkDone {
        self.inner.queue.work()
    }
}

fn facts(adapter: &Adapter, id: DeviceId, limit_bytes: u64) -> DeviceFacts {
    let (support, why) =
        exo_device::graphics_support(adapter.is_software, adapter.api.name(), adapter.architecture());
    let kind = if adapter.is_integrated { DeviceKind::IntegratedGpu } else { DeviceKind::DiscreteGpu };
    DeviceFacts {
        unsupported_types: DType::ALL.into_iter().filter(|dtype| !layout::is_supported(*dtype)).collect(),
        support,
        support_reason: why.to_owned(),
        ..DeviceFacts::unmeasured(id, kind, &adapter.name, adapter.api.name(), limit_bytes)
    }
}

impl Device for WgpuDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { memory_free_bytes: self.memory().free_bytes, ..self.facts.clone() }
    }

    /// As the books of this handle have it, and no more than the kernel's driver or the vendor's library has
    /// left: the interface does not tell what other programs hold.
    fn memory(&self) -> MemoryReport {
        self.inner.memory.ledger.report(self.card_free_bytes())
    }

    /// The interfaces have no words for it: from the kernel's driver or the vendor's library, by PCI address.
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

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        let what = format!("a buffer of {len} {}", element.name());
        let data = self.inner.memory.booked(&what, (len as u64).saturating_mul(4))?;
        Ok(Buffer { element, len, storage: Arc::new(GpuBuffer { owner: self.inner.owner, data }) })
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
        let ticket = self.inner.memory.ledger.take(&what, total)?;
        let head_bytes = half / shape.kv_heads.max(1) as u64;
        self.inner.memory.check_binding(&format!("the keys of a head of a layer in {what}"), head_bytes)?;
        let part = |heads: Range<usize>| {
            let usage =
                wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            let raw = || self.inner.memory.raw(&what, head_bytes * heads.len() as u64, usage);
            Ok(KvPart { first_head: heads.start, heads: heads.len(), keys: raw()?, values: raw()? })
        };
        let runs = split::runs(shape.kv_heads, head_bytes, self.inner.split_bytes_max);
        let layers = (0..shape.layers).map(|_| runs.iter().cloned().map(part).collect());
        let layers = layers.collect::<Result<_, AllocError>>()?;
        let storage = Arc::new(GpuKv { owner: self.inner.owner, layers, row_bytes, _ticket: ticket });
        Ok(KvCache { shape, storage })
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        let program = GpuProgram::new(&self.inner, recording)?;
        self.inner.pipelines.save();
        Ok(Box::new(program))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        self.inner.memory.health.check()?;
        Ok(Box::new(GpuStream::new(&self.inner)))
    }
}
