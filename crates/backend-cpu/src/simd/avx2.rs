//! Eight lanes of AVX2 with fused multiply-add and half conversion.

use std::arch::x86_64::*;

use super::Kernel;
use super::Simd;

/// Proof that AVX2, FMA and F16C were detected: [`Avx2::detect`] is the only way to one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let there = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        there.then_some(Self(()))
    }
}

/// Adds the four lanes: 0 with 2, 1 with 3, then the two.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sum_of_4(v: __m128) -> f32 {
    let two = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

/// The largest of four lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn largest_of_4(v: __m128) -> f32 {
    let two = _mm_max_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

// Every block below has the same reason. SAFETY: `self` proves the features; each load and store goes through
// a slice that was first cut to exactly the bytes accessed, and the unaligned forms need no alignment.
impl Simd for Avx2 {
    const LANES: usize = 8;

    const WIDE: bool = true;

    fn call<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn wide<K: Kernel>(kernel: K, simd: Avx2) -> K::Out {
            kernel.run(simd)
        }
        // SAFETY: a value of this type exists only where the three features were detected.
        unsafe { wide(kernel, self) }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, from: &[f32]) -> __m256 {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from.as_ptr()) }
    }

    #[inline(always)]
    fn load_f32_bytes(self, from: &[u8]) -> __m256 {
        let from = &from[..32];
        // SAFETY: see above.
        unsafe { _mm256_loadu_ps(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16(self, from: &[u8]) -> __m256 {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, from: &[u8]) -> __m256 {
        let from = &from[..16];
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn splat_f16(self, from: [u8; 2]) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let half = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(from))));
            _mm256_broadcastss_ps(half)
        }
    }

    #[inline(always)]
    fn load_bits(self, from: &[u8], shift: u32, mask: u32) -> __m256 {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
            let shifted = _mm256_srl_epi32(wide, _mm_cvtsi32_si128(shift as i32));
            _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(mask as i32)))
        }
    }

    #[inline(always)]
    fn load_i8(self, from: &[u8]) -> __m256 {
        let from = &from[..8];
        // SAFETY: see above.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let lanes =
                _mm256_srlv_epi32(_mm256_set1_epi32(bits as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            _mm256_cvtepi32_ps(_mm256_and_si256(lanes, _mm256_set1_epi32(1)))
        }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn store(self, v: __m256, to: &mut [f32]) {
        let to = &mut to[..8];
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, to: &mut [u16]) {
        let to = &mut to[..8];
        // SAFETY: see above.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(to.as_mut_ptr().cast(), halves)
        }
    }

    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn nearest(self, v: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
    }

    #[inline(always)]
    fn pow2(self, n: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        // SAFETY: see above.
        unsafe { sum_of_4(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v))) }
    }

    #[inline(always)]
    fn largest(self, v: __m256) -> f32 {
        // SAFETY: see above.
        unsafe { largest_of_4(_mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v))) }
    }
}
