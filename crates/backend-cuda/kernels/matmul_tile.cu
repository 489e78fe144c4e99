// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for many rows t: prefill. Operands and order of sums as in matmul_vec.cu.
//
// A thread block of 256 makes a tile of 64 rows of x by 64 of w; a block of 32 columns of both is brought to shared
// memory, decoded once, and each thread adds a 4 by 4 piece of the tile. The slices of K come one after the other: a
// finished slice's sums are added to the total. Bound by arithmetic.
#include "tile.cuh"

// Floats between rows of 32.
#define STRIDE_F 36u

DEVICE void finish(const Product& a, const float total[16], u32 row0, u32 token0) {
    UNROLL
    for (u32 i = 0; i < 16u; i++) {
        write_result(a, token0 + THREAD / 16u + i / 4u * 16u, row0 + THREAD % 16u + i % 4u * 16u, total[i]);
    }
}

template <class Q>
DEVICE void matmul_quants(const Product& a) {
    GROUP_SHARED(u32, ws, TILE * STRIDE);
    GROUP_SHARED(u32, xs, TILE * STRIDE);
    GROUP_SHARED(Scale, w_scales, TILE);
    GROUP_SHARED(Rounded, x_scales, TILE);
    u32 row0 = a.block_y * TILE;
    u32 token0 = BLOCK_X * TILE;
    u32 r0 = THREAD % 16u;
    u32 t0 = THREAD / 16u;
    float total[16] = {};
    for (u32 slice = 0; slice < SLICES; slice++) {
        float sums[16] = {};
        for (u32 block = slice; block < a.blocks; block += SLICES) {
            bring_block<Q>(a, block, ws, w_scales, xs, x_scales);
            SYNC();
            int firsts[16] = {};
            int seconds[16] = {};
            UNROLL
            for (u32 v = 0; v < 8u; v++) {
                UNROLL
                for (u32 i = 0; i < 16u; i++) {
                    u32 w = ws[(r0 + i % 4u * 16u) * STRIDE + v];
                    u32 x = xs[(t0 + i / 4u * 16u) * STRIDE + v];
                    if (v < 4u) {
                        firsts[i] = dot4(w, x, firsts[i]);
                    } else {
                        seconds[i] = dot4(w, x, seconds[i]);
                    }
                }
            }
            UNROLL
            for (u32 i = 0; i < 16u; i++) {
                const Rounded& x = x_scales[t0 + i / 4u * 16u];
                sums[i] = add_block<Q>(sums[i], firsts[i], seconds[i], x, w_scales[r0 + i % 4u * 16u]);
            }
            SYNC();
        }
        UNROLL
        for (u32 i = 0; i < 16u; i++) {
            total[i] = slice == 0u ? sums[i] : total[i] + sums[i];
        }
    }
    finish(a, total, row0, token0);
}

template <class F>
DEVICE void matmul_floats(const Product& a) {
    GROUP_SHARED(float, ws, TILE * STRIDE_F);
    GROUP_SHARED(float, xs, TILE * STRIDE_F);
    u32 row0 = a.block_y * TILE;
    u32 token0 = BLOCK_X * TILE;
    u32 r0 = THREAD % 16u;
    u32 t0 = THREAD / 16u;
    float total[16] = {};
    for (u32 slice = 0; slice < SLICES; slice++) {
        float sums[16] = {};
        for (u32 block = slice; block < a.blocks; block += SLICES) {
            for (u32 i = THREAD; i < TILE * 8u; i += 256u) {
                u32 row = i / 8u;
                u32 j = i % 8u;
                F::load_quad(a.w, (u64)at_most(row0 + row, a.outputs - 1u) * a.blocks + block, j, ws + row * STRIDE_F + 4u * j);
                load_x(a, at_most(token0 + row, a.rows - 1u), block * 32u + 4u * j, xs + row * STRIDE_F + 4u * j);
            }
            SYNC();
            for (u32 c = 0; c < 32u; c++) {
                UNROLL
                for (u32 i = 0; i < 16u; i++) {
                    float w = ws[(r0 + i % 4u * 16u) * STRIDE_F + c];
                    sums[i] = fmaf(xs[(t0 + i / 4u * 16u) * STRIDE_F + c], w, sums[i]);
                }
            }
            SYNC();
        }
        UNROLL
        for (u32 i = 0; i < 16u; i++) {
            total[i] = slice == 0u ? sums[i] : total[i] + sums[i];
        }
    }
    finish(a, total, row0, token0);
}

#define TILE_QUANTS(type)                         \
    KERNEL(matmul_tile_##type, 256, MatMulArgs) { \
        matmul_quants<type>(product_of(a));       \
    }
#define TILE_FLOATS(type)                         \
    KERNEL(matmul_tile_##type, 256, MatMulArgs) { \
        matmul_floats<type>(product_of(a));       \
    }
EACH_QUANTISED(TILE_QUANTS)
EACH_FLOAT(TILE_FLOATS)
