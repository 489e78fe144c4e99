//! Eight lanes in plain Rust, for any processor. The compiler finds what vector instructions there are.

use super::Kernel;
use super::Simd;
use crate::math::{bf16_at, f16_at, f32_at, to_f16};

/// Needs nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    const LANES: usize = 8;

    const WIDE: bool = false;

    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> [f32; 8] {
        let from = &from[..8];
        std::array::from_fn(|i| from[i])
    }

    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8]) -> [f32; 8] {
        let from = &from[..32];
        std::array::from_fn(|i| f32_at(from, i))
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8]) -> [f32; 8] {
        let from = &from[..16];
        std::array::from_fn(|i| f16_at(from, i))
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8]) -> [f32; 8] {
        let from = &from[..16];
        std::array::from_fn(|i| bf16_at(from, i))
    }

    #[inline(always)]
    fn splat_f16(self, from: [u8; 2]) -> [f32; 8] {
        [f16_at(&from, 0); 8]
    }

    #[inline(always)]
    fn load_bits(self, from: &[u8], shift: u32, mask: u32) -> [f32; 8] {
        let from = &from[..8];
        std::array::from_fn(|i| (u32::from(from[i]) >> shift & mask) as i32 as f32)
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8]) -> [f32; 8] {
        let from = &from[..8];
        std::array::from_fn(|i| f32::from(from[i] as i8))
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> [f32; 8] {
        std::array::from_fn(|i| (bits >> i & 1) as i32 as f32)
    }

    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn store(self, v: [f32; 8], to: &mut [f32]) {
        to[..8].copy_from_slice(&v);
    }

    #[inline(always)]
    fn store_f16(self, v: [f32; 8], to: &mut [u16]) {
        let to = &mut to[..8];
        (0..8).for_each(|i| to[i] = to_f16(v[i]));
    }

    #[inline(always)]
    fn div(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn max(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn min(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn nearest(self, v: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| v[i].round_ties_even())
    }

    #[inline(always)]
    fn pow2(self, n: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn mul_add(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    fn sum(self, v: [f32; 8]) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|i| v[i] + v[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn largest(self, v: [f32; 8]) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
