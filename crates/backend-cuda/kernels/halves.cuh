// A row of activations as halves for tensor cores, as `exo_backend::Activations::RoundedHalf` says, and what multiplies its sums:
//
// h = half(x * 2^(13 - e)) with 2^e the power of two at or below the row's largest magnitude, 2^126 at most; times 2^(e - 13)
#pragma once
#include "rounded.cuh"

// HALF_FEW_ROWS_MAX of src/launch.rs.
#define FEW_ROWS_MAX 32u
// To a row.
#define ROW_THREADS 1024u

struct Halves {
    uint2* halves;
    float* scales;
};

// The words 2 `pair` and the next of a part. For matmul_half_many the sixteen words of a part lie as their matrix of four by four
// turned over.
DEVICE void write_pair(u32 rows, uint2* part, u32 pair, const uint2& words) {
    if (rows <= FEW_ROWS_MAX) {
        part[pair] = words;
        return;
    }
    u32* turned = (u32*)part + pair % 2u * 8u + pair / 2u;
    turned[0] = words.x;
    turned[4] = words.y;
}

DEVICE float largest_of(const float x[4], float largest) {
    return fmaxf(largest, fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))));
}

// Row BLOCK_X by a thread block of ROW_THREADS, of which each has found the largest of the quads THREAD, THREAD + ROW_THREADS, ...
DEVICE void halve_row(const float* row, u32 rows, u32 cols, u32 blocks, float largest, const Halves& to) {
    GROUP_SHARED(float, most, 32);
    for (u32 step = 16u; step > 0u; step /= 2u) {
        largest = fmaxf(largest, from_lane(largest, (THREAD % 32u) ^ step, 32u));
    }
    if (THREAD % 32u == 0u) {
        most[THREAD / 32u] = largest;
    }
    SYNC();
    for (u32 warp = 0; warp < 32u; warp++) {
        largest = fmaxf(largest, most[warp]);
    }
    u32 exponent = float_to_bits(largest) >> 23;
    u32 up = at_most(267u - exponent, 253u);
    float factor = bits_to_float(up << 23);
    if (THREAD == 0u) {
        to.scales[BLOCK_X] = bits_to_float((254u - up) << 23);
    }
    u32 quads = 8u * blocks;
    for (u32 quad = THREAD; quad < quads; quad += ROW_THREADS) {
        float x[4];
        load_four(row, cols, 4u * quad, x);
        uint2 words;
        words.x = (u32)float_to_half(x[0] * factor) | (u32)float_to_half(x[1] * factor) << 16;
        words.y = (u32)float_to_half(x[2] * factor) | (u32)float_to_half(x[3] * factor) << 16;
        write_pair(rows, to.halves + (u64)BLOCK_X * quads + quad / 8u * 8u, quad % 8u, words);
    }
}
