// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n] on tensor cores. Operands as in matmul_vec.cu; needs sm_80.
//
// Quants: whole numbers add up alike in any order, so the kernel for many rows gives the bits of matmul_vec.cu, which stays
// the one for few.
//
// F16 and BF16: tensor cores multiply halves, and x is f32: it is split into parts whose products they make exactly and add in f32.
// For BF16 three parts of eight bits are all of x. For F16 two parts of eleven bits keep 22 and the sign of the rest, which is
// x rounded to f32's own precision; so that no part leaves the range of a half, the 32 columns of a block are scaled by
// a power of two, which is taken back afterwards.
//
// One instruction multiplies 16 rows of w by 8 of x over 16 columns. Which columns those are is free as long as both
// sides agree: lane l takes columns 8 (l % 4) to 8 (l % 4) + 7 of a block of 32, sixteen bytes of w at once, the first four for
// the first instruction and the others for the second. A block's sum starts from zero, is scaled and added to its
// slice's; the slices of K are added from the first to the last. Both kernels do exactly this, so a row's result does not
// depend on how many rows there are. How the tensor core itself orders the 16 products of an instruction is its own
// affair, but the same for every row.
//
// few: a thread block of 8 warps per 16 rows of w and 8 of x, a slice to a warp. Bound by reading w.
// many, and quants: a thread block of 8 warps per 64 rows of w and 64 of x, 16 by 32 to a warp. Bound by arithmetic: F16
// does two products where one would do if x were halves, BF16 three.
#include "tile.cuh"

#define PARTS_MAX 3

// Eight columns of one row of x as halves, two to a word.
struct SplitX {
    u32 words[PARTS_MAX][4];
    // Multiplies the sums.
    float scale;
};

struct mma_f16 {
    enum { PARTS = 2 };

    // All lanes of a warp call it; the four lanes of a row share the block's scale.
    static DEVICE_MEMBER void split(const float x[8], SplitX& out) {
        float largest = 0.0f;
        for (u32 i = 0; i < 8u; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
        }
        float most = largest;
        for (u32 l = 0; l < 4u; l++) {
            most = fmaxf(most, from_lane(largest, l, 4u));
        }
        // The largest becomes 2^13 to 2^14.
        u32 exponent = (float_to_bits(most) >> 23) & 255u;
        u32 down = at_most(267u - exponent, 253u);
        float factor = bits_to_float(down << 23);
        out.scale = bits_to_float((254u - down) << 23);
        UNROLL
        for (u32 w = 0; w < 4u; w++) {
            u32 high = 0;
            u32 low = 0;
            for (u32 i = 0; i < 2u; i++) {
                float value = x[2u * w + i] * factor;
                u16 first = float_to_half(value);
                high |= (u32)first << (16u * i);
                low |= (u32)float_to_half(value - half_to_float(first)) << (16u * i);
            }
            out.words[0][w] = high;
            out.words[1][w] = low;
        }
    }

    static DEVICE_MEMBER void mma(float c[4], const u32 a[4], const u32 b[2]) {
        mma_16_8_16_f16(c, a, b);
    }
};

struct mma_bf16 {
    enum { PARTS = 3 };

    static DEVICE_MEMBER void split(const float x[8], SplitX& out) {
        out.scale = 1.0f;
        UNROLL
        for (u32 w = 0; w < 4u; w++) {
            float rest[2] = {x[2u * w], x[2u * w + 1u]};
            UNROLL
            for (u32 part = 0; part < 3u; part++) {
                u32 first = float_to_bits(rest[0]) & 0xffff0000u;
                u32 second = float_to_bits(rest[1]) & 0xffff0000u;
                out.words[part][w] = first >> 16 | second;
                rest[0] -= bits_to_float(first);
                rest[1] -= bits_to_float(second);
            }
        }
    }

    static DEVICE_MEMBER void mma(float c[4], const u32 a[4], const u32 b[2]) {
        mma_16_8_16_bf16(c, a, b);
    }
};

// What a lane holds of 16 rows of w in a block: of rows g and g + 8 eight columns each.
struct SplitW {
    uint4 low;
    uint4 high;
};

DEVICE SplitW load_w(const MatMulArgs& a, u32 row, u32 block) {
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    const uint4* w = (const uint4*)a.w.quants;
    SplitW out;
    out.low = w[((u64)at_most(row + g, a.outputs - 1u) * a.blocks + block) * 4u + q];
    out.high = w[((u64)at_most(row + g + 8u, a.outputs - 1u) * a.blocks + block) * 4u + q];
    return out;
}

// The products of a block, from zero.
template <class M>
DEVICE void multiply(const SplitW& w, const u32 x[PARTS_MAX][4], float c[4]) {
    u32 first[4] = {w.low.x, w.high.x, w.low.y, w.high.y};
    u32 second[4] = {w.low.z, w.high.z, w.low.w, w.high.w};
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    UNROLL
    for (u32 part = 0; part < (u32)M::PARTS; part++) {
        M::mma(c, first, x[part]);
        M::mma(c, second, x[part] + 2);
    }
}

DEVICE void load_eight(const MatMulArgs& a, u32 t, u32 block, u32 q, float x[8]) {
    load_x(a, at_most(t, a.rows - 1u), block * 32u + 8u * q, x);
    load_x(a, at_most(t, a.rows - 1u), block * 32u + 8u * q + 4u, x + 4);
}

template <class M>
DEVICE void few(const MatMulArgs& a) {
    GROUP_SHARED(float, parts, SLICES * 128u);
    u32 warp = THREAD / 32u;
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    u32 row = BLOCK_X * 16u;
    u32 token = BLOCK_Y * 8u;
    float sums[4] = {};
    for (u32 block = warp; block < a.blocks; block += SLICES) {
        SplitW w = load_w(a, row, block);
        float x[8];
        load_eight(a, token + g, block, q, x);
        SplitX split;
        M::split(x, split);
        float c[4];
        multiply<M>(w, split.words, c);
        // This lane's results are of rows 2q and 2q + 1 of x, whose scales lanes 8q and 8q + 4 hold.
        float scales[2] = {from_lane(split.scale, 8u * q, 32u), from_lane(split.scale, 8u * q + 4u, 32u)};
        UNROLL
        for (u32 i = 0; i < 4u; i++) {
            sums[i] = fmaf(scales[i % 2u], c[i], sums[i]);
        }
    }
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        parts[warp * 128u + (2u * q + i % 2u) * 16u + g + i / 2u * 8u] = sums[i];
    }
    SYNC();
    if (THREAD < 128u) {
        float total = parts[THREAD];
        for (u32 slice = 1; slice < SLICES; slice++) {
            total += parts[slice * 128u + THREAD];
        }
        write_result(a, token + THREAD / 16u, row + THREAD % 16u, total);
    }
}

template <class M>
DEVICE void many(const MatMulArgs& a) {
    // Per part and row of x four times four words, and a scale.
    GROUP_SHARED(u32, xs, M::PARTS * 64u * 16u);
    GROUP_SHARED(float, x_scales, 64u);
    u32 warp = THREAD / 32u;
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    u32 row = BLOCK_X * 64u + warp % 4u * 16u;
    u32 token0 = BLOCK_Y * 64u;
    u32 own = warp / 4u * 32u;
    float total[4][4] = {};
    for (u32 slice = 0; slice < SLICES; slice++) {
        float sums[4][4] = {};
        for (u32 block = slice; block < a.blocks; block += SLICES) {
            SplitW w = load_w(a, row, block);
            float x[8];
            load_eight(a, token0 + THREAD / 4u, block, q, x);
            SplitX split;
            M::split(x, split);
            for (u32 part = 0; part < (u32)M::PARTS; part++) {
                for (u32 i = 0; i < 4u; i++) {
                    xs[(part * 256u + THREAD) * 4u + i] = split.words[part][i];
                }
            }
            if (q == 0u) {
                x_scales[THREAD / 4u] = split.scale;
            }
            SYNC();
            UNROLL
            for (u32 tile = 0; tile < 4u; tile++) {
                u32 t = own + tile * 8u;
                u32 words[PARTS_MAX][4];
                UNROLL
                for (u32 part = 0; part < (u32)M::PARTS; part++) {
                    uint4 four = *(const uint4*)(xs + (part * 256u + (t + g) * 4u + q) * 4u);
                    words[part][0] = four.x;
                    words[part][1] = four.y;
                    words[part][2] = four.z;
                    words[part][3] = four.w;
                }
                float c[4];
                multiply<M>(w, words, c);
                UNROLL
                for (u32 i = 0; i < 4u; i++) {
                    sums[tile][i] = fmaf(x_scales[t + 2u * q + i % 2u], c[i], sums[tile][i]);
                }
            }
            SYNC();
        }
        UNROLL
        for (u32 i = 0; i < 16u; i++) {
            total[i / 4u][i % 4u] = slice == 0u ? sums[i / 4u][i % 4u] : total[i / 4u][i % 4u] + sums[i / 4u][i % 4u];
        }
    }
    UNROLL
    for (u32 i = 0; i < 16u; i++) {
        u32 t = token0 + own + i / 4u * 8u + 2u * q + i % 2u;
        write_result(a, t, row + g + i % 4u / 2u * 8u, total[i / 4u][i % 4u]);
    }
}

// What a warp makes of a block: 16 rows of w by 8 of x, columns 0 to 15 and 16 to 31 apart where the type needs it.
template <class Q>
DEVICE void multiply_quants(const u32* w, const u32* x, int first[4], int second[4]) {
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    u32 a[4] = {w[g * STRIDE + q], w[(g + 8u) * STRIDE + q], w[g * STRIDE + 4u + q], w[(g + 8u) * STRIDE + 4u + q]};
    u32 b[2] = {x[g * STRIDE + q], x[g * STRIDE + 4u + q]};
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        first[i] = second[i] = 0;
    }
    if (Q::PARTS == 1) {
        mma_16_8_32_s8(first, a, b);
    } else {
        mma_16_8_16_s8(first, a, b[0]);
        mma_16_8_16_s8(second, a + 2, b[1]);
    }
}

template <class Q>
DEVICE void quants(const MatMulArgs& a) {
    GROUP_SHARED(u32, ws, TILE * STRIDE);
    GROUP_SHARED(u32, xs, TILE * STRIDE);
    GROUP_SHARED(Scale, w_scales, TILE);
    GROUP_SHARED(Rounded, x_scales, TILE);
    u32 warp = THREAD / 32u;
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    u32 row = warp % 4u * 16u;
    u32 token = warp / 4u * 32u;
    float total[4][4] = {};
    for (u32 slice = 0; slice < SLICES; slice++) {
        float sums[4][4] = {};
        for (u32 block = slice; block < a.blocks; block += SLICES) {
            bring_block<Q>(a, block, ws, w_scales, xs, x_scales);
            SYNC();
            UNROLL
            for (u32 tile = 0; tile < 4u; tile++) {
                u32 t = token + tile * 8u;
                int first[4];
                int second[4];
                multiply_quants<Q>(ws + row * STRIDE, xs + t * STRIDE, first, second);
                UNROLL
                for (u32 i = 0; i < 4u; i++) {
                    const Rounded& x = x_scales[t + 2u * q + i % 2u];
                    sums[tile][i] = add_block<Q>(sums[tile][i], first[i], second[i], x, w_scales[row + g + i / 2u * 8u]);
                }
            }
            SYNC();
        }
        UNROLL
        for (u32 i = 0; i < 16u; i++) {
            total[i / 4u][i % 4u] = slice == 0u ? sums[i / 4u][i % 4u] : total[i / 4u][i % 4u] + sums[i / 4u][i % 4u];
        }
    }
    UNROLL
    for (u32 i = 0; i < 16u; i++) {
        u32 t = BLOCK_Y * TILE + token + i / 4u * 8u + 2u * q + i % 2u;
        write_result(a, t, BLOCK_X * TILE + row + g + i % 4u / 2u * 8u, total[i / 4u][i % 4u]);
    }
}

#define MMA_QUANTS(type)                                \
    KERNEL(matmul_mma_many_##type, 256, MatMulArgs) {   \
        quants<type>(a);                                \
    }
EACH_QUANTISED(MMA_QUANTS)

KERNEL(matmul_mma_few_f16, 256, MatMulArgs) {
    few<mma_f16>(a);
}

KERNEL(matmul_mma_few_bf16, 256, MatMulArgs) {
    few<mma_bf16>(a);
}

KERNEL(matmul_mma_many_f16, 256, MatMulArgs) {
    many<mma_f16>(a);
}

KERNEL(matmul_mma_many_bf16, 256, MatMulArgs) {
    many<mma_bf16>(a);
}
