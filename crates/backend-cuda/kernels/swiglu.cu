// out[t, f] = gate[t, f] / (1 + exp(-gate[t, f])) * up[t, f]
//
// | operand       | shape  | layout          | type |
// |---------------|--------|-----------------|------|
// | gate, up, out | [T, F] | rows contiguous | f32  |
//
// One thread per element; out may be gate. Bound by memory.
//
// swiglu_round8, swiglu_halves: where a product reads out, as it reads it (eight.cuh, halves.cuh); F is a multiple of 32. Four elements
// to a thread.
#include "eight.cuh"
#include "halves.cuh"

struct SwiGluArgs {
    const float* gate;
    const float* up;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
};

struct SwiGluRoundedArgs {
    const float* gate;
    const float* up;
    float* out;
    // Of halves: words of two, and a scale to a row.
    u32* rounded;
    void* scales;
    u32 rows;
    u32 tokens;
    u32 width;
};

DEVICE float swiglu_of(float gate, float up) {
    return gate / (1.0f + expf(-gate)) * up;
}

// Four neighbours, which are written too.
DEVICE void swiglu_four(const SwiGluRoundedArgs& a, u64 quad, float out[4]) {
    float4 gate = ((const float4*)a.gate)[quad];
    float4 up = ((const float4*)a.up)[quad];
    out[0] = swiglu_of(gate.x, up.x);
    out[1] = swiglu_of(gate.y, up.y);
    out[2] = swiglu_of(gate.z, up.z);
    out[3] = swiglu_of(gate.w, up.w);
    ((float4*)a.out)[quad] = {out[0], out[1], out[2], out[3]};
}

KERNEL(swiglu, 256, SwiGluArgs) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    if (i < (u64)a.rows * a.width) {
        a.out[i] = swiglu_of(a.gate[i], a.up[i]);
    }
}

KERNEL(swiglu_round8, 256, SwiGluRoundedArgs) {
    u64 quad = (u64)BLOCK_X * 256u + THREAD;
    bool is_in = quad < (u64)a.rows * (a.width / 4u);
    float out[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (is_in) {
        swiglu_four(a, quad, out);
    }
    round_four(out, is_in, quad, a.rounded, (Rounded*)a.scales);
}

// A thread block to a row.
KERNEL(swiglu_halves, 1024, SwiGluRoundedArgs) {
    u32 quads = a.width / 4u;
    float largest = 0.0f;
    for (u32 quad = THREAD; quad < quads; quad += ROW_THREADS) {
        float out[4];
        swiglu_four(a, (u64)BLOCK_X * quads + quad, out);
        largest = largest_of(out, largest);
    }
    const float* row = a.out + (u64)BLOCK_X * a.width;
    halve_row(row, a.rows, a.width, a.width / 32u, largest, {(uint2*)a.rounded, (float*)a.scales});
}
