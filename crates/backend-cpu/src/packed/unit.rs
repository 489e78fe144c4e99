//! The unit of a block of BF16 weights: what products count its elements in.

use crate::packed::BLOCK;

/// What lies between the biased exponent of a unit and that of elements which are rounded by no bit: an
/// element of exponent e is its fifteen bits `0x4000 | fraction << 7`, shifted down by
/// `unit + EXPONENT_LESS_UNIT - e`, in units.
pub(crate) const EXPONENT_LESS_UNIT: u32 = 14;
/// The most that the magnitudes of a block add up to, in units: below 2^16 less the half unit by which each
/// may be rounded up.
const SUM_MAX: f32 = 65504.0;
/// Biased exponents of the smallest unit, and of the first magnitude that counts as not finite: 2^-119 and
/// 2^120.
const UNIT_MIN: u32 = 127 - 119;
const EXPONENT_END: u32 = 127 + 120;
/// NaN as BF16.
const NAN: u16 = 0x7fc0;

/// The unit of 32 columns of a row as BF16: as [`exo_backend::Activations::Rounded16`] defines it, NaN where
/// an element is too large.
#[inline(always)]
pub(super) fn unit(block: &[u8; 2 * BLOCK]) -> [u8; 2] {
    // Eight lanes, in registers of every x86-64 processor.
    let (mut sums, mut largest) = ([0.0; 8], [0i16; 8]);
    for eight in block.as_chunks::<16>().0 {
        for (l, (sum, largest)) in sums.iter_mut().zip(&mut largest).enumerate() {
            let magnitude = i16::from_le_bytes([eight[2 * l], eight[2 * l + 1]]) & 0x7fff;
            *largest = magnitude.max(*largest);
            *sum += f32::from_bits(u32::from(magnitude as u16) << 16);
        }
    }
    let largest = largest.into_iter().fold(0, i16::max);
    let (sum, exponent) = (sums.iter().sum::<f32>(), largest as u32 >> 7);
    if exponent >= EXPONENT_END {
        return NAN.to_le_bytes();
    }
    // Up to the next power of two: the exponent of what has any other bit set is one more.
    let of_sum = ((sum / SUM_MAX).to_bits() + 0x007f_ffff) >> 23;
    let of_largest = (exponent + 1).saturating_sub(EXPONENT_LESS_UNIT);
    let unit = of_sum.max(of_largest).max(UNIT_MIN);
    ((unit as u16) << 7).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit_of(block: impl Fn(usize) -> f32) -> f32 {
        let bytes: Vec<u8> = (0..BLOCK).flat_map(|k| half::bf16::from_f32(block(k)).to_le_bytes()).collect();
        half::bf16::from_le_bytes(unit(bytes.as_chunks().0.first().unwrap())).to_f32()
    }

    #[test]
    fn the_smallest_power_of_two_that_holds_the_sum_and_the_largest() {
        // By the sum, which is at most 65504 units.
        assert_eq!(unit_of(|_| 2040.0), 1.0);
        assert_eq!(unit_of(|_| -2048.0), 2.0);
        assert_eq!(unit_of(|k| if k < 31 { 2048.0 } else { 2016.0 }), 1.0);
        // By the largest: below 2^14 units.
        assert_eq!(unit_of(|k| if k == 5 { 16320.0 } else { 0.0 }), 1.0);
        assert_eq!(unit_of(|k| if k == 5 { -16384.0 } else { 0.0 }), 2.0);
    }

    #[test]
    fn units_end_where_elements_are_too_small_or_too_large() {
        let (smallest, end) = (2f32.powi(-119), 2f32.powi(120));
        for tiny in [0.0, -0.0, f32::from_bits(1 << 16), smallest] {
            assert_eq!(unit_of(|_| tiny), smallest, "{tiny:e}");
        }
        assert!(unit_of(|_| end * 0.99).is_finite());
        for k in [0, 31] {
            for bad in [end, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                assert!(unit_of(|at| if at == k { bad } else { 1.0 }).is_nan(), "{bad}");
            }
        }
    }
}
