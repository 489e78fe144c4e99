// out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]^2) + eps)
//
// | operand | shape        | layout          | type |
// |---------|--------------|-----------------|------|
// | x, out  | [rows, G, W] | rows contiguous | f32  |
// | weight  | [W]          | contiguous      | f32  |
//
// rms_norm_round8, rms_norm_halves: where products read out, as they read it (eight.cuh, halves.cuh); W is a multiple of 32, G one.
//
// A thread block to a normalised row, of 1,024 threads where rows are long: in decode there is one, and its reads are waited for.
// Thread i adds the squares of elements i, i + THREADS, ... in order, then lanes and warps add theirs in a fixed tree: the row's
// result depends on W alone. out may be x. Bound by memory.
// Zhang & Sennrich 2019, arXiv:1910.07467.
#include "eight.cuh"
#include "halves.cuh"

struct RmsNormArgs {
    const float* x;
    const float* weight;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
    float eps;
};

struct RmsNormRoundedArgs {
    const float* x;
    const float* weight;
    float* out;
    // Of halves: words of two, and a scale to a row.
    u32* rounded;
    void* scales;
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

// What the elements of a thread block's row are multiplied by, beside their weights.
template <u32 THREADS>
DEVICE float factor_of(const float* x, u32 width, float eps) {
    GROUP_SHARED(float, sums, 32);
    float sum = 0.0f;
    for (u32 c = THREAD; c < width; c += THREADS) {
        sum = fmaf(x[c], x[c], sum);
    }
    sum = sum_of_warp(sum);
    if (THREAD % 32u == 0u) {
        sums[THREAD / 32u] = sum;
    }
    SYNC();
    sum = sum_of_warp(THREAD % 32u < THREADS / 32u ? sums[THREAD % 32u] : 0.0f);
    return 1.0f / sqrtf(sum / (float)width + eps);
}

template <u32 THREADS>
DEVICE void normalise(const RmsNormArgs& a) {
    const float* x = a.x + (u64)BLOCK_X * a.width;
    float* out = a.out + (u64)BLOCK_X * a.width;
    float factor = factor_of<THREADS>(x, a.width, a.eps);
    for (u32 c = THREAD; c < a.width; c += THREADS) {
        out[c] = x[c] * factor * a.weight[c];
    }
}

// Four neighbours of a row, which are written too.
DEVICE void normalise_four(const RmsNormRoundedArgs& a, u32 quad, float factor, float out[4]) {
    float4 x = ((const float4*)(a.x + (u64)BLOCK_X * a.width))[quad];
    float4 weight = ((const float4*)a.weight)[quad];
    out[0] = x.x * factor * weight.x;
    out[1] = x.y * factor * weight.y;
    out[2] = x.z * factor * weight.z;
    out[3] = x.w * factor * weight.w;
    ((float4*)(a.out + (u64)BLOCK_X * a.width))[quad] = {out[0], out[1], out[2], out[3]};
}

KERNEL(rms_norm, 1024, RmsNormArgs) {
    normalise<1024>(a);
}

// Of heads.
KERNEL(rms_norm_short, 128, RmsNormArgs) {
    normalise<128>(a);
}

KERNEL(rms_norm_round8, 1024, RmsNormRoundedArgs) {
    float factor = factor_of<1024>(a.x + (u64)BLOCK_X * a.width, a.width, a.eps);
    u32 quads = a.width / 4u;
    for (u32 base = 0; base < quads; base += 1024u) {
        u32 quad = base + THREAD;
        float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (quad < quads) {
            normalise_four(a, quad, factor, out);
        }
        round_four(out, quad < quads, (u64)BLOCK_X * quads + quad, a.rounded, (Rounded*)a.scales);
    }
}

KERNEL(rms_norm_halves, 1024, RmsNormRoundedArgs) {
    float factor = factor_of<1024>(a.x + (u64)BLOCK_X * a.width, a.width, a.eps);
    float largest = 0.0f;
    for (u32 quad = THREAD; quad < a.width / 4u; quad += ROW_THREADS) {
        float out[4];
        normalise_four(a, quad, factor, out);
        largest = largest_of(out, largest);
    }
    const float* row = a.out + (u64)BLOCK_X * a.width;
    halve_row(row, a.rows, a.width, a.width / 32u, largest, {(uint2*)a.rounded, (float*)a.scales});
}
