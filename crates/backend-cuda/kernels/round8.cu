// Rounds activations to eight bits in blocks of 32 columns, as `exo_backend::Activations::Rounded8` says:
//
// d = a / 127, q = round(x * (127 / a)), ties to even, with a the block's largest magnitude
//
// | operand | shape             | layout                                   | type      |
// |---------|-------------------|------------------------------------------|-----------|
// | x       | [T, K]            | rows contiguous, K a multiple of 32      | f32       |
// | quants  | [T, K / 32, 8]    | four columns to a word                   | i8 x 4    |
// | scales  | [T, K / 32]       | d, then the sums of q of either half     | see below |
//
// Eight threads per block, four columns each. Where a < 2^-100 everything is 0; where an element is not finite d is no
// number. The sums let products with an offset or a minimum go without a second pass. Bound by memory.
#include "rounded.cuh"

struct Round8Args {
    const float* x;
    u32* quants;
    Rounded* scales;
    u32 rows;
    u32 tokens;
    u32 blocks;
};

KERNEL(round8, 256, Round8Args) {
    u64 count = (u64)a.rows * a.blocks * 8u;
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    bool is_in = i < count;
    u32 lane = THREAD % 8u;
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float largest = 0.0f;
    float poison = 0.0f;
    for (u32 c = 0; c < 4u && is_in; c++) {
        x[c] = a.x[4u * i + c];
        largest = fmaxf(largest, fabsf(x[c]));
        poison += x[c] * 0.0f;
    }
    float most = 0.0f;
    float poisons = 0.0f;
    for (u32 l = 0; l < 8u; l++) {
        most = fmaxf(most, from_lane(largest, l, 8u));
        poisons += from_lane(poison, l, 8u);
    }
    // 2^-100.
    bool is_zero = most < 7.8886090522e-31f;
    float inverse = is_zero || poisons != 0.0f ? 0.0f : 127.0f / most;
    u32 word = 0;
    int own = 0;
    for (u32 c = 0; c < 4u; c++) {
        int q = inverse > 0.0f ? (int)rintf(x[c] * inverse) : 0;
        own += q;
        word |= ((u32)q & 255u) << (8u * c);
    }
    int halves[2] = {0, 0};
    for (u32 l = 0; l < 8u; l++) {
        halves[l / 4u] += (int)from_lane((float)own, l, 8u);
    }
    if (is_in) {
        a.quants[i] = word;
        if (lane == 0u) {
            Rounded r;
            r.scale = (is_zero ? 0.0f : most / 127.0f) + poisons;
            r.sums = ((u32)halves[0] & 0xffffu) | ((u32)halves[1] << 16);
            a.scales[i / 8u] = r;
        }
    }
}
