// x[t, c] += y[t, c]
//
// | operand | shape  | layout          | type |
// |---------|--------|-----------------|------|
// | x, y    | [T, C] | rows contiguous | f32  |
//
// One thread per element. Bound by memory: reads two, writes one.

struct Op {
    width: u32,
}

@group(0) @binding(3) var<storage, read_write> x: array<f32>;
#if !SELF
@group(0) @binding(4) var<storage, read> y: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= op.width {
        return;
    }
    let i = id.y * op.width + id.x;
#if SELF
    x[i] = x[i] + x[i];
#else
    x[i] = x[i] + y[i];
#endif
}
