// out[r] = i: where the greatest x[r, i] is, the lowest i among equals; -1 - i of the first that is not finite.
//
// | operand | shape  | layout          | type                |
// |---------|--------|-----------------|---------------------|
// | x       | [R, V] | rows contiguous | f32, read as bits   |
// | out     | [R]    | contiguous      | f32, whole numbers  |
//
// One workgroup of 256 per row. Floats are compared as whole numbers in the same order: a driver may do as it likes with NaN and
// with numbers close to 0, and not with bits. Bound by the wait for memory, so each thread asks for four elements at a time.

struct Op {
    width: u32,
}

@slot var<storage, read> x: array<u32>;
@slot var<storage, read_write> result: array<f32>;

var<workgroup> ranks: array<u32, 256>;
var<workgroup> places: array<u32, 256>;

const NOT_FINITE: u32 = 0xffffffffu;

// A number in the order of the floats: above 0, the same for 0 and -0, and the greatest of all for what is not finite.
fn rank(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let signed = select(~bits, bits | 0x80000000u, bits == magnitude);
    let finite = select(signed, 0x80000000u, magnitude == 0u);
    return select(finite, NOT_FINITE, magnitude >= 0x7f800000u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(group);
    if row >= rows() {
        return;
    }
    let start = row * op.width;
    var best = 0u;
    var place = 0u;
    for (var first = lane; first < op.width; first += 1024u) {
        for (var i = 0u; i < 4u; i++) {
            // Past the end the last element is looked at again, which changes nothing.
            let at = min(first + 256u * i, op.width - 1u);
            let value = rank(x[start + at]);
            if value > best {
                best = value;
                place = at;
            }
        }
    }
    ranks[lane] = best;
    places[lane] = place;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half /= 2u) {
        if lane < half {
            let other = ranks[lane + half];
            let there = places[lane + half];
            if other > ranks[lane] || (other == ranks[lane] && there < places[lane]) {
                ranks[lane] = other;
                places[lane] = there;
            }
        }
        workgroupBarrier();
    }
    if lane == 0u {
        let greatest = f32(places[0]);
        result[row] = select(greatest, -1.0 - greatest, ranks[0] == NOT_FINITE);
    }
}
