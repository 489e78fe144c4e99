//! Takes weights in: packs or copies them to memory in large pages, on every thread, and gives the file's
//! pages back.

use std::fmt::Display;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use exo_backend::{Ledger, WeightError};
use exo_types::{DType, TensorView};

use crate::memory::{Heap, Slice};
use crate::packed::{GROUP_ROWS, Layout, interleave_group, is_interleaved, pack_group, packed_bytes};
use crate::pool::Pool;

/// Bytes copied between two releases of the file's pages: what memory holds twice at most.
const SLAB_BYTES: usize = 16 << 20;
/// Bytes one thread copies at a time.
const PIECE_BYTES: usize = 256 << 10;

/// How many bytes of weights lie where, and why.
#[derive(Debug)]
pub(crate) struct Places {
    /// Books without a limit, for the counting.
    pub(crate) copied: Arc<Ledger>,
    pub(crate) mapped: Arc<Ledger>,
    /// Read from the file for now. What of their memory is not filled yet,
    /// [`Repacker::promised_bytes`](crate::repack::Repacker::promised_bytes) tells.
    pub(crate) repacking: Arc<Ledger>,
    /// Why the last weight that was to be copied was not.
    pub(crate) mapped_because: Mutex<Option<String>>,
}

impl Places {
    pub(crate) fn new() -> Self {
        let books = || Ledger::new(u64::MAX);
        Self { copied: books(), mapped: books(), repacking: books(), mapped_because: Mutex::default() }
    }

    pub(crate) fn note(&self, reason: &dyn Display) {
        *self.mapped_because.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_string());
    }
}

/// Bytes of a weight of this type, with so many rows and columns, in a processor's memory:
/// [`exo_backend::Weight::footprint_bytes`] of one that does not stay in its file.
pub fn weight_bytes(dtype: DType, rows: u64, cols: u64) -> u64 {
    held_bytes(dtype, rows, cols).saturating_add(vector_bytes(rows, cols))
}

/// Whether a weight of so many rows lies in groups in memory: matrices do, but of a few rare types.
pub(crate) fn is_packed(dtype: DType, rows: u64) -> bool {
    rows > 1 && (Layout::of(dtype).is_some() || is_interleaved(dtype))
}

/// Bytes of the rows of a weight in memory, in groups or as they are stored.
pub(crate) fn held_bytes(dtype: DType, rows: u64, cols: u64) -> u64 {
    let Some(row_bytes) = dtype.bytes_of(cols) else { return u64::MAX }; // there is no such row
    let packed = is_packed(dtype, rows).then(|| packed_bytes(dtype, rows as usize, cols as usize));
    packed.flatten().map_or(row_bytes.saturating_mul(rows), |bytes| bytes as u64)
}

/// Bytes of a vector's elements in f32, which are held beside its only row.
pub(crate) fn vector_bytes(rows: u64, cols: u64) -> u64 {
    if rows == 1 { 4 * cols } else { 0 }
}

/// What is taken in by itself: a group of sixteen rows, or bytes as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    is_packed: bool,
    /// Bytes of one in memory.
    pub(crate) held: usize,
    /// Bytes of one in the file; the last group has fewer.
    pub(crate) stored: usize,
}

impl Unit {
    /// Of a tensor that takes `held_bytes` in memory.
    pub(crate) fn of(tensor: &TensorView, held_bytes: usize) -> Self {
        let is_packed = is_packed(tensor.dtype, tensor.rows);
        if is_packed {
            let held = held_bytes / (tensor.rows as usize).div_ceil(GROUP_ROWS).max(1);
            Self { is_packed, held, stored: GROUP_ROWS * tensor.row_bytes() }
        } else {
            Self { is_packed, held: PIECE_BYTES, stored: PIECE_BYTES }
        }
    }

    /// So many are `bytes` of the file, one at least.
    pub(crate) fn count(self, bytes: usize) -> usize {
        (bytes / self.stored.max(1)).max(1)
    }

    /// Lays one or more as memory has them.
    pub(crate) fn lay(self, tensor: &TensorView, stored: &[u8], out: &mut [u8]) {
        for (stored, out) in stored.chunks(self.stored).zip(out.chunks_mut(self.held)) {
            if !self.is_packed {
                out.copy_from_slice(stored);
            } else if is_interleaved(tensor.dtype) {
                interleave_group(tensor.dtype, tensor.cols as usize, stored, out);
            } else {
                pack_group(tensor.dtype, tensor.cols as usize, stored, bytemuck::cast_slice_mut(out));
            }
        }
    }
}

/// The rows of `tensor` in memory of `heap`. Fails if there is no memory, or if the file was lost meanwhile.
pub(crate) fn take(heap: &Heap, pool: &Pool, tensor: &TensorView) -> Result<Slice, WeightError> {
    let held_bytes = held_bytes(tensor.dtype, tensor.rows, tensor.cols);
    let mut slice = heap.slice(&tensor.name, held_bytes as usize)?;
    let unit = Unit::of(tensor, slice.len());
    let slab = unit.count(SLAB_BYTES);
    let slabs = slice.chunks_mut(slab * unit.held).zip(tensor.bytes().chunks(slab * unit.stored));
    for (at, (slab_held, from)) in slabs.enumerate() {
        pool.turn().chunks_mut(slab_held, unit.held, |i, piece| {
            let rows = &from[i * unit.stored..((i + 1) * unit.stored).min(from.len())];
            unit.lay(tensor, rows, piece);
        });
        let start = at * slab * unit.stored;
        release(tensor, start..start + from.len());
    }
    tensor.source.check()?; // what was copied must have been the real bytes
    Ok(slice)
}

/// Gives the pages of a part of the tensor back.
pub(crate) fn release(tensor: &TensorView, part: Range<usize>) {
    let start = tensor.range.start;
    tensor.source.release(start + part.start..start + part.end);
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::Path;

    use exo_backend::{Device, Residence};
    use exo_types::{ByteSource, DType, SourceLost};

    use super::*;
    use crate::storage::CpuWeight;
    use crate::{CpuDevice, CpuOptions, Packing};

    /// A file that remembers what was released.
    struct File {
        bytes: Vec<u8>,
        released: Mutex<Vec<Range<usize>>>,
        lost: bool,
    }

    impl ByteSource for File {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn check(&self) -> Result<(), SourceLost> {
            if self.lost { Err(SourceLost { name: "model.gguf".to_owned() }) } else { Ok(()) }
        }

        fn release(&self, range: Range<usize>) {
            self.released.lock().unwrap().push(range);
        }
    }

    const COLS: u64 = 1000;

    /// A matrix of changing bytes, behind 3 that are not its own.
    fn matrix(rows: u64, lost: bool) -> (Arc<File>, TensorView) {
        let len = (rows * COLS * 2) as usize;
        let bytes = (0..len + 3).map(|i| (i % 251) as u8).collect();
        let file = Arc::new(File { bytes, released: Mutex::default(), lost });
        let (name, dtype, range) = ("w".to_owned(), DType::F16, 3..len + 3);
        let source = Arc::clone(&file);
        (file, TensorView { name, dtype, rows, cols: COLS, source, range })
    }

    fn options(mmap: bool) -> CpuOptions {
        CpuOptions { threads: Some(2), mmap, ..CpuOptions::default() }
    }

    /// Rows are what the kernels read.
    fn assert_rows(weight: &exo_backend::Weight, tensor: &TensorView) {
        let placed: &CpuWeight = weight.storage.owner().behind(&*weight.storage, &weight);
        let (mut want, mut got) = (vec![0.0; COLS as usize], vec![0.0; COLS as usize]);
        for (n, row) in tensor.bytes().chunks_exact(2 * COLS as usize).enumerate() {
            match placed.interleaved().and_then(|floats| floats.row(n)) {
                Some(floats) => {
                    crate::quant::dequantise_row(tensor.dtype, row, &mut want);
                    floats.row(n, &mut got);
                    let same = want.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "row {n} differs");
                }
                None => assert!(placed.read().row(n) == row, "row {n} differs"),
            }
        }
    }

    #[test]
    fn a_copied_weight_is_the_file_s_and_the_file_s_pages_go_slab_by_slab() {
        let device = CpuDevice::open(options(false)).unwrap();
        let (file, tensor) = matrix(20_000, false);
        let weight = device.weight(&tensor).unwrap();
        assert_rows(&weight, &tensor);
        let slab = SLAB_BYTES / 32_000 * 32_000; // whole groups of sixteen rows
        let (second, third) = (3 + slab, 3 + 2 * slab);
        assert_eq!(*file.released.lock().unwrap(), [3..second, second..third, third..tensor.range.end]);
        let Residence { copied_bytes, mapped_bytes, mapped_because, .. } = device.residence();
        assert_eq!((copied_bytes, mapped_bytes, mapped_because), (40_000_000, 0, None));
        drop((weight, tensor));
        assert_eq!(device.residence().copied_bytes, 0);
    }

    #[test]
    fn a_weight_takes_the_bytes_that_plans_count_with() {
        for packing in [Packing::AtOnce, Packing::BEHIND] {
            let device = CpuDevice::open(CpuOptions { packing, ..options(false) }).unwrap();
            for dtype in DType::ALL {
                // A vector, a group that is not full, and enough for packing behind.
                for (rows, cols) in [(1, 768), (17, 256), (1000, 768)] {
                    let bytes = vec![0; (rows * dtype.bytes_of(cols).unwrap()) as usize];
                    let (name, range, source) = ("w".to_owned(), 0..bytes.len(), Arc::new(bytes));
                    let tensor = TensorView { name, dtype, rows, cols, range, source };
                    let weight = device.weight(&tensor).unwrap();
                    let planned = weight_bytes(dtype, rows, cols);
                    assert_eq!(weight.footprint_bytes, planned, "{dtype} {rows} x {cols}");
                    assert_eq!(device.memory().allocated_bytes, planned, "{dtype} {rows} x {cols}");
                }
            }
        }
        assert_eq!(weight_bytes(DType::Q4_K, 2, 128), u64::MAX, "no whole blocks");
    }

    #[test]
    fn a_copied_weight_does_not_keep_the_file_and_a_mapped_one_does() {
        for mmap in [false, true] {
            let device = CpuDevice::open(options(mmap)).unwrap();
            let (file, tensor) = matrix(10, false);
            let weight = device.weight(&tensor).unwrap();
            assert_rows(&weight, &tensor);
            drop(tensor);
            assert_eq!(Arc::strong_count(&file), if mmap { 2 } else { 1 });
            assert_eq!(file.released.lock().unwrap().len(), if mmap { 0 } else { 1 });
            let Residence { copied_bytes, mapped_bytes, mapped_because, .. } = device.residence();
            // Ten rows make a group of sixteen.
            assert_eq!((copied_bytes, mapped_bytes), if mmap { (0, 20_000) } else { (32_000, 0) });
            assert_eq!(mapped_because, None, "nothing stayed in the file against the user's wish");
        }
    }

    #[test]
    fn a_file_that_is_lost_while_it_is_copied_is_an_error() {
        let device = CpuDevice::open(options(false)).unwrap();
        let error = device.weight(&matrix(10, true).1).unwrap_err();
        assert!(matches!(error, WeightError::SourceLost(_)), "{error}");
        assert_eq!(device.memory().live_allocations, 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn without_free_memory_a_weight_stays_in_its_file_and_the_device_says_why() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let meminfo = "MemTotal: 8000000 kB\nMemAvailable: 20000 kB\n";
        std::fs::write(root.path().join("proc/meminfo"), meminfo).unwrap();
        let device = CpuDevice::open_in(Path::new(root.path()), options(false)).unwrap();
        let (_, small) = matrix(9_000, false);
        let (file, large) = matrix(20_000, false);
        let weights = [device.weight(&small).unwrap(), device.weight(&large).unwrap()];
        assert_rows(&weights[1], &large);
        assert!(file.released.lock().unwrap().is_empty());
        let Residence { copied_bytes, mapped_bytes, mapped_because, .. } = device.residence();
        assert_eq!((copied_bytes, mapped_bytes), (18_016_000, 40_000_000));
        let because = mapped_because.unwrap();
        assert!(because.contains("40000000 bytes") && because.contains("20480000 are free"), "{because}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_promised_to_settling_weights_is_nobody_else_s() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let meminfo = "MemTotal: 8000000 kB\nMemAvailable: 60000 kB\n";
        std::fs::write(root.path().join("proc/meminfo"), meminfo).unwrap();
        let packing = Packing::Behind { rest: std::time::Duration::from_secs(3600) };
        let device = CpuDevice::open_in(root.path(), CpuOptions { packing, ..options(false) }).unwrap();
        let (_, tensor) = matrix(20_000, false);
        let repacking = device.weight(&tensor).unwrap();
        // One part is moved. It is missing from what the system has, and is not counted once more.
        let began = std::time::Instant::now();
        while repacking.unpacked_bytes() == 40_000_000 {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "nothing is moved");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        let waiting = repacking.unpacked_bytes();
        assert!((38_000_000..39_100_000).contains(&waiting), "{waiting}");
        let free = 61_440_000 - waiting;
        assert_eq!(device.memory().free_bytes, free);
        let mapped = device.weight(&tensor).unwrap();
        let Residence { copied_bytes, mapped_bytes, repacking_bytes, mapped_because, .. } =
            device.residence();
        assert_eq!((copied_bytes, mapped_bytes, repacking_bytes), (0, 40_000_000, 40_000_000));
        let because = mapped_because.unwrap();
        let free = format!("{free} are free");
        assert!(because.contains("40000000 bytes") && because.contains(&free), "{because}");
        assert_eq!((repacking.unpacked_bytes(), mapped.unpacked_bytes()), (waiting, 0));
        assert_rows(&repacking, &tensor);
        assert_rows(&mapped, &tensor);
        let buffer = || device.buffer(exo_backend::Element::F32, 10_000_000);
        assert!(buffer().is_err(), "the system has 60 MB, of which 39 are promised");
        drop(repacking);
        assert_eq!(device.memory().free_bytes, 61_440_000);
        let _taken = buffer().unwrap();
        // Whole pages of it, none of which was touched: the system still counts them as free.
        assert_eq!(device.memory().free_bytes, 61_440_000 - 40_001_536);
        assert!(buffer().is_err(), "what a buffer will fill is not free for another");
    }
}
