// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n] with quantised w on tensor cores, for many rows. Operands as in matmul_vec.cu;
// needs sm_80.
//
// Whole numbers add up alike in any order, and the slices of K are those of matmul_vec.cu, one after the other, so this gives its
// bits. A thread block of 8 warps has 64 rows of w and TOKENS of x; three blocks of 32 columns of both are in shared memory or on
// their way to it, those of w through registers, where they become bytes. Bound by adding blocks in f32.
#include "rounded.cuh"

// Rows of w to a thread block.
#define OUTPUTS 64u
#define STAGES 3u
// Words of a row in a block; a half warp's 8-byte reads of a fragment meet in no bank.
#define ROW 8u
// Tiles of x whose products are on their way at once.
#define AT_ONCE 2u

// How the warps share out a tile: WARPS_W by 8 / WARPS_W of them, each with W_TILES of 16 rows of w by X_TILES of 8 of x.
template <u32 WARPS_W_, u32 W_TILES_, u32 X_TILES_>
struct Shape {
    enum : u32 {
        WARPS_W = WARPS_W_,
        W_TILES = W_TILES_,
        X_TILES = X_TILES_,
        TOKENS = 8u / WARPS_W * X_TILES * 8u,
        // Where a stage has the words of x, its scales and those of w, and how many words it has.
        X = OUTPUTS * ROW,
        X_SCALES = X + TOKENS * ROW,
        W_SCALES = X_SCALES + TOKENS * 2u,
        STAGE = W_SCALES + OUTPUTS * 4u
    };
};

// The block behind `block` in the order of sums: the next of its slice, or the first of the next slice; some block behind the last.
DEVICE u32 next_block(u32 block, u32 blocks) {
    return at_most(block + SLICES < blocks ? block + SLICES : block % SLICES + 1u, blocks - 1u);
}

// What a thread brings of a block through registers: two words of a row of w, maybe that row's scale, and maybe one of x.
struct Piece {
    StoredPair w;
    StoredScale w_scale;
    Rounded x_scale;
};

// Asks for a block: what comes through registers, and what goes to a stage by itself.
template <class Q, class S>
DEVICE Piece ask(const Product& a, u32 block, u32* stage) {
    Piece piece = {};
    u64 w = (u64)at_most(a.block_y * OUTPUTS + THREAD / 4u, a.outputs - 1u) * a.blocks + block;
    piece.w = load_pair<Q>(a.w, w, THREAD % 4u);
    if (THREAD % 4u == 0u) {
        piece.w_scale = load_stored_scale<Q>(a.w, w);
    }
    if (THREAD < 2u * S::TOKENS) {
        u64 x = (u64)at_most(BLOCK_X * S::TOKENS + THREAD / 2u, a.rows - 1u) * a.blocks + block;
        copy_async_16((uint4*)(stage + S::X) + THREAD, (const uint4*)a.x + 2u * x + THREAD % 2u);
        if (THREAD % 2u == 0u) {
            piece.x_scale = a.x_scales[x];
        }
    }
    COPIES_END();
    return piece;
}

template <class Q, class S>
DEVICE void put(const Piece& piece, u32* stage) {
    ((uint2*)stage)[THREAD] = pair_words<Q>(piece.w, THREAD % 4u);
    if (THREAD % 4u == 0u) {
        Scale s = scale_of<Q>(piece.w_scale);
        *(float4*)(stage + S::W_SCALES + THREAD) = {s.first, s.second, s.minimum, 0.0f};
    }
    if (THREAD < 2u * S::TOKENS && THREAD % 2u == 0u) {
        *(Rounded*)(stage + S::X_SCALES + THREAD) = piece.x_scale;
    }
}

// Words q and q + 4 of a row where the type's halves are apart, else any two: both sides agree.
template <class Q>
DEVICE uint2 fragment(const u32* row, u32 q) {
    if (Q::PARTS == 2) {
        return {row[q], row[4u + q]};
    }
    return *(const uint2*)(row + 2u * q);
}

// What a lane adds up: of each tile of 16 rows of w by 8 of x two neighbouring tokens of rows g and g + 8.
template <class S>
struct Sums {
    float of[S::W_TILES][S::X_TILES][4];
};

// Adds the products of a block.
template <class Q, class S>
DEVICE void add_stage(const u32* stage, u32 row, u32 token, Sums<S>& sums) {
    u32 g = THREAD % 32u / 4u;
    u32 q = THREAD % 4u;
    u32 w[S::W_TILES][4];
    Scale w_scales[S::W_TILES][2];
    UNROLL
    for (u32 m = 0; m < S::W_TILES; m++) {
        UNROLL
        for (u32 i = 0; i < 2u; i++) {
            u32 r = row + 16u * m + 8u * i + g;
            uint2 words = fragment<Q>(stage + r * ROW, q);
            w[m][i] = words.x;
            w[m][2u + i] = words.y;
            float4 s = *(const float4*)(stage + S::W_SCALES + 4u * r);
            w_scales[m][i] = {s.x, s.y, s.z};
        }
    }
    UNROLL
    for (u32 n = 0; n < S::X_TILES; n += AT_ONCE) {
        int first[AT_ONCE][S::W_TILES][4];
        int second[AT_ONCE][S::W_TILES][4];
        Rounded x_scales[AT_ONCE][2];
        UNROLL
        for (u32 j = 0; j < AT_ONCE; j++) {
            u32 t = token + 8u * (n + j);
            uint2 x = fragment<Q>(stage + S::X + (t + g) * ROW, q);
            UNROLL
            for (u32 i = 0; i < 2u; i++) {
                x_scales[j][i] = *(const Rounded*)(stage + S::X_SCALES + 2u * (t + 2u * q + i));
            }
            UNROLL
            for (u32 m = 0; m < S::W_TILES; m++) {
                UNROLL
                for (u32 i = 0; i < 4u; i++) {
                    const Rounded& of = x_scales[j][i % 2u];
                    int low = -(int)Q::OFFSET * first_sum(of);
                    int high = -(int)Q::OFFSET * second_sum(of);
                    first[j][m][i] = Q::PARTS == 2 ? low : low + high;
                    second[j][m][i] = Q::PARTS == 2 ? high : 0;
                }
                if (Q::PARTS == 2) {
                    mma_16_8_16_s8(first[j][m], w[m], x.x);
                    mma_16_8_16_s8(second[j][m], w[m] + 2, x.y);
                } else {
                    u32 both[2] = {x.x, x.y};
                    mma_16_8_32_s8(first[j][m], w[m], both);
                }
            }
        }
        UNROLL
        for (u32 j = 0; j < AT_ONCE; j++) {
            UNROLL
            for (u32 i = 0; i < 4u * S::W_TILES; i++) {
                u32 m = i / 4u;
                float& sum = sums.of[m][n + j][i % 4u];
                sum = add_products<Q>(sum, first[j][m][i % 4u], second[j][m][i % 4u], x_scales[j][i % 2u], w_scales[m][i % 4u / 2u]);
            }
        }
    }
}

// A slice's sums to the total, those of the first as they are.
template <class S>
DEVICE void end_slice(Sums<S>& total, Sums<S>& sums, bool is_first) {
    UNROLL
    for (u32 i = 0; i < S::W_TILES * S::X_TILES * 4u; i++) {
        float& all = total.of[i / 4u / S::X_TILES][i / 4u % S::X_TILES][i % 4u];
        float& own = sums.of[i / 4u / S::X_TILES][i / 4u % S::X_TILES][i % 4u];
        all = is_first ? own : all + own;
        own = 0.0f;
    }
}

template <class Q, class S>
DEVICE void quants(const Product& a) {
    GROUP_SHARED(u32, stages, STAGES * S::STAGE);
    u32 warp = THREAD / 32u;
    u32 row = warp % S::WARPS_W * S::W_TILES * 16u;
    u32 token = warp / S::WARPS_W * S::X_TILES * 8u;
    // The stages of the block that is computed with, and of the two behind it.
    u32* now = stages;
    u32* soon = stages + S::STAGE;
    u32* later = stages + 2u * S::STAGE;
    put<Q, S>(ask<Q, S>(a, 0u, now), now);
    u32 asked = next_block(0u, a.blocks);
    Piece piece = ask<Q, S>(a, asked, soon);
    WAIT_FOR_COPIES_BUT(1);
    SYNC();
    Sums<S> total = {};
    Sums<S> sums = {};
    KEEP_LOOP
    for (u32 slice = 0; slice < SLICES && slice < a.blocks; slice++) {
        KEEP_LOOP
        for (u32 block = slice; block < a.blocks; block += SLICES) {
            put<Q, S>(piece, soon);
            asked = next_block(asked, a.blocks);
            piece = ask<Q, S>(a, asked, later);
            add_stage<Q, S>(now, row, token, sums);
            WAIT_FOR_COPIES_BUT(1);
            SYNC();
            u32* free = now;
            now = soon;
            soon = later;
            later = free;
        }
        end_slice(total, sums, slice == 0u);
    }
    row += a.block_y * OUTPUTS + THREAD % 32u / 4u;
    token += BLOCK_X * S::TOKENS + 2u * (THREAD % 4u);
    UNROLL
    for (u32 i = 0; i < S::W_TILES * S::X_TILES * 4u; i++) {
        u32 m = i / 4u / S::X_TILES;
        u32 n = i / 4u % S::X_TILES;
        float sum = total.of[m][n][i % 4u];
        // Slices without a block count as zeros.
        sum = a.blocks < SLICES ? sum + 0.0f : sum;
        write_result(a, token + 8u * n + i % 2u, row + 16u * m + i % 4u / 2u * 8u, sum);
    }
}

typedef Shape<2, 2, 2> some;
typedef Shape<2, 2, 4> many;

#define MMA_QUANTS(type)                                     \
    KERNEL(matmul_mma_some_##type, 256, MatMulArgs) {        \
        quants<type, some>(product_of(a));                   \
    }                                                        \
    KERNEL_PAIRED(matmul_mma_many_##type, 256, MatMulArgs) { \
        quants<type, many>(product_of(a));                   \
    }
EACH_QUANTISED(MMA_QUANTS)
