//! Handles to what a device holds. Cheap to clone; the device frees the memory when the last clone drops.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use exo_types::{DType, KvDType};

/// What stands behind a handle. The backend that made it downcasts; a handle of another device fails there.
pub type Storage = Arc<dyn Any + Send + Sync>;

/// Element type of a working buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    /// Activations.
    F32,
    /// Token ids, positions, page numbers.
    U32,
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

/// A tensor in the layout the backend likes best. Opaque: only its shape and footprint show.
#[derive(Clone)]
pub struct Weight {
    /// The checkpoint's name, for messages.
    pub name: Arc<str>,
    /// The stored type it was made from.
    pub dtype: DType,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Device memory it occupies, mapped pages included.
    pub footprint_bytes: u64,
    /// The backend's own.
    pub storage: Storage,
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
    /// Bytes of one page in one layer: keys and values with their scales. A backend's own layout may need more.
    pub fn page_bytes(&self) -> u64 {
        2 * (self.kv_heads * self.page_tokens * self.dtype.row_bytes(self.head_dim)) as u64
    }

    /// Bytes of the whole cache.
    pub fn total_bytes(&self) -> u64 {
        self.page_bytes() * (self.layers * self.pages) as u64
    }
}

/// Keys and values of many sequences, in pages. Addressed by (layer, page, slot in page).
#[derive(Clone)]
pub struct KvCache {
    /// Geometry.
    pub shape: KvShape,
    /// The backend's own.
    pub storage: Storage,
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvCache({:?})", self.shape)
    }
}
