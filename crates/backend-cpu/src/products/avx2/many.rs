//! Two rows of activations or more: bound by arithmetic from about four on.

use super::*;

/// Rows of activations whose 16-bit sums, two for each, stay in registers beside the operands.
const TILE: usize = 4;
/// Rows for which a block is unpacked at once: their part of the activations stays in the nearer caches.
const CHUNK: usize = 8 * TILE;

/// A block of sixteen rows with a quant, or a nibble of a byte, in each byte, and its scales.
struct Block {
    /// By word, then by half of the rows; of bytes first the low nibbles of all words, then the high ones.
    words: [[__m256i; 2]; 16],
    scales: [RowScales; 2],
}

/// # Safety
/// As [`super::multiply`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<K: PackedType>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    let mut t = 0;
    for sums in sums.chunks_mut(CHUNK) {
        // SAFETY: the caller's promise; the part has as many rows as `sums`.
        unsafe { chunk::<K>(weights, x.part(t, sums.len()), sums) };
        t += sums.len();
    }
}

/// # Safety
/// As [`super::multiply`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chunk<K: PackedType>(weights: &Group<'_>, x: RoundedRows<'_>, sums: &mut [Sums]) {
    sums.fill(bytemuck::Zeroable::zeroed());
    // Tiles of nearly equal size: five rows are three and two, not four and one.
    let tiles = sums.len().div_ceil(TILE);
    let (size, larger) = (sums.len() / tiles, sums.len() % tiles);
    let mut walk = Walk::<K>::new(weights);
    for at in 0..weights.blocks {
        // SAFETY: there are as many places as blocks; the rows of each tile are rows of `x` and of `sums`,
        // and `at` is below the blocks of a row.
        unsafe {
            let block = unpack::<K>(walk.next());
            let mut t = 0;
            for tile in 0..tiles {
                let count = size + usize::from(tile < larger);
                let rows = x.all.as_ptr().add(t * x.blocks + at);
                let totals = sums.as_mut_ptr().add(t);
                match count {
                    1 => self::tile::<K, 1>(&block, rows, x.blocks, totals),
                    2 => self::tile::<K, 2>(&block, rows, x.blocks, totals),
                    3 => self::tile::<K, 3>(&block, rows, x.blocks, totals),
                    _ => self::tile::<K, TILE>(&block, rows, x.blocks, totals),
                }
                t += count;
            }
        }
    }
}

/// # Safety
/// `place` is that of a block of type `K`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<K: PackedType>(place: BlockAddress) -> Block {
    // SAFETY: the caller's promise.
    let scales = unsafe { [row_scales::<K>(place, 0), row_scales::<K>(place, 1)] };
    let mut block = Block { words: [[_mm256_setzero_si256(); 2]; 16], scales };
    let lines = if matches!(K::QUANTS, Quants::Bytes) { 8 } else { 4 };
    prefetch_scales::<K>(place);
    prefetch(place.quants, K::LAYOUT.block);
    for j in 0..lines {
        for half in 0..2 {
            // SAFETY: the caller's promise.
            let [first, second] = unsafe { words::<K>(place.quants, half, j) };
            block.words[j][half] = first;
            block.words[lines + j][half] = second;
        }
    }
    block
}

/// Adds a block by `U` rows of activations, `stride` blocks apart, to their totals.
///
/// # Safety
/// `rows` points to a block with `U - 1` others behind it, `totals` to `U` sums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<K: PackedType, const U: usize>(
    block: &Block,
    rows: *const RoundedBlock,
    stride: usize,
    totals: *mut Sums,
) {
    let mut x = [rows; U];
    for (u, x) in x.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *x = unsafe { x.add(u * stride) };
    }
    // SAFETY: the caller's promise; the words of the runs are within the block's.
    let integers = unsafe {
        match K::QUANTS {
            Quants::Nibbles => run::<K, U, 8>(&block.words, x, 0, block, 0),
            Quants::Bytes => add(
                run::<K, U, 8>(&block.words, x, 0, block, 0),
                run::<K, U, 8>(&block.words[8..], x, 0, block, 1),
            ),
            Quants::Fives | Quants::Sixes => add(
                run::<K, U, 4>(&block.words, x, 0, block, 0),
                run::<K, U, 4>(&block.words[4..], x, 4, block, 1),
            ),
        }
    };
    for u in 0..U {
        // SAFETY: the caller's promise; `Sums` are sixteen floats at a multiple of 64.
        unsafe {
            let centre = centre::<K>(x[u]);
            for (half, integer) in integers[u].into_iter().enumerate() {
                let to = (&raw mut (*totals.add(u)).0).cast::<f32>().add(8 * half);
                let integer = centre.map_or(integer, |centre| _mm256_add_epi32(integer, centre));
                let total = add_block::<K>(_mm256_load_ps(to), integer, &block.scales[half], x[u]);
                _mm256_store_ps(to, total);
            }
        }
    }
}

/// `N` words by those of `x` from word `first` on: summed up in 16 bits, then times the lanes' factor of
/// `part`.
///
/// # Safety
/// `words` are `N` or more, `x` point to blocks, and `first + N` is at most 8.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<K: PackedType, const U: usize, const N: usize>(
    words: &[[__m256i; 2]],
    x: [*const RoundedBlock; U],
    first: usize,
    block: &Block,
    part: usize,
) -> [[__m256i; 2]; U] {
    // SAFETY: the caller's promise.
    let mut lanes = x.map(|x| [unsafe { start::<K>(x, part) }; 2]);
    for (j, words) in words[..N].iter().enumerate() {
        for u in 0..U {
            // SAFETY: the caller's promise.
            let x = unsafe { broadcast(x[u], first + j) };
            for half in 0..2 {
                lanes[u][half] = _mm256_add_epi16(lanes[u][half], _mm256_maddubs_epi16(words[half], x));
            }
        }
    }
    lanes.map(|[a, b]| {
        [_mm256_madd_epi16(a, block.scales[0].lanes[part]), _mm256_madd_epi16(b, block.scales[1].lanes[part])]
    })
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add<const U: usize>(mut a: [[__m256i; 2]; U], b: [[__m256i; 2]; U]) -> [[__m256i; 2]; U] {
    for (a, b) in a.as_flattened_mut().iter_mut().zip(b.as_flattened()) {
        *a = _mm256_add_epi32(*a, *b);
    }
    a
}
