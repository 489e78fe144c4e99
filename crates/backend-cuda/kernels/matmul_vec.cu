// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for few rows t: decode.
//
// | operand | shape  | layout                               | type                   |
// |---------|--------|--------------------------------------|------------------------|
// | x       | [T, K] | rows contiguous                      | f32, or as round8.cu   |
// | w       | [N, K] | see weights.cuh                      | stored                 |
// | bias    | [N]    | contiguous                           | f32                    |
// | out     | [T, N] | rows contiguous                      | f32                    |
//
// Eight threads share one or two rows of w, a slice of K each, so that they read neighbouring blocks; the slices' sums are
// added from the first to the last. Products with quants are of whole numbers, four to an instruction. Bound by reading w:
// a block of Q4_0 is 18 bytes and some 25 instructions of one thread. A thread asks for several blocks before it uses the first:
// a matrix of 4,096 rows is but 16,384 threads, and a large card has to have millions of bytes on their way.
#include "rounded.cuh"

#define GROUPS 16u

// How many rows of w eight threads share, and how many of their blocks a thread asks for at once. For one token as it was fastest
// on an H200, in kernels of 1,024 to 14,336 rows (docs/benchmarks.md); src/launch.rs knows the rows.
template <class Q, int TOKENS_EACH>
struct Share {
    enum : u32 {
        IS_ONE = TOKENS_EACH == 1,
        HAS_SUPER = Q::SCALES == SUPER_MINIMUM || Q::SCALES == SUPER_HALVES,
        ROWS_EACH = IS_ONE && HAS_SUPER ? 1 : 2,
        AHEAD = !IS_ONE ? 2 : HAS_SUPER || Q::LOW_WORDS == 8 ? 4 : 8
    };
};

template <u32 ROWS_EACH, int TOKENS_EACH>
DEVICE void finish(const Product& a, const float sums[ROWS_EACH][TOKENS_EACH], u32 row, u32 token) {
    UNROLL
    for (u32 r = 0; r < ROWS_EACH; r++) {
        UNROLL
        for (u32 t = 0; t < TOKENS_EACH; t++) {
            float total = from_lane(sums[r][t], 0, SLICES);
            for (u32 slice = 1; slice < SLICES; slice++) {
                total += from_lane(sums[r][t], slice, SLICES);
            }
            if (THREAD % SLICES == 0u) {
                write_result(a, token + t, row + r, total);
            }
        }
    }
}

// The products of `COUNT` blocks of a slice, all of whose weights are asked for first.
template <class Q, u32 ROWS_EACH, int TOKENS_EACH, u32 COUNT>
DEVICE void add_blocks(const Product& a, u32 row, u32 token, u32 block, float sums[ROWS_EACH][TOKENS_EACH]) {
    u32 words[COUNT][ROWS_EACH][8];
    Scale scales[COUNT][ROWS_EACH];
    UNROLL
    for (u32 i = 0; i < COUNT; i++) {
        UNROLL
        for (u32 r = 0; r < ROWS_EACH; r++) {
            u64 at = (u64)at_most(row + r, a.outputs - 1u) * a.blocks + block + i * SLICES;
            load_words<Q>(a.w, at, words[i][r]);
            scales[i][r] = load_scale<Q>(a.w, at);
        }
    }
    if (COUNT > 1) {
        NO_LOAD_LATER();
    }
    UNROLL
    for (u32 i = 0; i < COUNT; i++) {
        UNROLL
        for (u32 t = 0; t < TOKENS_EACH; t++) {
            u64 at = (u64)at_most(token + t, a.rows - 1u) * a.blocks + block + i * SLICES;
            uint4 low = ((const uint4*)a.x)[2 * at];
            uint4 high = ((const uint4*)a.x)[2 * at + 1];
            Rounded x = a.x_scales[at];
            UNROLL
            for (u32 r = 0; r < ROWS_EACH; r++) {
                const u32* w = words[i][r];
                int first = dot4(w[3], low.w, dot4(w[2], low.z, dot4(w[1], low.y, dot4(w[0], low.x, 0))));
                int second = dot4(w[7], high.w, dot4(w[6], high.z, dot4(w[5], high.y, dot4(w[4], high.x, 0))));
                sums[r][t] = add_block<Q>(sums[r][t], first, second, x, scales[i][r]);
            }
        }
    }
}

template <class Q, int TOKENS_EACH>
DEVICE void matmul_quants(const Product& a) {
    typedef Share<Q, TOKENS_EACH> share;
    const u32 ROWS_EACH = share::ROWS_EACH;
    const u32 AHEAD = share::AHEAD;
    u32 row = (a.block_y * GROUPS + THREAD / SLICES) * ROWS_EACH;
    u32 token = BLOCK_X * TOKENS_EACH;
    float sums[ROWS_EACH][TOKENS_EACH] = {};
    u32 base = 0;
    // The same for all lanes, which wait for each other inside.
    KEEP_LOOP
    for (; base + AHEAD * SLICES <= a.blocks; base += AHEAD * SLICES) {
        add_blocks<Q, ROWS_EACH, TOKENS_EACH, AHEAD>(a, row, token, base + THREAD % SLICES, sums);
    }
    KEEP_LOOP
    for (u32 block = base + THREAD % SLICES; block < a.blocks; block += SLICES) {
        add_blocks<Q, ROWS_EACH, TOKENS_EACH, 1>(a, row, token, block, sums);
    }
    finish<ROWS_EACH, TOKENS_EACH>(a, sums, row, token);
}

template <class F, int TOKENS_EACH>
DEVICE void matmul_floats(const Product& a) {
    const u32 ROWS_EACH = 2u;
    u32 row = (a.block_y * GROUPS + THREAD / SLICES) * ROWS_EACH;
    u32 token = BLOCK_X * TOKENS_EACH;
    float sums[ROWS_EACH][TOKENS_EACH] = {};
    for (u32 block = THREAD % SLICES; block < a.blocks; block += SLICES) {
        for (u32 j = 0; j < 8u; j++) {
            float w[ROWS_EACH][4];
            UNROLL
            for (u32 r = 0; r < ROWS_EACH; r++) {
                F::load_quad(a.w, (u64)at_most(row + r, a.outputs - 1u) * a.blocks + block, j, w[r]);
            }
            UNROLL
            for (u32 t = 0; t < TOKENS_EACH; t++) {
                float x[4];
                load_x(a, at_most(token + t, a.rows - 1u), block * 32u + 4u * j, x);
                UNROLL
                for (u32 r = 0; r < ROWS_EACH; r++) {
                    UNROLL
                    for (u32 i = 0; i < 4u; i++) {
                        sums[r][t] = fmaf(x[i], w[r][i], sums[r][t]);
                    }
                }
            }
        }
    }
    finish<ROWS_EACH, TOKENS_EACH>(a, sums, row, token);
}

#define VEC_QUANTS(type)                          \
    KERNEL(matmul_vec1_##type, 128, MatMulArgs) { \
        matmul_quants<type, 1>(product_of(a));    \
    }                                             \
    KERNEL(matmul_vec4_##type, 128, MatMulArgs) { \
        matmul_quants<type, 4>(product_of(a));    \
    }
#define VEC_FLOATS(type)                          \
    KERNEL(matmul_vec1_##type, 128, MatMulArgs) { \
        matmul_floats<type, 1>(product_of(a));    \
    }                                             \
    KERNEL(matmul_vec4_##type, 128, MatMulArgs) { \
        matmul_floats<type, 4>(product_of(a));    \
    }
EACH_QUANTISED(VEC_QUANTS)
EACH_FLOAT(VEC_FLOATS)
