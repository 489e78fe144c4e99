// The order of sums that all matrix products share, so that a row's result is the same bits whichever computes it.
//
// K is cut into blocks of 32 columns. Slice s of 8 takes the blocks s, s + 8, ... in order; a block adds its scale
// times the sum of its products, or where the type has a scale per half (PARTS 2) first one half, then the other, and
// takes away its minimum times its sum of x. The eight slices are added in pairs, then fours, then all.
//
// A driver may turn s * a + s * b into s * (a + b): that is why a block of one scale is summed whole.
//
// A dispatch computes up to three products of the same x: what belongs to one of them has its number in its name.

struct Op {
    cols: u32,
    blocks: u32,
    // Of each weight: N of this piece, first row of the piece, N of the whole weight.
    factors: array<vec4<u32>, 3>,
}

#if RAGGED
// K is no multiple of 32: what lies behind a row is the next one's, and counts as zero.
@slot var<storage, read> x: array<f32>;

fn x_at(t: u32, c: u32) -> f32 {
    if c < op.cols {
        return x[t * op.cols + c];
    }
    return 0.0;
}

fn x_quad(t: u32, block: u32, j: u32) -> vec4<f32> {
    let c = block * 32u + 4u * j;
    return vec4(x_at(t, c), x_at(t, c + 1u), x_at(t, c + 2u), x_at(t, c + 3u));
}
#else
@slot var<storage, read> x: array<vec4<f32>>;

fn x_quad(t: u32, block: u32, j: u32) -> vec4<f32> {
    return x[t * (op.cols / 4u) + block * 8u + j];
}
#endif

// Four products on top of a sum, one after the other.
fn dot_on(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
