//! From a stored tensor to device memory: repacked chunk by chunk, so that the host never holds it twice.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use exo_backend::{AllocError, Weight, WeightError, assert_whole, vector_of};
use exo_types::TensorView;

use crate::driver::DeviceMemory;
use crate::inner::DeviceInner;
use crate::layout::{self, Planes};
use crate::storage::CudaWeight;

/// Bytes of a tensor that are repacked and handed to the driver at once.
const CHUNK_BYTES: usize = 16 << 20;
/// From so many bytes on a chunk is repacked by several threads, and by how many.
const SHARED_BYTES_MIN: usize = 1 << 20;
const PACKERS_MAX: usize = 8;
/// Where a plane may begin.
const ALIGNMENT: u64 = 256;

pub(crate) fn load(device: &DeviceInner, tensor: &TensorView) -> Result<Weight, WeightError> {
    let (rows, cols) = (tensor.rows as usize, tensor.cols as usize);
    let row_bytes = tensor.row_bytes();
    assert_whole(tensor);
    let dtype = tensor.dtype;
    if !layout::is_supported(dtype) {
        return Err(WeightError::UnsupportedType { name: tensor.name.clone(), dtype });
    }
    let vector = vector_of(tensor);
    let each = layout::row_bytes(dtype, cols);
    let plane = |bytes: usize| (rows * bytes) as u64;
    let high_at = plane(each.low).next_multiple_of(ALIGNMENT);
    let scales_at = (high_at + plane(each.high)).next_multiple_of(ALIGNMENT);
    let bytes = scales_at + plane(each.scales);
    let footprint_bytes = bytes + vector.as_ref().map_or(0, |values| 4 * values.len() as u64);
    let ticket = device.ledger.take(&tensor.name, footprint_bytes)?;
    let memory = device.allocate(&tensor.name, bytes)?;
    let mut first = 0;
    for rows in tensor.bytes().chunks((CHUNK_BYTES / row_bytes.max(1)).max(1) * row_bytes) {
        for (count, planes) in pack(rows, row_bytes, |row, planes| planes.push(dtype, row, cols)) {
            device.fill(&memory, (first * each.low) as u64, &planes.low)?;
            device.fill(&memory, high_at + (first * each.high) as u64, &planes.high)?;
            device.fill(&memory, scales_at + (first * each.scales) as u64, &planes.scales)?;
            first += count;
        }
    }
    let vector = vector.map(|values| upload_vector(device, &tensor.name, &values)).transpose()?;
    device.settle()?;
    // What was copied must have been the real bytes.
    tensor.source.check()?;
    let owner = device.owner;
    Ok(Weight {
        name: tensor.name.as_str().into(),
        dtype,
        rows,
        cols,
        footprint_bytes,
        storage: Arc::new(CudaWeight { owner, memory, high_at, scales_at, vector, _ticket: ticket }),
    })
}

/// Rows plane by plane, in parts of so many rows, each by a thread of its own.
fn pack(rows: &[u8], row_bytes: usize, push: impl Fn(&[u8], &mut Planes) + Sync) -> Vec<(usize, Planes)> {
    let count = rows.len() / row_bytes;
    let packers = match rows.len() {
        ..SHARED_BYTES_MIN => 1,
        _ => thread::available_parallelism().map_or(1, NonZero::get).min(PACKERS_MAX),
    };
    let planes_of = |part: &[u8]| {
        let mut planes = Planes::default();
        part.chunks(row_bytes).for_each(|row| push(row, &mut planes));
        (part.len() / row_bytes, planes)
    };
    let planes_of = &planes_of;
    let mut parts = rows.chunks(count.div_ceil(packers).max(1) * row_bytes);
    let Some(own) = parts.next() else { return Vec::new() };
    thread::scope(|scope| {
        // A part whose thread the system refuses is packed by this one.
        let start =
            |part| thread::Builder::new().spawn_scoped(scope, move || planes_of(part)).map_err(|_| part);
        let others: Vec<_> = parts.map(start).collect();
        let mut packed = vec![planes_of(own)];
        packed.extend(others.into_iter().map(|other| match other {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(part) => planes_of(part),
        }));
        packed
    })
}

fn upload_vector(device: &DeviceInner, name: &str, values: &[f32]) -> Result<DeviceMemory, AllocError> {
    let memory = device.allocate(name, 4 * values.len() as u64)?;
    device.fill(&memory, 0, bytemuck::cast_slice(values))?;
    Ok(memory)
}
