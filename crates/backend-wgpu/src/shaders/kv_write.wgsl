// Stores each row's key and value at its sequence's and position's slot.
//
// | operand      | shape                 | layout                        | type       |
// |--------------|-----------------------|-------------------------------|------------|
// | k, v         | [T, K, D]             | rows contiguous               | f32        |
// | keys, values | [pages, K, P, D']     | rows of D padded to whole u32 | see below  |
//
// A row of the cache is u32 of an f32 or of two halves each, written by one thread each, or for Q8 groups of 32
// elements, nine u32 each: the scale as a half, then signed bytes; one thread writes a group. Bound by memory.

struct Op {
    sequences: u32,
    pages_per_sequence: u32,
    page_tokens: u32,
    pages: u32,
    kv_heads: u32,
    head_dim: u32,
    // u32 of one row of the cache, and threads that write it.
    words: u32,
    parts: u32,
}

@group(0) @binding(6) var<storage, read> k: array<f32>;
@group(0) @binding(7) var<storage, read> v: array<f32>;
@group(0) @binding(8) var<storage, read_write> keys: array<u32>;
@group(0) @binding(9) var<storage, read_write> values: array<u32>;

#if Q8
// The group's scale, its largest magnitude over 127 as a half; infinite or no number where an element is.
fn group_scale(largest: f32) -> u32 {
    return half_bits(largest / 127.0);
}

fn quant(value: f32, scale: f32) -> u32 {
    // To nearest, halves away from zero.
    let steps = clamp(trunc(value / scale + select(0.5, -0.5, value < 0.0)), -127.0, 127.0);
    return bitcast<u32>(i32(select(0.0, steps, scale > 0.0))) & 255u;
}
#else
fn packed(first: f32, second: f32) -> u32 {
#if F16
    return half_bits(first) | (half_bits(second) << 16u);
#else
    return bitcast<u32>(first);
#endif
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= op.kv_heads * op.parts || !stands(id.y) {
        return;
    }
    let position = positions[id.y];
    let page = page_of(id.y, position / op.page_tokens);
    if page == op.pages {
        return;
    }
    let head = id.x / op.parts;
    let part = id.x % op.parts;
    let row = (id.y * op.kv_heads + head) * op.head_dim;
    let slot = ((page * op.kv_heads + head) * op.page_tokens + position % op.page_tokens) * op.words;
#if Q8
    let first = row + 32u * part;
    let count = min(32u, op.head_dim - 32u * part);
    var largest = vec2(0.0);
    // The sum of magnitudes is infinite or no number if one of them is, which a maximum may hide.
    var all = vec2(0.0);
    for (var i = 0u; i < count; i++) {
        let pair = abs(vec2(k[first + i], v[first + i]));
        largest = max(largest, pair);
        all += pair * 0.0;
    }
    let bits = vec2(group_scale(largest.x + all.x), group_scale(largest.y + all.y));
    let at = slot + 9u * part;
    keys[at] = bits.x;
    values[at] = bits.y;
    let key_scale = unpack2x16float(bits.x).x;
    let value_scale = unpack2x16float(bits.y).x;
    for (var i = 0u; i < 8u; i++) {
        var key = 0u;
        var value = 0u;
        for (var j = 0u; j < 4u && 4u * i + j < count; j++) {
            key |= quant(k[first + 4u * i + j], key_scale) << (8u * j);
            value |= quant(v[first + 4u * i + j], value_scale) << (8u * j);
        }
        keys[at + 1u + i] = key;
        values[at + 1u + i] = value;
    }
#else
#if F16
    let first = row + 2u * part;
    let second = select(first, first + 1u, 2u * part + 1u < op.head_dim);
#else
    let first = row + part;
    let second = first;
#endif
    keys[slot + part] = packed(k[first], k[second]);
    values[slot + part] = packed(v[first], v[second]);
#endif
}
