// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n] with w of halves on tensor cores; needs sm_80. w, bias and out as in matmul_vec.cu;
// x as halves.cu leaves it, one part where w is F16 and three where it is BF16: the products are exact in f32.
//
// One instruction multiplies 16 rows of w by 8 of x over 16 columns. Which columns those are is free as long as both
// sides agree: lane l takes columns 8 (l % 4) to 8 (l % 4) + 7 of a block of 32, sixteen bytes at once, the first four for
// the first instruction and the others for the second. A block's sum starts from zero, for tensor cores round what they
// add to towards zero, and is added in f32 to what the blocks before it came to, part by part. All kernels do exactly this, so a
// row's result does not depend on how many rows there are.
//
// few, some: a warp to 16 rows of w and 8 or 32 of x; it asks for several blocks before it uses the first. Bound by reading w.
// many: a thread block of 4 warps to 128 rows of w and 128 of x, 64 by 64 to a warp; three blocks are in shared memory or
// on their way to it. A quarter warp reads two neighbouring rows of 64 bytes, which meet in no bank. Bound by arithmetic.
#include "rounded.cuh"

#define TILE 128u
#define STAGES 3u
// Words of 16 bytes in a row of a block, and in a stage.
#define ROW 4u
#define STAGE (2u * TILE * ROW)

struct mma_f16 {
    enum { PARTS = 1 };

    static DEVICE_MEMBER float scale(const MatMulArgs& a, u32 t) {
        return ((const float*)a.x_scales)[t];
    }

    static DEVICE_MEMBER void mma(float c[4], const u32 a[4], const u32 b[2]) {
        mma_16_8_16_f16(c, a, b);
    }
};

struct mma_bf16 {
    enum { PARTS = 3 };

    static DEVICE_MEMBER float scale(const MatMulArgs&, u32) {
        return 1.0f;
    }

    static DEVICE_MEMBER void mma(float c[4], const u32 a[4], const u32 b[2]) {
        mma_16_8_16_bf16(c, a, b);
    }
};

// What a lane holds of 16 rows of w in a block: of rows g and g + 8 eight columns each.
struct Rows16 {
    uint4 low;
    uint4 high;
};

// Adds a block's products, which start from zero.
template <class M>
DEVICE void add_block(const Rows16& w, const uint4& x, float sums[4]) {
    u32 first_w[4] = {w.low.x, w.high.x, w.low.y, w.high.y};
    u32 second_w[4] = {w.low.z, w.high.z, w.low.w, w.high.w};
    u32 first_x[2] = {x.x, x.y};
    u32 second_x[2] = {x.z, x.w};
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    M::mma(c, first_w, first_x);
    M::mma(c, second_w, second_x);
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        sums[i] += c[i];
    }
}

// A lane's results of 16 `COUNT` rows from `row` on and 8 rows of x from `token` on.
template <class M, int COUNT>
DEVICE void write_results(const MatMulArgs& a, u32 token, u32 row, const float* const sums[COUNT]) {
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        u32 t = token + 2u * q + i;
        float scale = M::scale(a, at_most(t, a.rows - 1u));
        UNROLL
        for (u32 m = 0; m < COUNT; m++) {
            write_result(a, t, row + 16u * m + g, sums[m][i] * scale);
            write_result(a, t, row + 16u * m + g + 8u, sums[m][2u + i] * scale);
        }
    }
}

template <class M, int TILES, int COUNT>
DEVICE void add_blocks(const MatMulArgs& a, const uint4* const w[2], const uint4* const x[TILES], u32 block, float sums[TILES][4]) {
    const u32 PARTS = M::PARTS;
    Rows16 rows[COUNT];
    UNROLL
    for (u32 i = 0; i < COUNT; i++) {
        rows[i].low = w[0][(block + i) * ROW];
        rows[i].high = w[1][(block + i) * ROW];
    }
    if (COUNT > 1) {
        NO_LOAD_LATER();
    }
    UNROLL
    for (u32 i = 0; i < COUNT; i++) {
        UNROLL
        for (u32 tile = 0; tile < TILES; tile++) {
            UNROLL
            for (u32 part = 0; part < PARTS; part++) {
                add_block<M>(rows[i], x[tile][((block + i) * PARTS + part) * ROW], sums[tile]);
            }
        }
    }
}

template <class M, int TILES, int COUNT>
DEVICE void few(const MatMulArgs& a) {
    u32 g = THREAD / 4u;
    u32 q = THREAD % 4u;
    u32 row = BLOCK_Y * 16u;
    u32 token = BLOCK_X * 8u * TILES;
    const uint4* w[2];
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        w[i] = (const uint4*)a.w.quants + (u64)at_most(row + g + 8u * i, a.outputs - 1u) * a.blocks * ROW + q;
    }
    const uint4* x[TILES];
    UNROLL
    for (u32 tile = 0; tile < TILES; tile++) {
        x[tile] = (const uint4*)a.x + (u64)at_most(token + 8u * tile + g, a.rows - 1u) * a.blocks * (u32)M::PARTS * ROW + q;
    }
    float sums[TILES][4] = {};
    u32 block = 0;
    KEEP_LOOP
    for (; block + COUNT <= a.blocks; block += COUNT) {
        add_blocks<M, TILES, COUNT>(a, w, x, block, sums);
    }
    KEEP_LOOP
    for (; block < a.blocks; block++) {
        add_blocks<M, TILES, 1>(a, w, x, block, sums);
    }
    UNROLL
    for (u32 tile = 0; tile < TILES; tile++) {
        const float* own[1] = {sums[tile]};
        write_results<M, 1>(a, token + 8u * tile, row, own);
    }
}

// Where a thread copies from, 16 bytes of every 32nd row: of w, and of x.
struct Sources {
    const uint4* w[TILE / 32u];
    const uint4* x[TILE / 32u];
};

// Begins to copy a block, part `v` of all, to shared memory.
template <class M>
DEVICE void bring(const Sources& from, u32 v, uint4* stage) {
    u32 block = v / (u32)M::PARTS;
    UNROLL
    for (u32 i = 0; i < TILE / 32u; i++) {
        copy_async_16(stage + THREAD + i * 128u, from.w[i] + block * ROW);
        copy_async_16(stage + TILE * ROW + THREAD + i * 128u, from.x[i] + v * ROW);
    }
}

template <class M>
DEVICE void many(const MatMulArgs& a) {
    GROUP_SHARED(uint4, stages, STAGES * STAGE);
    u32 warp = THREAD / 32u;
    u32 lane = THREAD % 32u;
    u32 row = BLOCK_Y * TILE;
    u32 token = BLOCK_X * TILE;
    u32 parts = a.blocks * (u32)M::PARTS;
    Sources from;
    UNROLL
    for (u32 i = 0; i < TILE / 32u; i++) {
        u32 n = at_most(row + i * 32u + THREAD / ROW, a.outputs - 1u);
        u32 t = at_most(token + i * 32u + THREAD / ROW, a.rows - 1u);
        from.w[i] = (const uint4*)a.w.quants + (u64)n * a.blocks * ROW + THREAD % ROW;
        from.x[i] = (const uint4*)a.x + (u64)t * parts * ROW + THREAD % ROW;
    }
    UNROLL
    for (u32 v = 0; v < STAGES - 1u; v++) {
        if (v < parts) {
            bring<M>(from, v, stages + v * STAGE);
        }
        COPIES_END();
    }
    float sums[4][8][4] = {};
    u32 own_w = warp % 2u * 64u * ROW + lane;
    u32 own_x = (TILE + warp / 2u * 64u) * ROW + lane;
    u32 slot = 0;
    KEEP_LOOP
    for (u32 v = 0; v < parts; v++) {
        // This block is here, and nobody reads the one before it any more.
        WAIT_FOR_COPIES_BUT(STAGES - 2u);
        SYNC();
        u32 ahead = v + STAGES - 1u;
        if (ahead < parts) {
            bring<M>(from, ahead, stages + (slot == 0u ? STAGES - 1u : slot - 1u) * STAGE);
        }
        COPIES_END();
        const uint4* stage = stages + slot * STAGE;
        Rows16 rows[4];
        UNROLL
        for (u32 m = 0; m < 4u; m++) {
            rows[m].low = stage[own_w + m * 16u * ROW];
            rows[m].high = stage[own_w + (m * 16u + 8u) * ROW];
        }
        UNROLL
        for (u32 n = 0; n < 8u; n++) {
            uint4 x = stage[own_x + n * 8u * ROW];
            UNROLL
            for (u32 m = 0; m < 4u; m++) {
                add_block<M>(rows[m], x, sums[m][n]);
            }
        }
        slot = slot + 1u == STAGES ? 0u : slot + 1u;
    }
    UNROLL
    for (u32 n = 0; n < 8u; n++) {
        const float* own[4] = {sums[0][n], sums[1][n], sums[2][n], sums[3][n]};
        write_results<M, 4>(a, token + warp / 2u * 64u + n * 8u, row + warp % 2u * 64u, own);
    }
}

KERNEL(matmul_half_few_f16, 32, MatMulArgs) {
    few<mma_f16, 1, 16>(a);
}

KERNEL(matmul_half_few_bf16, 32, MatMulArgs) {
    few<mma_bf16, 1, 8>(a);
}

KERNEL(matmul_half_some_f16, 32, MatMulArgs) {
    few<mma_f16, 4, 8>(a);
}

KERNEL(matmul_half_some_bf16, 32, MatMulArgs) {
    few<mma_bf16, 4, 4>(a);
}

KERNEL(matmul_half_many_f16, 128, MatMulArgs) {
    many<mma_f16>(a);
}

KERNEL(matmul_half_many_bf16, 128, MatMulArgs) {
    many<mma_bf16>(a);
}
