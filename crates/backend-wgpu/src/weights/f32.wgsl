// F32: a u32 per column, rows padded with zeros to whole blocks.
fn quad$(row: u32, block: u32, j: u32) -> vec4<f32> {
    let at = (row * op.blocks + block) * 32u + 4u * j;
    return vec4(bitcast<f32>(w$[at]), bitcast<f32>(w$[at + 1u]), bitcast<f32>(w$[at + 2u]), bitcast<f32>(w$[at + 3u]));
}

fn scales$(row: u32, block: u32) -> vec3<f32> {
    return vec3(1.0, 1.0, 0.0);
}
