// out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]^2) + eps)
//
// | operand | shape        | layout          | type |
// |---------|--------------|-----------------|------|
// | x, out  | [rows, G, W] | rows contiguous | f32  |
// | weight  | [W]          | contiguous      | f32  |
//
// A thread block to a normalised row, of 1,024 threads where rows are long: in decode there is one, and its reads are waited for.
// Thread i adds the squares of elements i, i + THREADS, ... in order, then lanes and warps add theirs in a fixed tree: the row's
// result depends on W alone. out may be x. Bound by memory.
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

// The same in all lanes.
DEVICE float sum_of_warp(float sum) {
    for (u32 step = 16u; step > 0u; step /= 2u) {
        sum += from_lane(sum, (THREAD % 32u) ^ step, 32u);
    }
    return sum;
}

template <u32 THREADS>
DEVICE void normalise(const RmsNormArgs& a) {
    GROUP_SHARED(float, sums, 32);
    const float* x = a.x + (u64)BLOCK_X * a.width;
    float* out = a.out + (u64)BLOCK_X * a.width;
    float sum = 0.0f;
    for (u32 c = THREAD; c < a.width; c += THREADS) {
        sum = fmaf(x[c], x[c], sum);
    }
    sum = sum_of_warp(sum);
    if (THREAD % 32u == 0u) {
        sums[THREAD / 32u] = sum;
    }
    SYNC();
    sum = sum_of_warp(THREAD % 32u < THREADS / 32u ? sums[THREAD % 32u] : 0.0f);
    float factor = 1.0f / sqrtf(sum / (float)a.width + a.eps);
    for (u32 c = THREAD; c < a.width; c += THREADS) {
        out[c] = x[c] * factor * a.weight[c];
    }
}

KERNEL(rms_norm, 1024, RmsNormArgs) {
    normalise<1024>(a);
}

// Of heads.
KERNEL(rms_norm_short, 128, RmsNormArgs) {
    normalise<128>(a);
}
