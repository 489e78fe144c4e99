// out[t, c] = table[ids[t], c]
//
// | operand | shape  | layout          | type   |
// |---------|--------|-----------------|--------|
// | table   | [V, C] | see weights.cuh | stored |
// | ids     | [T]    | contiguous      | u32    |
// | out     | [T, C] | rows contiguous | f32    |
//
// One thread per four columns. An id of V or more is told and its row not written. Bound by memory.
#include "fault.cuh"
#include "weights.cuh"

struct EmbedArgs {
    u32* fault;
    Weights table;
    const u32* ids;
    float* out;
    u32 rows;
    u32 tokens;
    u32 cols;
    u32 blocks;
    u32 vocab;
};

template <class Q>
DEVICE void decode_quad(const Weights& w, u64 at, u32 j, float out[4]) {
    u32 words[8];
    load_words<Q>(w, at, words);
    u32 word = 0;
    UNROLL
    for (u32 v = 0; v < 8u; v++) {
        word = v == j ? words[v] : word;
    }
    Scale s = load_scale<Q>(w, at);
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        float q = (float)((int)(signed char)(word >> (8u * i)) - (int)Q::OFFSET);
        out[i] = q * (j < 4u ? s.first : s.second) - s.minimum;
    }
}

// Which quad this thread makes: its row of the table, or nothing.
DEVICE bool find_quad(const EmbedArgs& a, u32& t, u32& quad, u32& id) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    u32 each = (a.cols + 3u) / 4u;
    if (i >= (u64)a.rows * each) {
        return false;
    }
    t = (u32)(i / each);
    quad = (u32)(i % each);
    id = a.ids[t];
    if (id >= a.vocab) {
        refuse(a.fault, FAULT_TOKEN, id, a.vocab);
        return false;
    }
    return true;
}

DEVICE void write_quad(const EmbedArgs& a, u32 t, u32 quad, const float values[4]) {
    for (u32 i = 0; i < 4u && 4u * quad + i < a.cols; i++) {
        a.out[(u64)t * a.cols + 4u * quad + i] = values[i];
    }
}

#define EMBED_QUANTISED(type)                                                                  \
    KERNEL(embed_##type, 256, EmbedArgs) {                                                     \
        u32 t, quad, id;                                                                       \
        float values[4];                                                                       \
        if (find_quad(a, t, quad, id)) {                                                       \
            decode_quad<type>(a.table, (u64)id * a.blocks + quad / 8u, quad % 8u, values);     \
            write_quad(a, t, quad, values);                                                    \
        }                                                                                      \
    }
#define EMBED_FLOAT(type)                                                                      \
    KERNEL(embed_##type, 256, EmbedArgs) {                                                     \
        u32 t, quad, id;                                                                       \
        float values[4];                                                                       \
        if (find_quad(a, t, quad, id)) {                                                       \
            type::load_quad(a.table, (u64)id * a.blocks + quad / 8u, quad % 8u, values);       \
            write_quad(a, t, quad, values);                                                    \
        }                                                                                      \
    }
EACH_QUANTISED(EMBED_QUANTISED)
EACH_FLOAT(EMBED_FLOAT)
