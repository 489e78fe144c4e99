// x[t, c] += y[t, c]
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x, y    | [T, C] | rows contiguous | f32  |
//
// One thread per element. Bound by memory: reads two, writes one.

@slot var<storage, read_write> x: array<f32>;
#if !SELF
@slot var<storage, read> y: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if !has_element(id) {
        return;
    }
    let i = row_of(id) * op.width + id.x;
#if SELF
    x[i] = x[i] + x[i];
#else
    x[i] = x[i] + y[i];
#endif
}
