// BF16: two columns to a u32, rows padded with zeros to whole blocks.
fn quad$(row: u32, block: u32, j: u32) -> vec4<f32> {
    let at = (row * op.blocks + block) * 16u + 2u * j;
    let a = w$[at];
    let b = w$[at + 1u];
    return bitcast<vec4<f32>>(vec4(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn scales$(row: u32, block: u32) -> vec3<f32> {
    return vec3(1.0, 1.0, 0.0);
}
