// out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]^2) + eps); where SUM, x[r, c] += y[r, c] first.
//
// | operand   | shape        | layout          | type |
// |-----------|--------------|-----------------|------|
// | x, y, out | [rows, G, W] | rows contiguous | f32  |
// | weight    | [W]          | contiguous      | f32  |
//
// One workgroup of 64 per normalised row; the row's result depends on W alone. out may be x, except where SUM. Bound by
// memory: the sum costs no pass of its own, each thread finds in x what it has written there.

struct Op {
    width: u32,
    groups: u32,
    eps: f32,
}

@slot var<storage, read> weight: array<f32>;
@slot var<storage, read_write> result: array<f32>;
#if SUM
@slot var<storage, read_write> x: array<f32>;
@slot var<storage, read> y: array<f32>;
#else
#if !IN_PLACE
@slot var<storage, read> x: array<f32>;
#endif
#endif

fn x_at(i: u32) -> f32 {
#if IN_PLACE
    return result[i];
#else
    return x[i];
#endif
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(group);
    if row >= rows() {
        return;
    }
    let start = (row * op.groups + group.x) * op.width;
    var sum = 0.0;
    for (var c = lane; c < op.width; c += 64u) {
#if SUM
        x[start + c] = x[start + c] + y[start + c];
#endif
        let value = x_at(start + c);
        sum = fma(value, value, sum);
    }
    let factor = norm_factor(lane, sum, op.width, op.eps);
    for (var c = lane; c < op.width; c += 64u) {
        result[start + c] = x_at(start + c) * factor * weight[c];
    }
}
