// out[t, f] = gate[t, f] / (1 + exp(-gate[t, f])) * up[t, f]
//
// | operand       | shape  | layout          | type |
// |---------------|--------|-----------------|------|
// | gate, up, out | [T, F] | rows contiguous | f32  |
//
// One thread per element; out may be gate. Bound by memory.

@slot var<storage, read> up: array<f32>;
@slot var<storage, read_write> result: array<f32>;
#if !IN_PLACE
@slot var<storage, read> gate: array<f32>;
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if !has_element(id) {
        return;
    }
    let i = row_of(id) * op.width + id.x;
#if IN_PLACE
    let g = result[i];
#else
    let g = gate[i];
#endif
    result[i] = gated(g, up[i]);
}
