// To IEEE halves, to nearest, ties to even, in whole numbers: the built-in conversion may round either way and may
// flush small numbers to zero. The way back is exact and needs no code of ours (unpack2x16float).

fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude >= 0x7f800000u {
        // Infinity, or not a number: keep one bit of it.
        return sign | 0x7c00u | select(0u, 0x200u, magnitude > 0x7f800000u);
    }
    if magnitude >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if magnitude >= 0x38800000u {
        let rebased = magnitude - 0x38000000u;
        return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
    }
    if magnitude < 0x33000000u {
        return sign;
    }
    // Below the smallest normal half: a whole number of 2^-24.
    let shift = 126u - (magnitude >> 23u);
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let up = rest > middle || (rest == middle && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}
