// The kernels' platform on a processor: each thread of a thread block is a fiber, run in turns. For tests only.
//
// What this shows is the arithmetic and the synchronisation of the kernels' own text. It shows nothing of speed, of the
// compiler's and the card's rounding in exp, sin and the tensor cores, or of all races: threads run from the first to the last and
// back between barriers, and copies happen as late as they may, which shows many.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

namespace emulated {
// Coordinates of the running fiber.
extern __thread u32 thread, block_x, block_y; // unlike `thread_local`, without a call that could initialise them
// Waits for all threads of the thread block, or of the warp. A thread that ended while others wait in its warp, or waits of both
// kinds that never end, stop the test.
void wait_for_block();
void wait_for_warp();
// The memory through which a warp's lanes exchange 16 words each, those of `thread` and behind them the next one's; every turn has the
// other of two. A call looks up what belongs to the running thread of the system, which costs more than a product.
typedef u32 Words[16];
u32* exchange(u32 thread, u32 turn);
u32 next_turn();
// 16 bytes to shared memory: begun, closed into a group, and waited for but for the last so many groups.
void begin_copy(void* to, const void* from);
void end_copies();
void wait_for_copies(u32 but);
// Names a kernel for the driver.
struct Entry {
    Entry(const char* name, u32 threads, u32 args_size, void (*run)(const void* args));
};
}

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define KERNEL(name, threads, Args)                                                                                        \
    static void name(const Args& a);                                                                                        \
    static emulated::Entry entry_##name(#name, threads, sizeof(Args), [](const void* args) { name(*(const Args*)args); }); \
    static void name(const Args& a)
#define KERNEL_PAIRED KERNEL
#define GROUP_SHARED(type, name, count) static thread_local type name[count] __attribute__((aligned(16)))
#define SYNC() emulated::wait_for_block()
#define BLOCK_X emulated::block_x
#define BLOCK_Y emulated::block_y
#define THREAD emulated::thread
#define UNROLL
#define KEEP_LOOP
#define NO_LOAD_LATER()

DEVICE float bits_to_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

DEVICE u32 float_to_bits(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

DEVICE float half_to_float(u16 bits) {
    u32 exponent = bits >> 10 & 31u;
    u32 mantissa = bits & 1023u;
    float magnitude = exponent == 31u ? (mantissa ? NAN : INFINITY)
                    : exponent == 0u  ? ldexpf((float)mantissa, -24)
                                      : ldexpf((float)(mantissa | 1024u), (int)exponent - 25);
    return bits & 0x8000u ? -magnitude : magnitude;
}

DEVICE u16 float_to_half(float value) {
    u16 sign = float_to_bits(value) >> 31 ? 0x8000u : 0u;
    float magnitude = fabsf(value);
    if (isnan(value)) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 65520.0f) {
        return sign | 0x7c00u;
    }
    int exponent = magnitude > 0.0f ? ilogbf(magnitude) : -15;
    exponent = exponent < -14 ? -14 : exponent;
    // Whole steps of the last bit, ties to even; a carry moves on into the exponent by itself.
    u32 steps = (u32)rintf(ldexpf(magnitude, 10 - exponent));
    return sign | (u16)(steps + ((u32)(exponent + 14) << 10));
}

DEVICE float from_lane(float value, u32 lane, u32 width) {
    u32 turn = emulated::next_turn();
    u32 first = THREAD & ~(width - 1u);
    emulated::Words* of = (emulated::Words*)emulated::exchange(first, turn);
    of[THREAD - first][0] = float_to_bits(value);
    emulated::wait_for_warp();
    return bits_to_float(of[lane][0]);
}

DEVICE int dot4(u32 a, u32 b, int sum) {
    for (int i = 0; i < 4; i++) {
        sum += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    }
    return sum;
}

DEVICE u32 atomic_add(u32* at, u32 value) {
    u32 before = *at;
    *at = before + value;
    return before;
}

DEVICE void store_seen_by_all(u32* at, u32 value) {
    *at = value;
}

DEVICE void publish_for_all() {}

// Fragments as PTX lays them out: element (r, k) of a is in lane 4 (r % 8) + k % 8 / 2, word r / 8 + 2 (k / 8); element
// (k, n) of b in lane 4 n + k % 8 / 2, word k / 8; of two to a word the even k is low.
DEVICE void emulate_mma(float c[4], const u32 a[4], const u32 b[2], float (*decode)(u16)) {
    u32 turn = emulated::next_turn(), lane = THREAD % 32u;
    emulated::Words* of = (emulated::Words*)emulated::exchange(THREAD - lane, turn);
    memcpy(of[lane], a, 16);
    memcpy(of[lane] + 4, b, 8);
    emulated::wait_for_warp();
    for (u32 i = 0; i < 4; i++) {
        u32 r = lane / 4u + i / 2u * 8u;
        u32 n = lane % 4u * 2u + i % 2u;
        for (u32 k = 0; k < 16; k++) {
            u32 left = of[4u * (r % 8u) + k % 8u / 2u][r / 8u + k / 8u * 2u];
            u32 right = of[4u * n + k % 8u / 2u][4u + k / 8u];
            u32 shift = 16u * (k % 2u);
            c[i] = fmaf(decode((u16)(left >> shift)), decode((u16)(right >> shift)), c[i]);
        }
    }
}

// As above, with four signed bytes to a word: element (r, k) of a is in lane 4 (r % 8) + k % 16 / 4, word r / 8 + 2 (k / 16);
// element (k, n) of b in lane 4 n + k % 16 / 4, word k / 16.
DEVICE void emulate_mma_s8(int c[4], const u32* a, const u32* b, u32 halves) {
    u32 turn = emulated::next_turn(), lane = THREAD % 32u;
    emulated::Words* of = (emulated::Words*)emulated::exchange(THREAD - lane, turn);
    memcpy(of[lane], a, 8 * halves);
    memcpy(of[lane] + 4, b, 4 * halves);
    emulated::wait_for_warp();
    for (u32 i = 0; i < 4; i++) {
        u32 r = lane / 4u + i / 2u * 8u;
        u32 n = lane % 4u * 2u + i % 2u;
        for (u32 quad = 0; quad < 4u * halves; quad++) {
            u32 left = of[4u * (r % 8u) + quad % 4u][r / 8u + quad / 4u * 2u];
            u32 right = of[4u * n + quad % 4u][4u + quad / 4u];
            c[i] = dot4(left, right, c[i]);
        }
    }
}

DEVICE void mma_16_8_32_s8(int c[4], const u32 a[4], const u32 b[2]) {
    emulate_mma_s8(c, a, b, 2);
}

DEVICE void mma_16_8_16_s8(int c[4], const u32 a[2], u32 b) {
    emulate_mma_s8(c, a, &b, 1);
}

// Lane l says where row l % 8 of matrix l / 8 is, and gets of each of the four word l % 4 of row l / 4.
DEVICE void load_matrices(u32 words[4], const uint4* row) {
    u32 turn = emulated::next_turn();
    memcpy(emulated::exchange(THREAD, turn), row, 16);
    emulated::wait_for_warp();
    u32 warp = THREAD & ~31u;
    for (u32 i = 0; i < 4; i++) {
        words[i] = emulated::exchange(warp + 8u * i + THREAD % 32u / 4u, turn)[THREAD % 4u];
    }
}

DEVICE void copy_async_16(uint4* to, const uint4* from) {
    emulated::begin_copy(to, from);
}

#define COPIES_END() emulated::end_copies()
#define WAIT_FOR_COPIES_BUT(groups) emulated::wait_for_copies(groups)

DEVICE float decode_bf16(u16 bits) {
    return bits_to_float((u32)bits << 16);
}

DEVICE void mma_16_8_16_f16(float c[4], const u32 a[4], const u32 b[2]) {
    emulate_mma(c, a, b, half_to_float);
}

DEVICE void mma_16_8_16_bf16(float c[4], const u32 a[4], const u32 b[2]) {
    emulate_mma(c, a, b, decode_bf16);
}
