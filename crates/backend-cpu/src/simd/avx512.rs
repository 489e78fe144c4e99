//! Sixteen lanes of AVX-512.

use std::arch::x86_64::*;

use super::Kernel;
use super::Simd;

/// Proof that AVX-512 F, BW, DQ, VL, VNNI and what [`super::Avx2`] needs were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        let there = super::Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        there.then_some(Self(()))
    }
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and the unaligned forms need no alignment.
impl Simd for Avx512 {
    const LANES: usize = 16;

    const WIDE: bool = true;

    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn wide<K: Kernel>(kernel: K, simd: Avx512) -> K::Out {
            kernel.run(simd)
        }
        // SAFETY: a value of this type exists only where the features were detected.
        unsafe { wide(kernel, self) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m512 {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8]) -> __m512 {
        let from = &from[..64];
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8]) -> __m512 {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8]) -> __m512 {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn splat_f16(self, from: [u8; 2]) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let half = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(from))));
            _mm512_broadcastss_ps(half)
        }
    }

    #[inline(always)]
    fn load_bits(self, from: &[u8], shift: u32, mask: u32) -> __m512 {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let shifted = _mm512_srl_epi32(wide, _mm_cvtsi32_si128(shift as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(mask as i32)))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8]) -> __m512 {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_maskz_mov_ps(bits as __mmask16, _mm512_set1_ps(1.0)) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32]) {
        let to = &mut to[..16];
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, to: &mut [u16]) {
        let to = &mut to[..16];
        // SAFETY: see above.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves)
        }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn nearest(self, v: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // Not `_mm512_reduce_add_ps`: its order is the compiler's choice, which may differ between two
        // callers. SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::sum_of_4(_mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            ))
        }
    }

    #[inline(always)]
    fn largest(self, v: __m512) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            super::avx2::largest_of_4(_mm_max_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            ))
        }
    }
}
