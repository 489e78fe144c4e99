// Quants of four bits and, where HIGH_WORDS$ says so, one or two more from planes of their own: four u32 of nibbles, then
// the planes, to a block. Behind all blocks the scales, as the type has them.
//
// Column c has its nibble in u32 c / 8 at bit 4 (c % 8), its fifth bit in the plane's only u32 at bit c, or its fifth and
// sixth in u32 c / 16 at bit 2 (c % 16).
const BLOCK_WORDS$: u32 = 4u + HIGH_WORDS$;

fn quad$(row: u32, block: u32, j: u32) -> vec4<f32> {
    let at = (row * op.blocks + block) * BLOCK_WORDS$;
    let word = w$[at + j / 2u] >> (16u * (j % 2u));
    var q = vec4(word, word >> 4u, word >> 8u, word >> 12u) & vec4(15u);
#if HIGH_1
    let high = w$[at + 4u] >> (4u * j);
    q |= (vec4(high, high >> 1u, high >> 2u, high >> 3u) & vec4(1u)) << vec4(4u);
#endif
#if HIGH_2
    let high = w$[at + 4u + j / 4u] >> (8u * (j % 4u));
    q |= (vec4(high, high >> 2u, high >> 4u, high >> 6u) & vec4(3u)) << vec4(4u);
#endif
    return vec4<f32>(vec4<i32>(q) - vec4(i32(OFFSET$)));
}

// u32 behind the quants of all blocks.
fn scale_word$(at: u32) -> u32 {
    return w$[stored_rows$() * op.blocks * BLOCK_WORDS$ + at];
}
#if SCALE_PER_BLOCK
// A half per block, two to a u32.
fn scales$(row: u32, block: u32) -> vec3<f32> {
    let at = row * op.blocks + block;
    let pair = unpack2x16float(scale_word$(at / 2u));
    let scale = select(pair.x, pair.y, at % 2u == 1u);
    return vec3(scale, scale, 0.0);
}
#endif
#if SCALE_AND_MINIMUM
// A scale and a minimum per block as two halves; the minimum is added.
fn scales$(row: u32, block: u32) -> vec3<f32> {
    let pair = unpack2x16float(scale_word$(row * op.blocks + block));
    return vec3(pair.x, pair.x, -pair.y);
}
#endif
#if SUPER_MINIMUM
// To eight blocks a scale and a minimum as halves, then a byte of each to every block: five u32.
fn scales$(row: u32, block: u32) -> vec3<f32> {
    let at = (row * (op.blocks / 8u) + block / 8u) * 5u;
    let pair = unpack2x16float(scale_word$(at));
    let inner = block % 8u;
    let shift = 8u * (inner % 4u);
    let scale = pair.x * f32((scale_word$(at + 1u + inner / 4u) >> shift) & 255u);
    let minimum = pair.y * f32((scale_word$(at + 3u + inner / 4u) >> shift) & 255u);
    return vec3(scale, scale, minimum);
}
#endif
#if SUPER_HALVES
// To eight blocks a scale as half, then a signed byte to every half block: five u32.
fn scales$(row: u32, block: u32) -> vec3<f32> {
    let at = (row * (op.blocks / 8u) + block / 8u) * 5u;
    let inner = block % 8u;
    let bytes = unpack4xI8(scale_word$(at + 1u + inner / 2u));
    let two = select(vec2(bytes.x, bytes.y), vec2(bytes.z, bytes.w), vec2(inner % 2u == 1u));
    return vec3(unpack2x16float(scale_word$(at)).x * vec2<f32>(two), 0.0);
}
#endif
