// Rotates each pair of each head of x in place by position * frequencies[i], the product rounded to f32.
//
// | operand     | shape         | layout          | type |
// |-------------|---------------|-----------------|------|
// | x           | [T, heads, D] | rows contiguous | f32  |
// | positions   | [T]           | contiguous      | u32  |
// | frequencies | [rotary / 2]  | contiguous      | f32  |
//
// One thread per pair. Pairs are (i, i + rotary/2), or (2i, 2i + 1) where INTERLEAVED. Bound by memory.

struct Op {
    heads: u32,
    head_dim: u32,
    pairs: u32,
}

@slot var<storage, read_write> x: array<f32>;
@slot var<storage, read> positions: array<u32>;
@slot var<storage, read> frequencies: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = row_of(id);
    if id.x >= op.heads * op.pairs || t >= rows() {
        return;
    }
    let i = id.x % op.pairs;
    let start = (t * op.heads + id.x / op.pairs) * op.head_dim;
    let at = start + pair_of(i, op.pairs);
    let pair = rotated(vec2(x[at.x], x[at.y]), f32(positions[t]) * frequencies[i]);
    x[at.x] = pair.x;
    x[at.y] = pair.y;
}
