// Cosine and sine of any f32 angle from 0 to 2^40, to about 1e-7.
//
// The built-in functions owe that accuracy only within one turn, and positions go to a hundred thousand radians. The
// angle is M * 2^E with a whole M of 24 bits; its turns are M * 2^E / 2pi, of which only the fraction matters: M times
// the bits of 1/2pi from the E-th on, in whole numbers, without rounding (Payne and Hanek 1983).

// 1/2pi in binary: 128 bits behind the point.
const TURNS = array<u32, 4>(0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u);

// The high word of a 32 by 32 bit product.
fn mul_high(a: u32, b: u32) -> u32 {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let mid = ah * bl + (low >> 16u);
    let cross = al * bh + (mid & 0xffffu);
    return ah * bh + (mid >> 16u) + (cross >> 16u);
}

// 32 bits of 1/2pi from bit `at` behind the point.
fn bits_from(at: u32) -> u32 {
    let word = at >> 5u;
    let shift = at & 31u;
    let first = TURNS[min(word, 3u)];
    if shift == 0u {
        return first;
    }
    return (first << shift) | (TURNS[min(word + 1u, 3u)] >> (32u - shift));
}

// The angle's fraction of a turn in 2^32ths.
fn fraction(angle: f32) -> u32 {
    let bits = bitcast<u32>(angle);
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    let exponent = i32((bits >> 23u) & 0xffu) - 150;
    if exponent >= 0 {
        let at = u32(exponent);
        return mantissa * bits_from(at) + mul_high(mantissa, bits_from(at + 32u));
    }
    let shift = u32(-exponent);
    if shift > 55u {
        return 0u;
    }
    // mantissa * 1/2pi as three words; the shift to the right keeps the 32 bits behind the point.
    let low = mantissa * TURNS[1];
    let carry = mul_high(mantissa, TURNS[1]);
    let middle = mantissa * TURNS[0] + carry;
    let high = mul_high(mantissa, TURNS[0]) + select(0u, 1u, middle < carry);
    if shift >= 32u {
        return high >> (shift - 32u);
    }
    return (middle >> shift) | (high << (32u - shift));
}

// (cos, sin) of an angle that is not negative.
fn turn(angle: f32) -> vec2<f32> {
    var r = angle;
    var quarter = 0u;
    if angle > 0.78 {
        let part = fraction(angle) + 0x20000000u;
        quarter = part >> 30u;
        // What is left, from -1/8 to 1/8 of a turn.
        r = f32(i32(part & 0x3fffffffu) - 0x20000000) * 1.46291808e-9;
    }
    let z = r * r;
    let s = fma(r * z, fma(z, fma(z, fma(z, 2.7557319e-6, -1.9841270e-4), 8.3333333e-3), -1.6666667e-1), r);
    let c = fma(z, fma(z, fma(z, fma(z, 2.4801587e-5, -1.3888889e-3), 4.1666667e-2), -0.5), 1.0);
    switch quarter & 3u {
        case 0u: { return vec2(c, s); }
        case 1u: { return vec2(-s, c); }
        case 2u: { return vec2(-c, -s); }
        default: { return vec2(s, -c); }
    }
}

// A pair of elements rotated by an angle: in one rounding each, so that every kernel gives the same bits.
fn rotated(pair: vec2<f32>, angle: f32) -> vec2<f32> {
    let cs = turn(angle);
    return vec2(fma(pair.x, cs.x, -(pair.y * cs.y)), fma(pair.x, cs.y, pair.y * cs.x));
}
