//! From a stored tensor to device memory: repacked chunk by chunk, so that the host never holds it twice.

use std::ops::Range;
use std::sync::Arc;

use exo_backend::{AllocError, Weight, WeightError, assert_whole, vector_of};
use exo_types::TensorView;

use crate::inner::DeviceInner;
use crate::storage::{GpuWeight, WeightBuffer};
use crate::upload::PIECE_BYTES;
use crate::{layout, split};

/// Bytes of a tensor that are repacked and handed to the driver at once: so little that a tensor of any size
/// passes through a few staging buffers.
const CHUNK_BYTES: usize = 2 * PIECE_BYTES;

pub(crate) fn load(device: &DeviceInner, tensor: &TensorView) -> Result<Weight, WeightError> {
    let (rows, cols) = (tensor.rows as usize, tensor.cols as usize);
    assert_whole(tensor);
    let dtype = tensor.dtype;
    if !layout::is_supported(dtype) {
        return Err(WeightError::UnsupportedType { name: tensor.name.clone(), dtype });
    }
    let vector = vector_of(tensor);
    let row_bytes = 4 * layout::total_words(dtype, 1, cols) as u64;
    let ranges = split::runs(rows, row_bytes, device.split_bytes_max);
    let words = |range: &Range<usize>| layout::total_words(dtype, range.len(), cols);
    let bytes = 4 * ranges.iter().map(words).sum::<usize>() + vector.as_ref().map_or(0, |v| 4 * v.len());
    let ticket = device.memory.ledger.take(&tensor.name, bytes as u64)?;
    let pieces =
        ranges.into_iter().map(|range| upload_piece(device, tensor, range)).collect::<Result<_, _>>()?;
    let vector = vector.map(|values| upload_vector(device, &tensor.name, &values)).transpose()?;
    // What was copied must have been the real bytes.
    tensor.source.check()?;
    Ok(Weight {
        name: tensor.name.as_str().into(),
        dtype,
        rows,
        cols,
        footprint_bytes: bytes as u64,
        storage: Arc::new(GpuWeight { owner: device.owner, pieces, vector, _ticket: ticket }),
    })
}

fn upload_piece(
    device: &DeviceInner,
    tensor: &TensorView,
    range: Range<usize>,
) -> Result<WeightBuffer, WeightError> {
    let (dtype, cols, row_bytes) = (tensor.dtype, tensor.cols as usize, tensor.row_bytes());
    let bytes = 4 * layout::total_words(dtype, range.len(), cols) as u64;
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
    device.memory.check_binding(&tensor.name, bytes)?;
    let buffer = device.memory.raw(&tensor.name, bytes, usage)?;
    let stored = tensor.bytes();
    let (mut quants, mut scales, mut at) = (Vec::new(), Vec::new(), 0);
    let each = (CHUNK_BYTES / row_bytes.max(1)).max(1);
    let mut first = range.start;
    while first < range.end {
        let last = (first + each).min(range.end);
        for row in first..last {
            let row = &stored[row * row_bytes..(row + 1) * row_bytes];
            layout::pack_row(dtype, row, cols, &mut quants, &mut scales);
        }
        at = write_words(device, &buffer, at, &quants)?;
        quants.clear();
        first = last;
    }
    let joined = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << 16;
    let scales: Vec<u32> = scales.chunks(2).map(joined).collect();
    write_words(device, &buffer, at, &scales)?;
    Ok(WeightBuffer { first: range.start, rows: range.len(), buffer })
}

/// Writes from byte `at` on and says where the next go. The driver's copies are done before this returns, so
/// that their staging buffers are free again.
fn write_words(
    device: &DeviceInner,
    buffer: &wgpu::Buffer,
    at: u64,
    words: &[u32],
) -> Result<u64, AllocError> {
    let bytes: &[u8] = bytemuck::cast_slice(words);
    for (i, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        device.queue.write(&device.memory, buffer, at + (i * CHUNK_BYTES) as u64, chunk)?;
        device.queue.flush();
        device.memory.settle()?;
    }
    Ok(at + bytes.len() as u64)
}

fn upload_vector(device: &DeviceInner, name: &str, values: &[f32]) -> Result<wgpu::Buffer, AllocError> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
    let buffer = device.memory.raw(name, 4 * values.len() as u64, usage)?;
    let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    write_words(device, &buffer, 0, &bits)?;
    Ok(buffer)
}
