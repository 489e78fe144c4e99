//! From a stored tensor to device memory: repacked chunk by chunk, so that the host never holds it twice.

use std::sync::Arc;

use exo_backend::{AllocError, Weight, WeightError, assert_whole, vector_of};
use exo_types::TensorView;

use crate::device::Shop;
use crate::driver::DeviceMemory;
use crate::layout::{self, Planes};
use crate::storage::CudaWeight;

/// Bytes of a tensor that are repacked and handed to the driver at once.
const CHUNK_BYTES: usize = 16 << 20;
/// Where a plane may begin.
const ALIGNMENT: u64 = 256;

pub(crate) fn load(shop: &Shop, tensor: &TensorView) -> Result<Weight, WeightError> {
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
    let ticket = shop.ledger.take(&tensor.name, footprint_bytes)?;
    let memory = shop.allocate(&tensor.name, bytes)?;
    let mut first = 0;
    for rows in tensor.bytes().chunks((CHUNK_BYTES / row_bytes.max(1)).max(1) * row_bytes) {
        let mut planes = Planes::default();
        rows.chunks(row_bytes).for_each(|row| planes.push(dtype, row, cols));
        shop.fill(&memory, (first * each.low) as u64, &planes.low)?;
        shop.fill(&memory, high_at + (first * each.high) as u64, &planes.high)?;
        shop.fill(&memory, scales_at + (first * each.scales) as u64, &planes.scales)?;
        first += rows.len() / row_bytes;
    }
    let vector = vector.map(|values| upload_vector(shop, &tensor.name, &values)).transpose()?;
    shop.settle()?;
    // What was copied must have been the real bytes.
    tensor.source.check()?;
    let owner = shop.owner;
    Ok(Weight {
        name: tensor.name.as_str().into(),
        dtype,
        rows,
        cols,
        footprint_bytes,
        storage: Arc::new(CudaWeight { owner, memory, high_at, scales_at, vector, _ticket: ticket }),
    })
}

fn upload_vector(shop: &Shop, name: &str, values: &[f32]) -> Result<DeviceMemory, AllocError> {
    let memory = shop.allocate(name, 4 * values.len() as u64)?;
    shop.fill(&memory, 0, bytemuck::cast_slice(values))?;
    Ok(memory)
}
