// up[t, n] = sum_k x[t, k] * w1[n, k], gate[t, n] = swiglu(sum_k x[t, k] * w0[n, k], up[t, n]), for few rows t: the first
// two products of a feed-forward network and what joins them, to the bits that matmul_vec.wgsl and swiglu.wgsl give.
//
// | operand  | shape  | layout          | type   |
// |----------|--------|-----------------|--------|
// | x        | [T, K] | rows contiguous | f32    |
// | w0, w1   | [N, K] | see their types | stored |
// | gate, up | [T, N] | rows contiguous | f32    |
//
// As matmul_vec.wgsl, each thread with the same rows of both weights. Bound by reading them.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let token = row_of(group) * TOKENS_EACH;
    if token >= rows() {
        return;
    }
    let first = group.x * 8u * ROWS_EACH;
    let row = first + index / 8u * ROWS_EACH;
    let gates = slice_sums0(row, token, index % 8u);
    let ups = slice_sums1(row, token, index % 8u);
#if SUBGROUPS
    for (var r = 0u; r < ROWS_EACH; r++) {
        for (var t = 0u; t < TOKENS_EACH; t++) {
            let gate = over_slices(gates.at[r][t]);
            let up = over_slices(ups.at[r][t]);
            if index % 8u == 0u && row + r < stored_rows0() && token + t < rows() {
                join(token + t, row + r, gate, up);
            }
        }
    }
#else
    share(0u, index, gates);
    share(1u, index, ups);
    workgroupBarrier();
    for (var i = index; i < OUTPUTS; i += 64u) {
        let at = place(i);
        if first + at.x < stored_rows0() && token + at.y < rows() {
            join(token + at.y, first + at.x, gathered(0u, i), gathered(1u, i));
        }
    }
#endif
}

fn join(t: u32, row: u32, gate_sum: f32, up_sum: f32) {
    let up = finish1(row, up_sum);
    put1(t, row, up);
    put0(t, row, gated(finish0(row, gate_sum), up));
}
