// Writing the rows of a cache, shared by the kernels that do.
//
// A row of the cache is u32 of an f32 or of two halves each, written by one thread each, or for Q8 groups of 32
// elements, nine u32 each: the scale as a half, then signed bytes; one thread writes a group.

@slot var<storage, read_write> keys: array<u32>;
@slot var<storage, read_write> values: array<u32>;

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

// Stores one part of a head's key and value at `slot`; the kernel's `pair_at` gives the elements of head `row`.
fn store_part(slot: u32, row: u32, part: u32) {
#if Q8
    let first = 32u * part;
    let count = min(32u, op.kv.head_dim - first);
    var largest = vec2(0.0);
    // The sum of magnitudes is infinite or no number if one of them is, which a maximum may hide.
    var all = vec2(0.0);
    for (var i = 0u; i < count; i++) {
        let pair = abs(pair_at(row, first + i));
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
            let pair = pair_at(row, first + 4u * i + j);
            key |= quant(pair.x, key_scale) << (8u * j);
            value |= quant(pair.y, value_scale) << (8u * j);
        }
        keys[at + 1u + i] = key;
        values[at + 1u + i] = value;
    }
#else
#if F16
    let first = pair_at(row, 2u * part);
    let second = pair_at(row, min(2u * part + 1u, op.kv.head_dim - 1u));
#else
    let first = pair_at(row, part);
    let second = first;
#endif
    keys[slot + part] = packed(first.x, second.x);
    values[slot + part] = packed(first.y, second.y);
#endif
}
