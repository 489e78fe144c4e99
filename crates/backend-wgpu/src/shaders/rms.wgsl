// The one order in which the squares of a row are added, so that its kernels agree to the bit: thread i of 64 adds those
// of elements i, i + 64, ... in order, then the 64 sums are halved in a fixed tree.

var<workgroup> squares: array<f32, 64>;

// 1 / sqrt(mean + eps) of a row, from each thread's sum of squares.
fn norm_factor(lane: u32, sum: f32, width: u32, eps: f32) -> f32 {
    squares[lane] = sum;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if lane < half {
            squares[lane] = squares[lane] + squares[lane + half];
        }
        workgroupBarrier();
    }
    return 1.0 / sqrt(squares[0] / f32(width) + eps);
}
