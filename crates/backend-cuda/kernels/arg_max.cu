// out[r] = i: where the greatest x[r, i] is, the lowest i among equals; -1 - i of the first that is not finite.
//
// | operand | shape  | layout          | type               |
// |---------|--------|-----------------|--------------------|
// | x       | [R, V] | rows contiguous | f32                |
// | out     | [R]    | contiguous      | f32, whole numbers |
//
// One thread block of 1024 per row. Floats are compared as whole numbers in the same order, so that nothing depends on what a
// compiler makes of NaN and of numbers close to 0. Bound by the wait for memory, so each thread asks for four at a time.
#include "platform.cuh"

#define NOT_FINITE 0xffffffffu

struct ArgMaxArgs {
    const float* x;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
};

// A number in the order of the floats: above 0, the same for 0 and -0, and the greatest of all for what is not finite.
DEVICE u32 rank(float value) {
    u32 bits = float_to_bits(value);
    u32 magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        return NOT_FINITE;
    }
    if (magnitude == 0u) {
        return 0x80000000u;
    }
    return bits == magnitude ? bits | 0x80000000u : ~bits;
}

KERNEL(arg_max, 1024, ArgMaxArgs) {
    GROUP_SHARED(u32, ranks, 1024);
    GROUP_SHARED(u32, places, 1024);
    const float* x = a.x + (u64)BLOCK_X * a.width;
    u32 best = 0u;
    u32 place = 0u;
    for (u32 first = THREAD; first < a.width; first += 4096u) {
        UNROLL
        for (u32 i = 0u; i < 4u; i++) {
            // Past the end the last element is looked at again, which changes nothing.
            u32 c = first + 1024u * i;
            u32 at = c < a.width ? c : a.width - 1u;
            u32 value = rank(x[at]);
            if (value > best) {
                best = value;
                place = at;
            }
        }
    }
    ranks[THREAD] = best;
    places[THREAD] = place;
    SYNC();
    for (u32 half = 512u; half > 0u; half /= 2u) {
        if (THREAD < half) {
            u32 other = ranks[THREAD + half];
            u32 there = places[THREAD + half];
            if (other > ranks[THREAD] || (other == ranks[THREAD] && there < places[THREAD])) {
                ranks[THREAD] = other;
                places[THREAD] = there;
            }
        }
        SYNC();
    }
    if (THREAD == 0u) {
        float greatest = (float)places[0];
        a.out[BLOCK_X] = ranks[0] == NOT_FINITE ? -1.0f - greatest : greatest;
    }
}
