// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for few rows t (decode) and one to three weights.
//
// | operand | shape  | layout          | type   |
// |---------|--------|-----------------|--------|
// | x       | [T, K] | rows contiguous | f32    |
// | w       | [N, K] | see its type    | stored |
// | bias    | [N]    | contiguous      | f32    |
// | out     | [T, N] | rows contiguous | f32    |
//
// Eight threads share a row of w, one slice each, so that they read neighbouring blocks; each keeps ROWS_EACH rows of w
// against TOKENS_EACH rows of x, and loads either once. The workgroups of several weights follow each other. Bound by reading w.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let token = row_of(group) * TOKENS_EACH;
    if token >= rows() {
        return;
    }
#if SECOND
    let second = (op.factors[0].x + 8u * ROWS_EACH - 1u) / (8u * ROWS_EACH);
    if group.x < second {
        product0(group.x, token, index);
        return;
    }
#if THIRD
    let third = second + (op.factors[1].x + 8u * ROWS_EACH - 1u) / (8u * ROWS_EACH);
    if group.x >= third {
        product2(group.x - third, token, index);
        return;
    }
#endif
    product1(group.x - second, token, index);
#else
    product0(group.x, token, index);
#endif
}
