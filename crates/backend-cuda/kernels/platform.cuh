// What differs between NVIDIA's compiler, AMD's, and the tests' emulation on a processor. Everything else is plain C++.
//
// KERNEL(name, threads, Args) begins a kernel of at most `threads` threads that takes one structure; BLOCK and THREAD
// are its coordinates. KERNEL_PAIRED is for kernels of which a multiprocessor is to have two thread blocks at once. GROUP_SHARED declares memory of the thread block, SYNC waits for it. `from_lane` reads another lane's
// value within a group of `width` lanes; all lanes of a warp must call it. `dot4` is the sum of four signed byte products.
#pragma once

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#if defined(EXO_EMULATED)
#include "emulation.h"
#elif defined(__HIP__)
#include "platform_hip.cuh"
#else

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define KERNEL(name, threads, Args) extern "C" __global__ void __launch_bounds__(threads) name(const Args a)
#define KERNEL_PAIRED(name, threads, Args) extern "C" __global__ void __launch_bounds__(threads, 2) name(const Args a)
#define GROUP_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define SYNC() __syncthreads()
#define BLOCK_X blockIdx.x
#define BLOCK_Y blockIdx.y
#define THREAD threadIdx.x
#define UNROLL _Pragma("unroll")
#define KEEP_LOOP _Pragma("unroll 1")

// Loads that stand before stay before, whatever the compiler thinks of the registers: they are to be on their way together. All
// lanes of a warp pass it.
#define NO_LOAD_LATER() __syncwarp()

DEVICE float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// To nearest, ties to even.
DEVICE u16 float_to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

DEVICE float from_lane(float value, u32 lane, u32 width) {
    return __shfl_sync(0xffffffffu, value, lane, width);
}

DEVICE int dot4(u32 a, u32 b, int sum) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
    return sum;
}

DEVICE float bits_to_float(u32 bits) {
    return __uint_as_float(bits);
}

DEVICE u32 float_to_bits(float value) {
    return __float_as_uint(value);
}

DEVICE u32 atomic_add(u32* at, u32 value) {
    return atomicAdd(at, value);
}

DEVICE void store_seen_by_all(u32* at, u32 value) {
    atomicExch(at, value);
}

// What this thread wrote is seen before what it writes from here on; what others so told of is seen by what it reads.
DEVICE void publish_for_all() {
    __threadfence();
}

#if __CUDA_ARCH__ >= 800
// c[16, 8] += a[16, K] * b[K, 8] of signed bytes by a whole warp; PTX ISA, "Matrix Fragments for mma.m16n8k32" and "k16".
DEVICE void mma_16_8_32_s8(int c[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void mma_16_8_16_s8(int c[4], const u32 a[2], u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

// c[16, 8] += a[16, 16] * b[16, 8] by a whole warp; PTX ISA, "Matrix Fragments for mma.m16n8k16".
DEVICE void mma_16_8_16_f16(float c[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 rows of 16 bytes in shared memory: lane l says where row l % 8 of matrix l / 8 is, and gets of each word
// l % 4 of row l / 4; PTX ISA, "ldmatrix".
DEVICE void load_matrices(u32 words[4], const uint4* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
        : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}

// Begins to copy 16 bytes to shared memory, past the first cache. COPIES_END closes what a thread has begun into a group;
// WAIT_FOR_COPIES_BUT(n) waits for all of its groups but the last n.
DEVICE void copy_async_16(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

#define COPIES_END() asm volatile("cp.async.commit_group;" ::: "memory")
#define WAIT_FOR_COPIES_BUT(groups) asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory")

DEVICE void mma_16_8_16_bf16(float c[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
#endif
