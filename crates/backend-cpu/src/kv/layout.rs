//! Where the keys and values of a page lie.

use exo_types::KvDType;

use exo_backend::KvShape;

/// Positions of a block: 32 halves fill a cache line. Attention reduces block by block, so the last bits of
/// its results hang on this number.
pub(crate) const BLOCK: usize = 32;
/// Rows of values are filled up with zeros to a multiple of this: vectors of every width fit.
const WIDTH_STEP: usize = 16;
/// Every part of a block starts at a multiple of this: a cache line.
const ALIGN: usize = 64;

/// A cache in bytes. One layer, page and key-value head is a run of *blocks* of 32 positions (the last filled
/// up):
///
/// | part of a block | shape      | elements                                                                         |
/// |-----------------|------------|----------------------------------------------------------------------------------|
/// | keys            | `[D, 32]`  | one line of 32 positions for each element of a head: a query's element is multiplied by that of 32 keys at once and nothing is summed across lanes |
/// | key scales      | `[G, 32]`  | f16; Q8 only, G groups of 32 elements                                            |
/// | values          | `[32, D']` | one position after the other; D' is D filled up to a multiple of 16              |
/// | value scales    | `[G, 32]`  | f16; Q8 only                                                                     |
///
/// A block is read from front to back by one piece of attention: a single stream of memory.
///
/// A page's layers lie side by side, so that memory comes with the tokens that fill it. Layer by layer, all
/// of them would reach a new 2 MiB of theirs in the same step, and the system clears each before it gives it:
/// with 28 layers that took 180 ms every 512 tokens, in which all streams waited.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvLayout {
    pub(crate) dtype: KvDType,
    /// D
    pub(crate) head_dim: usize,
    /// D': D filled up to a multiple of 16.
    pub(crate) width: usize,
    /// G
    pub(crate) groups: usize,
    // Offsets in a block.
    pub(crate) key_scales: usize,
    pub(crate) values: usize,
    pub(crate) value_scales: usize,
    block_bytes: usize,
    blocks_per_page: usize,
    kv_heads: usize,
    layers: usize,
}

impl KvLayout {
    /// `None` if the cache has more bytes than there are addresses.
    pub(crate) fn new(shape: &KvShape) -> Option<Self> {
        let KvShape { dtype, head_dim, kv_heads, pages, page_tokens, .. } = *shape;
        let element = bytes_of(dtype);
        let width = head_dim.checked_next_multiple_of(WIDTH_STEP)?;
        let groups = if dtype == KvDType::Q8 { head_dim.div_ceil(KvDType::GROUP) } else { 0 };
        let part = |rows: usize, cols: usize, bytes: usize| {
            rows.checked_mul(cols)?.checked_mul(bytes)?.checked_next_multiple_of(ALIGN)
        };
        let scales = part(groups, BLOCK, 2)?;
        let key_scales = part(head_dim, BLOCK, element)?;
        let values = key_scales.checked_add(scales)?;
        let value_scales = values.checked_add(part(BLOCK, width, element)?)?;
        let block_bytes = value_scales.checked_add(scales)?;
        let blocks_per_page = page_tokens.div_ceil(BLOCK);
        let layout = Self {
            dtype,
            head_dim,
            width,
            groups,
            key_scales,
            values,
            value_scales,
            block_bytes,
            blocks_per_page,
            kv_heads,
            layers: shape.layers,
        };
        let factors = [shape.layers, pages, kv_heads, blocks_per_page];
        factors.into_iter().try_fold(block_bytes, usize::checked_mul).map(|_| layout)
    }

    /// Bytes of `pages` pages. Cannot overflow: [`Self::new`] has tried.
    pub(crate) fn bytes(&self, pages: usize) -> usize {
        pages * self.layers * self.page_bytes()
    }

    /// Bytes of a page of one layer.
    pub(crate) fn page_bytes(&self) -> usize {
        self.kv_heads * self.blocks_per_page * self.block_bytes
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// First byte of a page of one layer.
    pub(crate) fn page(&self, layer: usize, page: usize) -> usize {
        (page * self.layers + layer) * self.page_bytes()
    }

    /// First byte of the block of a page and head that holds `slot`.
    pub(crate) fn block(&self, layer: usize, page: usize, head: usize, slot: usize) -> usize {
        self.page(layer, page) + (head * self.blocks_per_page + slot / BLOCK) * self.block_bytes
    }

    pub(crate) fn element_bytes(&self) -> usize {
        bytes_of(self.dtype)
    }
}

fn bytes_of(dtype: KvDType) -> usize {
    match dtype {
        KvDType::F32 => 4,
        KvDType::F16 => 2,
        KvDType::Q8 => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_all_its_layers_and_the_next_one_follows() {
        let shape =
            KvShape { dtype: KvDType::F16, head_dim: 40, kv_heads: 3, pages: 5, page_tokens: 40, layers: 4 };
        let layout = KvLayout::new(&shape).unwrap();
        let mut end = 0;
        for page in 0..shape.pages {
            for layer in 0..shape.layers {
                for head in 0..shape.kv_heads {
                    for slot in [0, BLOCK] {
                        assert_eq!(layout.block(layer, page, head, slot), end);
                        end += layout.block_bytes();
                    }
                }
            }
        }
        assert_eq!(end, layout.bytes(shape.pages));
    }
}
