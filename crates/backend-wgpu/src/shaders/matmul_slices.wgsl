// What one thread adds up for few rows of x: one slice of ROWS_EACH rows of w against TOKENS_EACH rows of x, each loaded once.
fn slice_sums$(row: u32, token: u32, slice: u32) -> Sums {
    var sums: Sums;
    for (var block = slice; block < op.blocks; block += 8u) {
#if MINIMUM
        var plain: array<f32, TOKENS_EACH>;
#endif
        for (var part = 0u; part < PARTS$; part++) {
            var products: Sums;
            for (var j = part * QUADS$; j < (part + 1u) * QUADS$; j++) {
                for (var t = 0u; t < TOKENS_EACH; t++) {
                    let four = x_quad(min(token + t, rows() - 1u), block, j);
                    for (var r = 0u; r < ROWS_EACH; r++) {
                        let weights = quad$(min(row + r, stored_rows$() - 1u), block, j);
                        products.at[r][t] = dot_on(products.at[r][t], weights, four);
                    }
#if MINIMUM
                    plain[t] = plain[t] + ((four.x + four.y) + (four.z + four.w));
#endif
                }
            }
            for (var r = 0u; r < ROWS_EACH; r++) {
                let s = scales$(min(row + r, stored_rows$() - 1u), block);
                for (var t = 0u; t < TOKENS_EACH; t++) {
                    sums.at[r][t] = fma(select(s.x, s.y, part == 1u), products.at[r][t], sums.at[r][t]);
#if MINIMUM
                    sums.at[r][t] = fma(-s.z, plain[t], sums.at[r][t]);
#endif
                }
            }
        }
    }
    return sums;
}
