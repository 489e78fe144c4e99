// out[r, c] = x[rows[r], c]: keeps the rows whose logits are wanted.
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x       | [T, C] | rows contiguous | f32  |
// | rows    | [R]    | contiguous      | u32  |
// | out     | [R, C] | rows contiguous | f32  |
//
// One thread per element. A row of T or more is told and not copied.

@slot var<storage, read> x: array<f32>;
@slot var<storage, read> chosen: array<u32>;
@slot var<storage, read_write> result: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if !has_element(id) {
        return;
    }
    let row = chosen[row_of(id)];
    if row >= run.tokens {
        refuse(FAULT_ROW, row, run.tokens);
        return;
    }
    result[row_of(id) * op.width + id.x] = x[row * op.width + id.x];
}
