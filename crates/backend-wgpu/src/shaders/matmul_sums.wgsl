// Adding the eight slices of a product for few rows: through subgroup operations, or through workgroup memory. Both add
// in pairs, then fours, then all.

struct Sums {
    at: array<array<f32, TOKENS_EACH>, ROWS_EACH>,
}
#if SUBGROUPS

fn over_slices(slice: f32) -> f32 {
    var sum = slice;
    sum = sum + subgroupShuffleXor(sum, 1u);
    sum = sum + subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 4u);
}
#else

// Results of a workgroup.
const OUTPUTS: u32 = 8u * ROWS_EACH * TOKENS_EACH;

// SHARED products of a workgroup, slice by slice.
var<workgroup> parts: array<f32, SHARED * 8u * OUTPUTS>;

fn share(product: u32, index: u32, sums: Sums) {
    for (var r = 0u; r < ROWS_EACH; r++) {
        for (var t = 0u; t < TOKENS_EACH; t++) {
            parts[(product * ROWS_EACH * TOKENS_EACH + r * TOKENS_EACH + t) * 64u + index] = sums.at[r][t];
        }
    }
}

fn gathered(product: u32, output: u32) -> f32 {
    let at = (product * OUTPUTS + output) * 8u;
    return ((parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]))
        + ((parts[at + 4u] + parts[at + 5u]) + (parts[at + 6u] + parts[at + 7u]));
}

// Row of w in the workgroup and row of x of an output.
fn place(output: u32) -> vec2<u32> {
    return vec2(output % 8u * ROWS_EACH + output / 8u / TOKENS_EACH, output / 8u % TOKENS_EACH);
}
#endif
