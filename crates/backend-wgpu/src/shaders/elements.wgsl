// For kernels of one thread per element of a row.

struct Op {
    width: u32,
}

// Whether thread `id` has an element.
fn has_element(id: vec3<u32>) -> bool {
    return id.x < op.width && row_of(id) < rows();
}
