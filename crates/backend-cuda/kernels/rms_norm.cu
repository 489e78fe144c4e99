// out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]^2) + eps)
//
// | operand | shape        | layout          | type |
// |---------|--------------|-----------------|------|
// | x, out  | [rows, G, W] | rows contiguous | f32  |
// | weight  | [W]          | contiguous      | f32  |
//
// One thread block of 256 per normalised row. Thread i adds the squares of elements i, i + 256, ... in order, then the
// 256 sums are halved in a fixed tree: the row's result depends on W alone. out may be x. Bound by memory.
// Zhang & Sennrich 2019, arXiv:1910.07467.
#include "platform.cuh"

struct RmsNormArgs {
    const float* x;
    const float* weight;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
    float eps;
};

KERNEL(rms_norm, 256, RmsNormArgs) {
    GROUP_SHARED(float, sums, 256);
    const float* x = a.x + (u64)BLOCK_X * a.width;
    float* out = a.out + (u64)BLOCK_X * a.width;
    float sum = 0.0f;
    for (u32 c = THREAD; c < a.width; c += 256u) {
        sum = fmaf(x[c], x[c], sum);
    }
    sums[THREAD] = sum;
    SYNC();
    for (u32 half = 128u; half > 0u; half /= 2u) {
        if (THREAD < half) {
            sums[THREAD] = sums[THREAD] + sums[THREAD + half];
        }
        SYNC();
    }
    float factor = 1.0f / sqrtf(sums[0] / (float)a.width + a.eps);
    for (u32 c = THREAD; c < a.width; c += 256u) {
        out[c] = x[c] * factor * a.weight[c];
    }
}
