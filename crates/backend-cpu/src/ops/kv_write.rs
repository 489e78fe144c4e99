//! Stores keys and values in their pages.

use exo_backend::RunError;

use super::PARALLEL_ELEMENTS_MIN;
use super::paging::Paging;
use crate::isa::Level;
use crate::kv::{BLOCK, CpuKv, KvLayout, WriteRow};
use crate::pool::{PoolGuard, SendPtr};
use crate::simd::fetch_far;

/// Of a cache, as the architectures here have them or shorter.
const LINE_BYTES: usize = 64;

/// Stores each row's key and value at its sequence's and position's slot.
///
/// | operand  | shape       | layout                  | type   |
/// |----------|-------------|-------------------------|--------|
/// | `k`, `v` | `[T, K, D]` | rows contiguous         | f32    |
/// | `kv`     |             | [`crate::kv::KvLayout`] | stored |
///
/// Halves are rounded to nearest, ties to even; Q8 as [`exo_types::KvDType::Q8`] says. Fails before it writes
/// if a page is not in the table or the cache. Cost: a key's elements go to as many cache lines; threads take
/// heads.
pub(super) fn kv_write(
    turn: &PoolGuard<'_>,
    level: Level,
    kv: &CpuKv,
    k: &[f32],
    v: &[f32],
    paging: &Paging<'_>,
) -> Result<(), RunError> {
    paging.check(|t| paging.position(t)..=paging.position(t))?;
    let (layout, mut bytes) = (&kv.layout, kv.write());
    let (d, heads) = (paging.shape.head_dim, paging.shape.kv_heads);
    let len = bytes.len();
    let start = SendPtr::new(&mut bytes[..]);
    let head = |head: usize| {
        for t in 0..paging.tokens() {
            let (block, slot) = paging.block(layout, t, head, paging.position(t));
            let row = (t * heads + head) * d..(t * heads + head + 1) * d;
            assert!(block + layout.block_bytes() <= len);
            // SAFETY: in bounds by the assertion; the cache is borrowed mutably here, and no other piece has
            // blocks of this head.
            let block =
                unsafe { std::slice::from_raw_parts_mut(start.get().add(block), layout.block_bytes()) };
            level.dispatch(WriteRow { layout, block, slot, key: &k[row.clone()], value: &v[row] });
        }
    };
    if paging.tokens() * heads * d < PARALLEL_ELEMENTS_MIN {
        if paging.tokens() > 0 {
            (0..heads).for_each(|head| read_ahead(layout, paging, head, start.get()));
        }
        (0..heads).for_each(head);
    } else {
        turn.run(heads, &head);
    }
    Ok(())
}

/// Asks for the lines of the first row in a head. Its key has one for each element, in a block that the
/// weights of a whole step have driven out of the caches, and stores wait for few at a time.
fn read_ahead(layout: &KvLayout, paging: &Paging<'_>, head: usize, cache: *mut u8) {
    let (block, slot) = paging.block(layout, 0, head, paging.position(0));
    let element = layout.element_bytes();
    for i in 0..layout.head_dim {
        fetch_far(cache.wrapping_add(block + (i * BLOCK + slot) * element));
    }
    for at in (0..layout.width * element).step_by(LINE_BYTES) {
        fetch_far(cache.wrapping_add(block + layout.values + slot * layout.width * element + at));
    }
}
