// out[r, c] = x[rows[r], c]: keeps the rows whose logits are wanted.
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x       | [T, C] | rows contiguous | f32  |
// | picks   | [R]    | contiguous      | u32  |
// | out     | [R, C] | rows contiguous | f32  |
//
// One thread per element. A row of T or more is told and not copied.
#include "fault.cuh"

struct SelectRowsArgs {
    u32* fault;
    const float* x;
    const u32* picks;
    float* out;
    u32 rows;
    u32 tokens;
    u32 width;
};

KERNEL(select_rows, 256, SelectRowsArgs) {
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    if (i >= (u64)a.rows * a.width) {
        return;
    }
    u32 row = a.picks[i / a.width];
    if (row >= a.tokens) {
        refuse(a.fault, FAULT_ROW, row, a.tokens);
        return;
    }
    a.out[i] = a.x[(u64)row * a.width + i % a.width];
}
