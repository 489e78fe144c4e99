//! How fast the kernels multiply packed weights: the rates beside the yardsticks.

use std::hint::black_box;
use std::time::{Duration, Instant};

use exo_backend::{Activations, AllocError};
use exo_types::DType;

use crate::activation_block::Block;
use crate::isa::{Isa, Level};
use crate::memory::{Heap, Slice};
use crate::packed::{BLOCK, GROUP_ROWS, Group, LINE, Line, activations, group_lines, packed_bytes};
use crate::products::{Sums, two_rows_min};
use crate::rounded::{RoundedBlock, RoundedRows, WideBlock};

/// Columns and rows of the matrices of a layer of Qwen3-0.6B.
const LAYER: [(usize, usize); 7] =
    [(1024, 2048), (1024, 1024), (1024, 1024), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024)];
const LAYERS: usize = 28;
const HEAD: (usize, usize) = (1024, 151_936);
/// Groups that are taken from random bytes; the others repeat them.
const RANDOM_GROUPS: usize = 8;
const COLUMNS_MAX: usize = 3072;

/// No kernels to measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum ProductsError {
    #[error("this processor does not have {}", .0.name())]
    NoIsa(Isa),
    /// Such weights are multiplied as they are stored.
    #[error("weights of type {0} are not packed")]
    NotPacked(DType),
    #[error(transparent)]
    Memory(#[from] AllocError),
}

/// Weights at the shapes of Qwen3-0.6B, packed, in 2 MiB pages where there are any. One thread.
pub struct ProductsProbe {
    level: Level,
    dtype: DType,
    heap: Heap,
    matrices: Vec<Matrix>,
}

struct Matrix {
    cols: usize,
    memory: Slice,
}

impl ProductsProbe {
    /// Packs random weights for the kernels of `isa`.
    pub fn new(isa: Isa, dtype: DType) -> Result<Self, ProductsError> {
        let level = Level::detect(isa).ok_or(ProductsError::NoIsa(isa))?;
        let heap = Heap::default();
        let layers = std::iter::repeat_n(LAYER, LAYERS).flatten();
        let matrices = layers.chain([HEAD]).map(|(cols, rows)| Matrix::new(&heap, dtype, cols, rows));
        let matrices = matrices.collect::<Result<_, _>>()?;
        Ok(Self { level, dtype, heap, matrices })
    }

    /// Of all matrices.
    pub fn bytes(&self) -> u64 {
        self.matrices.iter().map(|matrix| matrix.memory.len() as u64).sum()
    }

    /// How much of the memory is in 2 MiB pages, 0 to 1; `None` where the system does not say.
    pub fn huge_share(&self) -> Option<f64> {
        let bytes = self.bytes() as f64;
        self.heap.huge_bytes().map(|huge| (huge as f64 / bytes).min(1.0))
    }

    /// Bytes of weights per second that a pass over all matrices reads for one row of activations: the matrix
    /// work of one token of decode.
    pub fn decode(&self) -> f64 {
        let seconds = self.multiply(1, Duration::MAX).0;
        self.bytes() as f64 / seconds
    }

    /// Products per second, two operations each, with `rows` rows of activations, over as many matrices as
    /// fit into `time`, the largest left out.
    pub fn operations(&self, rows: usize, time: Duration) -> f64 {
        let (seconds, products) = self.multiply(rows, time);
        2.0 * products as f64 / seconds
    }

    /// Seconds, and the products done in them.
    fn multiply(&self, rows: usize, time: Duration) -> (f64, u64) {
        match activations(self.dtype) {
            Activations::Rounded16 => self.multiply_by::<WideBlock>(rows, time),
            _ => self.multiply_by::<RoundedBlock>(rows, time),
        }
    }

    fn multiply_by<B: Block>(&self, rows: usize, time: Duration) -> (f64, u64) {
        let x: Vec<f32> = (0..rows * COLUMNS_MAX).map(|i| (i * 7919 % 255) as f32 / 127.0 - 1.0).collect();
        let mut rounded = vec![B::zeroed(); rows * COLUMNS_MAX / BLOCK];
        B::round(self.level, &x, &mut rounded);
        let mut sums = vec![Sums([0.0; GROUP_ROWS]); rows];
        let mut more = sums.clone();
        let (began, mut products) = (Instant::now(), 0);
        let part =
            if time == Duration::MAX { &self.matrices[..] } else { &self.matrices[..LAYER.len() * LAYERS] };
        for matrix in part {
            let blocks = matrix.cols / BLOCK;
            let x = RoundedRows::new(blocks, &rounded[..rows * blocks]);
            let mut groups = matrix.groups(self.dtype);
            while let Some(lines) = groups.next() {
                let group = Group::new(self.dtype, matrix.cols, lines);
                products += (matrix.cols * GROUP_ROWS * rows) as u64;
                match if rows < two_rows_min(self.dtype) { None } else { groups.next() } {
                    Some(lines) => {
                        let other = Group::new(self.dtype, matrix.cols, lines);
                        B::multiply_two(self.level, [&group, &other], x, [&mut sums, &mut more]);
                        products += (matrix.cols * GROUP_ROWS * rows) as u64;
                    }
                    None => B::multiply(self.level, &group, x, &mut sums),
                }
                black_box((&mut sums, &mut more));
            }
            if began.elapsed() > time {
                break;
            }
        }
        (began.elapsed().as_secs_f64(), products)
    }
}

impl Matrix {
    fn new(heap: &Heap, dtype: DType, cols: usize, rows: usize) -> Result<Self, ProductsError> {
        let bytes = packed_bytes(dtype, rows, cols).ok_or(ProductsError::NotPacked(dtype))?;
        let mut memory = heap.slice("weights", bytes)?;
        let row_bytes = dtype.bytes_of(cols as u64).unwrap_or(0) as usize;
        let lines = group_lines(dtype, cols).unwrap_or(0);
        let mut state = 1u32;
        let mut stored = vec![0; GROUP_ROWS * row_bytes];
        for (at, out) in bytemuck::cast_slice_mut::<u8, Line>(&mut memory).chunks_exact_mut(lines).enumerate()
        {
            if at < RANDOM_GROUPS {
                stored.iter_mut().for_each(|byte| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = (state >> 24) as u8;
                });
                set_scales(dtype, &mut stored);
            }
            crate::packed::pack_group(dtype, cols, &stored, out);
        }
        Ok(Self { cols, memory })
    }

    fn groups(&self, dtype: DType) -> impl Iterator<Item = &[Line]> {
        let lines = self.memory.len() / LINE;
        let group = group_lines(dtype, self.cols).unwrap_or(lines);
        bytemuck::cast_slice(&self.memory).chunks_exact(group)
    }
}

/// Ordinary numbers for the halves of each block, wherever they stand: sums that are no numbers can be
/// slower.
fn set_scales(dtype: DType, stored: &mut [u8]) {
    let halves: &[usize] = match dtype {
        DType::Q6_K => &[208],
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 | DType::BF16 => &[0],
        _ => &[0, 2],
    };
    let scale = half::f16::from_f32(0.01).to_le_bytes();
    for block in stored.chunks_exact_mut(dtype.block_bytes() as usize) {
        halves.iter().for_each(|at| block[*at..at + 2].copy_from_slice(&scale));
    }
}
