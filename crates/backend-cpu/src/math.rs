//! Scalar arithmetic whose results are the same on every machine: no call into the system's math library.

/// Little-endian f32 number `i` of `bytes`.
#[inline(always)]
pub(crate) fn f32_at(bytes: &[u8], i: usize) -> f32 {
    f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// Little-endian u32 number `i` of `bytes`.
#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
}

/// Little-endian bfloat16 number `i` of `bytes`.
#[inline(always)]
pub(crate) fn bf16_at(bytes: &[u8], i: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16)
}

/// Little-endian half number `i` of `bytes`.
#[inline(always)]
pub(crate) fn f16_at(bytes: &[u8], i: usize) -> f32 {
    f16(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]))
}

/// An IEEE half as f32, exactly. Branch-free, so that loops over it become vector code.
#[inline(always)]
pub(crate) fn f16(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    // The half's exponent is biased by 15, the float's by 127: multiply by 2^112, which also makes subnormals
    // right.
    let finite = f32::from_bits(magnitude) * f32::from_bits((112 + 127) << 23);
    let infinite = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if magnitude < (0x7c00 << 13) { finite } else { infinite };
    f32::from_bits(value.to_bits() | (bits & 0x8000) << 16)
}

/// The nearest IEEE half, ties to even; too large becomes infinite.
#[inline(always)]
pub(crate) fn to_f16(value: f32) -> u16 {
    half::f16::from_f32(value).to_bits()
}

/// e to the power of x, within 2 units in the last place; 0 below -87.3, infinite above 88.7.
///
/// `x = n·ln2 + r` with `|r| <= ln2/2`, `ln2` in two pieces so that `r` is exact (Cody and Waite), then the
/// Taylor polynomial of degree 7 and a scaling by `2^n`. Multiplications and additions are rounded apart on
/// every machine.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 355.0 / 512.0; // nine bits, so that n times it is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.336_54, 88.722_83);
    let n = (clamped * std::f32::consts::LOG2_E).round_ties_even();
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r + 1.0;
    // 2^n in two halves: n may be 128, whose power alone is not a float.
    let half = (n as i32) >> 1;
    let scale = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
    let value = p * scale(half) * scale(n as i32 - half);
    let value = if x > 88.722_83 { f32::INFINITY } else { value };
    let value = if x < -87.336_54 { 0.0 } else { value };
    if x.is_nan() { x } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_exactly() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let got = f16(bits);
            assert!(
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                "{bits:#06x}"
            );
        }
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0f64;
        for i in -870_000..887_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / (exact * f64::from(f32::EPSILON)));
        }
        assert!(worst < 2.0, "{worst} units");
    }

    #[test]
    fn exp_ends_where_floats_end() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(1000.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }
}
