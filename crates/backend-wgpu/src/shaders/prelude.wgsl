// What every kernel sees: the numbers of this run, the op's own numbers, and the place where faults are told.

struct Run {
    tokens: u32,
    selected: u32,
}

@group(0) @binding(0) var<uniform> run: Run;
@group(0) @binding(1) var<uniform> op: Op;
// [count, code, value, limit] of the first input that was out of range since the last look.
@group(0) @binding(2) var<storage, read_write> fault: array<atomic<u32>, 4>;

fn refuse(code: u32, value: u32, limit: u32) {
    if atomicAdd(&fault[0], 1u) == 0u {
        atomicStore(&fault[1], code);
        atomicStore(&fault[2], value);
        atomicStore(&fault[3], limit);
    }
}

// Rows of this run.
#if SELECTED
fn rows() -> u32 {
    return run.selected;
}
#else
fn rows() -> u32 {
    return run.tokens;
}
#endif

// A dimension of a dispatch has 65535 workgroups, and a step may have more rows: they are counted along the second
// dimension, ROWS_MAX at a time along the third. The last of these may reach beyond the rows there are.
fn row_of(group: vec3<u32>) -> u32 {
    return group.z * ROWS_MAX + group.y;
}
