// Rounds activations to eight bits, as `exo_backend::Activations::Rounded8` says, in blocks of 32 columns: [T, K / 32, 8] words of four
// columns, and of each block a scale with the sums of q in either half, which let products with an offset or a minimum go without a
// second pass.
//
// d = a / 127, q = round(x * (127 / a)), ties to even, with a the block's largest magnitude
//
// Where a < 2^-100 everything is 0; where an element is not finite d is no number.
#pragma once
#include "rounded.cuh"

// Four columns of a block by each of eight lanes. All lanes of a warp pass it, also those that are not `is_in`.
DEVICE void round_four(const float x[4], bool is_in, u64 quad, u32* quants, Rounded* scales) {
    u32 lane = THREAD % 8u;
    // As bits, magnitudes are ordered, with those that are not finite on top.
    u32 largest = 0;
    UNROLL
    for (u32 c = 0; c < 4u; c++) {
        u32 bits = float_to_bits(x[c]) & 0x7fffffffu;
        largest = largest < bits ? bits : largest;
    }
    for (u32 step = 4u; step > 0u; step /= 2u) {
        u32 other = float_to_bits(from_lane(bits_to_float(largest), lane ^ step, 8u));
        largest = largest < other ? other : largest;
    }
    bool is_finite = largest < 0x7f800000u;
    float most = bits_to_float(largest);
    // 2^-100.
    bool is_zero = most < 7.8886090522e-31f;
    float inverse = is_zero || !is_finite ? 0.0f : 127.0f / most;
    u32 word = 0;
    int half = 0;
    UNROLL
    for (u32 c = 0; c < 4u; c++) {
        int q = inverse > 0.0f ? (int)rintf(x[c] * inverse) : 0;
        half += q;
        word |= ((u32)q & 255u) << (8u * c);
    }
    half += (int)from_lane((float)half, lane ^ 1u, 8u);
    half += (int)from_lane((float)half, lane ^ 2u, 8u);
    int second = (int)from_lane((float)half, 4u, 8u);
    if (is_in) {
        quants[quad] = word;
        if (lane == 0u) {
            Rounded r;
            r.scale = is_zero ? 0.0f : is_finite ? most / 127.0f : bits_to_float(0x7fc00000u);
            r.sums = ((u32)half & 0xffffu) | ((u32)second << 16);
            scales[quad / 8u] = r;
        }
    }
}
