// out[t, f] = gate[t, f] / (1 + exp(-gate[t, f])) * up[t, f]
//
// | operand       | shape  | layout          | type |
// |---------------|--------|-----------------|------|
// | gate, up, out | [T, F] | rows contiguous | f32  |
//
// One thread per element; out may be gate. Bound by memory.
#include "platform.cuh"

struct SwiGluArgs {
    const float* gate;
    const float* up;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
};

KERNEL(swiglu, 256, SwiGluArgs) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    if (i < (u64)a.rows * a.width) {
        float g = a.gate[i];
        a.out[i] = g / (1.0f + expf(-g)) * a.up[i];
    }
}
