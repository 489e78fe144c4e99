// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n] with quantised w on tensor cores, for many rows. Operands as in matmul_vec.cu;
// needs sm_80.
//
// Whole numbers add up alike in any order, so this gives the bits of matmul_vec.cu, which stays the one for few rows. A thread
// block of 8 warps has 64 rows of w and 64 of x, 16 by 32 to a warp. Bound by arithmetic.
#include "tile.cuh"

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
        u32 t = BLOCK_X * TILE + token + i / 4u * 8u + 2u * q + i % 2u;
        write_result(a, t, BLOCK_Y * TILE + row + g + i % 4u / 2u * 8u, total[i / 4u][i % 4u]);
    }
}

#define MMA_QUANTS(type)                                \
    KERNEL(matmul_mma_many_##type, 256, MatMulArgs) {   \
        quants<type>(a);                                \
    }
EACH_QUANTISED(MMA_QUANTS)
