// Stores each row's key and value at its sequence's and position's slot.
//
// | operand      | shape             | layout                        | type              |
// |--------------|-------------------|-------------------------------|-------------------|
// | k, v         | [T, K, D]         | rows contiguous               | f32               |
// | keys, values | [pages, K, P, D'] | rows of D padded to whole u32 | see kv_store.wgsl |
//
// One thread per part of a row of the cache. Bound by memory. A cache beyond the binding limit is written in runs of heads, a
// dispatch each; K is then what lies in this one.

struct Op {
    kv: Kv,
}

@slot var<storage, read> k: array<f32>;
@slot var<storage, read> v: array<f32>;

fn pair_at(row: u32, i: u32) -> vec2<f32> {
    return vec2(k[row + i], v[row + i]);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let t = row_of(id);
    if id.x >= op.kv.heads * op.kv.parts || t >= rows() || !stands(t) {
        return;
    }
    let position = positions[t];
    let page = page_of(t, position / op.kv.page_tokens);
    if page == op.kv.pages {
        return;
    }
    let head = id.x / op.kv.parts;
    let row = (t * op.kv.layer_heads + op.kv.first_head + head) * op.kv.head_dim;
    store_part(cache_row(page, head, position), row, id.x % op.kv.parts);
}
