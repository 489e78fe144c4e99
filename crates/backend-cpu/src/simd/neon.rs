//! Eight lanes of NEON: two registers of four.

use std::arch::aarch64::*;

use super::Kernel;
use super::Simd;

/// Proof that NEON and the dot-product extension were detected: [`Neon::detect`] is the only way to one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    pub(crate) fn detect() -> Option<Self> {
        let there = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        there.then_some(Self(()))
    }
}

/// Lanes 0 to 3 and 4 to 7.
pub(super) type Pair = [float32x4_t; 2];

/// Four halves as f32.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn widen_f16(halves: uint16x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(halves))
}

/// Four f32 rounded to halves, ties to even.
#[inline]
#[target_feature(enable = "neon")]
fn narrow_f16(wide: float32x4_t) -> uint16x4_t {
    vreinterpret_u16_f16(vcvt_f16_f32(wide))
}

/// Eight bytes, of which the bits of `mask` are kept after a shift to the right.
#[inline]
#[target_feature(enable = "neon")]
fn bits(from: uint8x8_t, shift: u32, mask: u32) -> Pair {
    let wide = vmovl_u8(from);
    let (right, mask) = (vdupq_n_s32(-(shift as i32)), vdupq_n_u32(mask));
    let part = |four: uint16x4_t| vcvtq_f32_u32(vandq_u32(vshlq_u32(vmovl_u16(four), right), mask));
    [part(vget_low_u16(wide)), part(vget_high_u16(wide))]
}

#[inline]
#[target_feature(enable = "neon")]
fn signed(from: int8x8_t) -> Pair {
    let wide = vmovl_s8(from);
    let part = |four: int16x4_t| vcvtq_f32_s32(vmovl_s16(four));
    [part(vget_low_s16(wide)), part(vget_high_s16(wide))]
}

#[inline]
#[target_feature(enable = "neon")]
fn spread(bits: u32) -> Pair {
    let part = |first: i32| {
        // SAFETY: four numbers are read from an array of four.
        let right = unsafe { vld1q_s32([-first, -first - 1, -first - 2, -first - 3].as_ptr()) };
        vcvtq_f32_u32(vandq_u32(vshlq_u32(vdupq_n_u32(bits), right), vdupq_n_u32(1)))
    };
    [part(0), part(4)]
}

#[inline]
#[target_feature(enable = "neon")]
fn power_of_two(n: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127))))
}

#[inline]
#[target_feature(enable = "neon")]
fn sum(v: Pair) -> f32 {
    let four = vaddq_f32(v[0], v[1]);
    vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and no alignment is needed.
impl Simd for Neon {
    const LANES: usize = 8;

    // Twelve pairs and their operands are 28 of 32 registers.
    const WIDE: bool = true;

    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "neon,dotprod")]
        fn wide<K: Kernel>(kernel: K, simd: Neon) -> K::Out {
            kernel.run(simd)
        }
        // SAFETY: a value of this type exists only where the features were detected.
        unsafe { wide(kernel, self) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Pair {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(value); 2] }
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> Pair {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe { [vld1q_f32(from.as_ptr()), vld1q_f32(from.as_ptr().add(4))] }
    }

    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8]) -> Pair {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe { [0, 16].map(|at| vreinterpretq_f32_u8(vld1q_u8(from.as_ptr().add(at)))) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8]) -> Pair {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe { [0, 8].map(|at| widen_f16(vreinterpret_u16_u8(vld1_u8(from.as_ptr().add(at))))) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8]) -> Pair {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe {
            [0, 8].map(|at| {
                let halves = vreinterpret_u16_u8(vld1_u8(from.as_ptr().add(at)));
                vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
            })
        }
    }

    #[inline(always)]
    fn splat_f16(self, from: [u8; 2]) -> Pair {
        self.splat(crate::math::f16_at(&from, 0))
    }

    #[inline(always)]
    fn load_bits(self, from: &[u8], shift: u32, mask: u32) -> Pair {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe { bits(vld1_u8(from.as_ptr()), shift, mask) }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8]) -> Pair {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe { signed(vld1_s8(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> Pair {
        // SAFETY: see above.
        unsafe { spread(bits) }
    }

    #[inline(always)]
    fn store(self, v: Pair, to: &mut [f32]) {
        let to = &mut to[..8];
        // SAFETY: see above.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), v[0]);
            vst1q_f32(to.as_mut_ptr().add(4), v[1]);
        }
    }

    #[inline(always)]
    fn store_f16(self, v: Pair, to: &mut [u16]) {
        let to = &mut to[..8];
        // SAFETY: see above.
        unsafe {
            vst1_u16(to.as_mut_ptr(), narrow_f16(v[0]));
            vst1_u16(to.as_mut_ptr().add(4), narrow_f16(v[1]));
        }
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] }
    }

    // Comparisons and not `fmax`, which gives no number where one operand is none.
    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [0, 1].map(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i])) }
    }

    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { [0, 1].map(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i])) }
    }

    #[inline(always)]
    fn nearest(self, v: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { v.map(|v| vrndnq_f32(v)) }
    }

    #[inline(always)]
    fn pow2(self, n: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { n.map(|n| power_of_two(n)) }
    }

    #[inline(always)]
    fn sum(self, v: Pair) -> f32 {
        // SAFETY: see above.
        unsafe { sum(v) }
    }

    #[inline(always)]
    fn largest(self, v: Pair) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxvq_f32(vmaxq_f32(v[0], v[1])) }
    }
}
