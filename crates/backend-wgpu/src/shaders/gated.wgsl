// The one formula of SwiGLU, so that its kernels agree to the bit.
fn gated(gate: f32, up: f32) -> f32 {
    return gate / (1.0 + exp(-gate)) * up;
}
