// Q8_0: eight u32 of signed bytes to a block; behind all of them a scale per block, two halves to a u32.
fn quad$(row: u32, block: u32, j: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(w$[(row * op.blocks + block) * 8u + j]));
}

fn scales$(row: u32, block: u32) -> vec3<f32> {
    let at = row * op.blocks + block;
    let pair = unpack2x16float(w$[stored_rows$() * op.blocks * 8u + at / 2u]);
    let scale = select(pair.x, pair.y, at % 2u == 1u);
    return vec3(scale, scale, 0.0);
}
