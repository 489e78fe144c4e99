// x[t, c] += y[t, c]
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x, y    | [T, C] | rows contiguous | f32  |
//
// One thread per element; y may be x. Bound by memory.
#include "platform.cuh"

struct AddArgs {
    float* x;
    const float* y;
    u32 rows;
    u32 tokens;
    u32 width;
};

KERNEL(add, 256, AddArgs) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    if (i < (u64)a.rows * a.width) {
        a.x[i] = a.x[i] + a.y[i];
    }
}
