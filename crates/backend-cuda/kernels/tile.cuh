// A block of 32 columns of a tile's quantised weights and rounded activations in shared memory, for products of many rows.
#pragma once
#include "rounded.cuh"

// Rows of x and of w to a tile.
#define TILE 64u
// Words between rows of 8 words: a quarter warp's 16-byte reads then meet in no bank.
#define STRIDE 12u

// Of the first 128 threads one half brings a row of w each, the other a row of x. The caller waits for all.
template <class Q>
DEVICE void bring_block(const Product& a, u32 block, u32* ws, Scale* w_scales, u32* xs, Rounded* x_scales) {
    if (THREAD < TILE) {
        u64 at = (u64)at_most(a.block_y * TILE + THREAD, a.outputs - 1u) * a.blocks + block;
        u32 words[8];
        load_words<Q>(a.w, at, words);
        UNROLL
        for (u32 v = 0; v < 8u; v++) {
            ws[THREAD * STRIDE + v] = words[v];
        }
        w_scales[THREAD] = load_scale<Q>(a.w, at);
    } else if (THREAD < 2u * TILE) {
        u32 t = THREAD - TILE;
        u64 at = (u64)at_most(BLOCK_X * TILE + t, a.rows - 1u) * a.blocks + block;
        *(uint4*)(xs + t * STRIDE) = ((const uint4*)a.x)[2 * at];
        *(uint4*)(xs + t * STRIDE + 4u) = ((const uint4*)a.x)[2 * at + 1];
        x_scales[t] = a.x_scales[at];
    }
}
