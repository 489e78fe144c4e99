// How weights of each type lie in device memory (src/layout.rs writes them), and how kernels read them.
//
// Rows are cut into blocks of 32 columns, the last padded with zeros. Floats are stored as they are. Quants lie in planes: of
// all blocks the low four bits (or all eight), then of all blocks the bits above, then the scales.
//
// A block's quants are eight words v of four columns, a byte each: columns 4v to 4v + 3. Word w of four of the low plane
// holds word 2w in its low nibbles and word 2w + 1 in its high ones. A fifth bit of byte b of word v is bit 8b + v of
// the high plane's word; the fifth and sixth are bits 8b + 2(v % 4) and the next of its word v / 4.
#pragma once
#include "platform.cuh"

struct Weights {
    const u32* quants;
    const u32* high;
    const void* scales;
};

// A block's value is first * (q - offset) - minimum; columns 16 to 31 have `second` where a type has two PARTS.
struct Scale {
    float first;
    float second;
    float minimum;
};

enum { SCALE_PER_BLOCK, SCALE_AND_MINIMUM, SUPER_MINIMUM, SUPER_HALVES };

struct q8_0 { enum { LOW_WORDS = 8, HIGH = 0, OFFSET = 0, PARTS = 1, MINIMUM = 0, SCALES = SCALE_PER_BLOCK }; };
struct q4_0 { enum { LOW_WORDS = 4, HIGH = 0, OFFSET = 8, PARTS = 1, MINIMUM = 0, SCALES = SCALE_PER_BLOCK }; };
struct q5_0 { enum { LOW_WORDS = 4, HIGH = 1, OFFSET = 16, PARTS = 1, MINIMUM = 0, SCALES = SCALE_PER_BLOCK }; };
struct q4_1 { enum { LOW_WORDS = 4, HIGH = 0, OFFSET = 0, PARTS = 1, MINIMUM = 1, SCALES = SCALE_AND_MINIMUM }; };
struct q5_1 { enum { LOW_WORDS = 4, HIGH = 1, OFFSET = 0, PARTS = 1, MINIMUM = 1, SCALES = SCALE_AND_MINIMUM }; };
struct q4_k { enum { LOW_WORDS = 4, HIGH = 0, OFFSET = 0, PARTS = 1, MINIMUM = 1, SCALES = SUPER_MINIMUM }; };
struct q5_k { enum { LOW_WORDS = 4, HIGH = 1, OFFSET = 0, PARTS = 1, MINIMUM = 1, SCALES = SUPER_MINIMUM }; };
struct q6_k { enum { LOW_WORDS = 4, HIGH = 2, OFFSET = 32, PARTS = 2, MINIMUM = 0, SCALES = SUPER_HALVES }; };

#define EACH_QUANTISED(use) use(q8_0) use(q4_0) use(q5_0) use(q4_1) use(q5_1) use(q4_k) use(q5_k) use(q6_k)
#define EACH_FLOAT(use) use(f32) use(f16) use(bf16)

// The eight words of block `at` (row times blocks of a row, plus the block).
template <class Q>
DEVICE void load_words(const Weights& w, u64 at, u32 words[8]) {
    if (Q::LOW_WORDS == 8) {
        uint4 low = ((const uint4*)w.quants)[2 * at];
        uint4 high = ((const uint4*)w.quants)[2 * at + 1];
        words[0] = low.x; words[1] = low.y; words[2] = low.z; words[3] = low.w;
        words[4] = high.x; words[5] = high.y; words[6] = high.z; words[7] = high.w;
        return;
    }
    uint4 low = ((const uint4*)w.quants)[at];
    u32 pairs[4] = {low.x, low.y, low.z, low.w};
    UNROLL
    for (int i = 0; i < 4; i++) {
        words[2 * i] = pairs[i] & 0x0f0f0f0fu;
        words[2 * i + 1] = (pairs[i] >> 4) & 0x0f0f0f0fu;
    }
    UNROLL
    for (int v = 0; v < 8; v++) {
        if (Q::HIGH == 1) {
            words[v] |= ((w.high[at] >> v) & 0x01010101u) << 4;
        }
        if (Q::HIGH == 2) {
            words[v] |= ((w.high[2 * at + v / 4] >> (2 * (v % 4))) & 0x03030303u) << 4;
        }
    }
}

// The words 2 `part` and the next of block `at`, as they are stored.
struct StoredPair {
    u32 low[2];
    u32 high;
};

template <class Q>
DEVICE StoredPair load_pair(const Weights& w, u64 at, u32 part) {
    StoredPair pair = {{0u, 0u}, 0u};
    if (Q::LOW_WORDS == 8) {
        uint2 words = ((const uint2*)w.quants)[4 * at + part];
        pair.low[0] = words.x;
        pair.low[1] = words.y;
        return pair;
    }
    pair.low[0] = w.quants[4 * at + part];
    if (Q::HIGH == 1) {
        pair.high = w.high[at];
    }
    if (Q::HIGH == 2) {
        pair.high = w.high[2 * at + part / 2u];
    }
    return pair;
}

// The same as words of four columns.
template <class Q>
DEVICE uint2 pair_words(const StoredPair& pair, u32 part) {
    if (Q::LOW_WORDS == 8) {
        return {pair.low[0], pair.low[1]};
    }
    u32 words[2] = {pair.low[0] & 0x0f0f0f0fu, (pair.low[0] >> 4) & 0x0f0f0f0fu};
    UNROLL
    for (u32 i = 0; i < 2u; i++) {
        u32 v = 2u * part + i;
        if (Q::HIGH == 1) {
            words[i] |= ((pair.high >> v) & 0x01010101u) << 4;
        }
        if (Q::HIGH == 2) {
            words[i] |= ((pair.high >> (2u * (v % 4u))) & 0x03030303u) << 4;
        }
    }
    return {words[0], words[1]};
}

// What is stored for the scales of a block.
struct StoredScale {
    // Two halves, or one.
    u32 halves;
    // Of a super-block the two bytes for this block.
    u32 first;
    u32 second;
};

template <class Q>
DEVICE StoredScale load_stored_scale(const Weights& w, u64 at) {
    StoredScale s = {0u, 0u, 0u};
    if (Q::SCALES == SCALE_PER_BLOCK) {
        s.halves = ((const u16*)w.scales)[at];
    } else if (Q::SCALES == SCALE_AND_MINIMUM) {
        s.halves = ((const u32*)w.scales)[at];
    } else {
        // To eight blocks five words: two halves, then sixteen bytes.
        const u32* super = (const u32*)w.scales + at / 8u * 5u;
        const unsigned char* bytes = (const unsigned char*)(super + 1);
        u32 inner = (u32)(at % 8u);
        s.halves = super[0];
        s.first = bytes[Q::SCALES == SUPER_MINIMUM ? inner : 2u * inner];
        s.second = bytes[Q::SCALES == SUPER_MINIMUM ? 8u + inner : 2u * inner + 1u];
    }
    return s;
}

template <class Q>
DEVICE Scale scale_of(const StoredScale& stored) {
    float low = half_to_float((u16)(stored.halves & 0xffffu));
    Scale s = {low, 0.0f, 0.0f};
    if (Q::SCALES == SCALE_AND_MINIMUM) {
        // The stored minimum is added.
        s.minimum = -half_to_float((u16)(stored.halves >> 16));
    }
    if (Q::SCALES == SUPER_MINIMUM) {
        s.first = low * (float)stored.first;
        s.minimum = half_to_float((u16)(stored.halves >> 16)) * (float)stored.second;
    }
    if (Q::SCALES == SUPER_HALVES) {
        s.first = low * (float)(signed char)stored.first;
        s.second = low * (float)(signed char)stored.second;
    }
    if (Q::PARTS == 1) {
        s.second = s.first;
    }
    return s;
}

// The scales of block `at`.
template <class Q>
DEVICE Scale load_scale(const Weights& w, u64 at) {
    return scale_of<Q>(load_stored_scale<Q>(w, at));
}

// Columns 4j to 4j + 3 of block `at` of a matrix of floats.
struct f32 {
    static DEVICE_MEMBER void load_quad(const Weights& w, u64 at, u32 j, float out[4]) {
        uint4 bits = ((const uint4*)w.quants)[8 * at + j];
        out[0] = bits_to_float(bits.x);
        out[1] = bits_to_float(bits.y);
        out[2] = bits_to_float(bits.z);
        out[3] = bits_to_float(bits.w);
    }
};

struct f16 {
    static DEVICE_MEMBER void load_quad(const Weights& w, u64 at, u32 j, float out[4]) {
        uint2 bits = ((const uint2*)w.quants)[8 * at + j];
        out[0] = half_to_float((u16)(bits.x & 0xffffu));
        out[1] = half_to_float((u16)(bits.x >> 16));
        out[2] = half_to_float((u16)(bits.y & 0xffffu));
        out[3] = half_to_float((u16)(bits.y >> 16));
    }
};

struct bf16 {
    static DEVICE_MEMBER void load_quad(const Weights& w, u64 at, u32 j, float out[4]) {
        uint2 bits = ((const uint2*)w.quants)[8 * at + j];
        out[0] = bits_to_float(bits.x << 16);
        out[1] = bits_to_float(bits.x & 0xffff0000u);
        out[2] = bits_to_float(bits.y << 16);
        out[3] = bits_to_float(bits.y & 0xffff0000u);
    }
};
