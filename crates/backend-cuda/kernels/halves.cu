// Activations as halves for tensor cores, [T, K / 32, PARTS, 32]: columns past the end of a row are zeros.
//
// f16: one part, rounded as `exo_backend::Activations::RoundedHalf` says, and what multiplies a row's sums:
//
// h = half(x * 2^(13 - e)) with 2^e the power of two at or below the row's largest magnitude, 2^126 at most; times 2^(e - 13)
//
// bf16: three parts of eight bits, whose sum is x.
//
// | operand | shape                  | layout          | type        |
// |---------|------------------------|-----------------|-------------|
// | x       | [T, K]                 | rows contiguous | f32         |
// | halves  | [T, K / 32, PARTS, 32] | contiguous      | f16 or bf16 |
// | scales  | [T]                    | contiguous      | f32, of f16 |
//
// A thread block of 1024 to a row: there is one in decode, and its reads are waited for. For matmul_half_many the sixteen words of a
// part lie as their matrix of four by four turned over.
#include "rounded.cuh"

// HALF_SOME_ROWS_MAX of src/launch.rs.
#define SOME_ROWS_MAX 32u

struct HalvesArgs {
    const float* x;
    uint2* halves;
    float* scales;
    u32 rows;
    u32 tokens;
    u32 cols;
    u32 blocks;
};

// The words 2 `pair` and the next of a part.
DEVICE void write_pair(const HalvesArgs& a, uint2* part, u32 pair, const uint2& words) {
    if (a.rows <= SOME_ROWS_MAX) {
        part[pair] = words;
        return;
    }
    u32* turned = (u32*)part + pair % 2u * 8u + pair / 2u;
    turned[0] = words.x;
    turned[4] = words.y;
}

KERNEL(halves_f16, 1024, HalvesArgs) {
    GROUP_SHARED(float, most, 32);
    const float* row = a.x + (u64)BLOCK_X * a.cols;
    u32 quads = 8u * a.blocks;
    float largest = 0.0f;
    for (u32 quad = THREAD; quad < quads; quad += 1024u) {
        float x[4];
        load_four(row, a.cols, 4u * quad, x);
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))));
    }
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
        a.scales[BLOCK_X] = bits_to_float((254u - up) << 23);
    }
    for (u32 quad = THREAD; quad < quads; quad += 1024u) {
        float x[4];
        load_four(row, a.cols, 4u * quad, x);
        uint2 words;
        words.x = (u32)float_to_half(x[0] * factor) | (u32)float_to_half(x[1] * factor) << 16;
        words.y = (u32)float_to_half(x[2] * factor) | (u32)float_to_half(x[3] * factor) << 16;
        write_pair(a, a.halves + (u64)BLOCK_X * quads + quad / 8u * 8u, quad % 8u, words);
    }
}

KERNEL(halves_bf16, 1024, HalvesArgs) {
    const float* row = a.x + (u64)BLOCK_X * a.cols;
    u32 quads = 8u * a.blocks;
    for (u32 quad = THREAD; quad < quads; quad += 1024u) {
        float rest[4];
        load_four(row, a.cols, 4u * quad, rest);
        for (u32 part = 0; part < 3u; part++) {
            u32 upper[4];
            UNROLL
            for (u32 i = 0; i < 4u; i++) {
                upper[i] = float_to_bits(rest[i]) & 0xffff0000u;
                rest[i] -= bits_to_float(upper[i]);
            }
            uint2 words;
            words.x = upper[0] >> 16 | upper[1];
            words.y = upper[2] >> 16 | upper[3];
            write_pair(a, a.halves + ((u64)BLOCK_X * a.blocks + quad / 8u) * 24u + part * 8u, quad % 8u, words);
        }
    }
}
