// Activations as halves for tensor cores, [T, K / 32, PARTS, 32]: columns past the end of a row are zeros.
//
// f16: one part (halves.cuh).
//
// bf16: three parts of eight bits, whose sum is x.
//
// | operand | shape                  | layout          | type        |
// |---------|------------------------|-----------------|-------------|
// | x       | [T, K]                 | rows contiguous | f32         |
// | halves  | [T, K / 32, PARTS, 32] | contiguous      | f16 or bf16 |
// | scales  | [T]                    | contiguous      | f32, of f16 |
//
// A thread block of 1024 to a row: there is one in decode, and its reads are waited for.
#include "halves.cuh"

struct HalvesArgs {
    const float* x;
    uint2* halves;
    float* scales;
    u32 rows;
    u32 tokens;
    u32 cols;
    u32 blocks;
};

KERNEL(halves_f16, 1024, HalvesArgs) {
    const float* row = a.x + (u64)BLOCK_X * a.cols;
    float largest = 0.0f;
    for (u32 quad = THREAD; quad < 8u * a.blocks; quad += ROW_THREADS) {
        float x[4];
        load_four(row, a.cols, 4u * quad, x);
        largest = largest_of(x, largest);
    }
    halve_row(row, a.rows, a.cols, a.blocks, largest, {a.halves, a.scales});
}

KERNEL(halves_bf16, 1024, HalvesArgs) {
    const float* row = a.x + (u64)BLOCK_X * a.cols;
    u32 quads = 8u * a.blocks;
    for (u32 quad = THREAD; quad < quads; quad += ROW_THREADS) {
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
            write_pair(a.rows, a.halves + ((u64)BLOCK_X * a.blocks + quad / 8u) * 24u + part * 8u, quad % 8u, words);
        }
    }
}
