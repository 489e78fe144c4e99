// One weight's part of a product for few rows: 8 * ROWS_EACH rows of w by one workgroup.
fn product$(group: u32, token: u32, index: u32) {
    let first = group * 8u * ROWS_EACH;
    let row = first + index / 8u * ROWS_EACH;
    let sums = slice_sums$(row, token, index % 8u);
#if SUBGROUPS
    for (var r = 0u; r < ROWS_EACH; r++) {
        for (var t = 0u; t < TOKENS_EACH; t++) {
            let sum = over_slices(sums.at[r][t]);
            if index % 8u == 0u && row + r < stored_rows$() && token + t < rows() {
                put$(token + t, row + r, finish$(row + r, sum));
            }
        }
    }
#else
    share(0u, index, sums);
    workgroupBarrier();
    for (var i = index; i < OUTPUTS; i += 64u) {
        let at = place(i);
        if first + at.x < stored_rows$() && token + at.y < rows() {
            put$(token + at.y, first + at.x, finish$(first + at.x, gathered(0u, i)));
        }
    }
#endif
}
