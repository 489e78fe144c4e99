// One weight of a product, its bias and its result.

@slot var<storage, read> w$: array<u32>;
#if BIAS
@slot var<storage, read> bias$: array<f32>;
#endif
@slot var<storage, read_write> result$: array<f32>;

// Quads of a part.
const QUADS$: u32 = 8u / PARTS$;

// Rows of w in its binding: what a decoder finds its scales with.
fn stored_rows$() -> u32 {
    return op.factors[$].x;
}

fn finish$(row: u32, sum: f32) -> f32 {
#if BIAS
    return sum + bias$[op.factors[$].y + row];
#else
    return sum;
#endif
}

fn put$(t: u32, row: u32, value: f32) {
    result$[t * op.factors[$].z + op.factors[$].y + row] = value;
}
