// out[t, h] = softmax_p(q[t, h] . key[p] * scale) . value[p] over the positions p of the row's sequence with
// position - window < p <= position; query head h reads key-value head h * K / H.
//
// | operand      | shape            | layout                      | type   |
// |--------------|------------------|-----------------------------|--------|
// | q, out       | [T, H, D]        | rows contiguous             | f32    |
// | keys, values | [pages, K, P, D] | as kv_write.cu leaves them  | stored |
//
// One thread block of 128 per row and query head. It takes the positions 128 at a time, in blocks that start at multiples of
// 128: thread i scores position 128b + i over D in order, the block's largest score rescales what there is (online
// softmax), then thread i adds up elements i, i + 128 of the values, position by position. So a result depends on its
// own positions alone. Reads each page once for every query head of a row (the second time from cache); bound by that.
// Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "pages.cuh"

#define POSITIONS 128u
#define HEAD_DIM_MAX 256u
#define LOWEST -3.4028234e38f

struct AttentionArgs {
    Paged paged;
    const float* q;
    float* out;
    PagedNumbers n;
    u32 heads;
    float scale;
    // 0: none.
    u32 window;
};

// Element d of a stored row.
template <int STORED>
DEVICE float element(const unsigned char* row, u32 d) {
    if (STORED == 32) {
        return ((const float*)row)[d];
    }
    if (STORED == 16) {
        return half_to_float(((const u16*)row)[d]);
    }
    const unsigned char* group = row + GROUP_BYTES * (d / 32u);
    return half_to_float(*(const u16*)group) * (float)((const signed char*)group)[4u + d % 32u];
}

template <int STORED>
DEVICE float score(const float* query, const unsigned char* row, u32 head_dim) {
    float sum = 0.0f;
    if (STORED != 8) {
        for (u32 d = 0; d < head_dim; d++) {
            sum = fmaf(query[d], element<STORED>(row, d), sum);
        }
        return sum;
    }
    for (u32 first = 0; first < head_dim; first += 32u) {
        const unsigned char* group = row + GROUP_BYTES * (first / 32u);
        float part = 0.0f;
        for (u32 i = 0; i < 32u && first + i < head_dim; i++) {
            part = fmaf(query[first + i], (float)((const signed char*)group)[4u + i], part);
        }
        sum = fmaf(half_to_float(*(const u16*)group), part, sum);
    }
    return sum;
}

template <int STORED>
DEVICE void attention(const AttentionArgs& a) {
    GROUP_SHARED(float, query, HEAD_DIM_MAX);
    GROUP_SHARED(float, scores, POSITIONS);
    GROUP_SHARED(u64, places, POSITIONS);
    // Set by any thread that met a number that points nowhere.
    GROUP_SHARED(u32, is_broken, 1);
    const PagedNumbers& n = a.n;
    u32 t = BLOCK_X / a.heads;
    u32 head = BLOCK_X % a.heads;
    u32 kv_head = head * n.kv_heads / a.heads;
    u64 start = ((u64)t * a.heads + head) * n.head_dim;
    for (u32 d = THREAD; d < n.head_dim; d += POSITIONS) {
        query[d] = a.q[start + d];
    }
    if (THREAD == 0u) {
        is_broken[0] = stands(a.paged, n, t, 0u) ? 0u : 1u;
    }
    SYNC();
    if (is_broken[0] != 0u) {
        return;
    }
    u32 position = a.paged.positions[t];
    u32 first = a.window != 0u && position + 1u > a.window ? position + 1u - a.window : 0u;
    float largest = LOWEST;
    float total = 0.0f;
    float sums[HEAD_DIM_MAX / POSITIONS] = {};
    for (u32 block = first / POSITIONS; block <= position / POSITIONS; block++) {
        u32 p = block * POSITIONS + THREAD;
        bool is_seen = p >= first && p <= position;
        float own = LOWEST;
        if (is_seen) {
            u32 page = page_of(a.paged, n, t, p / n.page_tokens, 0u);
            if (page == n.pages) {
                is_broken[0] = 1u;
            } else {
                places[THREAD] = row_at(n, page, kv_head, p);
                own = score<STORED>(query, a.paged.keys + places[THREAD], n.head_dim) * a.scale;
            }
        }
        scores[THREAD] = own;
        SYNC();
        if (is_broken[0] != 0u) {
            return;
        }
        float after = largest;
        for (u32 i = 0; i < POSITIONS; i++) {
            after = fmaxf(after, scores[i]);
        }
        float shrink = expf(largest - after);
        SYNC();
        scores[THREAD] = is_seen ? expf(own - after) : 0.0f;
        SYNC();
        largest = after;
        total *= shrink;
        u32 base = block * POSITIONS;
        u32 low = first > base ? first - base : 0u;
        u32 high = position - base < POSITIONS - 1u ? position - base : POSITIONS - 1u;
        for (u32 i = low; i <= high; i++) {
            total += scores[i];
        }
        for (u32 j = 0; j < HEAD_DIM_MAX / POSITIONS; j++) {
            u32 d = THREAD + POSITIONS * j;
            if (d < n.head_dim) {
                float sum = sums[j] * shrink;
                for (u32 i = low; i <= high; i++) {
                    sum = fmaf(scores[i], element<STORED>(a.paged.values + places[i], d), sum);
                }
                sums[j] = sum;
            }
        }
        SYNC();
    }
    for (u32 j = 0; j < HEAD_DIM_MAX / POSITIONS; j++) {
        u32 d = THREAD + POSITIONS * j;
        if (d < n.head_dim) {
            a.out[start + d] = sums[j] / total;
        }
    }
}

KERNEL(attention_f32, 128, AttentionArgs) {
    attention<32>(a);
}

KERNEL(attention_f16, 128, AttentionArgs) {
    attention<16>(a);
}

KERNEL(attention_q8, 128, AttentionArgs) {
    attention<8>(a);
}
