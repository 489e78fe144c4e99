// out[t, f] = gate[t, f] / (1 + exp(-gate[t, f])) * up[t, f]
//
// | operand       | shape  | layout          | type |
// |---------------|--------|-----------------|------|
// | gate, up, out | [T, F] | rows contiguous | f32  |
//
// One thread per element; out may be gate. Bound by memory.

struct Op {
    width: u32,
}

@group(0) @binding(3) var<storage, read> up: array<f32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
#if !IN_PLACE
@group(0) @binding(5) var<storage, read> gate: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= op.width {
        return;
    }
    let i = id.y * op.width + id.x;
#if IN_PLACE
    let g = result[i];
#else
    let g = gate[i];
#endif
    result[i] = g / (1.0 + exp(-g)) * up[i];
}
