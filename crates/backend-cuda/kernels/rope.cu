// Rotates each pair of each head of x, and of a second x, in place by position * frequencies[i], the product rounded to f32.
//
// | operand     | shape         | layout          | type |
// |-------------|---------------|-----------------|------|
// | x           | [T, heads, D] | rows contiguous | f32  |
// | second      | [T, second_heads, D] | rows contiguous | f32  |
// | positions   | [T]           | contiguous      | u32  |
// | frequencies | [rotary / 2]  | contiguous      | f32  |
//
// One thread per pair. Pairs are (i, i + rotary/2), or (2i, 2i + 1) where interleaved. Sine and cosine are the accurate ones
// of the compiler's library, which reduce any angle: never the fast intrinsics. Bound by memory.
#include "platform.cuh"

struct RopeArgs {
    float* x;
    // Null where there is none, with no heads.
    float* second;
    const u32* positions;
    const float* frequencies;
    u32 rows;
    u32 tokens;
    u32 heads;
    u32 second_heads;
    u32 head_dim;
    u32 pairs;
    u32 interleaved;
};

KERNEL(rope, 256, RopeArgs) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    u32 each = (a.heads + a.second_heads) * a.pairs;
    if (i >= (u64)a.rows * each) {
        return;
    }
    u32 t = (u32)(i / each);
    u32 head = (u32)(i % each) / a.pairs;
    u32 pair = (u32)(i % each) % a.pairs;
    bool is_second = head >= a.heads;
    float* x = is_second ? a.second + ((u64)t * a.second_heads + head - a.heads) * a.head_dim
                         : a.x + ((u64)t * a.heads + head) * a.head_dim;
    u32 first = a.interleaved ? 2u * pair : pair;
    u32 other = a.interleaved ? first + 1u : first + a.pairs;
    float angle = (float)a.positions[t] * a.frequencies[pair];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    float p = x[first];
    float q = x[other];
    x[first] = p * cosine - q * sine;
    x[other] = p * sine + q * cosine;
}
