// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for few rows t: decode.
//
// | operand | shape  | layout          | type   |
// |---------|--------|-----------------|--------|
// | x       | [T, K] | rows contiguous | f32    |
// | w       | [N, K] | see its type    | stored |
// | bias    | [N]    | contiguous      | f32    |
// | out     | [T, N] | rows contiguous | f32    |
//
// Eight threads share a row of w, one slice each, so that they read neighbouring blocks; each keeps ROWS_EACH rows of w
// against TOKENS_EACH rows of x, and loads either once. Bound by reading w.

var<workgroup> parts: array<f32, 64u * ROWS_EACH * TOKENS_EACH>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let slice = index % 8u;
    let row = (group.x * 8u + index / 8u) * ROWS_EACH;
    let token = group.y * TOKENS_EACH;
    var sums: array<array<f32, TOKENS_EACH>, ROWS_EACH>;
    for (var block = slice; block < op.blocks; block += 8u) {
#if MINIMUM
        var plain: array<f32, TOKENS_EACH>;
#endif
        for (var part = 0u; part < PARTS; part++) {
            var products: array<array<f32, TOKENS_EACH>, ROWS_EACH>;
            for (var j = part * QUADS; j < (part + 1u) * QUADS; j++) {
                for (var t = 0u; t < TOKENS_EACH; t++) {
                    let four = x_quad(min(token + t, tokens() - 1u), block, j);
                    for (var r = 0u; r < ROWS_EACH; r++) {
                        products[r][t] = dot_on(products[r][t], quad(min(row + r, op.rows - 1u), block, j), four);
                    }
#if MINIMUM
                    plain[t] = plain[t] + ((four.x + four.y) + (four.z + four.w));
#endif
                }
            }
            for (var r = 0u; r < ROWS_EACH; r++) {
                let s = scales(min(row + r, op.rows - 1u), block);
                for (var t = 0u; t < TOKENS_EACH; t++) {
                    sums[r][t] = fma(select(s.x, s.y, part == 1u), products[r][t], sums[r][t]);
#if MINIMUM
                    sums[r][t] = fma(-s.z, plain[t], sums[r][t]);
#endif
                }
            }
        }
    }
#if SUBGROUPS
    for (var r = 0u; r < ROWS_EACH; r++) {
        for (var t = 0u; t < TOKENS_EACH; t++) {
            var sum = sums[r][t];
            sum = sum + subgroupShuffleXor(sum, 1u);
            sum = sum + subgroupShuffleXor(sum, 2u);
            sum = sum + subgroupShuffleXor(sum, 4u);
            if slice == 0u && row + r < op.rows && token + t < tokens() {
                result[(token + t) * op.out_width + op.first + row + r] = finish(row + r, sum);
            }
        }
    }
#else
    for (var r = 0u; r < ROWS_EACH; r++) {
        for (var t = 0u; t < TOKENS_EACH; t++) {
            parts[(r * TOKENS_EACH + t) * 64u + index] = sums[r][t];
        }
    }
    workgroupBarrier();
    for (var i = index; i < 8u * ROWS_EACH * TOKENS_EACH; i += 64u) {
        let at = i * 8u;
        let sum = ((parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]))
            + ((parts[at + 4u] + parts[at + 5u]) + (parts[at + 6u] + parts[at + 7u]));
        let r = i / 8u / TOKENS_EACH;
        let t = i / 8u % TOKENS_EACH;
        let n = (group.x * 8u + i % 8u) * ROWS_EACH + r;
        if n < op.rows && token + t < tokens() {
            result[(token + t) * op.out_width + op.first + n] = finish(n, sum);
        }
    }
#endif
}
