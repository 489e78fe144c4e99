// out[t, h] = softmax_p(q[t, h] . key[p] * scale) . value[p] over the positions p of the row's sequence with
// position - window < p <= position; query head h reads key-value head h * K / H.
//
// | operand      | shape             | layout                        | type       |
// |--------------|-------------------|-------------------------------|------------|
// | q, out       | [T, H, D]         | rows contiguous               | f32        |
// | keys, values | [pages, K, P, D'] | as kv_write.wgsl leaves them  | stored     |
//
// One workgroup of 64 per row and query head. It takes the positions 64 at a time, in blocks that start at multiples
// of 64: thread i scores position 64b + i over D in order, the block's largest score rescales what there is (online
// softmax), then thread i adds up elements i, i + 64, ... of the values, position by position. So a result depends on
// its own positions alone. Reads each page once for every query head of a row; bound by that.
// A cache beyond the binding limit is read in runs of key-value heads, a dispatch each, of the query heads that read them.
// Milakov & Gimelshein 2018, arXiv:1805.02867.

struct Op {
    kv: Kv,
    heads: u32,
    scale: f32,
    // 0: none.
    window: u32,
}

@slot var<storage, read> q: array<f32>;
@slot var<storage, read> keys: array<u32>;
@slot var<storage, read> values: array<u32>;
@slot var<storage, read_write> result: array<f32>;

const LOWEST: f32 = -3.4028234e38;

var<workgroup> query: array<f32, HEAD_DIM_MAX>;
var<workgroup> scores: array<f32, 64>;
// First u32 of each position's row in the cache.
var<workgroup> places: array<u32, 64>;
// Set by any thread that met a number that points nowhere.
var<workgroup> is_broken: u32;

// Signed byte i % 4 of a word.
fn byte_of(word: u32, i: u32) -> f32 {
    return f32(bitcast<i32>(word << (24u - 8u * (i % 4u))) >> 24u);
}

fn score(row: u32) -> f32 {
    var sum = 0.0;
#if Q8
    for (var g = 0u; 32u * g < op.kv.head_dim; g++) {
        let at = row + 9u * g;
        var part = 0.0;
        for (var i = 0u; i < min(32u, op.kv.head_dim - 32u * g); i++) {
            part = fma(query[32u * g + i], byte_of(keys[at + 1u + i / 4u], i), part);
        }
        sum = fma(unpack2x16float(keys[at]).x, part, sum);
    }
#else
#if F16
    for (var w = 0u; w < op.kv.head_dim / 2u; w++) {
        let pair = unpack2x16float(keys[row + w]);
        sum = fma(query[2u * w], pair.x, sum);
        sum = fma(query[2u * w + 1u], pair.y, sum);
    }
    if op.kv.head_dim % 2u == 1u {
        sum = fma(query[op.kv.head_dim - 1u], unpack2x16float(keys[row + op.kv.words - 1u]).x, sum);
    }
#else
    for (var d = 0u; d < op.kv.head_dim; d++) {
        sum = fma(query[d], bitcast<f32>(keys[row + d]), sum);
    }
#endif
#endif
    return sum * op.scale;
}

fn value_at(row: u32, d: u32) -> f32 {
#if Q8
    let at = row + 9u * (d / 32u);
    return unpack2x16float(values[at]).x * byte_of(values[at + 1u + d % 32u / 4u], d);
#else
#if F16
    let pair = unpack2x16float(values[row + d / 2u]);
    return select(pair.x, pair.y, d % 2u == 1u);
#else
    return bitcast<f32>(values[row + d]);
#endif
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.x + op.kv.first_head * op.heads / op.kv.layer_heads;
    let t = row_of(group);
    if t >= rows() {
        return;
    }
    let kv_head = head * op.kv.layer_heads / op.heads - op.kv.first_head;
    let start = (t * op.heads + head) * op.kv.head_dim;
    for (var d = lane; d < op.kv.head_dim; d += 64u) {
        query[d] = q[start + d];
    }
    if lane == 0u {
        is_broken = select(1u, 0u, stands(t));
    }
    workgroupBarrier();
    if workgroupUniformLoad(&is_broken) != 0u {
        return;
    }
    let position = positions[t];
    let first = select(0u, position + 1u - op.window, op.window != 0u && position + 1u > op.window);
    var largest = LOWEST;
    var total = 0.0;
    var sums: array<f32, HEAD_DIM_MAX / 64u>;
    for (var block = first / 64u; block <= position / 64u; block++) {
        let p = block * 64u + lane;
        let is_seen = p >= first && p <= position;
        var own = LOWEST;
        if is_seen {
            let page = page_of(t, p / op.kv.page_tokens);
            if page == op.kv.pages {
                is_broken = 1u;
            } else {
                let row = cache_row(page, kv_head, p);
                places[lane] = row;
                own = score(row);
            }
        }
        scores[lane] = own;
        workgroupBarrier();
        if workgroupUniformLoad(&is_broken) != 0u {
            return;
        }
        var after = largest;
        for (var i = 0u; i < 64u; i++) {
            after = max(after, scores[i]);
        }
        let shrink = exp(largest - after);
        workgroupBarrier();
        scores[lane] = select(0.0, exp(own - after), is_seen);
        workgroupBarrier();
        largest = after;
        total *= shrink;
        let low = max(first, block * 64u) - block * 64u;
        let high = min(position - block * 64u, 63u);
        for (var i = low; i <= high; i++) {
            total += scores[i];
        }
        for (var j = 0u; j < HEAD_DIM_MAX / 64u; j++) {
            let d = lane + 64u * j;
            if d < op.kv.head_dim {
                var sum = sums[j] * shrink;
                for (var i = low; i <= high; i++) {
                    sum = fma(scores[i], value_at(places[i], d), sum);
                }
                sums[j] = sum;
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < HEAD_DIM_MAX / 64u; j++) {
        let d = lane + 64u * j;
        if d < op.kv.head_dim {
            result[start + d] = sums[j] / total;
        }
    }
}
