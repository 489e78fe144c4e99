// The elements of a head that are rotated together, the i-th of `pairs` pairs.
fn pair_of(i: u32, pairs: u32) -> vec2<u32> {
#if INTERLEAVED
    return vec2(2u * i, 2u * i + 1u);
#else
    return vec2(i, i + pairs);
#endif
}
