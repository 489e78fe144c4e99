//! One row of activations: a stream of weights, read once.

use std::arch::asm;

use super::*;

/// # Safety
/// As [`super::multiply`], with one row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply<K: PackedType>(weights: &Group<'_>, x: &[RoundedBlock], sums: &mut Sums) {
    let sums = sums.0.as_mut_ptr();
    let mut totals = [_mm256_setzero_ps(); 2];
    let mut walk = Walk::<K>::new(weights);
    for x in x {
        // SAFETY: there are as many places as blocks in a row.
        unsafe {
            let place = walk.next();
            prefetch_scales::<K>(place);
            let lanes = match K::QUANTS {
                Quants::Bytes | Quants::Nibbles => plain::<K>(place.quants, x),
                Quants::Fives => fives(place.quants, x),
                Quants::Sixes => sixes::<K>(place.quants, x),
            };
            let centre = centre::<K>(x);
            for half in 0..2 {
                let scales = row_scales::<K>(place, half);
                let mut integer = _mm256_madd_epi16(lanes[half][0], scales.lanes[0]);
                if !matches!(K::QUANTS, Quants::Nibbles) {
                    let second = _mm256_madd_epi16(lanes[half][1], scales.lanes[1]);
                    integer = _mm256_add_epi32(integer, second);
                }
                let integer = centre.map_or(integer, |centre| _mm256_add_epi32(integer, centre));
                totals[half] = add_block::<K>(totals[half], integer, &scales, x);
            }
        }
    }
    // SAFETY: `Sums` are sixteen floats at a multiple of 64.
    unsafe {
        _mm256_store_ps(sums, totals[0]);
        _mm256_store_ps(sums.add(8), totals[1]);
    }
}

/// The same address, of which the compiler knows nothing: it can neither unroll the loop nor split its loads.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read through it")]
fn opaque<T>(mut pointer: *const T) -> *const T {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(reg) pointer, options(pure, nomem, nostack, preserves_flags)) };
    pointer
}

/// # Safety
/// `line` is the first of a block of type `K`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn plain<K: PackedType>(line: *const Line, x: &RoundedBlock) -> [[__m256i; 2]; 2] {
    let bytes = matches!(K::QUANTS, Quants::Bytes);
    let mut line = opaque(line);
    let mut word = x.quants.as_ptr().cast::<i32>();
    let end = word.wrapping_add(if bytes { 8 } else { 4 });
    let nibble = _mm256_set1_epi8(15);
    let mut lanes = [[_mm256_setzero_si256(); 2]; 2];
    while word < end {
        prefetch(line, 1);
        // SAFETY: one turn for each line and word, or each two words, of the block.
        unsafe {
            let x =
                [word, word.add(if bytes { 0 } else { 4 })].map(|x| _mm256_set1_epi32(x.read_unaligned()));
            for half in 0..2 {
                let both = _mm256_load_si256(line.cast::<__m256i>().add(half));
                let words =
                    [_mm256_and_si256(both, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble)];
                for part in 0..2 {
                    let lanes = &mut lanes[half][if bytes { part } else { 0 }];
                    *lanes = _mm256_add_epi16(*lanes, _mm256_maddubs_epi16(words[part], x[part]));
                }
            }
        }
        line = opaque(line.wrapping_add(1));
        word = opaque(word.wrapping_add(1));
    }
    lanes
}

/// # Safety
/// `line` is the first of a block with a line of fifth bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fives(line: *const Line, x: &RoundedBlock) -> [[__m256i; 2]; 2] {
    let mut line = opaque(line);
    let mut word = x.quants.as_ptr().cast::<i32>();
    let end = word.wrapping_add(4);
    let (nibble, fifth) = (_mm256_set1_epi8(15), _mm256_set1_epi8(16));
    let mut lanes = [[_mm256_setzero_si256(); 2]; 2];
    // SAFETY: the fifth line.
    let mut bits = [0, 1].map(|half| unsafe {
        let bits = _mm256_load_si256(line.add(4).cast::<__m256i>().add(half));
        [_mm256_slli_epi16::<4>(bits), bits]
    });
    prefetch(line.wrapping_add(4), 1);
    while word < end {
        prefetch(line, 1);
        // SAFETY: one turn for each line and two words of the block.
        unsafe {
            let x = [word, word.add(4)].map(|x| _mm256_set1_epi32(x.read_unaligned()));
            for half in 0..2 {
                let both = _mm256_load_si256(line.cast::<__m256i>().add(half));
                let words =
                    [_mm256_and_si256(both, nibble), _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble)];
                for part in 0..2 {
                    let word = _mm256_or_si256(words[part], _mm256_and_si256(bits[half][part], fifth));
                    lanes[half][part] =
                        _mm256_add_epi16(lanes[half][part], _mm256_maddubs_epi16(word, x[part]));
                    bits[half][part] = _mm256_srli_epi16::<1>(bits[half][part]);
                }
            }
        }
        line = opaque(line.wrapping_add(1));
        word = opaque(word.wrapping_add(1));
    }
    lanes
}

/// # Safety
/// `line` is the first of a block with two lines of pairs of bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sixes<K: PackedType>(line: *const Line, x: &RoundedBlock) -> [[__m256i; 2]; 2] {
    let mut line = opaque(line);
    let mut word = x.quants.as_ptr().cast::<i32>();
    let end = word.wrapping_add(4);
    let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    // SAFETY: `x` is a block.
    let starts = unsafe { [start::<K>(x, 0), start::<K>(x, 1)] };
    let mut lanes = [starts; 2];
    // SAFETY: the fifth and the sixth line.
    let mut bits = [0, 1]
        .map(|half| unsafe { [4, 5].map(|at| _mm256_load_si256(line.add(at).cast::<__m256i>().add(half))) });
    prefetch(line.wrapping_add(4), 2);
    while word < end {
        prefetch(line, 2);
        for half in 0..2 {
            for part in 0..2 {
                let here = _mm256_slli_epi16::<4>(bits[half][part]);
                for i in 0..2 {
                    // SAFETY: one turn for each two lines and four words of the block.
                    let (both, x) = unsafe {
                        let both = _mm256_load_si256(line.add(i).cast::<__m256i>().add(half));
                        (both, _mm256_set1_epi32(word.add(4 * part + i).read_unaligned()))
                    };
                    let both = if part == 0 { both } else { _mm256_srli_epi16::<4>(both) };
                    let here = if i == 0 { here } else { _mm256_srli_epi16::<2>(here) };
                    let quants =
                        _mm256_or_si256(_mm256_and_si256(both, nibble), _mm256_and_si256(here, pair));
                    lanes[half][part] = _mm256_add_epi16(lanes[half][part], _mm256_maddubs_epi16(quants, x));
                }
                bits[half][part] = _mm256_srli_epi16::<4>(bits[half][part]);
            }
        }
        line = opaque(line.wrapping_add(2));
        word = opaque(word.wrapping_add(2));
    }
    lanes
}
