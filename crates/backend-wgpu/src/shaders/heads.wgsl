// What happens to the heads of a layer between their products and attention: each head of q and k is normalised where
// NORM (rms_norm.wgsl) and rotated (rope.wgsl) in place, and keys and values are stored in the cache (kv_write.wgsl). Gives the bits
// that these kernels give one after the other.
//
// | operand        | shape                  | layout                       | type   |
// |----------------|------------------------|------------------------------|--------|
// | q; k, v        | [T, H, D]; [T, K, D]   | rows contiguous              | f32    |
// | frequencies    | [rotary / 2]           | contiguous                   | f32    |
// | q_norm, k_norm | [D]                    | contiguous                   | f32    |
// | keys, values   | [pages, K, P, D']      | as kv_store.wgsl writes them | stored |
//
// One workgroup of 64 per row and head, first those of q, then those of k. A head waits in workgroup memory between the
// steps: read once, written once. Bound by memory.

struct Op {
    kv: Kv,
    heads: u32,
    pairs: u32,
    eps: f32,
}

@slot var<storage, read_write> q: array<f32>;
@slot var<storage, read_write> k: array<f32>;
@slot var<storage, read> v: array<f32>;
@slot var<storage, read> frequencies: array<f32>;
#if NORM
@slot var<storage, read> q_norm: array<f32>;
@slot var<storage, read> k_norm: array<f32>;
#endif

var<workgroup> head: array<f32, HEAD_DIM_MAX>;

fn pair_at(row: u32, i: u32) -> vec2<f32> {
    return vec2(head[i], v[row + i]);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = row_of(group);
    if t >= rows() {
        return;
    }
    let is_key = group.x >= op.heads;
    let own = select(group.x, group.x - op.heads, is_key);
    let row = (t * select(op.heads, op.kv.heads, is_key) + own) * op.kv.head_dim;
    for (var d = lane; d < op.kv.head_dim; d += 64u) {
        if is_key {
            head[d] = k[row + d];
        } else {
            head[d] = q[row + d];
        }
    }
#if NORM
    var sum = 0.0;
    for (var d = lane; d < op.kv.head_dim; d += 64u) {
        sum = fma(head[d], head[d], sum);
    }
    let factor = norm_factor(lane, sum, op.kv.head_dim, op.eps);
    for (var d = lane; d < op.kv.head_dim; d += 64u) {
        if is_key {
            head[d] = head[d] * factor * k_norm[d];
        } else {
            head[d] = head[d] * factor * q_norm[d];
        }
    }
#endif
    workgroupBarrier();
    for (var i = lane; i < op.pairs; i += 64u) {
        let at = pair_of(i, op.pairs);
        let pair = rotated(vec2(head[at.x], head[at.y]), f32(positions[t]) * frequencies[i]);
        head[at.x] = pair.x;
        head[at.y] = pair.y;
    }
    workgroupBarrier();
    for (var d = lane; d < op.kv.head_dim; d += 64u) {
        if is_key {
            k[row + d] = head[d];
        } else {
            q[row + d] = head[d];
        }
    }
    if !is_key || !stands(t) {
        return;
    }
    let page = page_of(t, positions[t] / op.kv.page_tokens);
    if page == op.kv.pages {
        return;
    }
    for (var part = lane; part < op.kv.parts; part += 64u) {
        store_part(cache_row(page, own, positions[t]), row, part);
    }
}
