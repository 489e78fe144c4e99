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
