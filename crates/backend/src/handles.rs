//! Handles to what a device holds. Cheap to clone; the device frees the memory when the last clone drops.

use std::fmt;
use std::sync::Arc;

use exo_types::{DType, KvDType};

use crate::{OpKind, RunError, Storage};

/// Element type of a working buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    /// Activations, in 32-bit floats.
    F32,
    /// Token ids, positions, page numbers.
    U32,
}

impl Element {
    /// As messages name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::U32 => "u32",
        }
    }
}

/// Working memory on a device: `len` elements, zero at first.
#[derive(Clone)]
pub struct Buffer {
    /// Element type; both are four bytes wide.
    pub element: Element,
    /// Capacity in elements.
    pub len: usize,
    /// The backend's own.
    pub storage: Storage,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?} x {})", self.element, self.len)
    }
}

impl Buffer {
    /// Panics unless `len` elements of this type are within it from element `at` on.
    pub fn assert_fits(&self, element: Element, at: usize, len: usize) {
        assert!(self.element == element, "{self:?} does not hold {}", element.name());
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{len} elements from {at} on do not fit {self:?}");
    }
}

/// A tensor in the layout the backend likes best. Opaque: only its shape and footprint show.
#[derive(Clone)]
pub struct Weight {
    /// The checkpoint's name, for messages.
    pub name: Arc<str>,
    /// The stored type it was made from.
    pub dtype: DType,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Number of inputs.
    pub cols: usize,
    /// Device memory it occupies, mapped pages included.
    pub footprint_bytes: u64,
    /// The backend's own.
    pub storage: Storage,
}

impl Weight {
    /// Bytes that are still to come from its file to the device's memory while it is used already.
    pub fn unpacked_bytes(&self) -> u64 {
        self.storage.unpacked_bytes()
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weight({} {}[{}, {}])", self.name, self.dtype, self.rows, self.cols)
    }
}

/// Geometry of a key-value cache: `pages` pages of `page_tokens` tokens for each of `layers` layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Layers of the shard; ops count them from 0.
    pub layers: usize,
    /// K: key-value heads.
    pub kv_heads: usize,
    /// D: elements of one head.
    pub head_dim: usize,
    /// Tokens of one page.
    pub page_tokens: usize,
    /// Pages in all, shared by the sequences through page tables.
    pub pages: usize,
    /// Element type.
    pub dtype: KvDType,
}

impl KvShape {
    /// Bytes of one page in one layer: keys and values with their scales. A backend's own layout may need
    /// more.
    pub fn page_bytes(&self) -> u64 {
        2 * (self.kv_heads * self.page_tokens * self.dtype.row_bytes(self.head_dim)) as u64
    }

    /// Elements of one page in one layer, keys and values.
    pub fn page_elements(&self) -> usize {
        2 * self.kv_heads * self.page_tokens * self.head_dim
    }

    /// Panics unless `data` is one page of one layer in the neutral format.
    pub fn assert_page(&self, data: &[f32]) {
        let elements = self.page_elements();
        assert!(data.len() == elements, "a page has {elements} elements, not {}", data.len());
    }

    /// Bytes of the whole cache.
    pub fn total_bytes(&self) -> u64 {
        self.page_bytes() * (self.layers * self.pages) as u64
    }
}

/// Keys and values of many sequences, in pages. Addressed by (layer, page, slot in page).
#[derive(Clone)]
pub struct KvCache {
    /// Numbers of layers, heads and pages.
    pub shape: KvShape,
    /// The backend's own.
    pub storage: Storage,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvCache({:?})", self.shape)
    }
}

impl KvCache {
    /// An error unless there is such a page in such a layer.
    pub fn check_page(&self, layer: usize, page: usize) -> Result<(), RunError> {
        let below = |what, value: usize, limit: usize| match value < limit {
            true => Ok(()),
            false => Err(RunError::OutOfRange {
                op: OpKind::KvWrite,
                what,
                value: value as u64,
                limit: limit as u64,
            }),
        };
        below("layer", layer, self.shape.layers)?;
        below("page", page, self.shape.pages)
    }
}
