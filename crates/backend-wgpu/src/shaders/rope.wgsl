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

@group(0) @binding(3) var<storage, read_write> x: array<f32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read> frequencies: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= op.heads * op.pairs {
        return;
    }
    let head = id.x / op.pairs;
    let i = id.x % op.pairs;
    let start = (id.y * op.heads + head) * op.head_dim;
#if INTERLEAVED
    let a = start + 2u * i;
    let b = a + 1u;
#else
    let a = start + i;
    let b = a + op.pairs;
#endif
    let cs = turn(f32(positions[id.y]) * frequencies[i]);
    let first = x[a];
    let second = x[b];
    x[a] = first * cs.x - second * cs.y;
    x[b] = first * cs.y + second * cs.x;
}
