// out[t, h] = softmax_p(q[t, h] . key[p] * scale) . value[p] over the positions p of the row's sequence with
// position - window < p <= position; query head h reads key-value head h * K / H.
//
// | operand      | shape            | layout                      | type   |
// |--------------|------------------|-----------------------------|--------|
// | q, out       | [T, H, D]        | rows contiguous             | f32    |
// | keys, values | [pages, K, P, D] | as kv_write.cu leaves them  | stored |
//
// A thread block of 128 has one key-value head and some queries that read it, each a slot: up to four of a row's query heads, or
// in a prompt more and those of several rows. It takes the positions in blocks (64 of them, 32 where heads are long) that start at multiples of their size: the
// keys of a block to shared memory, a score to a slot and position, the online softmax, then the values through the same memory.
// Block b belongs to span b % 32. Every slot goes through the blocks of a span one after the other, and what its spans came
// to is joined from the first to the last.
//
// few: a thread block to a row, key-value head and span, so that a single row keeps a whole card busy; the last one to end
// joins the spans. Bound by reading the cache, once for four query heads of a key-value head.
// many: a thread block goes through all spans by itself. Bound by arithmetic in f32, or by shared memory.
//
// Both do the same for a slot in the same order, and what a slot does not see changes nothing: a result depends on its own
// positions alone. Milakov & Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135.
#include "pages.cuh"

#define THREADS 128u
#define SPANS 32u
#define LOWEST -3.4028234e38f
// Spans whose results are asked for at once.
#define SPANS_AT_ONCE 8u
// The place of a position that nobody sees.
#define NOWHERE ~(u64)0

struct AttentionArgs {
    Paged paged;
    const float* q;
    float* out;
    // Of `few`: what a span came to as [T, H, SPANS, 2 + D], largest score and sum of weights first; and of each row, key-value head
    // and chunk how many spans are done, zero between runs.
    float* parts;
    u32* done;
    PagedNumbers n;
    u32 heads;
    float scale;
    // 0: none.
    u32 window;
};

// How work is shared out among the threads for heads of up to DIM elements.
template <int DIM_, u32 SLOTS_EACH_, u32 POSITIONS_EACH_>
struct Shape {
    enum : u32 {
        DIM = DIM_,
        // To a block.
        POSITIONS = 8192u / DIM,
        // Between positions in shared memory: a quarter warp's 16-byte reads of neighbours meet in no bank.
        STRIDE = DIM + 4u,
        // Scores: a thread has this many slots by this many positions.
        SLOTS_EACH = SLOTS_EACH_,
        POSITIONS_EACH = POSITIONS_EACH_,
        LANES = POSITIONS / POSITIONS_EACH,
        SLOTS = THREADS / LANES * SLOTS_EACH,
        // Values: a thread has four elements of this many slots.
        QUADS = DIM / 4u,
        SUMS_EACH = SLOTS * QUADS / THREADS
    };
};

// The positions that a slot sees; none where it has no query.
struct Seen {
    u32 first;
    // One past the last.
    u32 end;
};

DEVICE bool sees_span(const Seen& seen, u32 span, u32 positions) {
    if (seen.first >= seen.end) {
        return false;
    }
    u32 low = seen.first / positions;
    u32 high = (seen.end - 1u) / positions;
    // The first block of the span that is not before the first seen.
    u32 block = low + (span + SPANS - low % SPANS) % SPANS;
    return block <= high;
}

// Columns 4 `quad` to the next three of a stored row whose length is a multiple of four, or is padded (Q8).
template <int STORED>
DEVICE float4 load_quad(const unsigned char* row, u32 quad) {
    if (STORED == 32) {
        return ((const float4*)row)[quad];
    }
    if (STORED == 16) {
        uint2 bits = ((const uint2*)row)[quad];
        return {half_to_float((u16)(bits.x & 0xffffu)), half_to_float((u16)(bits.x >> 16)),
                half_to_float((u16)(bits.y & 0xffffu)), half_to_float((u16)(bits.y >> 16))};
    }
    const u32* group = (const u32*)(row + GROUP_BYTES * (quad / 8u));
    float scale = half_to_float((u16)(group[0] & 0xffffu));
    u32 word = group[1u + quad % 8u];
    return {scale * (float)(signed char)word, scale * (float)(signed char)(word >> 8),
            scale * (float)(signed char)(word >> 16), scale * (float)(signed char)(word >> 24)};
}

// The same element by element, for heads of other lengths.
template <int STORED, class S>
DEVICE void bring_odd(const unsigned char* pages, const u64* places, u32 head_dim, float* tile) {
    u32 width = (head_dim + 3u) / 4u * 4u;
    KEEP_LOOP
    for (u32 i = THREAD; i < S::POSITIONS * width; i += THREADS) {
        u32 d = i % width;
        const unsigned char* row = pages + places[i / width];
        float value = 0.0f;
        if (places[i / width] != NOWHERE && d < head_dim) {
            value = STORED == 32 ? ((const float*)row)[d] : half_to_float(((const u16*)row)[d]);
        }
        tile[i / width * S::STRIDE + d] = value;
    }
}

// A block's keys or values to shared memory, zeros for positions that have no place.
template <int STORED, class S>
DEVICE void bring(const unsigned char* pages, const u64* places, u32 head_dim, float* tile) {
    if (STORED != 8 && head_dim % 4u != 0u) {
        bring_odd<STORED, S>(pages, places, head_dim, tile);
        return;
    }
    // Asked for at once by a thread: they share out evenly, for heads of up to 64 elements go with blocks of 64 positions.
    const u32 ROWS = 8u;
    u32 quads = (head_dim + 3u) / 4u;
    u32 lanes = quads <= 16u ? 16u : 32u;
    u32 step = THREADS / lanes;
    for (u32 base = THREAD / lanes; base < S::POSITIONS; base += ROWS * step) {
        for (u32 quad = THREAD % lanes; quad < quads; quad += lanes) {
            float4 values[ROWS];
            UNROLL
            for (u32 i = 0; i < ROWS; i++) {
                u64 place = places[base + i * step];
                values[i] = {0.0f, 0.0f, 0.0f, 0.0f};
                if (place != NOWHERE) {
                    values[i] = load_quad<STORED>(pages + place, quad);
                }
            }
            UNROLL
            for (u32 i = 0; i < ROWS; i++) {
                *(float4*)(tile + (base + i * step) * S::STRIDE + 4u * quad) = values[i];
            }
        }
    }
}

DEVICE float add_products(const float4& a, const float4& b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// The scores of a block, those that are not seen as LOWEST.
template <class S>
DEVICE void score(const float* query, const float* tile, const Seen* seen, u32 base, u32 quads, float scale, float* scores) {
    u32 lane = THREAD % S::LANES;
    u32 slot = THREAD / S::LANES * S::SLOTS_EACH;
    float sums[S::SLOTS_EACH][S::POSITIONS_EACH] = {};
    for (u32 quad = 0; quad < quads; quad++) {
        float4 keys[S::POSITIONS_EACH];
        UNROLL
        for (u32 j = 0; j < S::POSITIONS_EACH; j++) {
            keys[j] = *(const float4*)(tile + (lane + j * S::LANES) * S::STRIDE + 4u * quad);
        }
        UNROLL
        for (u32 i = 0; i < S::SLOTS_EACH; i++) {
            float4 q = *(const float4*)(query + (slot + i) * S::DIM + 4u * quad);
            UNROLL
            for (u32 j = 0; j < S::POSITIONS_EACH; j++) {
                sums[i][j] = add_products(q, keys[j], sums[i][j]);
            }
        }
    }
    UNROLL
    for (u32 i = 0; i < S::SLOTS_EACH; i++) {
        UNROLL
        for (u32 j = 0; j < S::POSITIONS_EACH; j++) {
            u32 p = lane + j * S::LANES;
            bool is_seen = base + p >= seen[slot + i].first && base + p < seen[slot + i].end;
            scores[(slot + i) * S::POSITIONS + p] = is_seen ? sums[i][j] * scale : LOWEST;
        }
    }
}

// What the slots have come to: their largest scores, the sums of their weights, and by what the last step shrinks the sums before.
struct State {
    float* largest;
    float* total;
    float* shrink;
};

// Scores become weights, zero where nothing is seen. A warp has every fourth slot.
template <class S>
DEVICE void weigh(const Seen* seen, u32 base, float* scores, const State& state) {
    u32 lane = THREAD % 32u;
    for (u32 slot = THREAD / 32u; slot < S::SLOTS; slot += THREADS / 32u) {
        float* row = scores + slot * S::POSITIONS;
        float most = LOWEST;
        UNROLL
        for (u32 p = lane; p < S::POSITIONS; p += 32u) {
            most = fmaxf(most, row[p]);
        }
        for (u32 step = 16u; step > 0u; step /= 2u) {
            most = fmaxf(most, from_lane(most, lane ^ step, 32u));
        }
        // Of the lane that writes it below: no other reads it.
        float before = from_lane(lane == 0u ? state.largest[slot] : 0.0f, 0u, 32u);
        float after = fmaxf(before, most);
        float sum = 0.0f;
        UNROLL
        for (u32 p = lane; p < S::POSITIONS; p += 32u) {
            bool is_seen = base + p >= seen[slot].first && base + p < seen[slot].end;
            float weight = is_seen ? expf(row[p] - after) : 0.0f;
            row[p] = weight;
            sum += weight;
        }
        for (u32 step = 16u; step > 0u; step /= 2u) {
            sum += from_lane(sum, lane ^ step, 32u);
        }
        if (lane == 0u) {
            float shrink = expf(before - after);
            state.largest[slot] = after;
            state.shrink[slot] = shrink;
            state.total[slot] = fmaf(state.total[slot], shrink, sum);
        }
    }
}

// Adds a block's values to the sums. A weight of zero adds nothing, not even of a value that is no number.
template <class S>
DEVICE void add_values(const float* tile, const float* scores, const State& state, float sums[S::SUMS_EACH][4]) {
    u32 quad = THREAD % S::QUADS;
    u32 slot = THREAD / S::QUADS * S::SUMS_EACH;
    UNROLL
    for (u32 i = 0; i < S::SUMS_EACH; i++) {
        UNROLL
        for (u32 j = 0; j < 4u; j++) {
            sums[i][j] *= state.shrink[slot + i];
        }
    }
    for (u32 p = 0; p < S::POSITIONS; p += 4u) {
        float4 values[4];
        UNROLL
        for (u32 k = 0; k < 4u; k++) {
            values[k] = *(const float4*)(tile + (p + k) * S::STRIDE + 4u * quad);
        }
        UNROLL
        for (u32 i = 0; i < S::SUMS_EACH; i++) {
            float4 four = *(const float4*)(scores + (slot + i) * S::POSITIONS + p);
            float weights[4] = {four.x, four.y, four.z, four.w};
            UNROLL
            for (u32 k = 0; k < 4u; k++) {
                if (weights[k] != 0.0f) {
                    sums[i][0] = fmaf(weights[k], values[k].x, sums[i][0]);
                    sums[i][1] = fmaf(weights[k], values[k].y, sums[i][1]);
                    sums[i][2] = fmaf(weights[k], values[k].z, sums[i][2]);
                    sums[i][3] = fmaf(weights[k], values[k].w, sums[i][3]);
                }
            }
        }
    }
}

// What spans came to so far, of one slot.
struct Joined {
    float largest;
    float total;
    float sums[4];
};

DEVICE void join(Joined& joined, float largest, float total, const float sums[4]) {
    float most = fmaxf(joined.largest, largest);
    float before = expf(joined.largest - most);
    float added = expf(largest - most);
    joined.largest = most;
    joined.total = fmaf(total, added, joined.total * before);
    UNROLL
    for (u32 j = 0; j < 4u; j++) {
        joined.sums[j] = fmaf(sums[j], added, joined.sums[j] * before);
    }
}

DEVICE void write_out(const AttentionArgs& a, u32 t, u32 head, u32 quad, const Joined& joined) {
    UNROLL
    for (u32 j = 0; j < 4u; j++) {
        if (4u * quad + j < a.n.head_dim) {
            a.out[((u64)t * a.heads + head) * a.n.head_dim + 4u * quad + j] = joined.sums[j] / joined.total;
        }
    }
}

// The queries of a thread block: slot s is row t + s / `heads`, query head first_head + s % `heads`.
struct Queries {
    u32 t;
    u32 rows;
    u32 kv_head;
    u32 first_head;
    u32 heads;
};

// What threads share.
template <class S>
struct Shared {
    float* tile;
    float* query;
    float* scores;
    u64* places;
    Seen* seen;
    State state;
    // Set by any thread that met a number that points nowhere.
    u32* is_broken;
};

// Adds the block of positions from `base` on, those within `all`, of row t's sequence.
template <int STORED, class S>
DEVICE bool attend(const AttentionArgs& a, const Shared<S>& m, u32 kv_head, u32 t, u32 base, Seen all, float sums[S::SUMS_EACH][4]) {
    const PagedNumbers& n = a.n;
    if (THREAD < S::POSITIONS) {
        u32 p = base + THREAD;
        u64 place = NOWHERE;
        if (p >= all.first && p < all.end) {
            u32 page = page_of(a.paged, n, t, p / n.page_tokens, 0u);
            if (page == n.pages) {
                m.is_broken[0] = 1u;
            } else {
                place = row_at(n, page, kv_head, p);
            }
        }
        m.places[THREAD] = place;
    }
    SYNC();
    if (m.is_broken[0] != 0u) {
        return false;
    }
    bring<STORED, S>(a.paged.keys, m.places, n.head_dim, m.tile);
    SYNC();
    score<S>(m.query, m.tile, m.seen, base, (n.head_dim + 3u) / 4u, a.scale, m.scores);
    SYNC();
    bring<STORED, S>(a.paged.values, m.places, n.head_dim, m.tile);
    weigh<S>(m.seen, base, m.scores, m.state);
    SYNC();
    add_values<S>(m.tile, m.scores, m.state, sums);
    SYNC();
    return true;
}

// The queries to shared memory, and whether all of their rows point somewhere.
template <class S>
DEVICE bool begin(const AttentionArgs& a, const Shared<S>& m, const Queries& of) {
    const PagedNumbers& n = a.n;
    u32 width = (n.head_dim + 3u) / 4u * 4u;
    KEEP_LOOP
    for (u32 i = THREAD; i < S::SLOTS * width; i += THREADS) {
        u32 slot = i / width;
        u32 d = i % width;
        u32 row = slot / of.heads;
        bool is_one = row < of.rows && d < n.head_dim;
        u64 at = ((u64)(of.t + row) * a.heads + of.first_head + slot % of.heads) * n.head_dim + d;
        m.query[slot * S::DIM + d] = is_one ? a.q[at] : 0.0f;
    }
    if (THREAD == 0u) {
        m.is_broken[0] = 0u;
    }
    SYNC();
    if (THREAD < of.rows && !stands(a.paged, n, of.t + THREAD, 0u)) {
        m.is_broken[0] = 1u;
    }
    SYNC();
    return m.is_broken[0] == 0u;
}

// Before a span: nothing has been seen.
template <class S>
DEVICE void forget(const Shared<S>& m, float sums[S::SUMS_EACH][4]) {
    if (THREAD < S::SLOTS) {
        m.state.largest[THREAD] = LOWEST;
        m.state.total[THREAD] = 0.0f;
    }
    UNROLL
    for (u32 i = 0; i < 4u * S::SUMS_EACH; i++) {
        sums[i / 4u][i % 4u] = 0.0f;
    }
    SYNC();
}

DEVICE Seen seen_by(const AttentionArgs& a, u32 t) {
    u32 end = a.paged.positions[t] + 1u;
    return {a.window != 0u && end > a.window ? end - a.window : 0u, end};
}

// One span of one row. Whether nothing pointed nowhere.
template <int STORED, class S>
DEVICE bool attend_span(const AttentionArgs& a, const Shared<S>& m, const Queries& of, u32 span) {
    Seen all = seen_by(a, of.t);
    bool is_seen = sees_span(all, span, S::POSITIONS);
    // A position that is none may see nothing: one span looks in any case.
    if (span > 0u && !is_seen) {
        return true;
    }
    if (!begin(a, m, of) || !is_seen) {
        return m.is_broken[0] == 0u;
    }
    if (THREAD < S::SLOTS) {
        m.seen[THREAD] = all;
    }
    float sums[S::SUMS_EACH][4];
    forget(m, sums);
    u32 low = all.first / S::POSITIONS;
    KEEP_LOOP
    for (u32 block = low + (span + SPANS - low % SPANS) % SPANS; block <= (all.end - 1u) / S::POSITIONS; block += SPANS) {
        if (!attend<STORED, S>(a, m, of.kv_head, of.t, block * S::POSITIONS, all, sums)) {
            return false;
        }
    }
    u32 quad = THREAD % S::QUADS;
    for (u32 i = 0; i < S::SUMS_EACH; i++) {
        u32 slot = THREAD / S::QUADS * S::SUMS_EACH + i;
        if (slot < of.heads) {
            float* part = a.parts + (((u64)of.t * a.heads + of.first_head + slot) * SPANS + span) * (2u + a.n.head_dim);
            if (quad == 0u) {
                part[0] = m.state.largest[slot];
                part[1] = m.state.total[slot];
            }
            for (u32 j = 0; j < 4u && 4u * quad + j < a.n.head_dim; j++) {
                part[2u + 4u * quad + j] = sums[i][j];
            }
        }
    }
    return true;
}

// Joins the spans of a slot, four elements to a thread.
template <class S>
DEVICE void join_spans(const AttentionArgs& a, const Queries& of, u32 slot, u32 quad) {
    Seen all = seen_by(a, of.t);
    const float* parts = a.parts + ((u64)of.t * a.heads + of.first_head + slot) * SPANS * (2u + a.n.head_dim);
    Joined joined = {LOWEST, 0.0f, {}};
    KEEP_LOOP
    for (u32 base = 0; base < SPANS; base += SPANS_AT_ONCE) {
        float largest[SPANS_AT_ONCE];
        float total[SPANS_AT_ONCE];
        float sums[SPANS_AT_ONCE][4];
        UNROLL
        for (u32 i = 0; i < SPANS_AT_ONCE; i++) {
            const float* part = parts + (base + i) * (2u + a.n.head_dim);
            bool is_one = sees_span(all, base + i, S::POSITIONS);
            largest[i] = is_one ? part[0] : 0.0f;
            total[i] = is_one ? part[1] : 0.0f;
            UNROLL
            for (u32 j = 0; j < 4u; j++) {
                u32 d = 4u * quad + j;
                sums[i][j] = is_one && d < a.n.head_dim ? part[2u + d] : 0.0f;
            }
        }
        UNROLL
        for (u32 i = 0; i < SPANS_AT_ONCE; i++) {
            if (sees_span(all, base + i, S::POSITIONS)) {
                join(joined, largest[i], total[i], sums[i]);
            }
        }
    }
    write_out(a, of.t, of.first_head + slot, quad, joined);
}

template <int STORED, class S>
DEVICE void few(const AttentionArgs& a, const Shared<S>& m) {
    u32 group = a.heads / a.n.kv_heads;
    u32 chunks = (group + S::SLOTS - 1u) / S::SLOTS;
    // The chunks of a span next to each other: they read the same keys.
    u32 chunk = BLOCK_Y % chunks;
    u32 span = BLOCK_Y / chunks % SPANS;
    u32 kv_head = BLOCK_Y / chunks / SPANS;
    u32 own = (BLOCK_X * a.n.kv_heads + kv_head) * chunks + chunk;
    u32 heads = group - chunk * S::SLOTS < S::SLOTS ? group - chunk * S::SLOTS : S::SLOTS;
    Queries of = {BLOCK_X, 1u, kv_head, kv_head * group + chunk * S::SLOTS, heads};
    bool is_fine = attend_span<STORED, S>(a, m, of, span);
    // All spans are counted, also those that see nothing or point nowhere: the last sets the count back.
    SYNC();
    if (THREAD == 0u) {
        publish_for_all();
        u32 before = atomic_add(a.done + own, 1u);
        m.is_broken[0] = before + 1u == SPANS ? 1u : 0u;
        if (before + 1u == SPANS) {
            store_seen_by_all(a.done + own, 0u);
        }
        publish_for_all();
    }
    SYNC();
    bool is_last = m.is_broken[0] != 0u;
    publish_for_all();
    KEEP_LOOP
    for (u32 i = THREAD; is_fine && is_last && i < heads * S::QUADS; i += THREADS) {
        join_spans<S>(a, of, i / S::QUADS, i % S::QUADS);
    }
}

// The rows [t, t + rows), neighbours in one sequence, from the first span to the last; other slots keep what they have.
template <int STORED, class S>
DEVICE bool attend_all(const AttentionArgs& a, const Shared<S>& m, const Queries& of, u32 t, u32 rows, Joined joined[S::SUMS_EACH]) {
    Seen all = {seen_by(a, t).first, seen_by(a, t + rows - 1u).end};
    if (THREAD < S::SLOTS) {
        u32 row = of.t + THREAD / of.heads;
        bool is_one = row >= t && row < t + rows;
        m.seen[THREAD] = is_one ? seen_by(a, row) : Seen{0u, 0u};
    }
    u32 low = all.first / S::POSITIONS;
    u32 high = (all.end - 1u) / S::POSITIONS;
    KEEP_LOOP
    for (u32 span = 0; span < SPANS; span++) {
        if (!sees_span(all, span, S::POSITIONS)) {
            continue;
        }
        float sums[S::SUMS_EACH][4];
        forget(m, sums);
        for (u32 block = low + (span + SPANS - low % SPANS) % SPANS; block <= high; block += SPANS) {
            if (!attend<STORED, S>(a, m, of.kv_head, t, block * S::POSITIONS, all, sums)) {
                return false;
            }
        }
        UNROLL
        for (u32 i = 0; i < S::SUMS_EACH; i++) {
            u32 slot = THREAD / S::QUADS * S::SUMS_EACH + i;
            if (sees_span(m.seen[slot], span, S::POSITIONS)) {
                join(joined[i], m.state.largest[slot], m.state.total[slot], sums[i]);
            }
        }
        SYNC();
    }
    return true;
}

template <int STORED, class S>
DEVICE void many(const AttentionArgs& a, const Shared<S>& m) {
    u32 group = a.heads / a.n.kv_heads;
    u32 chunks = (group + S::SLOTS - 1u) / S::SLOTS;
    u32 rows = group < S::SLOTS ? S::SLOTS / group : 1u;
    u32 chunk = BLOCK_Y % chunks;
    u32 kv_head = BLOCK_Y / chunks;
    u32 t = BLOCK_X * rows;
    rows = a.n.rows - t < rows ? a.n.rows - t : rows;
    u32 heads = group - chunk * S::SLOTS < S::SLOTS ? group - chunk * S::SLOTS : S::SLOTS;
    Queries of = {t, rows, kv_head, kv_head * group + chunk * S::SLOTS, heads};
    if (!begin(a, m, of)) {
        return;
    }
    Joined joined[S::SUMS_EACH];
    UNROLL
    for (u32 i = 0; i < S::SUMS_EACH; i++) {
        joined[i] = {LOWEST, 0.0f, {}};
    }
    // Neighbours that follow each other in one sequence see the same keys, with nothing in between that none of them sees.
    for (u32 first = 0; first < rows;) {
        u32 end = first + 1u;
        while (end < rows && a.paged.sequences[t + end] == a.paged.sequences[t + first]
               && a.paged.positions[t + end] == a.paged.positions[t + end - 1u] + 1u) {
            end++;
        }
        if (!attend_all<STORED, S>(a, m, of, t + first, end - first, joined)) {
            return;
        }
        first = end;
    }
    UNROLL
    for (u32 i = 0; i < S::SUMS_EACH; i++) {
        u32 slot = THREAD / S::QUADS * S::SUMS_EACH + i;
        if (slot / heads < rows) {
            write_out(a, t + slot / heads, of.first_head + slot % heads, THREAD % S::QUADS, joined[i]);
        }
    }
}

#define SHARED(S)                                                                                             \
    GROUP_SHARED(float, tile, S::POSITIONS * S::STRIDE);                                                      \
    GROUP_SHARED(float, query, S::SLOTS * S::DIM);                                                            \
    GROUP_SHARED(float, scores, S::SLOTS * S::POSITIONS);                                                     \
    GROUP_SHARED(u64, places, S::POSITIONS);                                                                  \
    GROUP_SHARED(Seen, seen, S::SLOTS);                                                                       \
    GROUP_SHARED(float, largest, S::SLOTS);                                                                   \
    GROUP_SHARED(float, total, S::SLOTS);                                                                     \
    GROUP_SHARED(float, shrink, S::SLOTS);                                                                    \
    GROUP_SHARED(u32, is_broken, 1);                                                                          \
    Shared<S> m = {tile, query, scores, places, seen, {largest, total, shrink}, is_broken}

typedef Shape<128, 2, 1> few_128;
typedef Shape<128, 4, 2> many_128;
typedef Shape<256, 1, 1> few_256;
typedef Shape<256, 2, 1> many_256;

#define ATTENTION(name, how, shape, stored)           \
    KERNEL(name, 128, AttentionArgs) {                \
        SHARED(shape);                                \
        how<stored>(a, m);                            \
    }
#define EACH_ATTENTION(type, stored)                              \
    ATTENTION(attention_few_128_##type, few, few_128, stored)     \
    ATTENTION(attention_few_256_##type, few, few_256, stored)     \
    ATTENTION(attention_many_128_##type, many, many_128, stored)  \
    ATTENTION(attention_many_256_##type, many, many_256, stored)

EACH_ATTENTION(f32, 32)
EACH_ATTENTION(f16, 16)
EACH_ATTENTION(q8, 8)
