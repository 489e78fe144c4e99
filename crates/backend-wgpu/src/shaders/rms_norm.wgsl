// out[r, c] = x[r, c] * weight[c] / sqrt(mean_c(x[r, c]^2) + eps)
//
// | operand | shape        | layout          | type |
// |---------|--------------|-----------------|------|
// | x, out  | [rows, G, W] | rows contiguous | f32  |
// | weight  | [W]          | contiguous      | f32  |
//
// One workgroup of 64 per normalised row. Thread i adds the squares of elements i, i + 64, ... in order, then the 64
// sums are halved in a fixed tree: the row's result depends on W alone. out may be x. Bound by memory.

struct Op {
    width: u32,
    groups: u32,
    eps: f32,
}

@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> result: array<f32>;
#if !IN_PLACE
@group(0) @binding(5) var<storage, read> x: array<f32>;
#endif

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let start = (group.y * op.groups + group.x) * op.width;
    var sum = 0.0;
    for (var c = lane; c < op.width; c += 64u) {
#if IN_PLACE
        let value = result[start + c];
#else
        let value = x[start + c];
#endif
        sum = fma(value, value, sum);
    }
    sums[lane] = sum;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if lane < half {
            sums[lane] = sums[lane] + sums[lane + half];
        }
        workgroupBarrier();
    }
    let factor = 1.0 / sqrt(sums[0] / f32(op.width) + op.eps);
    for (var c = lane; c < op.width; c += 64u) {
#if IN_PLACE
        let value = result[start + c];
#else
        let value = x[start + c];
#endif
        result[start + c] = value * factor * weight[c];
    }
}
