// The kernels' platform on AMD's cards, in the compiler's own words: no header of AMD's is needed to compile. Compiled by clang
// and by AMD's hiprtc (`cargo xtask hip`), never run. No kernel for tensor cores is here: AMD's matrix instructions are others.
#pragma once

// hiprtc puts a header of AMD's in front of every source, which has these already.
#ifndef __HIPCC_RTC__
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#endif

// That header has types and functions of these names too, whose layout and rounding are not ours to choose.
#define uint2 exo_uint2
#define uint4 exo_uint4
#define float4 exo_float4
#define expf exo_expf
#define sincosf exo_sincosf
#define fmaf exo_fmaf
#define fmaxf exo_fmaxf
#define fminf exo_fminf
#define fabsf exo_fabsf
#define rintf exo_rintf
#define sqrtf exo_sqrtf

struct alignas(8) uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

#define DEVICE static __device__ inline __attribute__((always_inline))
#define DEVICE_MEMBER __device__ inline __attribute__((always_inline))
#define KERNEL(name, threads, Args) \
    extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, threads))) name(const Args a)
#define GROUP_SHARED(type, name, count) __shared__ type name[count] __attribute__((aligned(16)))
#define SYNC() wait_for_block()
#define BLOCK_X __builtin_amdgcn_workgroup_id_x()
#define BLOCK_Y __builtin_amdgcn_workgroup_id_y()
#define THREAD __builtin_amdgcn_workitem_id_x()
#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("clang loop unroll(disable)")

#define NO_LOAD_LATER() asm volatile("" ::: "memory")

DEVICE void wait_for_block() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DEVICE float bits_to_float(u32 bits) {
    return __builtin_bit_cast(float, bits);
}

DEVICE u32 float_to_bits(float value) {
    return __builtin_bit_cast(u32, value);
}

DEVICE float half_to_float(u16 bits) {
    return (float)__builtin_bit_cast(_Float16, bits);
}

DEVICE u16 float_to_half(float value) {
    return __builtin_bit_cast(u16, (_Float16)value);
}

DEVICE float from_lane(float value, u32 lane, u32 width) {
    // A wave has 32 threads or 64, by card; `width` divides both.
    u32 own = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    u32 from = (own & ~(width - 1u)) + lane;
    return bits_to_float((u32)__builtin_amdgcn_ds_bpermute((int)(from * 4u), (int)float_to_bits(value)));
}

// One instruction on RDNA 3 and 4, on RDNA 2, and on CDNA and late Vega; whole numbers, so all give the same.
DEVICE int dot4(u32 a, u32 b, int sum) {
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || defined(__gfx1150__) \
    || defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
    return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, sum, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx1030__) \
    || defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__)
    return __builtin_amdgcn_sdot4((int)a, (int)b, sum, false);
#else
    for (u32 i = 0; i < 4u; i++) {
        sum += (int)(signed char)(a >> 8u * i) * (int)(signed char)(b >> 8u * i);
    }
    return sum;
#endif
}

DEVICE u32 atomic_add(u32* at, u32 value) {
    return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

DEVICE void store_seen_by_all(u32* at, u32 value) {
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
}

DEVICE void publish_for_all() {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
}

// The accurate functions of AMD's device library, linked when a module is made.
extern "C" __device__ float __ocml_exp_f32(float);
extern "C" __device__ float __ocml_sin_f32(float);
extern "C" __device__ float __ocml_cos_f32(float);

DEVICE float expf(float x) {
    return __ocml_exp_f32(x);
}

DEVICE void sincosf(float x, float* sine, float* cosine) {
    *sine = __ocml_sin_f32(x);
    *cosine = __ocml_cos_f32(x);
}

DEVICE float fmaf(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}

DEVICE float fmaxf(float a, float b) {
    return __builtin_fmaxf(a, b);
}

DEVICE float fminf(float a, float b) {
    return __builtin_fminf(a, b);
}

DEVICE float fabsf(float x) {
    return __builtin_fabsf(x);
}

DEVICE float rintf(float x) {
    return __builtin_rintf(x);
}

DEVICE float sqrtf(float x) {
    return __builtin_sqrtf(x);
}
