// out[t, c] = table[ids[t], c]
//
// | operand | shape  | layout          | type   |
// |---------|--------|-----------------|--------|
// | table   | [V, C] | see its type    | stored |
// | ids     | [T]    | contiguous      | u32    |
// | out     | [T, C] | rows contiguous | f32    |
//
// One thread per four columns. A table larger than a binding comes in pieces, each with a dispatch that writes the rows it
// holds; an id of V or more is told by the first.

struct Op {
    cols: u32,
    blocks: u32,
    rows: u32,
    // First row of this piece, rows of the whole table.
    first: u32,
    vocab: u32,
}

@slot var<storage, read> ids: array<u32>;
@slot var<storage, read_write> result: array<f32>;
@slot var<storage, read> w$: array<u32>;

fn stored_rows$() -> u32 {
    return op.rows;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>) {
    let c = at.x * 4u;
    let t = row_of(at);
    if c >= op.cols || t >= rows() {
        return;
    }
    let id = ids[t];
    if id >= op.vocab && op.first == 0u {
        refuse(FAULT_TOKEN, id, op.vocab);
    }
    if id < op.first || id - op.first >= op.rows {
        return;
    }
    let row = id - op.first;
    let block = c / 32u;
    let j = (c % 32u) / 4u;
    let s = scales$(row, block);
    var value = quad$(row, block, j) * select(s.x, s.y, j >= 4u);
#if MINIMUM
    value = value - vec4(s.z);
#endif
    for (var i = 0u; i < 4u && c + i < op.cols; i++) {
        result[t * op.cols + c + i] = value[i];
    }
}
