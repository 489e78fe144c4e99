// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n] with w of halves on tensor cores; needs sm_80. w, bias and out as in matmul_vec.cu;
// x as halves.cu leaves it, one part where w is F16 and three where it is BF16: the products are exact in f32.
//
// One instruction multiplies 16 rows of w by 8 of x over 16 columns. Which columns those are is free as long as both
// sides agree: lane l takes columns 8 (l % 4) to 8 (l % 4) + 7 of a block of 32, sixteen bytes at once, the first four for
// the first instruction and the others for the second. A block's sum starts from zero, for tensor cores round what they
// add to towards zero, and is added in f32 to what the blocks before it came to, part by part. All kernels do exactly this, so a
// row's result does not depend on how many rows there are.
//
// few: a warp to 16 rows of w and 8 of x; it asks for several blocks before it uses the first. Warps of other rows of x read the
// same w at about the same time, mostly from the cache. Bound by reading w.
// many: a thread block of 8 warps to 128 rows of w and 128 of x, 64 by 32 to a warp, x on the left side; three blocks are in shared
// memory or on their way to it. The words of x lie turned over (halves.cu), so that the card's loads of matrices give a lane those
// above. Of w a quarter warp reads two neighbouring rows of 64 bytes, which meet in no bank. Bound by arithmetic.
#include "rounded.cuh"

#define TILE 128u
#define STAGES 3u
// Words of 16 bytes in a row of a block, and in a stage.
#define ROW 4u
#define STAGE (2u * TILE * ROW)

struct mma_f16 {
    enum { PARTS = 1 };

    static DEVICE_MEMBER float scale(const Product& a, u32 t) {
        return ((const float*)a.x_scales)[t];
    }

    static DEVICE_MEMBER void mma(float c[4], const u32 a[4], const u32 b[2]) {
        mma_16_8_16_f16(c, a, b);
    }
};

struct mma_bf16 {
    enum { PARTS = 3 };

    static DEVICE_MEMBER float scale(const Product&, u32) {
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

// A lane's results of 16 rows from `row` on and 8 rows of x from `token` on.
template <class M>
DEVICE void write_results(const Product& a, u32 token, u32 row, const float sums[4]) {
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        u32 t = token + 2u * q + i;
        float scale = M::scale(a, at_most(t, a.rows - 1u));
        write_result(a, t, row + g, sums[i] * scale);
        write_result(a, t, row + g + 8u, sums[2u + i] * scale);
    }
}

template <class M, int COUNT>
DEVICE void add_blocks(const Product& a, const uint4* const w[2], const uint4* x, u32 block, float sums[4]) {
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
        for (u32 part = 0; part < PARTS; part++) {
            add_block<M>(rows[i], x[((block + i) * PARTS + part) * ROW], sums);
        }
    }
}

template <class M, int COUNT>
DEVICE void few(const Product& a) {
    u32 g = THREAD / 4u;
    u32 q = THREAD % 4u;
    u32 row = a.block_y * 16u;
    u32 token = BLOCK_X * 8u;
    const uint4* w[2];
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        w[i] = (const uint4*)a.w.quants + (u64)at_most(row + g + 8u * i, a.outputs - 1u) * a.blocks * ROW + q;
    }
    const uint4* x = (const uint4*)a.x + (u64)at_most(token + g, a.rows - 1u) * a.blocks * (u32)M::PARTS * ROW + q;
    float sums[4] = {};
    u32 block = 0;
    KEEP_LOOP
    for (; block + COUNT <= a.blocks; block += COUNT) {
        add_blocks<M, COUNT>(a, w, x, block, sums);
    }
    KEEP_LOOP
    for (; block < a.blocks; block++) {
        add_blocks<M, 1>(a, w, x, block, sums);
    }
    write_results<M>(a, token, row, sums);
}

// Where a thread copies from, 16 bytes of every 64th row: of w, and of x.
struct Sources {
    const uint4* w[TILE / 64u];
    const uint4* x[TILE / 64u];
};

// Where a row of a stage has sixteen bytes of x: eight rows' meet in no bank.
DEVICE u32 place_of(u32 row, u32 word) {
    return row * ROW + (word ^ row / 2u % ROW);
}

// Begins to copy a block, part `v` of all, to shared memory.
template <class M>
DEVICE void bring(const Sources& from, u32 v, uint4* stage) {
    u32 block = v / (u32)M::PARTS;
    UNROLL
    for (u32 i = 0; i < TILE / 64u; i++) {
        copy_async_16(stage + THREAD + i * 256u, from.w[i] + block * ROW);
        copy_async_16(stage + TILE * ROW + place_of(i * 64u + THREAD / ROW, THREAD % ROW), from.x[i] + v * ROW);
    }
}

// Adds a stage's products: of 32 rows of x, the left side, and 64 of w. Four are on their way at once.
template <class M>
DEVICE void add_stage(const uint4* x, const uint4* w, float sums[2][8][4]) {
    // Of 16 rows each: the four words of the first instruction, and of the second.
    u32 first[2][4];
    u32 second[2][4];
    u32 lane = THREAD % 32u;
    UNROLL
    for (u32 m = 0; m < 2u; m++) {
        load_matrices(first[m], x + place_of(m * 16u + lane % 16u, lane / 16u));
        load_matrices(second[m], x + place_of(m * 16u + lane % 16u, 2u + lane / 16u));
    }
    UNROLL
    for (u32 n = 0; n < 8u; n += 2u) {
        float c[2][2][4] = {};
        uint4 right[2] = {w[n * 8u * ROW], w[(n + 1u) * 8u * ROW]};
        UNROLL
        for (u32 i = 0; i < 4u; i++) {
            u32 words[2] = {right[i / 2u].x, right[i / 2u].y};
            M::mma(c[i % 2u][i / 2u], first[i % 2u], words);
        }
        UNROLL
        for (u32 i = 0; i < 4u; i++) {
            u32 words[2] = {right[i / 2u].z, right[i / 2u].w};
            M::mma(c[i % 2u][i / 2u], second[i % 2u], words);
        }
        UNROLL
        for (u32 i = 0; i < 16u; i++) {
            sums[i % 2u][n + i / 2u % 2u][i / 4u] += c[i % 2u][i / 2u % 2u][i / 4u];
        }
    }
}

template <class M>
DEVICE void many(const Product& a) {
    GROUP_SHARED(uint4, stages, STAGES * STAGE);
    u32 warp = THREAD / 32u;
    u32 lane = THREAD % 32u;
    u32 row = a.block_y * TILE;
    u32 token = BLOCK_X * TILE;
    u32 parts = a.blocks * (u32)M::PARTS;
    Sources from;
    UNROLL
    for (u32 i = 0; i < TILE / 64u; i++) {
        u32 n = at_most(row + i * 64u + THREAD / ROW, a.outputs - 1u);
        u32 t = at_most(token + i * 64u + THREAD / ROW, a.rows - 1u);
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
    float sums[2][8][4] = {};
    const uint4* own_w = stages + warp % 2u * 64u * ROW + lane;
    const uint4* own_x = stages + (TILE + warp / 2u * 32u) * ROW;
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
        add_stage<M>(own_x + slot * STAGE, own_w + slot * STAGE, sums);
        slot = slot + 1u == STAGES ? 0u : slot + 1u;
    }
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        u32 t = token + warp / 2u * 32u + i * 8u + lane / 4u;
        float scale = M::scale(a, at_most(t, a.rows - 1u));
        UNROLL
        for (u32 n = 0; n < 16u; n++) {
            u32 column = row + warp % 2u * 64u + n / 2u * 8u + 2u * (lane % 4u) + n % 2u;
            write_result(a, t, column, sums[i / 2u][n / 2u][i % 2u * 2u + n % 2u] * scale);
        }
    }
}

KERNEL(matmul_half_few_f16, 32, MatMulArgs) {
    few<mma_f16, 16>(product_of(a));
}

KERNEL(matmul_half_few_bf16, 32, MatMulArgs) {
    few<mma_bf16, 8>(product_of(a));
}

KERNEL_PAIRED(matmul_half_many_f16, 256, MatMulArgs) {
    many<mma_f16>(product_of(a));
}

KERNEL_PAIRED(matmul_half_many_bf16, 256, MatMulArgs) {
    many<mma_bf16>(product_of(a));
}
