// out[r, c] = x[rows[r], c]: keeps the rows whose logits are wanted.
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x       | [T, C] | rows contiguous | f32  |
// | rows    | [R]    | contiguous      | u32  |
// | out     | [R, C] | rows contiguous | f32  |
//
// One thread per element. A row of T or more is told and not copied.

struct Op {
    width: u32,
}

@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read> rows: array<u32>;
@group(0) @binding(5) var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= op.width {
        return;
    }
    let row = rows[id.y];
    if row >= run.tokens {
        refuse(FAULT_ROW, row, run.tokens);
        return;
    }
    result[id.y * op.width + id.x] = x[row * op.width + id.x];
}
