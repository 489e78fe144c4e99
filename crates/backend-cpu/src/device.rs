//! The processor as a [`Device`]: opening it, and giving out memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exo_backend::{
    Activations, AllocError, Buffer, Device, Element, KvCache, KvShape, Ledger, MemoryReport, Monitor,
    OpKind, Program, Recording, Residence, RunError, Stream, Support, Weight, WeightError,
};
use exo_device::{CoreList, ProbeOptions};
use exo_types::{ComputeShare, DType, DeviceFacts, TensorView};

use crate::evict::evict;
use crate::inner::DeviceInner;
use crate::kv::{self, CpuKv};
use crate::load::{self, Places};
use crate::memory::{Heap, PageSize, SMALL_BYTES};
use crate::pace::Pace;
use crate::packed::activations;
use crate::pool::Pool;
use crate::program::CpuProgram;
use crate::repack::Repacker;
use crate::storage::{self, BufferData, CpuBuffer, CpuWeight, LockedBlock, Owner};
use crate::stream::CpuStream;
use crate::weight_rows::WeightRows;
use crate::{Isa, isa::Level};

/// Allocations below this are not held against the system's free memory: asking costs more than they do.
const SYSTEM_CHECK_BYTES_MIN: u64 = 16 << 20;

/// How to open the processor.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Worker threads; `None` for every processor this process may use.
    pub threads: Option<usize>,
    /// Each worker is kept to one of these, in turn; `None` leaves them to the system, within what the
    /// process may use.
    pub cores: Option<CoreList>,
    /// Instruction set; `None` for the widest there is.
    pub isa: Option<Isa>,
    /// Bytes of buffers, weights and caches together; `None` for the machine's memory less a reserve.
    pub memory_limit_bytes: Option<u64>,
    /// Weights are used straight from the mapped file for good: shares its pages with other processes, reads
    /// slower.
    pub mmap: bool,
    /// When weights that are not to stay in their file come to memory.
    pub packing: Packing,
    /// Part of the time in which ops are computed; the rest of it is rested, evenly between them.
    pub share: ComputeShare,
}

/// When weights come from their file to the memory in which they are read fastest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Packing {
    /// When they are taken in: whoever measures wants them to be there.
    #[default]
    AtOnce,
    /// Behind: they are used from the file until they are in memory. The numbers are the same.
    /// [`exo_backend::Weight::unpacked_bytes`] tells how far they are.
    Behind {
        /// Of each thread that packs, after every megabyte. Longer than zero, it is as if memory were slow:
        /// for tests.
        rest: Duration,
    },
}

impl OpenError {
    /// Stable, for whoever chooses by it.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::MissingIsa { .. } => "cpu_isa_missing",
            _ => "processor_not_opened",
        }
    }
}

impl Packing {
    /// Behind, as fast as may be.
    pub const BEHIND: Self = Self::Behind { rest: Duration::ZERO };
}

/// The processor could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum OpenError {
    #[error("this processor does not have {}, only {}", .isa.name(), Isa::available_names())]
    MissingIsa { isa: Isa },
    #[error("a processor is opened with 1 to {} threads, not {threads}", Pool::THREADS_MAX)]
    ThreadCount { threads: usize },
    #[error("{threads} worker threads could not be started")]
    Threads { threads: usize, source: std::io::Error },
}

/// The processor.
#[derive(Debug)]
pub struct CpuDevice {
    inner: Arc<DeviceInner>,
    facts: DeviceFacts,
    root: PathBuf,
    mmap: bool,
    is_behind: bool,
}

impl CpuDevice {
    /// The most worker threads.
    pub const THREADS_MAX: usize = Pool::THREADS_MAX;

    /// Starts the worker threads and looks at the machine.
    pub fn open(options: CpuOptions) -> Result<Arc<Self>, OpenError> {
        Self::open_in(Path::new("/"), options)
    }

    /// With `/proc` and `/sys` below `root`.
    pub(crate) fn open_in(root: &Path, options: CpuOptions) -> Result<Arc<Self>, OpenError> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        let level = Level::detect(isa).ok_or(OpenError::MissingIsa { isa })?;
        let threads = options.threads.unwrap_or_else(|| exo_device::cores().min(Pool::THREADS_MAX));
        if !(1..=Pool::THREADS_MAX).contains(&threads) {
            return Err(OpenError::ThreadCount { threads });
        }
        let cores = options.cores.clone();
        let pool =
            Pool::new(threads, options.cores).map_err(|source| OpenError::Threads { threads, source })?;
        let probe = ProbeOptions { root: root.to_owned(), ..ProbeOptions::default() };
        let mut facts = exo_device::probe(&probe);
        facts.backend = format!("cpu/{}", isa.name());
        facts.compute_units = threads as u32;
        // Without a source for the machine's memory the system's refusal is the only bound left.
        let machine = if facts.memory_total_bytes > 0 { facts.memory_total_bytes } else { u64::MAX };
        let ledger = Ledger::new(options.memory_limit_bytes.unwrap_or(machine));
        facts.memory_total_bytes = ledger.report(None).total_bytes;
        let places = Arc::new(Places::new());
        let (is_behind, rest) = match options.packing {
            Packing::AtOnce => (false, Duration::ZERO),
            Packing::Behind { rest } => (true, rest),
        };
        let inner = Arc::new(DeviceInner {
            owner: Owner::next(),
            level,
            pool,
            pace: Pace::new(options.share),
            ledger,
            heap: Heap::default(),
            repacker: Repacker::new(Arc::clone(&places), threads, cores, rest),
            places,
            rounded: Mutex::default(),
            angles: Mutex::default(),
        });
        Ok(Arc::new(Self { inner, facts, root: probe.root, mmap: options.mmap, is_behind }))
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.inner.level.isa()
    }

    /// Worker threads.
    pub fn threads(&self) -> usize {
        self.inner.pool.threads()
    }

    /// Memory that the system has left. What is taken and not touched yet is not free: caches, buffers, and
    /// memory of weights that are packed later.
    fn available_bytes(&self) -> Option<u64> {
        let available = exo_device::memory(Path::new(&self.root))?.available_bytes;
        let taken = self.inner.repacker.promised_bytes().saturating_add(self.inner.heap.untouched_bytes());
        Some(available.saturating_sub(taken))
    }

    /// Refuses an allocation of ordinary memory that the system could only serve by swapping or killing.
    fn check_system(&self, what: &str, needed_bytes: u64) -> Result<(), AllocError> {
        if needed_bytes < SYSTEM_CHECK_BYTES_MIN {
            return Ok(());
        }
        match self.available_bytes() {
            Some(free_bytes) if free_bytes < needed_bytes => {
                Err(AllocError::OutOfMemory { what: what.to_owned(), needed_bytes, free_bytes })
            }
            _ => Ok(()),
        }
    }

    /// Packs or copies the rows of `tensor` now or later, or leaves them where they are: on request, or
    /// because there is no memory. `held` are their bytes in memory.
    fn place(&self, tensor: &TensorView, held: u64) -> Result<Arc<WeightRows>, WeightError> {
        let DeviceInner { heap, pool, places, .. } = &*self.inner;
        let what = &tensor.name;
        let mapped = || {
            let ticket = places.mapped.take(what, tensor.range.len() as u64)?;
            Ok(Arc::new(WeightRows::mapped(tensor.clone(), ticket)))
        };
        if self.mmap {
            return mapped();
        }
        // What must come from a disk comes with the load, which may take its time; a step may not.
        let is_behind =
            self.is_behind && held as usize >= SMALL_BYTES && tensor.source.is_warm(tensor.range.clone());
        let is_packed = load::is_packed(tensor.dtype, tensor.rows);
        let room = self.check_system(what, held).map_err(WeightError::from);
        let placed = room.and_then(|()| match is_behind {
            true => {
                let (memory, ticket) = (heap.slice(what, held as usize)?, places.repacking.take(what, held)?);
                let place = Arc::new(WeightRows::repacked_later(memory, is_packed, tensor.clone(), ticket));
                self.inner.repacker.add(&place);
                Ok(place)
            }
            false => {
                let memory = load::take(heap, pool, tensor)?;
                let ticket = places.copied.take(what, held)?;
                Ok(Arc::new(WeightRows::held(memory, is_packed, ticket)))
            }
        });
        match placed {
            Err(WeightError::Alloc(reason)) => {
                places.note(&reason);
                mapped()
            }
            placed => placed,
        }
    }
}

impl Device for CpuDevice {
    fn facts(&self) -> DeviceFacts {
        DeviceFacts { memory_free_bytes: self.memory().free_bytes, ..self.facts.clone() }
    }

    fn memory(&self) -> MemoryReport {
        self.inner.ledger.report(self.available_bytes())
    }

    fn residence(&self) -> Residence {
        let places = &self.inner.places;
        let copied_bytes = places.copied.allocated_bytes();
        Residence {
            copied_bytes,
            mapped_bytes: places.mapped.allocated_bytes(),
            repacking_bytes: places.repacking.allocated_bytes(),
            // The last page of a mapping may reach beyond its weights.
            huge_page_bytes: self.inner.heap.huge_slice_bytes().map(|huge| huge.min(copied_bytes)),
            mapped_because: places.mapped_because.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// Of the whole machine: the system tells no less.
    fn monitor(&self) -> Monitor {
        exo_device::processor_sensors(&self.root)
    }

    fn activations(&self, dtype: DType) -> Activations {
        activations(dtype)
    }

    fn supports_op(&self, _op: OpKind, _dtype: Option<DType>) -> Support {
        Support::Native
    }

    fn buffer(&self, element: Element, len: usize) -> Result<Buffer, AllocError> {
        let what = format!("a buffer of {len} {}", element.name());
        let bytes = (len as u64).saturating_mul(4);
        let ticket = self.inner.ledger.take(&what, bytes)?;
        self.check_system(&what, bytes)?;
        // Large enough for the largest step, while most use their first rows: large pages would bring memory
        // that no one reads, and gain nothing (prefill of 512: the same).
        let (heap, pages) = (&self.inner.heap, PageSize::Small);
        let data = match element {
            Element::F32 => BufferData::F32(LockedBlock::zeroed(heap, &what, len, pages)?),
            Element::U32 => BufferData::U32(LockedBlock::zeroed(heap, &what, len, pages)?),
        };
        let storage = Arc::new(CpuBuffer { owner: self.inner.owner, data, _ticket: ticket });
        Ok(Buffer { element, len, storage })
    }

    fn weight(&self, tensor: &TensorView) -> Result<Weight, WeightError> {
        let row_bytes = tensor.row_bytes();
        let stored = tensor.range.len() as u64;
        assert!(
            tensor.rows.checked_mul(row_bytes as u64) == Some(stored),
            "{tensor:?} needs {} rows of {row_bytes} bytes, its range has {stored}",
            tensor.rows
        );
        let in_memory = || load::held_bytes(tensor.dtype, tensor.rows, tensor.cols);
        let held = if self.mmap { stored } else { in_memory() };
        let vector_bytes = load::vector_bytes(tensor.rows, tensor.cols);
        let book = |bytes: u64| self.inner.ledger.take(&tensor.name, bytes + vector_bytes);
        let vector = (tensor.rows == 1).then(|| CpuWeight::decode_vector(tensor));
        let places = &self.inner.places;
        let (place, booked, ticket) = match book(held) {
            Ok(ticket) => (self.place(tensor, held)?, held, ticket),
            // Groups are about 3 % larger than the file's rows, which may have room alone: rather slow than
            // not at all.
            Err(reason) if held > stored => {
                let ticket = book(stored)?;
                places.note(&reason);
                let place = WeightRows::mapped(tensor.clone(), places.mapped.take(&tensor.name, stored)?);
                (Arc::new(place), stored, ticket)
            }
            Err(reason) => return Err(reason.into()),
        };
        let bytes = if place.memory().is_some() { held } else { stored };
        let footprint_bytes = bytes + vector_bytes;
        // Left in its file after all: booked as what it is there.
        let ticket = if booked == bytes {
            ticket
        } else {
            drop(ticket);
            book(bytes)?
        };
        let owner = self.inner.owner;
        Ok(Weight {
            name: tensor.name.as_str().into(),
            dtype: tensor.dtype,
            rows: tensor.rows as usize,
            cols: tensor.cols as usize,
            footprint_bytes,
            storage: Arc::new(CpuWeight {
                owner,
                name: tensor.name.as_str().into(),
                dtype: tensor.dtype,
                rows: tensor.rows as usize,
                cols: tensor.cols as usize,
                row_bytes,
                place,
                vector,
                _ticket: ticket,
            }),
        })
    }

    fn evict(&self, weight: &Weight) -> bool {
        let place = &storage::weight(weight, self.inner.owner).place;
        let file = place.file();
        let stored = file.as_ref().map(|tensor| tensor.bytes());
        place.memory().into_iter().chain(stored).all(evict)
    }

    fn evict_kv(&self, kv: &KvCache) -> bool {
        evict(&kv::of(kv, self.inner.owner).read())
    }

    fn kv_cache(&self, shape: KvShape) -> Result<KvCache, AllocError> {
        let what = format!("a key-value cache of {} layers and {} pages", shape.layers, shape.pages);
        let bytes = CpuKv::booked_bytes(&shape);
        let ticket = self.inner.ledger.take(&what, bytes)?;
        self.check_system(&what, bytes)?;
        let kv = CpuKv::zeroed(&self.inner.heap, self.inner.owner, &shape, ticket)?;
        Ok(KvCache { shape, storage: Arc::new(kv) })
    }

    fn compile(&self, recording: Recording) -> Result<Box<dyn Program>, RunError> {
        Ok(Box::new(CpuProgram::new(&self.inner, recording)))
    }

    fn stream(&self) -> Result<Box<dyn Stream>, AllocError> {
        Ok(Box::new(CpuStream::new(&self.inner)))
    }
}
