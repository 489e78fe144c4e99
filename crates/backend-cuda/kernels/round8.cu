// Rounds activations to eight bits (eight.cuh).
//
// | operand | shape             | layout                                   | type      |
// |---------|-------------------|------------------------------------------|-----------|
// | x       | [T, K]            | rows contiguous, K a multiple of 32      | f32       |
// | quants  | [T, K / 32, 8]    | four columns to a word                   | i8 x 4    |
// | scales  | [T, K / 32]       | d, then the sums of q of either half     | see there |
//
// Eight threads per block, four columns each. Bound by memory.
#include "eight.cuh"

struct Round8Args {
    const float* x;
    u32* quants;
    Rounded* scales;
    u32 rows;
    u32 tokens;
    u32 blocks;
};

KERNEL(round8, 256, Round8Args) {
    u64 quad = (u64)BLOCK_X * 256u + THREAD;
    bool is_in = quad < (u64)a.rows * a.blocks * 8u;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (is_in) {
        float4 four = ((const float4*)a.x)[quad];
        x[0] = four.x;
        x[1] = four.y;
        x[2] = four.z;
        x[3] = four.w;
    }
    round_four(x, is_in, quad, a.quants, a.scales);
}
